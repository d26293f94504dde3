"""Settings by name: the paper's algorithm, and the same with a safeguard."""

from __future__ import annotations

import pytest

from dqnfed_flwr.cli.overrides import read_settings
from dqnfed_flwr.compare.row_specs import parse_methods
from dqnfed_flwr.config import PRESETS, Settings, resolve, without_effect
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.methods.dqn_fed.settings import DqnFedSettings
from dqnfed_flwr.reproduce.schema import ManifestRow


@pytest.mark.parametrize("name", PRESETS)
def test_every_key_of_a_preset_is_read(name: str) -> None:
    preset = PRESETS[name]
    settings = Settings.from_mapping(preset.settings)
    assert without_effect(settings, preset.settings) == []
    assert settings.flat().items() >= preset.settings.items()


def test_paper_is_algorithm_1() -> None:
    settings = read_settings("digits", ["local.epochs=3"], None, preset="paper")
    form = settings.group_of(DqnFedSettings).form
    assert (form, resolve(settings).work.name, resolve(settings).rule.name) == ("two-sided", "lbfgs", "fixed")
    assert settings.local.epochs == 3
    assert settings.data == "digits"


def test_set_goes_before_the_preset_and_the_preset_before_the_file() -> None:
    assert read_settings("digits-fedavg", [], None, preset="paper").method == "dqn-fed"
    assert read_settings("digits", ["step.lr=0.5"], None, preset="paper").flat()["step.lr"] == 0.5


def test_a_preset_is_a_row_of_a_comparison() -> None:
    paper, other, plain = parse_methods("paper,paper-safeguarded@curvature.memory=2,dqn-fed")
    assert (paper.method, paper.title) == ("dqn-fed", "DQN-Fed, Algorithm 1")
    assert paper.own == {key: value for key, value in PRESETS["paper"].settings.items() if key != "method"}
    assert other.own["curvature.memory"] == 2
    assert not plain.own


def test_a_preset_is_a_row_of_a_manifest() -> None:
    row = ManifestRow(method="dqn-fed", preset="paper", settings={"step": {"lr": 0.3}})
    assert row.own == {**PRESETS["paper"].own, "step.lr": 0.3}
    assert row.shown == "DQN-Fed, Algorithm 1"
    with pytest.raises(ValueError, match="preset: found 'papers'; allowed: paper, paper-safeguarded"):
        ManifestRow(method="dqn-fed", preset="papers")


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(ConfigError, match="preset: found 'fast'; allowed: paper, paper-safeguarded"):
        read_settings("digits", [], None, preset="fast")
