"""Tables as data: one column is learnt, the others are features; `csv:PATH,label=COLUMN`, `parquet:PATH,...`.

| option | meaning |
|---|---|
| label | column of classes, or, where the task learns numbers, of these; one with fractions is a target |
| target | column of numbers to be learnt as they are, float32 |
| classes | labels in the order of their numbers, `no+yes` |
| group | column of the natural group, such as a hospital |
| drop | columns left out, `id+date` |
| keep | columns that are features though they look like an index, or texts though they look like numbers |
| test | another table of the same columns to test on |

Numbers and truth values become float32, as do dates and times, and texts that are numbers with one unit. Other texts
become one column for each of their values, in sorted order, with 1 where a row has it. Columns that number the rows are
left out. Labels that are the whole numbers 0..C-1 stay; all others are numbered in sorted order, and their names kept.
A test table is encoded as the training table is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.data import table_features
from dqnfed_flwr.data.number_text import FEW, PLAIN, column_of_numbers
from dqnfed_flwr.data.reading import FormOptions, need
from dqnfed_flwr.data.store import Arrays
from dqnfed_flwr.data.table_files import FileTable, listed, read_csv_table, read_parquet_table
from dqnfed_flwr.errors import DataError

Reader = Callable[[Path, Collection[str]], FileTable]


@dataclass(frozen=True)
class Roles:
    """What the columns are for."""

    learnt: str
    regressed: bool
    classes: tuple[str, ...]
    group: str
    drop: tuple[str, ...]
    keep: tuple[str, ...]

    @property
    def used(self) -> set[str]:
        """Columns with a role of their own, or left out."""
        return {self.learnt, self.group, *self.drop} - {""}

    @property
    def texts(self) -> set[str]:
        """Columns that are read as they are written."""
        return {self.group if self.regressed else self.learnt, self.group} - {""}


def _files(form: str, paths: Sequence[Path]) -> list[Path]:
    need(paths, f"a table: {form}:PATH,label=COLUMN")
    if folders := [str(path) for path in paths if not path.is_file()]:
        raise DataError(f"data: {folders[0]} is no file; name one: {form}:PATH,label=COLUMN")
    return list(paths)


def _read(read: Reader, paths: Sequence[Path], options: FormOptions, scratch: Path) -> Arrays:
    del scratch
    train = read(paths[0], [options.get(key, "") for key in ("label", "group")])
    roles = _roles(train, options)
    left_out = table_features.index_columns(train, roles.used | {*roles.keep})
    features = list(table_features.features_of(train, _feature_names(train, roles, left_out), roles.keep))
    tables = {"train": train}
    if len(paths) > 1:
        tables["test"] = read(paths[1], roles.texts | {feature.name for feature in features if feature.values})
        _check_columns(train, tables["test"], roles, left_out)
    for table in tables.values():
        for name in filter(None, (roles.learnt, roles.group)):
            table_features.check_kind(table, name)
            table.check_whole(name, "")
    labels = _labels(tables, roles)
    numbered = [feature.name for feature in features if feature.values]
    numbered += [roles.learnt] if "class_names" in labels and not roles.classes else []
    notes = [f"column {name!r} is left out: it {why}; keep={name} keeps it" for name, why in left_out.items()]
    notes += [feature.note for feature in features if feature.note] + _note_on_target(train, roles.learnt, labels)
    exact = [feature.name for feature in features if feature.values is None]
    notes += table_features.notes_on_merged(train, exact + [roles.learnt] * (labels["y_train"].dtype.kind == "f"))
    return {
        **{f"x_{part}": table_features.encoded(table, features, train) for part, table in tables.items()},
        **labels,
        **(_groups(tables, roles.group) if roles.group else {}),
        **({"numbered": np.array(numbered)} if numbered else {}),
        **({"notes": np.array(notes)} if notes else {}),
    }


csv_files, parquet_files = partial(_files, "csv"), partial(_files, "parquet")
"""The files themselves."""
read_csv, read_parquet = partial(_read, read_csv_table), partial(_read, read_parquet_table)
"""Features and labels of such files."""


def _feature_names(table: FileTable, roles: Roles, left_out: Mapping[str, str]) -> list[str]:
    """Columns that are trained on, at least one."""
    names = [name for name in table.columns if name not in roles.used and name not in left_out]
    if not names:
        why = "".join(f"; {name!r} {words}: to keep it all the same, keep={name}" for name, words in left_out.items())
        raise DataError(f"data: {table.path} has no column of features besides {listed([*table.columns])}{why}")
    return names


def _roles(table: FileTable, options: FormOptions) -> Roles:
    """Columns of the options, all of which must be there."""
    given = [key for key in ("label", "target") if key in options]
    if len(given) != 1:
        raise DataError(
            f"data: {table.path}: found {' and '.join(given) or 'neither label nor target'}; name the column to be "
            f"learnt: label=COLUMN for classes, target=COLUMN for a number; columns are {listed([*table.columns])}"
        )
    several = {key: _several(table, options.get(key, "")) for key in ("drop", "keep")}
    named = [(key, options[key]) for key in (*given, "group") if key in options]
    named += [(key, name) for key, names in several.items() for name in names]
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
    return Roles(options[given[0]], given == ["target"], classes, options.get("group", ""), **several)


def _several(table: FileTable, given: str) -> tuple[str, ...]:
    """Names of columns with + between them, or the one that has a + in its own name."""
    return (given,) if given in table.columns else tuple(filter(None, given.split("+")))


def _check_columns(train: FileTable, test: FileTable, roles: Roles, left_out: Mapping[str, str]) -> None:
    """The test table has the columns of the training table, in any order, save those that are left out of either."""
    unused = {*roles.drop, *left_out}
    wanted, found = (set(table.columns) - unused for table in (train, test))
    found -= table_features.index_columns(test, set(train.columns) | roles.used | {*roles.keep}).keys()
    if wanted != found:
        raise DataError(
            f"data: {test.path}: lacks the columns {listed(sorted(wanted - found)) or 'none'} and has others "
            f"{listed(sorted(found - wanted)) or 'none'} than {train.path}; give both tables the same"
        )


def _labels(tables: dict[str, FileTable], roles: Roles) -> Arrays:
    """Class numbers of the tables, with the names of classes that were numbered; a target where it has fractions."""
    train, name = tables["train"], roles.learnt
    if not roles.classes and not roles.regressed:
        table_features.check_slips(train, name, "name the classes, classes=A+B")
    found = train.distinct(name)[0]
    whole = all(_as_whole(value) is not None for value in found)
    unit = _unit(found, 0 if roles.regressed else FEW)
    if roles.regressed or not (whole or roles.classes or unit is None):
        return _targets(tables, name, unit or "")

    def key(value: str) -> str:
        number = _as_whole(value) if whole else None
        return value if number is None else str(number)

    given = [key(value) for value in roles.classes]
    order = given or sorted({key(value) for value in found}, key=int if whole else str)
    if not given and (numbers := _numbers_of_both(tables, name, {*order}, key)):
        return numbers
    labels: dict[str, NDArray[Any]] = {
        f"y_{part}": table_features.codes(table, name, order, train, key) for part, table in tables.items()
    }
    if given or order != [str(number) for number in range(len(order))]:
        labels |= {"class_names": np.array(order), "num_classes": np.array(len(order))}
    return labels


def _numbers_of_both(tables: dict[str, FileTable], name: str, known: set[str], key: Callable[[str], str]) -> Arrays:
    """The labels as numbers where the test table has some that training lacks, and why they are no classes then.

    Empty where there is no such label, or one of them is no number.
    """
    values = list(dict.fromkeys(value for table in tables.values() for value in table.distinct(name)[0]))
    if {key(value) for value in values} <= known or "True" in values or "False" in values:
        return {}
    read = ("", []) if all(map(PLAIN.fullmatch, values)) else column_of_numbers(values)
    if read is None:
        return {}
    train = tables["train"]
    try:
        table_features.codes(tables["test"], name, sorted(known), train, key)
    except DataError as error:
        why = f"{error}; to learn numbers, set task to regression"
    return {**_targets(tables, name, read[0]), "only_values": np.array(why)}


def _targets(tables: dict[str, FileTable], name: str, unit: str) -> Arrays:
    """The numbers of a column, with this unit, as targets."""
    train = tables["train"]
    return {f"y_{part}": table_features.as_float32(table, name, unit, train) for part, table in tables.items()}


def _unit(found: Sequence[str], few: int) -> str | None:
    """The sign at each number of a column to be learnt; None where it holds classes, as `few` such texts are."""
    if all(map(PLAIN.fullmatch, found)):
        return ""
    read = column_of_numbers(found)
    return read[0] if read and len(found) > few else None


def _note_on_target(train: FileTable, name: str, labels: Arrays) -> list[str]:
    """How texts that are a target are read."""
    if train.kind(name) != "text" or labels["y_train"].dtype.kind != "f":
        return []
    values, _ = train.distinct(name)
    read = None if all(map(PLAIN.fullmatch, values)) else column_of_numbers(values)
    return [table_features.note_on_numbers(name, values, read[1])] if read else []


def _as_whole(value: str) -> int | None:
    """A whole number, which may be written with a decimal point; None for anything else."""
    if not PLAIN.fullmatch(value):
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
