"""What a run gives to its checkpoint stays as it was given: a later checkpoint takes it for written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dqnfed_flwr.engine.run import run
from dqnfed_flwr.strategy.checkpoint import CheckpointStore
from tests.contract.test_methods import CASES
from tests.helpers.runs import TINY

CLIENTS: Mapping[str, Mapping[str, Any]] = {
    "fedcorr": {"rounds": 16, "fedcorr.preprocessing": 2, "fedcorr.finetuning": 4},
    "fednl, last layer": {"method": "fednl", "fednl.form": "last-layer"},
    "fednl, diagonal": {"method": "fednl", "fednl.form": "diagonal"},
    "ditto with buffers": {"method": "ditto", "model": "tests.helpers.models:norm_mlp"},
    "secant": {"curvature.kind": "secant", "curvature.memory": 2},
    "hessian": {"curvature.kind": "hvp", "curvature.memory": 2},
    "together": {"curvature.kind": "secant", "participation": 1.0, "local.together": 2, "local.batch-size": 0},
    "relaxing": {"step.on-stationary": "relax"},
    "buffers": {"model": "tests.helpers.models:norm_mlp", "split.validation-fraction": 0.3, "early-stopping": 9},
}
RUNS = {name: {**CASES.get(name, {}), **CLIENTS.get(name, {})} for name in {**CASES, **CLIENTS}}


@pytest.mark.parametrize("case", RUNS)
def test_nothing_that_was_given_out_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    given: list[tuple[str, NDArray[Any], bytes]] = []

    def write(_: CheckpointStore, record: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        changed = [name for name, values, before in given if values.tobytes() != before]
        assert not changed, f"{case}, round {record['round']}: {changed}"
        given.extend((name, values, values.tobytes()) for name, values in arrays.items())

    monkeypatch.setattr(CheckpointStore, "write", write)
    settings = {**TINY, "clients": 4, "participation": 0.5, "rounds": 5, "local.batch-size": 16, **RUNS[case]}
    run({**settings, "output": str(tmp_path)})
    assert {name for name, _, _ in given} > {"theta", "candidate"}
    assert sum(values.size for _, values, _ in given if values.dtype == np.float32)
