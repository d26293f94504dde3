"""What all messages are made of: arrays without copies, names of records, and the one table of vectors by kind.

Flower serialises an array when its record is built and parses it each time it is read. `Array` has the same wire form
and is serialised only when a transport asks for the bytes, so messages that stay in one process cost no copy; there a
tensor arrives as the tensor that it is, on its device. `view` reads an array that came from elsewhere straight from its
buffer, checking its header against what it claims.

A vector of any kind goes as it is, or in fewer bits a value; see `rounding`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray

from dqnfed_flwr.errors import ShapeError, WireError
from dqnfed_flwr.types import FloatArray, on_host
from dqnfed_flwr.wire.levels import Levels
from dqnfed_flwr.wire.low_rank import LowRank
from dqnfed_flwr.wire.rounding import BLOCK, CODES, FLOATS, SCALES, Brief, Parts, Plain, Rounded, Shape, floats

if TYPE_CHECKING:
    from dqnfed_flwr.types import Vector

MODEL, TASK, VECTORS, FIGURES, PROPERTIES = "model", "task", "vectors", "figures", "properties"
MEMORY, CHECKED = "memory", "checked"
HELD_MODEL = "held-model/"
"""Begins the names in a client's memory of the model that it keeps; a checkpoint goes without, see `short_messages`."""
LOST_MODEL = "lost-model"
"""A record, and the reason for which a client is left out that cannot make the model of what it was sent."""
BUFFER, EXTRA, DIRECTIVE = "buffer.", "extra.", "directive."
Buffers = Mapping[str, NDArray[np.generic]]
_Record = TypeVar("_Record", ArrayRecord, MetricRecord, ConfigRecord)
NUMPY_FORMAT = "numpy.ndarray"
HEADER_LIMIT = 1024
MAGIC = b"\x93NUMPY\x01\x00"
HEADER = re.compile(
    rb"\{'descr': '([<>|=]\w{1,8})', 'fortran_order': (True|False), 'shape': \((|\d{1,20}(?:, \d{1,20})*,?)\), \} *\n"
)
"""The header that NumPy writes for a plain dtype; nothing a client sent is evaluated."""
WHOLE = 32
"""Bits a value under which the table has vectors that go as they are, also those of float64."""
LOW_RANK = 0
"""Where the table has steps in low rank."""
KindName = Literal["row", "step", "model", "extra"]
Codec = Plain | Brief | Rounded | Levels | LowRank


class Array(FlowerArray):  # the class name is part of the wire form: it says what the receiver builds
    """A Flower array over a NumPy array or a tensor, serialised on demand.

    Parameters
    ----------
    values : NDArray | Tensor
        Not copied; must not change while the message is under way.
    """

    def __init__(self, values: NDArray[np.generic] | Vector) -> None:
        dtype, shape = str(values.dtype).removeprefix("torch."), tuple(values.shape)
        self.__dict__.update(dtype=dtype, shape=shape, stype=NUMPY_FORMAT, _values=values)

    @property
    def held(self) -> Vector:
        """What it was made of."""
        values: Vector = self.__dict__["_values"]
        return values

    @property
    def data(self) -> bytes:  # type: ignore[override]  # a field in the base class, computed here
        """The array in NumPy's .npy format."""
        if "_data" not in self.__dict__:
            values: NDArray[np.generic] = np.asarray(self.numpy(), order="C")
            header = BytesIO()
            npy.write_array_header_1_0(header, npy.header_data_from_array_1_0(values))
            self.__dict__["_data"] = b"".join((header.getvalue(), values.reshape(-1).view(np.uint8).data))
        payload: bytes = self.__dict__["_data"]
        return payload

    def numpy(self) -> NDArray[np.generic]:
        """The array itself; of a tensor its values on the host."""
        return on_host(self.held)


def size(array: FlowerArray) -> int:
    """Bytes of the values, without serialising them, and without the header of an array that was."""
    if isinstance(array, Array):
        return array.held.nbytes
    return max(len(array.data) - 10 - int.from_bytes(array.data[8:10], "little"), 0)


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


