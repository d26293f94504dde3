"""A run that is killed, again and again, ends with the bits of the run that never was."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dqnfed_flwr.config import resolve
from dqnfed_flwr.engine.result import RunResult, read_result
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.errors import CheckpointError, ConfigError
from dqnfed_flwr.run_files import CHECKPOINT, EVENTS, MODEL, RUN
from dqnfed_flwr.strategy.checkpoint import CheckpointStore
from tests.helpers.runs import TINY, Stop, StopAfter, changed

ROOT = Path(__file__).parents[2]
RUNS: dict[str, dict[str, Any]] = {
    "secant pairs and an L-BFGS anchor": {
        "rounds": 20,
        "curvature.kind": "secant",
        "curvature.memory": 2,
        "dqn-fed.anchor": "server-lbfgs",
        "evaluate-every": 7,
    },
    "samples and a momentum anchor": {
        "model": "mlp",
        "rounds": 20,
        "clients": 6,
        "participation": 0.5,
        "curvature.kind": "secant",
        "curvature.previous": "recomputed",
        "dqn-fed.anchor": "momentum",
        "checkpoint-every": 3,
    },
    "FedAvgM as the anchor of samples, a share of them asked": {
        "rounds": 20,
        "clients": 6,
        "participation": 0.7,
        "dqn-fed.anchor": "fedavgm",
        "dqn-fed.anchor-share": 0.5,
    },
    "held-out parts that refuse": {
        "rounds": 20,
        "split.samples": 400,
        "split.validation-fraction": 0.4,
        "step.judge": "held-out",
        "guarantee.held-out-level": 0.9,
        "step.on-stationary": "stay",
    },
    "local SGD with buffers and early stopping": {
        "method": "fedavg",
        "model": "tests.helpers.models:norm_mlp",
        "rounds": 20,
        "local.batch-size": 16,
        "split.validation-fraction": 0.3,
        "early-stopping": 15,
    },
}

RUNS |= {
    "short messages": {"rounds": 20, "messages.row": 6, "messages.step": 2},
    "models that those who were not drawn confirm": {
        "rounds": 20,
        "clients": 6,
        "participation": 0.5,
        "curvature.kind": "secant",
        "guarantee.confirm": 2,
        "step.start": 16.0,
    },
    "short messages with misses": {"rounds": 20, "messages.row": 4, "messages.step": 8, "step.start": 64.0},
}

LONGER: dict[str, dict[str, Any]] = {
    "L-BFGS anchor": {"dqn-fed.anchor": "server-lbfgs"},
    "held-out parts": {"step.judge": "both", "split.validation-fraction": 0.4, "guarantee.held-out-level": 0.9},
    "momentum anchor and samples": {"clients": 6, "participation": 0.5, "dqn-fed.anchor": "momentum"},
    "secant pairs, recomputed": {"curvature.kind": "secant", "curvature.previous": "recomputed"},
    "secant pairs, cached": {"curvature.kind": "secant", "curvature.memory": 2, "step-rule": "clipped"},
    "Hessian pairs": {"curvature.kind": "hvp", "curvature.memory": 2, "step-rule": "clipped"},
    "FedNew": {"method": "fednew"},
    "FedNew, samples": {"method": "fednew", "clients": 6, "participation": 0.5},
    "Q-FedNew": {"method": "fednew", "fednew.bits": 3, "fednew.form": "cg"},
    "FedNL": {"method": "fednl"},
    "FedNL-PP": {"method": "fednl", "clients": 6, "participation": 0.5},
    "FedNew as the anchor": {"dqn-fed.anchor": "fednew", "step-rule": "clipped"},
    "FedNL as the anchor": {"dqn-fed.anchor": "fednl", "step-rule": "clipped"},
    "FedAdam as the anchor": {"dqn-fed.anchor": "fedadam"},
    "Ditto": {"method": "ditto"},
    "Ditto with buffers": {"method": "ditto", "model": "tests.helpers.models:norm_mlp", "local.batch-size": 16},
    "FedMuon": {"method": "fedmuon", "model": "mlp"},
    "FedMuon, samples": {"method": "fedmuon", "clients": 4, "participation": 0.5, "local.batch-size": 16},
    "Local only": {"method": "local", "split.validation-fraction": 0.2, "early-stopping": 3},
    "FedMDFG": {"method": "fedmdfg"},
    "FedAvgM with buffers": {"method": "fedavgm", "model": "tests.helpers.models:norm_mlp"},
}
"""Clipped steps where a client remembers exchanges: see `docs/architecture.md` on a last round with a miss."""


def figures(result: RunResult) -> list[str]:
    """Events without what the clock has to say."""
    hidden = {"bytes_down": 0} if resolve(result.settings).step_bits < 32 else {}  # a resumed server sends the model
    return [changed(event, seconds={}, **hidden).to_json() for event in result.events]


def assert_same(found: Path, expected: Path) -> None:
    assert (found / MODEL).read_bytes() == (expected / MODEL).read_bytes()
    one, other = read_result(found), read_result(expected)
    assert figures(one) == figures(other)
    assert (one.status, one.accuracies) == (other.status, other.accuracies)


def killed(directory: Path, mapping: dict[str, Any], *, seed: int, kills: int, path: str) -> list[int]:
    command = ["python", "-m", "tests.helpers.kill_and_resume", str(directory)]
    command += [str(seed), str(kills), json.dumps(mapping)]
    own = {**os.environ, "PATH": path}
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rounds: list[int] = json.loads(done.stdout.splitlines()[-1])
    return rounds


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 4), *(pytest.param(seed, 20, marks=pytest.mark.slow) for seed in range(2, 5))]
)
def test_killing_and_resuming_gives_the_bits_of_the_run_never_killed(
    tmp_path: Path, name: str, seed: int, kills: int, warm: str
) -> None:
    hit = killed(tmp_path, {**TINY, **RUNS[name]}, seed=seed, kills=kills, path=warm)
    assert hit  # lives were cut short; how many, and in which rounds, is up to the machine
    assert_same(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.parametrize("more", [{}, {"messages.row": 16, "messages.step": 8}], ids=["whole", "short"])
def test_killing_a_masked_run_gives_the_same_model_as_well(tmp_path: Path, warm: str, more: dict[str, Any]) -> None:
    """What rounds cost differs: a sum is asked for before its round's checkpoint is written."""
    mapping = {**TINY, "privacy.mode": "masked", "privacy.min-samples": 60, "clients": 4, "rounds": 20, **more}
    assert killed(tmp_path, mapping, seed=1, kills=4, path=warm)
    found, expected = (read_result(tmp_path / name) for name in ("killed", "whole"))
    assert (tmp_path / "killed" / MODEL).read_bytes() == (tmp_path / "whole" / MODEL).read_bytes()
    assert [event.losses_after for event in found.events] == [event.losses_after for event in expected.events]
    assert [event.weights for event in found.events] == [event.weights for event in expected.events]


