"""What is said where the clients of one machine have their data from one file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dqnfed_flwr.engine import run as run_module
from dqnfed_flwr.engine.run import run
from tests.helpers.runs import TINY


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(run_module.logger, "warning", lambda text, *values: said.append(text % values))
    return said


@pytest.fixture
def own_file(tmp_path: Path) -> str:
    path, random = tmp_path / "own.npz", np.random.default_rng(0)
    np.savez(path, x_train=random.random((40, 4)), y_train=np.arange(40) % 2)
    return str(path)


def test_copies_of_one_client_are_named(warnings: list[str], own_file: str) -> None:
    run({**TINY, "split.samples": 0, "rounds": 1, "data": own_file, "partition": "file"})
    assert len(warnings) == 1
    assert f"partition: file gives each of the 3 clients the whole of {own_file}" in warnings[0]


@pytest.mark.parametrize("keys", [{"partition": "file", "clients": 1}, {"partition": "iid"}])
def test_one_client_or_a_set_dealt_out_is_nothing_to_warn_of(
    warnings: list[str], own_file: str, keys: dict[str, str | int]
) -> None:
    run({**TINY, "split.samples": 0, "rounds": 1, "data": own_file, **keys})
    assert warnings == []
