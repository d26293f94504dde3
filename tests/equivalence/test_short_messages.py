"""Runs whose messages bring the step alone: all compute at one model, to the bit, and every byte is accounted for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict

from client_app.app import app
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.errors import ConfigError, DQNFedError
from dqnfed_flwr.guarantee.harm import not_above
from dqnfed_flwr.strategy.step_search import UNMOVED_ROUNDS
from dqnfed_flwr.types import ClientTask, FloatArray, on_host
from dqnfed_flwr.wire.codecs import KINDS, MODEL, VECTORS, Array
from tests.helpers.grids import ShuffledGrid
from tests.helpers.runs import TINY, WHOLE, Stop, StopAfter, changed
from tests.helpers.short_runs import Watched, honest, reasons, watched

INT8: dict[str, Any] = {"messages.row": 8, "messages.step": 8}
INT4: dict[str, Any] = {"messages.row": 4, "messages.step": 4}
FEWEST: dict[str, Any] = {"messages.row": 6, "messages.step": 2}
LOW_RANK: dict[str, Any] = {"messages.row": 6, "messages.step": "low-rank"}
LARGE_STEPS: dict[str, Any] = {"step.start": 64.0, "rounds": 8}
"""The first candidates are turned down."""
RUNS: dict[str, dict[str, Any]] = {
    "int8": INT8,
    "int4": INT4,
    "fewest bits": FEWEST,
    "fewest bits, misses": {**FEWEST, **LARGE_STEPS},
    "fewest bits, samples": {**FEWEST, "clients": 6, "participation": 0.5, "evaluate-every": 3, "rounds": 8},
    "low rank": LOW_RANK,
    "low rank, complex": {**LOW_RANK, "model": "tests.helpers.odd_models:spectral"},
    "low rank, misses": {**LOW_RANK, **LARGE_STEPS},
    "bfloat16": {"messages.row": 16, "messages.step": 16},
    "steps alone": {"messages.step": 8},
    "float64": {**INT8, "dtype": "float64"},
    "misses": {**INT8, **LARGE_STEPS},
    "misses, no ladder": {**INT8, **LARGE_STEPS, "step.ladder": "after-miss", "step.halvings": 1, "seed": 1},
    "probe first": {**INT8, **LARGE_STEPS, "step.probe-first": True},
    "window": {**INT4, "guarantee.window": 3},
    "rows in a file": {**INT8, "rows.memory": 0},
    "diagnosed": {**INT8, "step.diagnose-every": 2},
    "samples": {**INT8, "clients": 6, "participation": 0.5, "evaluate-every": 3, "rounds": 8},
    "buffers": {**INT8, "model": "tests.helpers.models:norm_mlp", "method": "fedavg", "local.batch-size": 16},
    "relaxed": {**INT4, "step.on-stationary": "relax", "guarantee.entitlement": "0", "rounds": 8},
    "second row": {**INT8, "dqn-fed.anchor": "fedavg"},
    "vectors sent": {**INT8, "method": "fedcmoo"},
    "held-out": {**INT8, "step.judge": "both", "split.validation-fraction": 0.4, "early-stopping": 3},
    "stages": {**INT8, "method": "fedcorr", "fedcorr.preprocessing": 1, "fedcorr.finetuning": 1, "rounds": 9},
    "search": {**INT8, "method": "fedmdfg"},
    "hessian": {**INT8, "method": "fednl"},
    "own model": {**INT8, "method": "ditto"},
    "liars": {**INT8, "clients": 5, "guarantee.tolerate": 1, "attack.kind": "enlarged", "attack.share": 0.2},
}


@pytest.mark.parametrize("name", RUNS)
def test_every_client_computes_at_the_servers_model_to_the_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = watched(monkeypatch, {"rounds": 5, **RUNS[name]})
    assert len(found.computed) >= 5
    assert all(all(same) for same in found.computed.values())
    assert "lost-model" not in reasons(found.result)
    first, *later = (sizes for exchange in found.sent.values() for sizes in exchange.values())
    assert "theta" in first
    assert sum("theta" not in sizes for sizes in later) > len(later) / 2
    if "misses" in name:
        assert max(map(len, found.paths)) > 1  # a candidate that was reached from another


def test_who_is_shown_another_model_goes_on_from_the_one_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the clients are drawn; the others confirm models, and the run goes back to confirmed ones."""
    confirmed = {"clients": 6, "participation": 0.5, "guarantee.confirm": 2, "rounds": 20, "guarantee.entitlement": "0"}
    found = watched(monkeypatch, {**INT8, **confirmed})
    assert found.shown
    assert all(found.shown)
    assert all(all(same) for same in found.computed.values())
    assert "lost-model" not in reasons(found.result)
    assert "withdrawn" in {event.status for event in found.result.events}
    assert found.result.confirmed is not None
    assert found.result.confirmed.round > 0


