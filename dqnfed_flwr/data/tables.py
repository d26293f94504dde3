"""Tables as data: one column is learnt, the others are features; `csv:PATH,label=COLUMN`, `parquet:PATH,...`.

| option | meaning |
|---|---|
| label | column of classes; one with fractions is a target |
| target | column of numbers to be learnt as they are, float32 |
| classes | labels in the order of their numbers, `no+yes` |
| group | column of the natural group, such as a hospital |
| drop | columns left out, `id+date` |
| test | another table of the same columns to test on |

Numbers and truth values become float32. Texts become one column for each of their values, in sorted order, with 1 where
a row has it. Labels that are the whole numbers 0..C-1 stay; all others are numbered in sorted order, and their names
kept. A test table is encoded as the training table is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.data.dataset import IntArray
from dqnfed_flwr.data.forms import FormOptions, check_dense, need
from dqnfed_flwr.data.store import Arrays
from dqnfed_flwr.data.table_files import FileTable, listed, read_csv_table, read_parquet_table
from dqnfed_flwr.errors import DataError

MOST_VALUES = 256
"""Different texts of a feature; more are names or identifiers."""
FEW, NUMBERS = 20, 0.9
"""Of more texts than the first, a share of numbers from the second on is a column of numbers with a slip."""
Reader = Callable[[Path, Collection[str]], FileTable]
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)


@dataclass(frozen=True)
class Feature:
    """A column that is trained on; `values` are those of a column of texts, each a column of its own."""

    name: str
    values: tuple[str, ...] | None


@dataclass(frozen=True)
class Roles:
    """What the columns are for."""

    learnt: str
    regressed: bool
    classes: tuple[str, ...]
    group: str
    drop: tuple[str, ...]

    @property
    def texts(self) -> set[str]:
        """Columns that are read as they are written."""
        return {self.group if self.regressed else self.learnt, self.group} - {""}

    def features(self, table: FileTable) -> list[str]:
        """The other columns of a table."""
        return [name for name in table.columns if name not in (self.learnt, self.group, *self.drop)]


def csv_files(paths: Sequence[Path]) -> list[Path]:
    """The files themselves."""
    return _files(paths, "csv")


def parquet_files(paths: Sequence[Path]) -> list[Path]:
    """The files themselves."""
    return _files(paths, "parquet")


def read_csv(paths: Sequence[Path], options: FormOptions, scratch: Path) -> Arrays:
    """Features and labels of CSV files."""
    return _read(paths, options, read_csv_table)


def read_parquet(paths: Sequence[Path], options: FormOptions, scratch: Path) -> Arrays:
    """Features and labels of Parquet files."""
    return _read(paths, options, read_parquet_table)


def _files(paths: Sequence[Path], form: str) -> list[Path]:
    need(paths, f"a table: {form}:PATH,label=COLUMN")
    if folders := [str(path) for path in paths if not path.is_file()]:
        raise DataError(f"data: {folders[0]} is no file; name one: {form}:PATH,label=COLUMN")
    return list(paths)


def _read(paths: Sequence[Path], options: FormOptions, read: Reader) -> Arrays:
    train = read(paths[0], [options.get(key, "") for key in ("label", "group")])
    roles = _roles(train, options)
    features = list(_features(train, roles))
    tables = {"train": train}
    if len(paths) > 1:
        tables["test"] = read(paths[1], roles.texts | {feature.name for feature in features if feature.values})
        _check_columns(train, tables["test"], roles)
    for table in tables.values():
        for name in filter(None, (roles.learnt, roles.group)):
            _check_kind(table, name)
            table.check_whole(name, "")
    labels = _labels(tables, roles)
    numbered = [feature.name for feature in features if feature.values]
    numbered += [roles.learnt] if "class_names" in labels and not roles.classes else []
    return {
        **{f"x_{part}": _encoded(table, features, train) for part, table in tables.items()},
        **labels,
        **(_groups(tables, roles.group) if roles.group else {}),
        **({"numbered": np.array(numbered)} if numbered else {}),
    }


def _roles(table: FileTable, options: FormOptions) -> Roles:
    """Columns of the options, all of which must be there."""
    given = [key for key in ("label", "target") if key in options]
    if len(given) != 1:
        raise DataError(
            f"data: {table.path}: found {' and '.join(given) or 'neither label nor target'}; name the column to be "
            f"learnt: label=COLUMN for classes, target=COLUMN for a number; columns are {listed([*table.columns])}"
        )
    dropped = options.get("drop", "")
    drop = (dropped,) if dropped in table.columns else tuple(filter(None, dropped.split("+")))
    named = [(key, options[key]) for key in (*given, "group") if key in options] + [("drop", name) for name in drop]
    for key, name in named:
        if name not in table.columns:
            near = get_close_matches(name, table.columns, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            if set("".join(table.columns)) & set(";\t"):
                hint = "; commas belong between columns."
            raise DataError(
                f"data: {table.path} has no column {name!r}, which {key} names{hint} Columns are "
                f"{listed([*table.columns])}"
            )
    if len({name for _, name in named}) < len(named):
        raise DataError(f"data: {table.path}: {', '.join('='.join(pair) for pair in named)}: name each column once")
    classes = tuple(name.strip() for name in options["classes"].split("+")) if "classes" in options else ()
    if classes and (len(set(classes)) < max(len(classes), 2) or given == ["target"]):
        raise DataError(f"data: classes={options['classes']!r}; give two or more different labels, such as no+yes")
    return Roles(options[given[0]], given == ["target"], classes, options.get("group", ""), drop)


def _check_kind(table: FileTable, name: str) -> None:
    if table.kind(name) not in ("number", "text"):
        raise DataError(
            f"data: {table.path}, column {name!r}: found the type {table.kind(name)}; allowed are numbers, truth "
            f"values and texts: turn it into one of them, or leave the column out, drop={name}"
        )


def _features(table: FileTable, roles: Roles) -> Iterator[Feature]:
    """How each feature of the training table is encoded."""
    names = roles.features(table)
    if not names:
        raise DataError(f"data: {table.path} has no column of features besides {listed([*table.columns])}")
    for name in names:
        table.check_whole(name, f", or the column, drop={name}")
        _check_kind(table, name)
        yield Feature(name, _values(table, name) if table.kind(name) == "text" else None)


def _values(table: FileTable, name: str) -> tuple[str, ...] | None:
    """Sorted texts of a feature, not too many, and no numbers with a slip among them; None for numbers."""
    values, _ = table.distinct(name)
    if table.lines is not None and not _slips(values):  # such as +1, which pyarrow takes for a text
        return None
    _check_slips(table, name, f"leave the column out, drop={name}")
    if len(values) > MOST_VALUES:
        raise DataError(
            f"data: {table.path}, column {name!r}: found {len(values):,} different texts, as names have; at most "
            f"{MOST_VALUES} become features: join some, or leave the column out, drop={name}"
        )
    return tuple(sorted(values))


def _check_slips(table: FileTable, name: str, remedy: str) -> None:
    """A column of numbers with a few values that are none, or with commas in them, is no column of texts."""
    values, rows = table.distinct(name)
    slips = _slips(values)
    if slips and len(values) > FEW and len(slips) <= (1 - NUMBERS) * len(values):
        row = int(np.flatnonzero(np.isin(rows, slips))[0])
        raise DataError(
            f"{table.place(row, name)}: found {values[rows[row]]!r} in a column of numbers; allowed are numbers with a "
            f"decimal point: correct it, or {remedy}"
        )
    with_commas = [place for place, value in enumerate(values) if "," in value]
    slips = _slips([value.replace(",", "") for value in values])
    if with_commas and len(values) > FEW and len(slips) <= (1 - NUMBERS) * len(values):
        row = int(np.flatnonzero(np.isin(rows, with_commas))[0])
        raise DataError(
            f"{table.place(row, name)}: found {values[rows[row]]!r} in a column of numbers with commas; allowed are "
            f"numbers with a decimal point, and nothing between thousands: write them so, or {remedy}"
        )


def _check_columns(train: FileTable, test: FileTable, roles: Roles) -> None:
    """The test table has the columns of the training table, in any order, save those that are left out."""
    wanted, found = (set(table.columns) - set(roles.drop) for table in (train, test))
    if wanted != found:
        raise DataError(
            f"data: {test.path}: lacks the columns {listed(sorted(wanted - found)) or 'none'} and has others "
            f"{listed(sorted(found - wanted)) or 'none'} than {train.path}; give both tables the same"
        )


def _encoded(table: FileTable, features: Sequence[Feature], train: FileTable) -> NDArray[np.float32]:
    """Features [N, F] of a table."""
    width = sum(len(feature.values) if feature.values else 1 for feature in features)
    check_dense(len(table), width)
    x = np.zeros((len(table), width), dtype=np.float32)
    place = 0
    for feature in features:
        if table is not train:
            table.check_whole(feature.name, "")
        if feature.values is None:
            x[:, place] = _as_float32(table, feature.name)
            place += 1
        else:
            x[np.arange(len(table)), place + _codes(table, feature.name, feature.values, train)] = 1
            place += len(feature.values)
    return x


def _as_float32(table: FileTable, name: str) -> NDArray[np.float32]:
    """Numbers of a column [N]; DataError where one is none, or too large for float32."""
    _check_kind(table, name)
    exact = table.numbers(name) if table.kind(name) == "number" else _parsed(table, name)
    with np.errstate(over="ignore"):
        numbers = exact.astype(np.float32)
    if len(bad := np.flatnonzero(~np.isfinite(numbers))):
        raise DataError(
            f"{table.place(int(bad[0]), name)}: found {exact[bad[0]]:g}; allowed are numbers of at most 3.4e38 in size"
        )
    return numbers


def _parsed(table: FileTable, name: str) -> NDArray[np.float64]:
    """Numbers of a column of texts [N]."""
    values, rows = table.distinct(name)
    if slips := _slips(values):
        row = int(np.flatnonzero(np.isin(rows, slips))[0])
        raise DataError(f"{table.place(row, name)}: found {values[rows[row]]!r}; allowed are numbers in this column")
    return np.array(values, dtype=np.float64)[rows]


def _slips(values: Sequence[str]) -> list[int]:
    """Places of the values that are no numbers."""
    return [place for place, value in enumerate(values) if not _NUMBER.fullmatch(value)]


def _codes(
    table: FileTable, name: str, known: Sequence[str], train: FileTable, key: Callable[[str], str] = str
) -> IntArray:
    """Which of the known values each row holds [N]; DataError for any other."""
    values, rows = table.distinct(name)
    places = {value: place for place, value in enumerate(known)}
    codes = np.array([places.get(key(value), -1) for value in values], dtype=np.int64)[rows]
    if len(bad := np.flatnonzero(codes < 0)):
        raise DataError(
            f"{table.place(int(bad[0]), name)}: found {values[rows[bad[0]]]!r}; allowed are "
            f"{'the classes given' if table is train else f'the values in {train.path}'}, {listed(known)}: correct it, "
            "or leave the row out"
        )
    return codes


def _labels(tables: dict[str, FileTable], roles: Roles) -> Arrays:
    """Class numbers of the tables, with the names of classes that were numbered; a target where it has fractions."""
    train, name = tables["train"], roles.learnt
    if not roles.classes and not roles.regressed:
        _check_slips(train, name, "name the classes, classes=A+B")
    found = train.distinct(name)[0]
    whole = all(_as_whole(value) is not None for value in found)
    if roles.regressed or not (whole or roles.classes or _slips(found)):
        return {f"y_{part}": _as_float32(table, name) for part, table in tables.items()}

    def key(value: str) -> str:
        number = _as_whole(value) if whole else None
        return value if number is None else str(number)

    given = [key(value) for value in roles.classes]
    order = given or sorted({key(value) for value in found}, key=int if whole else str)
    labels: dict[str, NDArray[Any]] = {
        f"y_{part}": _codes(table, name, order, train, key) for part, table in tables.items()
    }
    if given or order != [str(number) for number in range(len(order))]:
        labels |= {"class_names": np.array(order), "num_classes": np.array(len(order))}
    return labels


def _as_whole(value: str) -> int | None:
    """A whole number, which may be written with a decimal point; None for anything else."""
    if not _NUMBER.fullmatch(value):
        return None
    if value.lstrip("+-").isdecimal():
        return int(value)
    return int(float(value)) if float(value).is_integer() else None


def _groups(tables: dict[str, FileTable], name: str) -> Arrays:
    """Natural groups, in the order of their names."""
    held = {part: table.distinct(name) for part, table in tables.items()}
    names = sorted({value for values, _ in held.values() for value in values})
    places = {value: place for place, value in enumerate(names)}
    numbers = {
        f"groups_{part}": np.array([places[value] for value in values])[rows] for part, (values, rows) in held.items()
    }
    return {**numbers, "group_names": np.array(names)}
