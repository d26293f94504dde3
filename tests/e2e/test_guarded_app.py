"""An app of a user's and the diff that guards it, as docs/guarded.md shows them: in process and by `flwr run`."""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict

from dqnfed_flwr.engine.flower import superlink
from dqnfed_flwr.engine.flwr_command import CONNECTION, run_status
from dqnfed_flwr.engine.in_process import InProcessGrid
from tests.helpers.documented_app import PACKAGE, ROUNDS, changed_lines, guarded_rounds, write_documented_app
from tests.helpers.guarded_app import CountingGrid

CLIENTS = 5
MODULES = (PACKAGE, f"{PACKAGE}.task", f"{PACKAGE}.client_app", f"{PACKAGE}.server_app")


def run_here(app: Path, monkeypatch: pytest.MonkeyPatch) -> InProcessGrid:
    """Run the app on an in-process grid."""
    monkeypatch.syspath_prepend(str(app))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    client, server = (importlib.import_module(name) for name in MODULES[2:])
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name)
    assert Path(str(server.__file__)).parent.parent == app
    grid = CountingGrid(client.app, CLIENTS)
    config: dict[str, bool | float | int | str] = {"rounds": ROUNDS, "output": str(app.parent / "results")}
    torch.manual_seed(0)
    server.app(grid, Context(1, 1, {}, RecordDict(), config))
    return grid


def test_at_most_twenty_lines_guard_the_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(changed_lines()) <= 20
    grid = run_here(write_documented_app(tmp_path / "app"), monkeypatch)
    assert isinstance(grid, CountingGrid)
    events = guarded_rounds(tmp_path / "app")
    assert [len(event.participants) for event in events] == [CLIENTS] * ROUNDS
    assert len(grid.exchanges) == ROUNDS + 1 + sum(event.cost.misses for event in events)


def test_the_app_runs_without_the_diff_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_here(write_documented_app(tmp_path / "app", guarded=False), monkeypatch)
    assert [file.name for file in (tmp_path / "results").iterdir()] == ["model.pt"]


@pytest.mark.slow
def test_flwr_run_runs_the_guarded_app_in_simulation(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Flower's simulation engine needs the extra `simulation`")
    app = write_documented_app(tmp_path / "app")
    (tmp_path / "home").mkdir()
    with superlink(tmp_path / "home") as flwr:
        nodes = f"num-supernodes={CLIENTS} client-resources-num-cpus=1"
        answer = flwr.json("run", str(app), CONNECTION, "--federation-config", nodes)
        assert "run-id" in answer, answer
        number, end = str(answer["run-id"]), time.monotonic() + 300
        while not (status := run_status(flwr, number)).startswith("finished"):
            assert time.monotonic() < end, f"still {status}"
            time.sleep(1)
        assert status == "finished:completed", flwr("log", number, CONNECTION, "--show")[-4000:]
    assert [len(event.participants) for event in guarded_rounds(app)] == [CLIENTS] * ROUNDS
