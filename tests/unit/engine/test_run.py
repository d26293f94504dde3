"""One call, whatever form the configuration comes in."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import dqnfed_flwr
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.run import as_settings, choose_jobs, run
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


@pytest.mark.parametrize("method", ["dqn-fed", "fedavg"])
def test_clients_at_a_time_make_no_difference(method: str) -> None:
    settings = {**TINY, "method": method, "local.threads": 1}
    alone, together = (run(settings, jobs=jobs) for jobs in (1, 3))
    assert np.array_equal(alone.theta, together.theta)
    assert alone.accuracies == together.accuracies


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 4),
        ({"local.threads": 2}, 2),
        ({"local.threads": 8}, 1),
        ({"clients": 3}, 3),
        ({"local.threads": 0}, 1),  # a client takes all cores
        ({"quorum": 0.5}, 1),
        ({"device": "cuda"}, 1),
    ],
)
def test_cores_are_shared_out(changes: dict[str, int | float | str], expected: int) -> None:
    settings = Settings.from_mapping({"clients": 10, "local.threads": 1, "device": "cpu", **changes})
    assert choose_jobs(settings, cores=4) == expected
