"""Tables of named columns, read from CSV and Parquet files, with the place of each row for error texts.

CSV is UTF-8 text with commas, a header line and, where they are needed, double quotes (RFC 4180); it may be packed as
.xz, .gz or .bz2. Both are read by pyarrow; Python's `csv` finds the lines. Spaces around names and texts do not count.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.data.dataset import IntArray
from dqnfed_flwr.data.reading import unpacked
from dqnfed_flwr.errors import DataError

BLOCK = 1 << 26
"""Bytes that pyarrow parses at a time; a row has to fit."""
MOST_LISTED = 20
HOUR = 3.6e9
"""Microseconds of an hour."""
_ZONE = re.compile(r"(Z|[-+]\d{2}:?\d{2})$")
_WRITTEN_MISSING = ("", "nan", "NaN", "<NA>", "NaT")
"""Texts that stand for a missing value where a program wrote one as a text."""
MISSING = "a missing value (nothing, NaN, or a word such as NA)"


@dataclass(frozen=True)
class FileTable:
    """Columns by name, in the order of the file."""

    path: Path
    columns: Mapping[str, Any]  # pyarrow's arrays, equally long; texts are strings without spaces around them
    lines: IntArray | None  # on which each row begins; None where the file has no lines
    index: Collection[str] = ()  # columns that the file itself says are no data but the index of its rows

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def place(self, row: int, name: str) -> str:
        """Where a value stands, for an error text."""
        where = f"row {row + 1}" if self.lines is None else f"line {self.lines[row]}"
        return f"data: {self.path}, {where}, column {name!r}"

    def kind(self, name: str) -> str:
        """`number` (truth values are some), `text`, `time` (dates too), or pyarrow's name of any other type."""
        types, kind = arrow().types, self.columns[name].type
        tests = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean)
        if any(test(kind) for test in tests):
            return "number"
        if types.is_date(kind) or types.is_timestamp(kind) or types.is_time(kind) or types.is_duration(kind):
            return "time"
        return "text" if types.is_string(kind) else str(kind)

    def numbers(self, name: str) -> NDArray[np.float64]:
        """Values of a column of numbers without gaps [N]."""
        return np.asarray(self.columns[name].to_numpy(), dtype=np.float64)

    def time_unit(self, name: str) -> str:
        """What the numbers of a column of dates or times count; texts in ISO form are dates."""
        types, kind = arrow().types, self.columns[name].type
        if types.is_duration(kind):
            return "days"
        return "hours since midnight" if types.is_time(kind) else "days since 1970-01-01"

    def times(self, name: str) -> NDArray[np.float64]:
        """Values of a column of dates or times without gaps [N], in the unit `time_unit`; those with a zone in UTC."""
        types, column = arrow().types, self.columns[name]
        zone = getattr(column.type, "tz", None)
        if self.kind(name) == "text":
            zone = "UTC" if _ZONE.search(column[0].as_py()) else None
        of = arrow().timestamp("us", zone)
        if types.is_time(column.type):
            of = arrow().time64("us")
        elif types.is_duration(column.type):
            of = arrow().duration("us")
        try:
            counted = column.cast(of, safe=False).cast(arrow().int64()).to_numpy()
        except arrow().ArrowException as error:
            raise DataError(
                f"data: {self.path}, column {name!r}: found what is no date ({error}); correct it, or leave the column "
                f"out, drop={name}"
            ) from None
        return np.asarray(counted, dtype=np.float64) / (HOUR if types.is_time(column.type) else 24 * HOUR)

    def distinct(self, name: str) -> tuple[list[str], IntArray]:
        """Texts of a column, each once, and for each row [N] which of them it holds."""
        encoded = self.columns[name].combine_chunks().dictionary_encode()
        return [str(value) for value in encoded.dictionary.to_pylist()], np.array(encoded.indices, dtype=np.int64)

    def check_whole(self, name: str, advice: str) -> None:
        """Raise DataError where a value of the column is missing; `advice` says what else can be done."""
        compute, column = import_module("pyarrow.compute"), self.columns[name]
        missing = compute.is_null(column, nan_is_null=True).to_numpy()
        if self.kind(name) == "text":
            missing |= compute.is_in(column, value_set=arrow().array(_WRITTEN_MISSING)).to_numpy()
        if len(rows := np.flatnonzero(missing)):
            more = f" (and in {len(rows) - 1} further rows)" if len(rows) > 1 else ""
            raise DataError(
                f"{self.place(int(rows[0]), name)}: found {MISSING}{more}; every row needs a value: fill it in, or "
                f"leave the row out{advice}"
            )


def arrow() -> Any:
    """The library pyarrow; DataError if it is not installed."""
    try:
        return import_module("pyarrow")
    except ImportError:
        raise DataError("data: tables are read by pyarrow: pip install 'dqnfed-flwr[tabular]'") from None


def listed(names: Sequence[str]) -> str:
    """The first names of many."""
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return ", ".join(names[:MOST_LISTED]) + more