@pytest.mark.parametrize("name", ["int8", "fewest bits", "low rank", "misses", "samples", "second row", "liars"])
def test_bits_depend_on_neither_threads_nor_the_order_of_replies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"rounds": 4, **RUNS[name]}
    straight = run({**TINY, **settings})
    threads = run({**TINY, **settings}, jobs=3)
    mixed = watched(
        monkeypatch, settings, grid=lambda app, chosen: ShuffledGrid(app, chosen.clients, 3, chosen.flat())
    ).result
    assert straight.theta.tobytes() == threads.theta.tobytes() == mixed.theta.tobytes()
    assert masked(straight) == masked(threads) == masked(mixed)


def masked(result: Any, *, down: bool = True) -> list[str]:
    """Events without what the clock has to say, nor, where not asked for, bytes down."""
    hidden = {"seconds": {}} if down else {"seconds": {}, "bytes_down": 0}
    return [changed(event, **hidden).to_json() for event in result.events]


@pytest.mark.parametrize(
    "name", ["int8", "fewest bits", "low rank", "misses", "probe first", "samples", "second row", "buffers"]
)
def test_a_resumed_run_has_the_bits_of_one_that_was_never_stopped(name: str, tmp_path: Path) -> None:
    """Nobody knows then what clients have: they are sent the model once more."""
    settings = {**TINY, **RUNS[name], "rounds": 7}
    whole = run({**settings, "output": str(tmp_path / "whole")})
    stopped = {**settings, "output": str(tmp_path / "stopped")}
    for after in (3, 5):
        with pytest.raises(Stop):
            run(stopped, resume=after == 5, listeners=[StopAfter(after)])
    resumed = run(stopped, resume=True)
    assert resumed.theta.tobytes() == whole.theta.tobytes()
    assert masked(resumed, down=False) == masked(whole, down=False)
    assert resumed.bytes_down > whole.bytes_down


