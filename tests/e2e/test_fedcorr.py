"""FedCorr on digits, two of six clients with wrong labels: they are found, and most labels come right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from client_app.app import app
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.engine.server_run import serve
from tests.helpers.grids import FIRST_NODE
from tests.helpers.noisy_digits import NOISY, digits, true_labels
from tests.helpers.runs import Stop, StopAfter
from tests.helpers.transport import TransportGrid

CLIENTS, PASSES, FINETUNING = 6, 2, 2
BEFORE_LAST = CLIENTS * PASSES + FINETUNING
SETTINGS: dict[str, Any] = {
    "method": "fedcorr",
    "fedcorr.last": "dqn-fed",
    "fedcorr.preprocessing": PASSES,
    "fedcorr.finetuning": FINETUNING,
    "data": "tests.helpers.noisy_digits:digits",
    "clients": CLIENTS,
    "rounds": BEFORE_LAST + 5,
    "local.epochs": 3,
    "local.batch-size": 10,
    "local.threads": 1,
    "evaluate-every": 0,
}
Found = tuple[RunResult, dict[int, Any]]


@pytest.fixture(scope="module")
def found() -> Found:
    settings = Settings.from_mapping(SETTINGS)
    grid = InProcessGrid(app, CLIENTS, settings.flat())
    result = serve(grid, settings)
    memory = grid.export_client_states()
    return result, {k: memory[f"{k + FIRST_NODE}/work/after/labels"] for k in range(CLIENTS)}


def test_noisy_clients_are_found(found: Found) -> None:
    events = found[0].events
    for end_of_pass in (events[CLIENTS - 1], events[2 * CLIENTS - 1]):
        noise = {k: end_of_pass.notes.get(f"noise_{k}", 0.0) for k in range(CLIENTS)}
        assert sorted(noise, key=lambda k: noise[k])[-2:] in ([1, 4], [4, 1])
        assert sum(value > 0 for value in noise.values()) == end_of_pass.notes["noisy_clients"] < CLIENTS
    first = events[CLIENTS - 1].notes
    assert all(abs(first[f"noise_{k}"] - 0.5) < 0.15 for k in NOISY)
    trained = {client for event in events[CLIENTS * PASSES : BEFORE_LAST] for client in event.participants}
    assert trained
    assert not trained & set(NOISY)


def test_most_flipped_labels_are_corrected(found: Found) -> None:
    result, labels = found
    for client in range(CLIENTS):
        right, given = true_labels(client, CLIENTS)[1], digits({}, client, CLIENTS)["y_train"]
        wrong_before, wrong_after = (given != right).mean(), (labels[client] != right).mean()
        assert wrong_before == (0.5 if client in NOISY else 0)
        assert wrong_after < 0.1
    changed = sum(int((labels[k] != digits({}, k, CLIENTS)["y_train"]).sum()) for k in range(CLIENTS))
    assert sum(event.notes["relabelled"] for event in result.events) >= changed > 200


def test_stages_follow_each_other_and_the_last_keeps_its_guarantee(found: Found) -> None:
    events = found[0].events
    stages = [event.notes["stage"] for event in events]
    assert stages == [1.0] * CLIENTS * PASSES + [2.0] * FINETUNING + [3.0] * 5
    for start in (0, CLIENTS):
        assert sorted(k for event in events[start : start + CLIENTS] for k in event.participants) == list(
            range(CLIENTS)
        )
    assert all(event.factor == 1.0 for event in events[:BEFORE_LAST])
    assert all(event.improved_ratio == 1.0 for event in events[BEFORE_LAST:])
    assert all(event.participants == list(range(CLIENTS)) for event in events[BEFORE_LAST:])
    assert min(found[0].accuracies.values()) > 0.85


def test_bytes_and_a_resume_in_every_stage_change_nothing(tmp_path: Any) -> None:
    short = {**SETTINGS, "model": "logistic", "fedcorr.preprocessing": 1, "rounds": 11, "local.epochs": 1}
    settings = Settings.from_mapping(short)
    straight = run(settings)
    carried = serve(TransportGrid(app, CLIENTS, settings.flat()), settings)
    assert np.array_equal(carried.theta, straight.theta)
    kept = {**short, "output": str(tmp_path)}
    for stop in (2, 7, 9):
        with pytest.raises(Stop):
            run(kept, resume=stop > 2, listeners=[StopAfter(stop)])
    result = run(kept, resume=True)
    assert np.array_equal(result.theta, straight.theta)
    assert [event.notes for event in result.events] == [event.notes for event in straight.events]


def test_clean_labels_and_sampling_run_to_the_end() -> None:
    result = run(
        {
            "method": "fedcorr",
            "fedcorr.preprocessing": 1,
            "fedcorr.finetuning": 1,
            "clients": 4,
            "participation": 0.5,
            "rounds": 8,
            "model": "logistic",
            "split.samples": 200,
            "local.threads": 1,
        }
    )
    assert [len(event.participants) for event in result.events[-3:]] == [2, 2, 2]
    assert sorted(event.participants for event in result.events[:4]) == [[0], [1], [2], [3]]
    assert all(np.isfinite(event.losses_after).all() for event in result.events[:4])
