"""Messages: what is encoded is decoded, also after Flower has sent it as bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecordValues, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dqnfed_flwr import wire
from dqnfed_flwr.errors import WireError
from dqnfed_flwr.types import ClientReply, ClientTask, Evaluation, Extras, Figure, Probe
from dqnfed_flwr.wire import ReplyForm
from dqnfed_flwr.wire.codecs import KINDS
from tests.helpers.transport import through_flower

BUFFERS = {"norm.mean": np.array([1.0, 2.0]), "norm.count": np.array(7)}
TRANSPORTS: dict[str, Callable[[RecordDict], RecordDict]] = {
    "one process": lambda content: content,
    "objects": through_flower,
    "protobuf": lambda content: recorddict_from_proto(recorddict_to_proto(content)),
}
every_transport = pytest.mark.parametrize("transport", TRANSPORTS)

numbers = st.floats(allow_nan=False, allow_infinity=False)
positive = st.floats(0, 1e60)
counts = st.integers(0, 10**9)
tasks = st.builds(
    ClientTask,
    exchange=counts,
    round=counts,
    train=st.booleans(),
    probe=st.booleans(),
    evaluate=st.booleans(),
    factor=st.floats(0.001, 1000),
    grow=st.booleans(),
    halvings=st.integers(0, 40),
    rungs_above=st.integers(0, 3),
    rungs_below=st.integers(0, 3),
    reference_loss=numbers,
    slope=numbers,
    num_classes=counts,
    directives=st.dictionaries(st.sampled_from(["stage", "noise"]), numbers),
)
evaluations = st.builds(
    lambda right, wrong, loss: Evaluation(right, right + wrong, loss), *(st.integers(0, 99),) * 2, positive
)


def same(found: Any, expected: Any) -> bool:
    """Equality of replies and assignments, arrays and NaN included."""
    if isinstance(expected, np.ndarray):
        return bool(found.dtype == expected.dtype and np.array_equal(found, expected))
    if isinstance(expected, float):
        return found == expected or (math.isnan(found) and math.isnan(expected))
    if isinstance(expected, dict):
        return set(found) == set(expected) and all(same(found[key], expected[key]) for key in expected)
    if hasattr(expected, "__slots__"):
        return all(same(getattr(found, name), getattr(expected, name)) for name in expected.__slots__)
    return bool(found == expected)


def probe_of(draw: st.DrawFn, task: ClientTask) -> Probe:
    losses = tuple(draw(positive | st.just(math.inf)) for _ in task.rungs)
    return replace(outcome_of(draw, task), losses=losses, held_out=draw(st.none() | st.booleans()))


def outcome_of(draw: st.DrawFn, task: ClientTask) -> Probe:
    if draw(st.booleans()):
        return Probe(draw(positive), True, draw(st.none() | st.booleans()))
    told = Probe(draw(positive | st.just(math.inf)), False, behind_loss=draw(st.none() | positive | st.just(math.inf)))
    if not task.halvings or draw(st.booleans()):
        return told
    back = task.factor * 0.5 ** draw(st.integers(1, task.halvings))
    return replace(told, back_factor=back, back_loss=draw(positive))


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[ClientTask, ReplyForm, ClientReply]:
    """A task, the form of the model, and a reply that is fit for both."""
    task = draw(tasks)
    dim = draw(st.integers(1, 5))
    further = Extras({"factors": (2, dim), "anchor": (dim,)}, ("error", "noise"))
    extras = draw(st.sampled_from([Extras(), further, replace(further, bits={"anchor": 4})]))
    form = ReplyForm(dim=dim, buffers=draw(st.sampled_from([{}, BUFFERS])), extras=extras)
    reply = ClientReply(
        num_examples=draw(st.integers(1, 10**9)),
        probe=probe_of(draw, task) if task.probe else None,
        test=draw(evaluations) if task.evaluate else None,
        validation=draw(st.none() | evaluations) if task.evaluate else None,
        seconds=draw(numbers),
    )
    if not task.train:
        return task, form, reply
    vector = np.arange(1.0, form.dim + 1).astype(draw(st.sampled_from(["float32", "float64"])))
    return (
        task,
        form,
        replace(
            reply,
            row=vector,
            vectors={
                name: np.full(shape, 7, np.float32 if name in extras.bits else vector.dtype)
                for name, shape in extras.vectors.items()
            },
            figures={name: draw(numbers) for name in extras.figures},
            buffers=form.buffers,
            loss=draw(positive),
            rate=draw(positive),
            pairs_kept=draw(counts),
            pairs_rejected=draw(counts),
        ),
    )


@every_transport
@given(exchange=exchanges())
def test_a_reply_arrives_as_it_was_sent(transport: str, exchange: tuple[ClientTask, ReplyForm, ClientReply]) -> None:
    task, form, reply = exchange
    assert same(wire.decode_reply(TRANSPORTS[transport](wire.encode_reply(as_sent(reply, form))), task, form), reply)
    assert same(wire.decode_probe(TRANSPORTS[transport](wire.encode_reply(as_sent(reply, form))), task), reply.probe)


def as_sent(reply: ClientReply, form: ReplyForm) -> ClientReply:
    """A reply with the vectors packed that the form has in a few bits; these values lie on levels."""
    packed = {
        name: KINDS["extra"].codecs[form.extras.bits[name]].pack(vector, np.random.default_rng(0))
        for name, vector in reply.vectors.items()
        if name in form.extras.bits
    }
    return replace(reply, vectors={k: v for k, v in reply.vectors.items() if k not in packed}, packed=packed)


@every_transport
@given(
    task=tasks,
    dim=st.integers(0, 4),
    line=st.booleans(),
    buffers=st.sampled_from([{}, BUFFERS]),
    names=st.sampled_from([(), ("momentum",), ("step", "theta")]),
)
def test_a_task_arrives_with_its_model(
    transport: str, task: ClientTask, dim: int, line: bool, buffers: dict[str, NDArray[Any]], names: tuple[str, ...]
) -> None:
    theta = np.arange(dim, dtype=np.float32)
    vectors = {name: theta + len(name) for name in names}
    model = wire.encode_model(theta, buffers, -theta if line else None, vectors)
    given_task = wire.decode_task(TRANSPORTS[transport](wire.encode_task(task, model)))
    assert same(given_task, wire.Assignment(task, theta, -theta if line else None, buffers, vectors))


@every_transport
def test_properties_and_memory_arrive(transport: str) -> None:
    properties: dict[str, ConfigRecordValues] = {"partition": 3, "share": 0.5, "name": "edge", "ready": True}
    assert wire.decode_properties(TRANSPORTS[transport](wire.encode_properties(properties))) == properties
    state = RecordDict()
    assert wire.decode_memory(state) == {}
    wire.encode_memory(BUFFERS, state)
    assert same(wire.decode_memory(TRANSPORTS[transport](state)), BUFFERS)


def test_a_figure_of_a_task_may_be_called_accuracy() -> None:
    """It is sent as it is: what was right is not counted in samples."""
    sent = ClientReply(10, test=Evaluation(0, 4, 0.5, {"accuracy": 0.75}))
    task = ClientTask(1, 1, train=False, evaluate=True)
    found = wire.decode_reply(wire.encode_reply(sent), task, ReplyForm(3, {}, figure=Figure("accuracy"))).test
    assert found == sent.test
    assert found is not None
    assert found.figure == 0.75


def test_the_payload_is_the_arrays_and_eight_bytes_a_figure() -> None:
    theta = np.zeros(100, np.float32)
    content = wire.encode_task(ClientTask(1, 1, directives={"stage": 2}), wire.encode_model(theta, {}, theta))
    assert wire.payload(content) == 800 + 8 * len(ClientTask.__slots__)  # the one directive in place of their field


def test_a_model_that_is_none_is_refused_with_the_remedy() -> None:
    with pytest.raises(WireError, match=r"no 'theta'.*wire\.encode_model"):
        wire.decode_model(ArrayRecord([np.zeros(3)]))
    with pytest.raises(WireError, match="bad-dtype"):
        wire.decode_model(wire.encode_model(np.zeros(3, np.int64), {}))


def test_a_task_that_is_none_is_refused_with_its_keys() -> None:
    content = wire.encode_task(ClientTask(1, 1), wire.encode_model(np.zeros(3), {}))
    del content.config_records["task"]["halvings"]
    with pytest.raises(WireError, match=r"missing-key: task keys .* need .*halvings"):
        wire.decode_task(content)
    with pytest.raises(WireError, match=r"missing-key: records .* need 'model' and 'task'"):
        wire.decode_task(RecordDict())
    with pytest.raises(WireError, match=r"missing-key: records .* need 'properties'"):
        wire.decode_properties(RecordDict())


@pytest.mark.parametrize("level", [-0.1, 1.1, 1e308])
def test_a_figure_outside_its_limits_is_turned_away(level: float) -> None:
    form = ReplyForm(3, {}, Extras({}, ("level",), {"level": (0.0, 1.0)}))
    reply = ClientReply(10, row=np.ones(3), figures={"level": level}, loss=1.0, rate=1.0)
    with pytest.raises(WireError, match="bad-figure"):
        wire.decode_reply(wire.encode_reply(reply), ClientTask(1, 1), form)
    fit = replace(reply, figures={"level": 1.0})
    assert wire.decode_reply(wire.encode_reply(fit), ClientTask(1, 1), form).figures == {"level": 1.0}


def test_a_figure_called_accuracy_is_sent_where_it_is_not_counted() -> None:
    own, task = Figure("accuracy", percent=True), ClientTask(1, 1, train=False, evaluate=True)
    content = wire.encode_reply(ClientReply(10, test=Evaluation(0, 4, 1.0, {"accuracy": 0.75})))
    found = wire.decode_reply(content, task, ReplyForm(3, {}, figure=own)).test
    assert found is not None
    assert found.figure == 0.75
    counted = wire.encode_reply(ClientReply(10, test=Evaluation(3, 4, 1.0, {"accuracy": 0.99})))
    found = wire.decode_reply(counted, task, ReplyForm(3, {})).test
    assert found is not None
    assert found.figure == 0.75  # of the counts, whatever else is said


def test_a_variance_is_not_negative() -> None:
    form = ReplyForm(3, {"norm.running_var": np.ones(2)})
    reply = ClientReply(10, row=np.ones(3), buffers={"norm.running_var": np.array([1.0, -5.0])}, loss=1.0, rate=1.0)
    with pytest.raises(WireError, match="bad-buffer"):
        wire.decode_reply(wire.encode_reply(reply), ClientTask(1, 1), form)


LADDER = ClientTask(2, 2, train=False, probe=True, factor=0.5, rungs_above=1, rungs_below=2)


@pytest.mark.parametrize(
    ("losses", "reason"),
    [((), "missing-key"), ((1.0,) * 3, "bad-probe"), ((1.0,) * 5, "bad-probe")],
)
@every_transport
def test_a_ladder_needs_a_loss_for_every_rung(transport: str, losses: tuple[float, ...], reason: str) -> None:
    assert LADDER.rungs == (1.0, 0.5, 0.25, 0.125)
    content = wire.encode_reply(ClientReply(10, probe=Probe(1.0, True, losses=losses)))
    for read in (
        lambda: wire.decode_reply(TRANSPORTS[transport](content), LADDER, ReplyForm(3, {})),
        lambda: wire.decode_probe(TRANSPORTS[transport](content), LADDER),
    ):
        with pytest.raises(WireError) as caught:
            read()
        assert caught.value.reason == reason


def test_a_rung_where_the_model_diverges_has_an_infinite_loss() -> None:
    reply = ClientReply(10, probe=Probe(1.0, True, losses=(math.nan, -math.inf, math.inf, 0.5)))
    probe = wire.decode_probe(wire.encode_reply(reply), LADDER)
    assert probe is not None
    assert probe.losses == (math.inf, math.inf, math.inf, 0.5)


@pytest.mark.parametrize(("key", "reason"), [("rate", "bad-rate"), ("loss", "bad-loss")])
def test_figures_whose_squares_would_overflow_are_refused(key: str, reason: str) -> None:
    task, form = ClientTask(1, 1), ReplyForm(3, {})
    for value, fit in ((1e60, True), (1.1e60, False), (1e308, False)):
        reply = ClientReply(10, row=np.ones(3), loss=1.0, rate=1.0)
        content = wire.encode_reply(replace(reply, **{key: value}))  # type: ignore[arg-type]
        if fit:
            assert getattr(wire.decode_reply(content, task, form), key) == value
            continue
        with pytest.raises(WireError, match=reason):
            wire.decode_reply(content, task, form)


BAD_BUFFERS: dict[str, tuple[dict[str, NDArray[Any]], str]] = {
    "NaN": ({"norm.mean": np.array([1.0, np.nan])}, "not-finite"),
    "Inf": ({"norm.mean": np.array([np.inf, 1.0])}, "not-finite"),
    "one value, which broadcasts": ({"norm.mean": np.array([1.0])}, "bad-shape"),
    "a count that is no whole number": ({"norm.count": np.array(7.0)}, "bad-dtype"),
    "a count with a dimension": ({"norm.count": np.array([7])}, "bad-shape"),
    "a buffer too many": ({"more": np.array(7)}, "extra-key"),
}


@every_transport
def test_a_buffer_may_hold_the_infinities_that_the_model_holds(transport: str) -> None:
    mask = np.array([0.0, -math.inf])
    task, form = ClientTask(1, 1), ReplyForm(3, {"mask": mask})
    for sent, fit in ((mask, True), (mask[::-1], False), (-mask, False), (np.array([0.0, math.nan]), False)):
        reply = ClientReply(10, row=np.ones(3), buffers={"mask": sent}, loss=1.0, rate=1.0)
        content = TRANSPORTS[transport](wire.encode_reply(reply))
        if fit:
            assert np.array_equal(wire.decode_reply(content, task, form).buffers["mask"], mask)
            continue
        with pytest.raises(WireError, match="not-finite"):
            wire.decode_reply(content, task, form)


@every_transport
@pytest.mark.parametrize("kind", BAD_BUFFERS)
def test_buffers_are_checked_as_gradients_are(transport: str, kind: str) -> None:
    changes, reason = BAD_BUFFERS[kind]
    reply = ClientReply(10, row=np.ones(3), buffers={**BUFFERS, **changes}, loss=1.0, rate=1.0)
    task, form = ClientTask(1, 1), ReplyForm(3, BUFFERS)
    with pytest.raises(WireError) as caught:
        wire.decode_reply(TRANSPORTS[transport](wire.encode_reply(reply)), task, form)
    assert caught.value.reason == reason
    with pytest.raises(WireError, match="missing-key: vectors without"):
        wire.decode_reply(wire.encode_reply(replace(reply, buffers={})), task, form)