def test_bytes_are_those_of_the_parts_counted_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logistic regression has D = 650: three blocks of 256 codes, each with two bytes of scale."""
    clients = 3
    found = watched(monkeypatch, {**INT8, "model": "logistic", "clients": clients, "rounds": 3, "step-rule": "fixed"})
    codes, scales, number = 3 * 256, 3 * 2, 8
    assert found.result.theta.size == 650
    assert found.sent[1] == {key: {"theta": 4 * 650, "digests": number} for key in range(clients)}
    step = {"step.0.codes": codes, "step.0.scales": scales}
    assert found.sent[2][0] == {"digests": 2 * number, "path.0": number, **step}
    later = {"step.1.codes": codes, "step.1.scales": scales}
    assert found.sent[3][0] == {"digests": 3 * number, "path.0": number, "path.1": number, **later}
    cost = [event.cost for event in found.result.events]
    assert (sum(each.bytes_up for each in cost), sum(each.bytes_down for each in cost)) == (found.up, found.down)
    config = found.down / clients - (2600 + 8) - (16 + 8 + 774) - (24 + 16 + 774) * 2
    assert config == 8 * len(ClientTask.__dataclass_fields__) * 4 - 8 * 4  # directives have keys of their own: none


def test_rows_of_four_bits_are_an_eighth(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[dict[str, int]] = []

    def answers(client: int, task: ClientTask, message: Message, context: Context) -> Message:
        reply = honest(client, task, message, context)
        vectors = reply.content.array_records[VECTORS]
        sizes.append({key: array.numpy().nbytes for key, array in vectors.items()})
        return reply

    watched(monkeypatch, {"messages.row": 4, "model": "logistic", "rounds": 1, "dqn-fed.anchor": "momentum"}, answers)
    assert sizes[0] == {"gradient.codes": 3 * 128, "gradient.scales": 6}


def test_slopes_are_those_of_the_rows_and_of_the_step_that_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """g_k . c of the decoded row and the decoded step, in float64."""
    rows: dict[int, FloatArray] = {}
    compared = []

    def answers(client: int, task: ClientTask, message: Message, context: Context) -> Message:
        arrays = message.content.array_records[MODEL]
        if task.probe and client in rows and (codes := [key for key in arrays if key.endswith(".codes")]):
            step = on_host(KINDS["step"].sent(arrays, codes[-1].removeprefix("step").removesuffix(".codes"), 8))
            exact = float(rows[client].astype(np.float64) @ step.astype(np.float64))
            compared.append((task.slope, exact))
        reply = app(message, context)
        if task.train:
            rows[client] = on_host(KINDS["row"].sent(reply.content.array_records[VECTORS], bits=4))
        return reply

    watched(monkeypatch, {"messages.row": 4, "messages.step": 8, "rounds": 5}, answers)
    assert len(compared) >= 12
    slopes, exact = zip(*compared, strict=True)
    np.testing.assert_allclose(slopes, exact, rtol=1e-10)


def forgetful(client: int, exchange: int) -> Any:
    """Answers of an app in which one client loses its memory before one exchange."""

    def answers(who: int, task: ClientTask, message: Message, context: Context) -> Message:
        if (who, task.exchange) == (client, exchange):
            context.state = RecordDict()
        return app(message, context)

    return answers


def test_a_client_that_lost_its_memory_says_so_and_is_sent_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    found = watched(monkeypatch, {**INT8, "clients": 4, "rounds": 6}, forgetful(2, 4))
    assert reasons(found.result) == {"lost-model": [2]}
    assert [{c for c, sizes in found.sent[number].items() if "theta" in sizes} for number in (3, 4, 5, 6)] == [
        set(),
        set(),
        {2},
        set(),
    ]
    assert len(found.computed[4]) == 3
    assert len(found.computed[5]) == 4
    assert all(all(same) for same in found.computed.values())
    (drop,) = (drop for event in found.result.events for drop in event.dropped)
    assert "it is sent the whole model next" in drop.detail


@pytest.mark.parametrize(("missed", "steps"), [(1, 1), (2, 2), (3, 3), (4, 0), (6, 0)])
def test_a_client_that_was_away_is_sent_what_it_missed_or_the_model(
    missed: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the step before those that it missed, and the one that is pending is sent in any case."""
    away = range(4, 4 + missed)

    def answers(client: int, task: ClientTask, message: Message, context: Context) -> Message:
        if client == 1 and task.exchange in away:
            raise DQNFedError(f"away{'!' * task.exchange}")
        return app(message, context)

    more = {**INT8, "clients": 4, "rounds": 12, "step-rule": "fixed", "step.lr": 0.1}
    found = watched(monkeypatch, more, answers)
    back = found.sent[4 + missed][1]
    if not steps:
        assert set(back) == {"theta", "digests", "path.0", "step.0.codes", "step.0.scales"}
    else:
        assert {key for key in back if key.endswith(".codes")} == {f"step.{n}.codes" for n in range(1, steps + 2)}
        assert len([key for key in back if key.startswith("path.")]) == steps + 2
    assert all(all(same) for same in found.computed.values())
    assert len(found.computed[4 + missed]) == 4
    assert set(found.sent[5 + missed][1]) == {"digests", "path.0", "path.1", "step.1.codes", "step.1.scales"}
    assert set(reasons(found.result)) == {"client-error"}