def read_csv_table(path: Path, texts: Collection[str]) -> FileTable:
    """Read a CSV file; the columns `texts` stay as they are written, of all others pyarrow finds the type.

    DataError, with line and column, for what is no table: another encoding, ragged lines, no header or no row, and
    names that are missing or stand twice.
    """
    arrow()
    content = unpacked(path)
    _check_encoding(path, content)
    header, lines = _scan(path, content)
    names = _named([name.strip() for name in header])
    _check_names(path, names, len(lines))
    reader = import_module("pyarrow.csv")
    kept = {name: arrow().string() for name, known in zip(header, names, strict=True) if known in texts}
    try:
        found = reader.read_csv(
            io.BytesIO(content),
            read_options=reader.ReadOptions(use_threads=False, block_size=BLOCK),
            parse_options=reader.ParseOptions(newlines_in_values=True),
            convert_options=reader.ConvertOptions(strings_can_be_null=True, column_types=kept),
        )
    except arrow().ArrowException as error:
        raise DataError(f"data: {path} cannot be read as CSV ({error}); write it anew, as UTF-8 with commas") from error
    if found.shape != (len(lines), len(names)):
        raise DataError(
            f"data: {path}: found {found.shape[0]} rows of {found.shape[1]} columns on {len(lines)} lines of "
            f"{len(names)}; write it anew, as UTF-8 with commas"
        )
    return FileTable(path, dict(zip(names, map(_plain, found.columns), strict=True)), lines)


def read_parquet_table(path: Path, texts: Collection[str]) -> FileTable:
    """Read a Parquet file, whose columns have the types that it says, also `texts`.

    DataError for a file that is none or has no row, and for names that stand twice.
    """
    del texts
    arrow()
    try:
        found = import_module("pyarrow.parquet").ParquetFile(path).read()
    except (arrow().ArrowException, OSError) as error:
        raise DataError(
            f"data: {path} cannot be read as Parquet ({error}); write it anew, or name a CSV file as csv:PATH"
        ) from error
    names = [name.strip() for name in found.column_names]
    _check_names(path, names, found.num_rows)
    columns = dict(zip(names, map(_plain, found.columns), strict=True))
    return FileTable(path, columns, None, _index_named(found.schema))


def _index_named(schema: Any) -> list[str]:
    """Columns that are an index by the metadata that pandas wrote; a range of numbers there is no column."""
    try:
        named = (schema.pandas_metadata or {}).get("index_columns", [])
    except (ValueError, AttributeError):  # metadata that others wrote under the same key
        return []
    return [name.strip() for name in named if isinstance(name, str)]


def _named(names: Sequence[str]) -> list[str]:
    """The names of a header; a column without one is called as pandas calls it, by its place."""
    found = list(names)
    for place in [place for place, name in enumerate(names) if not name]:
        found[place] = f"Unnamed: {place}"
        while found[place] in names:
            found[place] += ".1"
    return found


def _plain(column: Any) -> Any:
    """The column without a dictionary; texts are strings without spaces around them."""
    types, of = arrow().types, column.type
    if types.is_dictionary(of):
        column, of = column.cast(of.value_type), of.value_type
    if types.is_string(of) or types.is_large_string(of) or str(of) == "string_view":
        return import_module("pyarrow.compute").utf8_trim_whitespace(column.cast(arrow().string()))
    return column


def _check_names(path: Path, names: Sequence[str], rows: int) -> None:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"data: {path}: the columns {listed(twice)} stand twice in its header; give each its own name")
    if "" in names:
        raise DataError(f"data: {path}: column {names.index('') + 1} has no name; give it one, or leave it out")
    if not rows:
        raise DataError(f"data: {path} has a header of {len(names)} columns and no row; it needs a row a sample")


def _check_encoding(path: Path, content: bytes) -> None:
    """Raise DataError with the place of the first byte that is no UTF-8."""
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        if content.startswith(b"PAR1"):
            raise DataError(f"data: {path} is a Parquet file; write parquet:PATH") from None
        before = content[: error.start]
        line = len((before + b".").splitlines())
        records = [record for record in csv.reader(io.StringIO(before.decode("utf-8") + "?", newline="")) if record]
        place = len(records[-1]) - 1
        name = f" {records[0][place]!r}" if len(records) > 1 and place < len(records[0]) else f" {place + 1}"
        raise DataError(
            f"data: {path}, line {line}, column{name}: found the byte 0x{content[error.start]:02x}, which is no "
            "UTF-8; save the file as UTF-8"
        ) from None


def _scan(path: Path, content: bytes) -> tuple[list[str], IntArray]:
    """The header, and the line on which each row begins [N]; blank lines are no rows."""
    try:
        records = _records(content)
        _, header = next(records, (0, None))
        if header is None:
            raise DataError(f"data: {path} is empty; it needs a header line with the names of its columns, then rows")
        lines = []
        for line, record in records:
            if len(record) != len(header):
                raise DataError(
                    f"data: {path}, line {line}: found {len(record)} values, the header has {len(header)} columns; "
                    "each row needs one a column, and quotes around a value with a comma"
                )
            lines.append(line)
    except csv.Error as error:
        raise DataError(f"data: {path}, near its end: {error}; close all quotes") from None
    return header, np.array(lines, dtype=np.int64)


def _records(content: bytes) -> Iterator[tuple[int, list[str]]]:
    """Lines on which the records begin, and their values."""
    reader = csv.reader(io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline=""), strict=True)
    line = 1
    for record in reader:
        if record:
            yield line, record
        line = reader.line_num + 1
