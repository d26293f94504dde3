"""Arrays on the wire: the same bytes as NumPy and Flower write, read without a copy and without trust."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from flwr.app import Array as FlowerArray
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from dqnfed_flwr.errors import WireError
from dqnfed_flwr.wire.codecs import Array, size, view

FLOATS = ("float32", "float64")
arrays = hnp.arrays(
    dtype=st.sampled_from(["float32", "float64", "int64", "uint8", "bool"]),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
)


def sent(values: NDArray[Any], **claims: Any) -> FlowerArray:
    """What a receiver gets of `values`, with false claims."""
    honest = Array(values)
    given: dict[str, Any] = {"dtype": honest.dtype, "shape": honest.shape, "stype": honest.stype, "data": honest.data}
    return FlowerArray(**{**given, **claims})


def saved(values: NDArray[Any]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values, allow_pickle=False)
    return stream.getvalue()


@given(arrays)
def test_what_is_sent_arrives(values: NDArray[Any]) -> None:
    read = view(sent(values), values.shape, (str(values.dtype),))
    assert (read.dtype, read.shape) == (values.dtype, values.shape)
    assert read.tobytes() == values.tobytes()


@given(arrays)
def test_the_bytes_are_those_of_numpy_and_flower(values: NDArray[Any]) -> None:
    assert Array(values).data == saved(values)
    assert sent(values).numpy().tobytes() == values.tobytes()
    assert view(FlowerArray(values), values.shape, (str(values.dtype),)).tobytes() == values.tobytes()


@pytest.mark.parametrize("values", [np.arange(12.0).reshape(3, 4).T, np.arange(12.0)[::2], np.zeros((4, 4))[:2, ::3]])
def test_arrays_that_are_not_contiguous_are_sent_in_c_order(values: NDArray[np.float64]) -> None:
    np.testing.assert_array_equal(view(sent(values), values.shape, ("float64",)), values)


def test_reading_copies_nothing() -> None:
    received = sent(np.arange(5.0))
    read = view(received, (5,), FLOATS)
    assert not read.flags.writeable
    assert np.shares_memory(read, np.frombuffer(received.data, np.uint8))
    values = np.arange(5.0)
    assert view(Array(values), (5,), FLOATS) is values  # in one process not even bytes are made


def test_size_counts_bytes_of_values_without_making_them_and_without_headers() -> None:
    array = Array(np.zeros(100, np.float32))
    assert size(array) == 400
    assert "_data" not in vars(array)
    assert size(sent(np.zeros(100, np.float32))) == 400


LIES: dict[str, tuple[dict[str, Any], str]] = {
    "claims another shape": ({"shape": (4,)}, "bad-shape"),
    "claims a shape that broadcasts": ({"shape": (1, 3)}, "bad-shape"),
    "claims 10 GB": ({"shape": (2_500_000_000,)}, "bad-shape"),
    "claims another dtype": ({"dtype": "float16"}, "bad-dtype"),
    "claims a dtype of 1000 letters": ({"dtype": "f" * 1000}, "bad-dtype"),
    "claims another serialisation": ({"stype": "pickle"}, "bad-array"),
    "holds another shape": ({"data": saved(np.zeros(4))}, "bad-shape"),
    "holds a shape that broadcasts": ({"data": saved(np.zeros((3, 1)))}, "bad-shape"),
    "holds float16": ({"data": saved(np.zeros(3, np.float16))}, "bad-dtype"),
    "holds complex numbers": ({"data": saved(np.zeros(3, complex))}, "bad-dtype"),
    "holds integers": ({"data": saved(np.zeros(3, np.int64))}, "bad-dtype"),
    "holds the other byte order": ({"data": saved(np.zeros(3, ">f8"))}, "bad-dtype"),
    "holds records": ({"data": saved(np.zeros(3, [("x", "f8")]))}, "bad-array"),
    "holds nothing": ({"data": b""}, "bad-array"),
    "holds a header alone": ({"data": saved(np.zeros(3))[:128]}, "bad-array"),
    "holds a value too few": ({"data": saved(np.zeros(3))[:-8]}, "bad-array"),
    "holds a byte too many": ({"data": saved(np.zeros(3)) + b"\0"}, "bad-array"),
    "holds other bytes": ({"data": b"\x80\x04\x95" + 200 * b"."}, "bad-array"),
    "holds a dtype that NumPy takes for fields": (
        {"data": saved(np.zeros(3)).replace(b"'<f8'", b"'<01'")},
        "bad-dtype",
    ),
    "holds a dtype of no fields": ({"data": saved(np.zeros(3)).replace(b"'<f8'", b"'<0_'")}, "bad-dtype"),
    "holds an unknown dtype": ({"data": saved(np.zeros(3)).replace(b"'<f8'", b"'<z8'")}, "bad-dtype"),
    "holds an expression": ({"data": saved(np.zeros(3)).replace(b"(3,)", b"9**9")}, "bad-array"),
    "holds a header in a header": ({"data": saved(np.zeros(3)).replace(b"}", b"{", 1)}, "bad-array"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_told_by_its_reason(lie: str) -> None:
    claims, reason = LIES[lie]
    with pytest.raises(WireError) as caught:
        view(sent(np.zeros(3), **claims), (3,), FLOATS)
    assert caught.value.reason == reason
    assert len(str(caught.value)) < 300


def test_fortran_order_is_told_where_it_would_turn_an_array_over() -> None:
    data = saved(np.asfortranarray(np.arange(6.0).reshape(2, 3)))
    with pytest.raises(WireError, match="Fortran order"):
        view(FlowerArray(dtype="float64", shape=(2, 3), stype="numpy.ndarray", data=data), (2, 3), FLOATS)
    flat = saved(np.arange(3.0)).replace(b"'fortran_order': False", b"'fortran_order': True ")
    with pytest.raises(WireError, match="no header"):
        view(sent(np.zeros(3), data=flat), (3,), FLOATS)


@given(start=st.integers(0, 160), noise=st.binary(min_size=1, max_size=60))
def test_noise_in_the_bytes_is_refused_or_read_as_numbers(start: int, noise: bytes) -> None:
    data = saved(np.zeros(8))
    spoilt = data[:start] + noise + data[start + len(noise) :]
    try:
        read = view(sent(np.zeros(8), data=spoilt), (8,), FLOATS)
    except WireError:
        return
    assert (read.shape, read.dtype) == ((8,), np.dtype("float64"))


@pytest.mark.parametrize(("values", "reason"), [(np.zeros(4), "bad-shape"), (np.zeros(3, np.int64), "bad-dtype")])
def test_arrays_of_one_process_are_checked_too(values: NDArray[Any], reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        view(Array(values), (3,), FLOATS)
