"""State as a record and arrays: what is written is what is read, and what is not what a field says is an error."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dqnfed_flwr.record_codec import TRANSIENT, unpack
from dqnfed_flwr.types import Float64Array
from tests.helpers.records import packed


@dataclass(frozen=True)
class Inner:
    name: str = ""
    pair: tuple[int, float] = (0, 0.0)


@dataclass
class Outer:
    counts: dict[int, float] = field(default_factory=dict)
    named: Mapping[str, Inner] = field(default_factory=dict)
    members: set[int] = field(default_factory=set)
    order: tuple[int, ...] = ()
    some: Sequence[bool] = ()
    inner: Inner | None = None
    kind: Literal["a", "b"] = "a"
    clock: float = field(default=7.0, metadata=TRANSIENT)


@dataclass
class Held:
    vector: torch.Tensor
    table: Float64Array
    named: dict[str, Float64Array]
    absent: torch.Tensor | None = None


numbers = st.integers(-(2**40), 2**40)
floats = st.floats(allow_nan=False)
inners = st.builds(Inner, st.text(max_size=4), st.tuples(numbers, floats))


@given(
    st.builds(
        Outer,
        st.dictionaries(numbers, floats, max_size=3),
        st.dictionaries(st.text(max_size=4), inners, max_size=3),
        st.sets(numbers, max_size=3),
        st.lists(numbers, max_size=3).map(tuple),
        st.lists(st.booleans(), max_size=3),
        st.none() | inners,
        st.sampled_from(["a", "b"]),
    )
)
def test_what_was_written_is_read(value: Outer) -> None:
    record, arrays = packed(value)
    assert arrays == {}
    assert unpack(Outer, json.loads(json.dumps(record))) == value


def test_what_is_of_the_moment_is_not_written() -> None:
    record, _ = packed(Outer(clock=3.0))
    assert "clock" not in record
    assert unpack(Outer, record).clock == 7.0


def test_arrays_lie_beside_the_record_under_the_names_that_it_gives() -> None:
    value = Held(torch.arange(3.0), np.eye(2), {"a/b": np.zeros(1)})
    record, arrays = packed(value)
    assert record == {"vector": "vector", "table": "table", "named": {"a/b": "named/a/b"}, "absent": None}
    found = unpack(Held, json.loads(json.dumps(record)), arrays)
    assert torch.equal(found.vector, value.vector)
    assert found.vector.data_ptr() != value.vector.data_ptr()
    assert np.array_equal(found.table, value.table)
    assert list(found.named) == ["a/b"]
    assert found.absent is None


def test_numbers_that_json_has_no_word_for_come_back() -> None:
    found = unpack(Inner, json.loads(json.dumps(packed(Inner(pair=(1, math.inf)))[0])))
    assert found.pair == (1, math.inf)
    assert math.isnan(unpack(Inner, {"name": "", "pair": [1, None]}).pair[1])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"kind": "c"}, ValueError),
        ({"inner": {"name": "x"}}, KeyError),
        ({"inner": {"name": 3, "pair": [1, 2]}}, TypeError),
        ({"order": ["1"]}, TypeError),
        ({"counts": {"one": 1.0}}, ValueError),
        ({"counts": [1]}, AttributeError),
        ({"inner": {"name": "x", "pair": [1]}}, ValueError),
    ],
)
def test_what_is_not_what_a_field_says_is_an_error(change: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        unpack(Outer, packed(Outer())[0] | change)
