"""Columns of a table as features: numbers, dates and texts, and which columns are none, for they number the rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.data import columns
from dqnfed_flwr.data.dataset import IntArray
from dqnfed_flwr.data.number_text import FEW, PLAIN, Slip, all_iso, beside_numbers, column_of_numbers, slip_in, written
from dqnfed_flwr.data.table_files import FileTable, listed
from dqnfed_flwr.errors import DataError

MOST_VALUES, MOST_SHARE = 256, 0.9
"""Different texts of a feature, and their share of its rows where these are more than `FEW`; more are names."""


@dataclass(frozen=True)
class Feature:
    """A column that is trained on."""

    name: str
    values: tuple[str, ...] | None = None  # those of texts, each a column of its own; None where it is of numbers
    unit: str = ""  # the sign that stands at each number of a column of texts
    note: str = ""  # what is worth saying of how it is read


def index_columns(table: FileTable, kept: Collection[str]) -> dict[str, str]:
    """Columns that number the rows, and how that is known; none of those `kept`, which have another role.

    DataError for a column without a name that may be something else.
    """
    found: dict[str, str] = {}
    leading = True
    for name in table.columns:
        leading = leading and (name in table.index or columns.names_index(name))
        if name in kept:
            continue
        if name in table.index:
            found[name] = "is the index, as the file's own pandas metadata say"
        elif columns.is_level(name):
            found[name] = "has the name that pandas gives an index"
        elif columns.is_unnamed(name):
            _check_unnamed(table, name, leading)
            found[name] = columns.NAMELESS
        elif _is_whole(table, name) and (why := columns.why_index(name, table.numbers(name), leading=leading)):
            found[name] = why
    return found


def _is_whole(table: FileTable, name: str) -> bool:
    """Whether a column is one of numbers without gaps."""
    return table.kind(name) == "number" and not table.columns[name].null_count


def _check_unnamed(table: FileTable, name: str, leading: bool) -> None:
    """An index stands before the other columns, and its values are whole numbers, or differ from row to row."""
    values = [] if table.columns[name].null_count else table.distinct(name)[0]
    whole = bool(values) and all(PLAIN.fullmatch(value) and float(value).is_integer() for value in values)
    if not leading or not (whole or len(values) == len(table)):
        raise DataError(
            f"data: {table.path}, column {name!r}: has no name of its own in the header, and may be an index or a "
            f"feature; give it a name, or leave it out, drop={name}, or keep it, keep={name}"
        )


def features_of(table: FileTable, names: Sequence[str], kept: Collection[str] = ()) -> Iterator[Feature]:
    """How each column of features of the training table is encoded; texts of those `kept` stay texts."""
    for name in names:
        table.check_whole(name, f", or the column, drop={name}")
        check_kind(table, name, ("number", "text", "time"))
        if table.kind(name) == "text":
            yield _of_texts(table, name, name in kept)
        elif table.kind(name) == "time":
            yield Feature(name, note=f"column {name!r} is read as {table.time_unit(name)}")
        elif columns.numbers_rows(table.numbers(name)):
            note = f"column {name!r} holds each row number once; leave it out, drop={name}, if it is an index"
            yield Feature(name, note=note)
        else:
            yield Feature(name)


def _of_texts(table: FileTable, name: str, kept: bool) -> Feature:
    """Sorted texts of a feature, not too many, and no numbers with a slip among them unless `kept`; or numbers."""
    values, rows = table.distinct(name)
    if all(map(PLAIN.fullmatch, values)):
        if table.lines is not None:  # such as +1, which pyarrow takes for a text
            return Feature(name)
    elif found := column_of_numbers(values):
        return Feature(name, unit=found[0], note=note_on_numbers(name, values, found[1]))
    elif all_iso(values):
        return Feature(name, note=f"column {name!r} is read as {table.time_unit(name)}")
    if not kept:
        remedy = f"keep its texts as they are, keep={name}, or leave the column out, drop={name}"
        check_slips(table, name, remedy)
        if slip := beside_numbers(values):
            refuse(table, name, slip, values, rows, remedy)
        if len(table) > FEW and len(values) >= MOST_SHARE * len(table):
            raise DataError(
                f"data: {table.path}, column {name!r}: found {len(values):,} different texts in {len(table):,} rows, "
                f"as names have; allowed are texts that rows share: {remedy}"
            )
    if len(values) > MOST_VALUES:
        raise DataError(
            f"data: {table.path}, column {name!r}: found {len(values):,} different texts, as names have; at most "
            f"{MOST_VALUES} become features: join some, or leave the column out, drop={name}"
        )
    return Feature(name, tuple(sorted(values)))


def note_on_numbers(name: str, values: Sequence[str], numbers: Sequence[float]) -> str:
    """How a column of texts is read as numbers."""
    place = next(place for place, value in enumerate(values) if not PLAIN.fullmatch(value))
    return f"column {name!r} is read as numbers, {values[place]!r} as {numbers[place]:.15g}"


def notes_on_merged(table: FileTable, names: Sequence[str]) -> Iterator[str]:
    """A word for each of these columns of numbers, some of which become equal."""
    for name in names:
        kind, column = table.kind(name), table.columns[name]
        if kind == "number":
            exact = column.to_numpy() if str(column.type).startswith(("int", "uint")) else table.numbers(name)
        elif kind == "text":
            exact = np.array([number.value for number in map(written, table.distinct(name)[0]) if number])
        else:
            continue
        if columns.merges(exact):
            yield f"column {name!r} {columns.MERGED}"


def check_kind(table: FileTable, name: str, kinds: Sequence[str] = ("number", "text")) -> None:
    """Raise DataError where a column is of another kind."""
    if (kind := table.kind(name)) not in kinds:
        found = str(table.columns[name].type) if kind == "time" else kind
        dates = "dates, times " if "time" in kinds else ""
        raise DataError(
            f"data: {table.path}, column {name!r}: found the type {found}; allowed are numbers, truth values, {dates}"
            f"and texts: turn it into one of them, or leave the column out, drop={name}"
        )


def check_slips(table: FileTable, name: str, remedy: str) -> None:
    """A column of numbers or dates with a few values that are none, or that can be read in two ways, is no text."""
    values, rows = table.distinct(name)
    if slip := slip_in(values, np.bincount(rows, minlength=len(values)).tolist()):
        refuse(table, name, slip, values, rows, remedy)


def refuse(table: FileTable, name: str, slip: Slip, values: Sequence[str], rows: IntArray, remedy: str) -> None:
    """Raise DataError for the first row with this value."""
    row = int(np.flatnonzero(rows == slip.place)[0])
    raise DataError(
        f"{table.place(row, name)}: found {values[slip.place]!r} {slip.column}; allowed are {slip.allowed}: correct "
        f"it, or {remedy}"
    )


def encoded(table: FileTable, features: Sequence[Feature], train: FileTable) -> NDArray[np.float32]:
    """Features [N, F] of a table."""
    width = sum(len(feature.values) if feature.values else 1 for feature in features)
    columns.check_dense(len(table), width)
    x = np.zeros((len(table), width), dtype=np.float32)
    place = 0
    for feature in features:
        if table is not train:
            table.check_whole(feature.name, "")
        if feature.values is None:
            x[:, place] = as_float32(table, feature.name, feature.unit, train, times=True)
            place += 1
        else:
            x[np.arange(len(table)), place + codes(table, feature.name, feature.values, train)] = 1
            place += len(feature.values)
    return x


def as_float32(table: FileTable, name: str, unit: str, train: FileTable, *, times: bool = False) -> NDArray[np.float32]:
    """Numbers of a column [N]; DataError where one is none, has another unit, or is too large for float32.

    With `times`, dates and times are numbers as well.
    """
    timed = times and (train.kind(name) == "time" or _are_dates(train, name))
    check_kind(table, name, ("number", "text", "time") if timed else ("number", "text"))
    if timed:
        exact = _times(table, name, train)
    elif table.kind(name) == "number":
        exact = table.numbers(name)
        if unit:
            raise DataError(
                f"{table.place(0, name)}: found {exact[0]:g}; allowed are numbers with {unit}, as in {train.path}"
            )
    else:
        exact = _parsed(table, name, unit)
    return columns.to_float32(exact, lambda row: table.place(row, name))


def _are_dates(table: FileTable, name: str) -> bool:
    return table.kind(name) == "text" and all_iso(table.distinct(name)[0])


def _times(table: FileTable, name: str, train: FileTable) -> NDArray[np.float64]:
    """Dates and times as numbers, in the unit of the training table."""
    unit = train.time_unit(name)
    if not (table.kind(name) == "time" or _are_dates(table, name)) or table.time_unit(name) != unit:
        raise DataError(
            f"data: {table.path}, column {name!r}: found values of another kind than the {unit} of {train.path}; give "
            "both tables the same"
        )
    return table.times(name)


def _parsed(table: FileTable, name: str, unit: str) -> NDArray[np.float64]:
    """Numbers of a column of texts [N]."""
    values, rows = table.distinct(name)
    found = [written(value) for value in values]
    wrong = [place for place, number in enumerate(found) if number is None or number.unit != unit]
    slip = slip_in(values) or (Slip(wrong[0], "", "") if wrong else None)
    if slip:
        row = int(np.flatnonzero(rows == slip.place)[0])
        with_unit = f" with {unit}" if unit else ""
        raise DataError(
            f"{table.place(row, name)}: found {values[slip.place]!r}{' ' * bool(slip.column)}{slip.column}; allowed "
            f"are {slip.allowed or f'numbers{with_unit} in this column'}"
        )
    return np.array([number.value for number in found if number], dtype=np.float64)[rows]


def codes(
    table: FileTable, name: str, known: Sequence[str], train: FileTable, key: Callable[[str], str] = str
) -> IntArray:
    """Which of the known values each row holds [N]; DataError for any other."""
    values, rows = table.distinct(name)
    places: Mapping[str, int] = {value: place for place, value in enumerate(known)}
    found = np.array([places.get(key(value), -1) for value in values], dtype=np.int64)[rows]
    if len(bad := np.flatnonzero(found < 0)):
        raise DataError(
            f"{table.place(int(bad[0]), name)}: found {values[rows[bad[0]]]!r}; allowed are "
            f"{'the classes given' if table is train else f'the values in {train.path}'}, {listed(known)}: correct it, "
            "or leave the row out"
        )
    return found