def vector(array: FlowerArray, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> Vector:
    """`view` of floats; a tensor where one was put into the message and it has not left the process."""
    if isinstance(array, Array) and not isinstance(array.held, np.ndarray):
        _check(str(array.dtype), tuple(array.shape), shape, dtypes)
        return array.held
    return floats(view(array, shape, dtypes))


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


def of_kind(content: RecordDict, kind: type[_Record]) -> dict[str, _Record]:
    """The records of one kind; Flower's own views of them are dictionaries built and checked anew at every look."""
    return {key: record for key, record in content.items() if isinstance(record, kind)}


def check_keys(what: str, found: set[str], expected: set[str]) -> None:
    """Refuse, with `missing-key` or `extra-key`, what has other keys than it should."""
    if missing := expected - found:
        raise WireError("missing-key", f"{what} without {sorted(missing)[:8]}")
    if extra := found - expected:
        raise WireError("extra-key", f"{what} with {sorted(extra)[:8]}")


def strays(values: NDArray[np.generic], current: NDArray[np.generic]) -> bool:
    """Whether a value is NaN or infinite where the model does not hold the same.

    A model may hold infinities in a buffer that no training changes, such as the mask of an attention.
    """
    return not (np.isfinite(values) | (values == current)).all()


def encode_lost() -> RecordDict:
    """Content of the reply of a client that has not the model which a message builds on."""
    return RecordDict({LOST_MODEL: ConfigRecord()})


def payload(content: RecordDict) -> int:
    """Bytes of arrays and figures in a message, without framing."""
    arrays = sum(size(array) for record in of_kind(content, ArrayRecord).values() for array in record.values())
    values = (value for record in of_kind(content, MetricRecord).values() for value in record.values())
    figures = sum(len(value) if isinstance(value, list) else 1 for value in values)
    settings = sum(len(record) for record in of_kind(content, ConfigRecord).values())
    return arrays + 8 * (figures + settings)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of vectors: its key in a record, or what names of its vectors begin with; and its codecs, by bits."""

    key: str
    codecs: Mapping[int, Codec] = field(default_factory=lambda: {WHOLE: Plain()})

    def keys(self, name: str = "", bits: int = WHOLE) -> set[str]:
        """Keys under which a vector lies in a record."""
        return {self.key + name + end for end in self.codecs[bits].expected((0,))}

    def write(self, record: ArrayRecord, vector: Vector | Parts, name: str = "") -> None:
        """Put a vector, or what one of the codecs packed, into a record."""
        parts = vector if isinstance(vector, Mapping) else {"": vector}
        for end, part in parts.items():
            record[self.key + name + end] = Array(part)

    def read_row(self, record: ArrayRecord, shape: Shape, bits: int = WHOLE) -> tuple[Vector, float]:
        """The same as `read`, with what rounding may have changed it by; one that goes as it is may be a tensor."""
        if bits == WHOLE:
            return vector(record[self.key], shape, FLOATS), 0.0
        row, parts = self._read(record, shape, "", bits)
        return row, ROWS[bits].error(parts, row)

    def read(self, record: ArrayRecord, shape: Shape, name: str = "", bits: int = WHOLE) -> FloatArray:
        """A vector of a client, not trusted: `WireError` with reason `bad-dtype`, `bad-shape` or `bad-array`."""
        return self._read(record, shape, name, bits)[0]

    def _read(self, record: ArrayRecord, shape: Shape, name: str, bits: int) -> tuple[FloatArray, Parts]:
        codec, begin = self.codecs[bits], self.key + name
        parts = {
            end: view(array, tuple(array.shape) if sides is None else sides, dtypes)
            for end, (sides, dtypes) in codec.expected(shape).items()
            for array in (record[begin + end],)
        }
        try:
            return codec.unpack(parts, shape), parts
        except ShapeError as error:
            raise WireError("bad-array", f"{name!r}: {error}") from None

    def sent(self, record: ArrayRecord, name: str = "", bits: int = WHOLE) -> Vector:
        """A vector of one who is trusted, whole or a row, of whatever shape it says; zeros fill a last block."""
        if bits == WHOLE:
            array = record[self.key + name]
            return vector(array, tuple(array.shape), (str(array.dtype),))
        arrays = {end: record[self.key + name + end] for end in self.codecs[bits].expected((0,))}
        parts = {end: view(array, tuple(array.shape), (str(array.dtype),)) for end, array in arrays.items()}
        dim = parts[SCALES].size * BLOCK if SCALES in parts else parts[CODES].size
        return self.codecs[bits].unpack(parts, (dim,))


ROWS: Mapping[int, Plain | Brief | Rounded] = {WHOLE: Plain(), 16: Brief(), **{b: Rounded(b) for b in (8, 6, 4)}}
"""Codecs of rows, which know how far off they may be."""
KINDS: Mapping[KindName, Kind] = {
    "row": Kind("gradient", ROWS),
    "step": Kind("step", {**{b: ROWS[b] for b in (WHOLE, 16, 8, 4)}, 2: Levels(), LOW_RANK: LowRank()}),
    "model": Kind("theta"),
    "extra": Kind(EXTRA, {WHOLE: Plain(), **{bits: Rounded(bits) for bits in (2, 4, 8)}}),
}


def change_row(
    content: RecordDict, change: Callable[[FloatArray], FloatArray], bits: int, generator: np.random.Generator
) -> None:
    """Replace the row of an honest reply, where it brings one, by what `change` makes of it, sent in as many bits."""
    vectors, kind = of_kind(content, ArrayRecord).get(VECTORS), KINDS["row"]
    if vectors is not None and kind.keys(bits=bits) <= vectors.keys():
        row = change(on_host(kind.sent(vectors, bits=bits)))
        kind.write(vectors, kind.codecs[bits].pack(row, generator))
