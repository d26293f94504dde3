"""A client's model from what it holds and what it is sent: never another than the server's."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord

from dqnfed_flwr.client import held_model
from dqnfed_flwr.client.held_model import HeldModel
from dqnfed_flwr.errors import WireError
from dqnfed_flwr.params import digest, line_point
from dqnfed_flwr.types import FloatArray, on_host
from dqnfed_flwr.wire import Course, Leg, encode_course
from dqnfed_flwr.wire.codecs import KINDS
from dqnfed_flwr.wire.rounding import CODES, SCALES, Parts
from dqnfed_flwr.wire.task import _decode_course

DIM, BITS = 300, 8
CODEC = KINDS["step"].codecs[BITS]


def model(seed: int) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(DIM).astype(np.float32)


def step(seed: int) -> Parts:
    return CODEC.pack(model(100 + seed), np.random.default_rng(seed))


def along(theta: FloatArray, parts: Parts, path: tuple[float, ...]) -> FloatArray:
    """The server's own way."""
    point, at, decoded = torch.from_numpy(theta), 0.0, torch.from_numpy(CODEC.unpack(parts, (DIM,)))
    for factor in path:
        point, at = line_point(point, decoded, at, factor), factor
    return point.numpy()


def begun() -> tuple[HeldModel, FloatArray, Parts]:
    """A client that was sent the model and a step."""
    held, theta, parts = HeldModel(BITS), model(1), step(1)
    end = along(theta, parts, (1.0,))
    found, line = held.follow(Course((digest(theta), digest(end)), (Leg((1.0,), parts),), theta), True)
    assert found.tobytes() == end.tobytes()
    assert line is not None
    np.testing.assert_array_equal(line, CODEC.unpack(parts, (DIM,)))
    return held, theta, parts


def refused(held: HeldModel, course: Course, pending: bool = True) -> str:
    with pytest.raises(WireError) as found:
        held.follow(course, pending)
    assert found.value.reason == "lost-model"
    assert held.export() == {}
    return found.value.detail


@pytest.mark.parametrize("path", [(1.0,), (1.0, 0.5), (0.3,), (2.0, 0.125, 0.1)])
def test_a_step_that_is_held_is_taken_as_the_server_says(path: tuple[float, ...]) -> None:
    held, theta, parts = begun()
    taken, new = along(theta, parts, path), step(2)
    end = along(taken, new, (0.7,))
    course = Course((digest(theta), digest(taken), digest(end)), (Leg(path), Leg((0.7,), new)))
    for _ in range(2):  # the server that repeats its last exchange changes nothing
        assert held.follow(course, True)[0].tobytes() == end.tobytes()
    alone, line = held.follow(Course((digest(taken),)), False)
    assert alone.tobytes() == taken.tobytes()
    assert line is None


def test_several_steps_are_taken_from_whichever_model_is_held() -> None:
    held, theta, parts = begun()
    models, parts_of = [theta, along(theta, parts, (1.0,))], [parts, step(2), step(3), step(4)]
    for each in parts_of[1:]:
        models.append(along(models[-1], each, (0.5, 0.25)))
    legs = tuple(Leg((1.0,) if k == 0 else (0.5, 0.25), each) for k, each in enumerate(parts_of))
    whole = Course(tuple(map(digest, models)), legs)
    assert held.follow(whole, True)[0].tobytes() == models[-1].tobytes()
    for start in range(1, 4):
        later = Course(whole.digests[start:], legs[start:])
        assert held.follow(later, True)[0].tobytes() == models[-1].tobytes()
        assert held.follow(whole, True)[0].tobytes() == models[-1].tobytes()


def test_a_client_without_a_model_or_with_another_says_so() -> None:
    theta, parts = model(1), step(1)
    course = Course((digest(theta), digest(along(theta, parts, (1.0,)))), (Leg((1.0,), parts),))
    assert "none of the models" in refused(HeldModel(BITS), course)
    held, _, _ = begun()
    assert "none of the models" in refused(held, Course((digest(model(5)), 1), (Leg((1.0,), parts),)))


def test_another_model_than_the_servers_is_never_computed_at() -> None:
    held, theta, _ = begun()
    assert "another model" in refused(held, Course((digest(theta), 12345), (Leg((1.0,)),)))
    held, theta, parts = begun()
    wrong = Course((digest(theta), digest(along(theta, parts, (0.5,)))), (Leg((0.25,)),))
    assert "another model" in refused(held, wrong)
    fresh = HeldModel(BITS)
    assert "another model" in refused(fresh, Course((77, 78), (Leg((1.0,), parts),), theta))


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {CODES: np.zeros(5, np.uint8), SCALES: np.zeros(2, np.uint16)},
        {CODES: np.full(512, 255, np.uint8), SCALES: np.zeros(2, np.uint16)},
    ],
)
def test_a_step_that_cannot_be_read_is_refused(parts: Parts) -> None:
    theta = model(8)
    refused(HeldModel(BITS), Course((digest(theta), 99), (Leg((1.0,), parts),), theta))


def test_memory_goes_on_in_another_process() -> None:
    held, theta, parts = begun()
    kept = {name: np.array(values) for name, values in held.export().items()}
    assert set(kept) == {"theta", CODES, SCALES}
    del held
    gc.collect()
    other = HeldModel(BITS)
    other.load(kept)
    taken = along(theta, parts, (0.5,))
    course = Course((digest(theta), digest(taken)), (Leg((0.5,)),))
    assert other.follow(course, False)[0].tobytes() == taken.tobytes()
    other.load({})
    refused(other, course, False)


def test_clients_of_a_process_hold_one_model_and_it_goes_with_the_last() -> None:
    gc.collect()
    before = len(held_model._MODELS), len(held_model._STEPS)
    one, theta, parts = begun()
    other = HeldModel(BITS)
    end = along(theta, parts, (1.0,))
    found, line = other.follow(Course((digest(theta), digest(end)), (Leg((1.0,), parts),), theta.copy()), True)
    again, same = one.follow(Course((digest(theta), digest(end)), (Leg((1.0,)),)), True)
    assert found is again
    assert line is same
    assert (len(held_model._MODELS), len(held_model._STEPS)) == (before[0] + 2, before[1] + 1)
    del one, other, found, again, line, same
    gc.collect()
    assert (len(held_model._MODELS), len(held_model._STEPS)) == before


def test_a_course_comes_back_from_its_record() -> None:
    legs = (Leg((1.0, 0.5)), Leg((0.1,), step(1)))
    course = Course((2**64 - 1, 0, 7), legs, model(1))
    record = encode_course(course, {"b": np.ones(2)}, {"v": model(2)})
    sent = ArrayRecord({key: type(array)(array.numpy()) for key, array in record.items()})
    found = _decode_course(sent)
    assert found.digests == course.digests
    assert [leg.path for leg in found.legs] == [(1.0, 0.5), (0.1,)]
    assert [sorted(leg.parts) for leg in found.legs] == [[], [CODES, SCALES]]
    assert found.theta is not None
    assert on_host(found.theta).tobytes() == model(1).tobytes()
    del record["path.0"]
    with pytest.raises(WireError, match=r"no \['path.0'\]"):
        _decode_course(record)