def test_a_client_whose_reply_was_lost_goes_on_from_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server takes it to be at the model before, and tells it of a step that it has taken already."""

    def answers(client: int, task: ClientTask, message: Message, context: Context) -> Message:
        reply = app(message, context)
        if client == 1 and task.exchange in (3, 4):
            raise DQNFedError(f"the line broke{'!' * task.exchange}")
        return reply

    found = watched(monkeypatch, {**INT8, "clients": 4, "rounds": 8, "step-rule": "fixed"}, answers)
    assert set(reasons(found.result)) == {"client-error"}
    assert all(all(same) and len(same) == 4 for same in found.computed.values())
    assert "theta" not in found.sent[5][1]


def test_a_client_whose_codes_are_none_costs_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(client: int, task: ClientTask, message: Message, context: Context) -> Message:
        reply = app(message, context)
        record = reply.content.array_records.get(VECTORS, ArrayRecord())
        if client == 1 and "gradient.codes" in record:
            record["gradient.codes"] = Array(np.full(record["gradient.codes"].numpy().size, 255, np.uint8))
        if client == 2 and "gradient.codes" in record:
            record["gradient.scales"] = Array(np.full(record["gradient.scales"].numpy().size, 0x7F80, np.uint16))
        return reply

    found = watched(monkeypatch, {**INT4, "clients": 5, "rounds": 4}, answers)
    dropped = reasons(found.result)
    assert set(dropped["bad-array"]) == {1}
    assert set(dropped["not-finite"]) == {2}
    assert all({0, 3, 4} <= set(event.participants) for event in found.result.events)
    assert found.result.status == "finished"


@pytest.mark.parametrize("short", [INT8, FEWEST, LOW_RANK], ids=["int8", "fewest bits", "low rank"])
def test_the_loss_is_near_that_of_whole_messages_and_nobody_is_harmed(short: dict[str, Any]) -> None:
    settings = {"data": "digits", "clients": 6, "rounds": 20, "local.threads": 1, "guarantee.entitlement": "0"}
    whole, found = (run({**settings, **bits}) for bits in (WHOLE, short))
    for event in found.events:
        known = [k for k, loss in enumerate(event.losses_after) if not math.isnan(loss)]
        before, after = (np.array([losses[k] for k in known]) for losses in (event.losses_before, event.losses_after))
        assert not_above(after, before).all()
    first = np.mean(whole.events[0].losses_before)
    ends = [np.mean(each.events[-1].losses_after) for each in (whole, found)]
    assert ends[1] <= ends[0] + 0.05 * first
    assert found.bytes_up < 0.3 * whole.bytes_up
    assert found.bytes_down < 0.2 * whole.bytes_down


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"method": "fednew"}, "method 'fednew'"),
        ({"method": "fedmuon"}, "method 'fedmuon'"),
        ({"curvature.kind": "secant", "curvature.previous": "recomputed", "dqn-fed.anchor": "momentum"}, "'secant'"),
        ({"attack.kind": "random"}, "attack.kind 'random'"),
        ({"dqn-fed.anchor": "fednew"}, "method 'fednew'"),
        ({"rows.device": "device"}, "rows.device: found 'device' with rows in 8 bits a value, steps in 8 bits a value"),
        ({"rows.device": "device", "messages.step": "low-rank"}, "with rows in 8 bits a value, steps in low rank"),
        ({"method": "fednew", "messages.step": "low-rank"}, "messages.step: found 'low-rank' with method 'fednew'"),
        ({"messages.step": 6}, "messages.step"),
        ({"messages.row": 2}, "messages.row"),
    ],
)
def test_what_needs_the_model_itself_is_refused_by_name(more: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Settings.from_mapping({**TINY, **INT8, **more})


def few_columns(path: Path, count: int) -> str:
    """A file of two classes that a plane parts, but for noise."""
    draws = np.random.default_rng(0)
    features = draws.normal(size=(600, count)).astype(np.float32)
    labels = features @ draws.normal(size=count) + 1.5 * draws.normal(size=600) > 0
    np.savez(path, x_train=features, y_train=labels.astype(np.int64))
    return str(path)


@pytest.mark.parametrize("short", [INT8, FEWEST], ids=["int8", "fewest bits"])
@pytest.mark.parametrize("count", [1, 8, 50])
def test_rounding_neither_has_honest_clients_caught_nor_ends_a_run(
    count: int, short: dict[str, Any], tmp_path: Path
) -> None:
    """In so few columns rounded rows soon oppose each other, and slopes have the wrong sign."""
    data = few_columns(tmp_path / "few.npz", count)
    found = run({**TINY, **short, "data": data, "clients": 5, "rounds": 25, "guarantee.entitlement": "0"})
    assert reasons(found) == {}
    if found.status != "finished":
        assert count == 1
        assert not any(event.moved for event in found.events[-UNMOVED_ROUNDS:])


def test_a_checkpoint_is_without_the_models_of_clients(tmp_path: Path) -> None:
    run({**TINY, **INT8, "output": str(tmp_path)})
    with np.load(tmp_path / "checkpoint.npz") as checkpoint:
        assert not [name for name in checkpoint.files if "held-model" in name]


def test_whole_messages_are_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Watched = watched(monkeypatch, {**WHOLE, "rounds": 2})
    assert {key for exchange in found.sent.values() for sizes in exchange.values() for key in sizes} == {
        "theta",
        "step",
    }


def test_clients_together_compute_at_the_same_model(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**TINY, **INT8, "rounds": 4, "clients": 4, "dtype": "float64", "method": "fedsgd"}
    alone, together = run(settings), run({**settings, "local.together": 3})
    assert np.abs(together.theta - alone.theta).max() < 0.05 * np.abs(alone.theta).max()
