"""One call, whatever form the configuration comes in."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import dqnfed_flwr
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.run import as_settings, run
from dqnfed_flwr.errors import ConfigError
from tests.helpers.runs import TINY


def test_every_form_of_a_configuration_means_the_same(tmp_path: Path) -> None:
    expected = Settings.from_mapping(TINY)
    path = tmp_path / "tiny.yaml"
    path.write_text(json.dumps(TINY))  # JSON is YAML
    for form in (expected, TINY, path, str(path)):
        assert as_settings(form) == expected
    assert as_settings("digits").data == "digits"


def test_the_packages_own_run_is_this_one(tmp_path: Path) -> None:
    result = dqnfed_flwr.run({**TINY, "output": str(tmp_path)})
    again = dqnfed_flwr.run({**TINY, "output": str(tmp_path)}, resume=True)
    assert np.array_equal(again.theta, result.theta)
    assert result.settings.resume is False
    assert again.settings.resume is True


def test_a_faulty_configuration_is_told_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match=r"rounds: .*found 0"):
        run({"rounds": 0})
    with pytest.raises(ConfigError, match="no-such-experiment"):
        run("no-such-experiment")
