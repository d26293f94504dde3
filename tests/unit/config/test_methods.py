from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dqnfed_flwr import methods
from dqnfed_flwr.config import methods as table
from dqnfed_flwr.config.methods import METHODS, profile_of
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.schema.plan import FREE_LENGTH, GRADIENTS


def test_methods_are_found_in_their_files_in_alphabetical_order() -> None:
    assert list(METHODS) == sorted(METHODS)
    assert {"dqn-fed", "fedavg", "fedsgd", "fedcorr", "semi-vred"} < METHODS.keys()
    assert all(profile.name == name for name, profile in METHODS.items())


@pytest.mark.parametrize("name", [*METHODS, "torchjd:UPGrad"])
def test_a_method_that_takes_one_gradient_by_default_says_why(name: str) -> None:
    profile = profile_of(name)
    first = profile.works[0]
    assert bool(profile.one_gradient) == (first in GRADIENTS)
    assert not profile.one_gradient.endswith(".")


def test_a_method_whose_step_has_no_length_of_its_own_takes_it_from_the_server() -> None:
    free = [name for name, profile in METHODS.items() if profile.rule == FREE_LENGTH]
    assert free == ["adafed", "fairgrad", "fedmgda+"]


def test_a_name_that_two_files_declare_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "second.py").write_text("from dqnfed_flwr.methods.fedavg import METHODS as METHODS\n")
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    with pytest.raises(TypeError, match=r"'fed(avg|sgd)'.*a name of its own"):
        table._declared()
    sys.modules.pop("dqnfed_flwr.methods.second")


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'fed-avg'; did you mean fedavg\? allowed: .*fedavg, .*torchjd:"):
        profile_of("fed-avg")
    assert profile_of("torchjd:UPGrad").title == "UPGrad (torchjd)"