@pytest.mark.parametrize("name", RUNS)
def test_stopping_after_a_round_and_resuming_gives_the_same_bits(tmp_path: Path, name: str) -> None:
    settings = {**TINY, **RUNS[name], "rounds": 9}
    run({**settings, "output": str(tmp_path / "whole")})
    stopped = {**settings, "output": str(tmp_path / "stopped")}
    with pytest.raises(Stop):
        run(stopped, listeners=[StopAfter(4)])
    with pytest.raises(Stop):
        run(stopped, resume=True, listeners=[StopAfter(8)])
    run(stopped, resume=True)
    assert_same(tmp_path / "stopped", tmp_path / "whole")


@pytest.mark.parametrize("name", LONGER)
def test_a_finished_run_can_be_given_more_rounds(tmp_path: Path, name: str) -> None:
    settings: dict[str, Any] = {**TINY, **LONGER[name]}
    whole = run({**settings, "rounds": 5})
    longer = {**settings, "output": str(tmp_path / "longer")}
    run({**longer, "rounds": 3})
    result = run({**longer, "rounds": 5}, resume=True)
    assert [event.round for event in result.events] == [1, 2, 3, 4, 5]
    assert np.array_equal(result.theta, whole.theta)
    assert (result.accuracies, result.validation) == (whole.accuracies, whole.validation)
    assert [e.losses_after for e in result.events] == [e.losses_after for e in whole.events]
    assert result.events[-1].evaluated.test_loss == whole.events[-1].evaluated.test_loss


