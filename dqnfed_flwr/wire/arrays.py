"""Arrays on the wire, without the copies.

Flower serialises an array when its record is built and parses it each time it is read. `Array` has the same wire form
and is serialised only when a transport asks for the bytes, so messages that stay in one process cost no copy. `view`
reads an array that came from elsewhere straight from its buffer, checking its header against what it claims.
"""

from __future__ import annotations

import math
import re
from io import BytesIO

import numpy as np
from flwr.app import Array as FlowerArray
from numpy.lib import format as npy
from numpy.typing import NDArray

from dqnfed_flwr.errors import WireError

NUMPY_FORMAT = "numpy.ndarray"
HEADER_LIMIT = 1024
MAGIC = b"\x93NUMPY\x01\x00"
HEADER = re.compile(
    rb"\{'descr': '([<>|=]\w{1,8})', 'fortran_order': (True|False), 'shape': \((|\d{1,20}(?:, \d{1,20})*,?)\), \} *\n"
)
"""The header that NumPy writes for a plain dtype; nothing a client sent is evaluated."""


class Array(FlowerArray):  # the class name is part of the wire form: it tells the receiver what to build
    """A Flower array over a NumPy array, serialised on demand.

    Parameters
    ----------
    values : NDArray
        Not copied; must not change while the message is under way.
    """

    def __init__(self, values: NDArray[np.generic]) -> None:
        self.__dict__.update(dtype=str(values.dtype), shape=values.shape, stype=NUMPY_FORMAT, _values=values)

    @property
    def data(self) -> bytes:  # type: ignore[override]  # a field in the base class, computed here
        """The array in NumPy's .npy format."""
        if "_data" not in self.__dict__:
            values: NDArray[np.generic] = np.asarray(self.__dict__["_values"], order="C")
            header = BytesIO()
            npy.write_array_header_1_0(header, npy.header_data_from_array_1_0(values))
            self.__dict__["_data"] = b"".join((header.getvalue(), values.reshape(-1).view(np.uint8).data))
        payload: bytes = self.__dict__["_data"]
        return payload

    def numpy(self) -> NDArray[np.generic]:
        """The array itself."""
        values: NDArray[np.generic] = self.__dict__["_values"]
        return values


def size(array: FlowerArray) -> int:
    """Bytes of the values, without serialising them."""
    return array.numpy().nbytes if isinstance(array, Array) else len(array.data)


def view(array: FlowerArray, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> NDArray[np.generic]:
    """The values of a received array, read from its buffer without a copy.

    Parameters
    ----------
    array : flwr.app.Array
        As received: nothing in it is trusted.
    shape : tuple[int, ...]
        The only shape allowed.
    dtypes : tuple[str, ...]
        NumPy names of the dtypes allowed.

    Raises
    ------
    WireError
        With reason `bad-dtype`, `bad-shape` or `bad-array`.
    """
    if isinstance(array, Array):
        values = array.numpy()
        _check(str(values.dtype), values.shape, shape, dtypes)
        return values
    _check(str(array.dtype), tuple(array.shape), shape, dtypes)
    if array.stype != NUMPY_FORMAT:
        raise WireError("bad-array", f"serialised as {str(array.stype)[:40]!r}; only {NUMPY_FORMAT!r} is read")
    true_dtype, true_shape, fortran, start = _read_header(array.data)
    _check(str(true_dtype), true_shape, shape, dtypes)
    if fortran:
        raise WireError("bad-array", "stored in Fortran order; only C order is read")
    count = math.prod(shape)
    if len(array.data) - start != count * true_dtype.itemsize:
        raise WireError("bad-array", f"holds {len(array.data) - start} bytes; need {count * true_dtype.itemsize}")
    return np.ndarray(shape, true_dtype, array.data, start)


def _read_header(data: bytes) -> tuple[np.dtype[np.generic], tuple[int, ...], bool, int]:
    """Dtype, shape, whether in Fortran order, and where the values begin."""
    head = data[:HEADER_LIMIT]
    length = int.from_bytes(head[8:10], "little")
    match = HEADER.fullmatch(head[10 : 10 + length])
    if not head.startswith(MAGIC) or match is None:
        raise WireError("bad-array", f"no header that NumPy writes for numbers: {head[:60]!r}")
    try:
        dtype = np.dtype(match[1].decode())
    except (TypeError, ValueError, SyntaxError):  # the last two where NumPy takes it for a list of fields
        raise WireError("bad-dtype", f"dtype {match[1]!r}; NumPy knows no such") from None
    shape = tuple(int(side) for side in match[3].replace(b",", b" ").split())
    return dtype, shape, match[2] == b"True", 10 + length


def _check(dtype: str, found: tuple[int, ...], shape: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
    if dtype not in dtypes:
        raise WireError("bad-dtype", f"dtype {dtype[:40]}; need {' or '.join(dtypes)}")
    if tuple(found) != shape:
        raise WireError("bad-shape", f"shape {str(tuple(found))[:60]}; need {shape}")
