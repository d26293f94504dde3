"""A run's state is the same after a checkpoint as before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dqnfed_flwr.guarantee.overrule import Standing, Votes
from dqnfed_flwr.linalg.min_norm import Status
from dqnfed_flwr.record_codec import unpack
from dqnfed_flwr.steps import Ladder, StepScale
from dqnfed_flwr.strategy.checkpoint import CheckpointStore
from dqnfed_flwr.strategy.checkpointer import group
from dqnfed_flwr.strategy.state import BestModel, Move, PendingStep, RunState, Tried
from dqnfed_flwr.telemetry.events import DroppedClient
from dqnfed_flwr.types import Combination, SearchHints, under
from tests.helpers.records import packed


def pending(fallback: bool, relaxed: bool) -> PendingStep:
    clients = (2, 5, 11)

    hints = SearchHints(fair=True, lost=True, stretch=10 / 3)

    def by_client(start: float) -> dict[int, float]:
        return {client: start / (3 + client) for client in clients}  # no short decimals

    return PendingStep(
        round=8,
        step=torch.tensor([0.1, -1 / 3], dtype=torch.float64),
        ladder=Ladder(0.125, grow=True, halvings=6, rungs_above=2, rungs_below=9),
        scale=StepScale(norm=1 / 7, length=2.5, theta_norm=1e-30, round=8, hints=hints, contested=relaxed),
        asked=(2, 5, 7, 11),
        clients=clients,
        votes=Votes(
            heard=(2, 11),
            voteless=(5,),
            aside=(2,),
            overruled=(11,),
            caught=(5,),
            refused=(5, 11),
        ),
        losses=by_client(1.0),
        slopes=by_client(-2.0),
        rates=by_client(3.0),
        shares=by_client(4.0),
        weights=by_client(5.0),
        combination=Combination(
            weights=np.array([0.1, 0.0, 1 / 3, 1.0]),
            length=2.5,
            rank=3,
            condition=1e3 / 7,
            residual=1e-17,
            status=Status.CONVERGED,
            excluded={7: "bad-rate"},
            notes={"anchor_reset": 1.0},
            hints=hints,
        ),
        dropped=[DroppedClient(7, "bad-rate", "left out of the solve"), DroppedClient(9, "absent", "no reply")],
        pairs_kept=3,
        pairs_rejected=1,
        gram=np.array([[1 / 3, 0.1], [0.1, 2.0]]),
        binding=(2, 11),
        entitlement=1 / 11,
        tried=Tried(
            first=1 / 13,
            misses=2,
            blocked={5: 1},
            promised={5: (1 / 3, 2 / 7), 11: (0.25, 0.1)},
            relaxed=relaxed,
            mean_row=torch.tensor([1 / 9, 2 / 9], dtype=torch.float64) if fallback else None,
        ),
    )


def state(dtype: torch.dtype, *, waiting: PendingStep | None, best: bool) -> RunState:
    theta = torch.tensor([1 / 3, float(np.float32(2 / 7))], dtype=dtype)
    buffers = {"norm.mean": np.array([1 / 3], np.float32), "norm.count": np.array(12)}
    return RunState(
        theta=theta,
        candidate=theta + 1,
        buffers=buffers,
        settled={"norm.mean": np.array([1 / 7], np.float32), "norm.count": np.array(11)} if waiting else None,
        round=7,
        exchange=19,
        status="running",
        failures=2,
        unusable=((4,), (3, 8)),
        pending=waiting,
        last=None if waiting else Move(theta / 3, 1 / 7),
        best=BestModel(5, 2 / 3, theta - 1, {"norm.mean": np.zeros(1, np.float32), "norm.count": np.array(3)}, 1)
        if best
        else None,
        standing=Standing(
            claims={2},
            caught={5: 2},
            muted={5: 23},
            apart={5: 17, 7: 9},
            aside={7},
            refused={2, 5},
            said={2: (6, 1 / 3), 5: (6, 2.5)},
            entitlement=1 / 11,
        ),
        moves=6,
        unmoved=1,
        dropped=[DroppedClient(4, "not-finite", "one value is NaN")],
    )


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor | np.ndarray):
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_same(found[key], expected[key])
    elif is_dataclass(expected):
        for item in (each for each in fields(expected) if each.compare):
            assert_same(getattr(found, item.name), getattr(expected, item.name))
    else:
        assert found == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("best", [False, True])
@pytest.mark.parametrize(
    "waiting",
    [None, pending(False, False), pending(True, False), pending(False, True)],
    ids=["none", "plain", "may relax", "relaxed"],
)
def test_a_state_read_back_is_the_state_written(
    tmp_path: Path, dtype: torch.dtype, best: bool, waiting: PendingStep | None
) -> None:
    original = state(dtype, waiting=waiting, best=best)
    store = CheckpointStore(tmp_path / "checkpoint.npz")
    store.write(*packed(original))
    assert_same(unpack(RunState, *store.read()), original)


OPEN = {
    *("excluded", "notes", "buffers", "settled", "losses", "slopes", "rates", "shares", "weights"),
    *("blocked", "promised", "caught", "muted", "apart", "said"),
}
"""Dictionaries whose keys are clients or names."""


def entries(record: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The places of all keys of a record, but those that number clients or name what may not be there."""
    for key, value in record.items():
        if key in ("pending", "best") or OPEN.isdisjoint(path[-1:]):
            if key not in ("pending", "best"):
                yield (*path, key)
            if isinstance(value, dict):
                yield from entries(value, (*path, key))


@pytest.mark.parametrize(
    "place",
    list(entries(packed(state(torch.float32, waiting=pending(True, False), best=True))[0])),
    ids="/".join,
)
def test_a_record_that_lacks_a_key_is_no_state(place: tuple[str, ...]) -> None:
    record, arrays = packed(state(torch.float32, waiting=pending(True, False), best=True))
    part = record
    for key in place[:-1]:
        part = part[key]
    del part[place[-1]]
    with pytest.raises((LookupError, TypeError)):
        unpack(RunState, record, arrays)


def test_a_state_read_back_shares_no_memory(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoint.npz")
    store.write(*packed(state(torch.float32, waiting=None, best=False)))
    record, arrays = store.read()
    restored = unpack(RunState, record, arrays)
    restored.theta.add_(1)
    assert not np.array_equal(restored.theta, arrays["theta"])


def test_groups_are_told_apart_by_their_prefix() -> None:
    arrays = {**group("method", {"a": np.array(1)}), **group("methods", {"a": np.array(2)})}
    assert under("method/", arrays) == {"a": np.array(1)}
    assert under("buffer/", arrays) == {}