@pytest.mark.parametrize(
    "lost", ["method/seen", "theta", "settings", "fingerprint", "commits", "rule", "standing", "last"]
)
def test_a_checkpoint_that_lacks_something_is_refused_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    settings = {**TINY, "method": "afl", "output": str(tmp_path)}
    write = CheckpointStore.write

    def less(store: CheckpointStore, record: dict[str, Any], arrays: dict[str, Any]) -> None:
        record, arrays = ({key: x for key, x in part.items() if key != lost} for part in (record, arrays))
        write(store, record, arrays)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStore, "write", less)
        run(settings)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    name = lost.split("/")[-1]
    with pytest.raises(CheckpointError, match=rf"checkpoint.npz: damaged \(KeyError: '{name}'\); start anew"):
        run({**settings, "rounds": 4}, resume=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("model", ["logistic", "tests.helpers.models:norm_mlp"])
def test_a_run_that_was_cut_short_ends_at_the_round_that_it_had_done(model: str, tmp_path: Path) -> None:
    settings = {**TINY, "method": "fedavgm", "model": model, "output": str(tmp_path / "cut")}
    with pytest.raises(Stop):
        run({**settings, "rounds": 6}, listeners=[StopAfter(4)])  # the checkpoint: round 3, and a step to try
    whole = run({**TINY, "method": "fedavgm", "model": model, "rounds": 3})
    with pytest.raises(ConfigError, match=r"rounds: found 2, and .* has 3 rounds already"):
        run({**settings, "rounds": 2}, resume=True)
    result = run({**settings, "rounds": 3}, resume=True)
    assert [event.round for event in result.events] == [1, 2, 3]
    assert (result.status, result.accuracies) == ("finished", whole.accuracies)
    assert np.array_equal(result.theta, whole.theta)
    assert {name: values.tolist() for name, values in result.buffers.items()} == {
        name: values.tolist() for name, values in whole.buffers.items()
    }


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    settings = {**TINY, "output": str(tmp_path)}
    first = run(settings)
    again = run(settings, resume=True)
    assert np.array_equal(again.theta, first.theta)
    assert figures(again) == figures(first)
    assert again.accuracies == first.accuracies


def test_other_settings_are_refused_key_by_key(tmp_path: Path) -> None:
    run({**TINY, "output": str(tmp_path)})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(CheckpointError, match=r"local\.lr: 0\.1 then, 0\.2 now; seed: 0 then, 1 now"):
        run({**TINY, "output": str(tmp_path), "seed": 1, "local.lr": 0.2}, resume=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_damaged_checkpoint_is_refused_and_nothing_else_touched(tmp_path: Path) -> None:
    run({**TINY, "output": str(tmp_path)})
    data = (tmp_path / CHECKPOINT).read_bytes()
    (tmp_path / CHECKPOINT).write_bytes(data[: len(data) // 2])
    before = {name: (tmp_path / name).read_bytes() for name in (CHECKPOINT, EVENTS, MODEL, RUN)}
    with pytest.raises(CheckpointError, match="damaged"):
        run({**TINY, "output": str(tmp_path)}, resume=True)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_a_lost_event_log_does_not_stand_in_the_way(tmp_path: Path) -> None:
    run({**TINY, "output": str(tmp_path), "rounds": 2})
    (tmp_path / EVENTS).unlink()
    result = run({**TINY, "output": str(tmp_path), "rounds": 4}, resume=True)
    assert [event.round for event in result.events] == [3, 4]


def test_a_log_that_lost_its_end_does_not_speak_for_the_model(tmp_path: Path) -> None:
    settings = {**TINY, "output": str(tmp_path), "rounds": 4}
    whole = run(settings)
    log = tmp_path / EVENTS
    log.write_text(log.read_text().splitlines()[0] + "\n")
    result = run(settings, resume=True)
    assert [event.round for event in result.events] == [1]
    assert result.accuracies == whole.accuracies
