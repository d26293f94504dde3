"""Rows of a part that `--methods` names, by the paper's name, by ours, or by a method of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dqnfed_flwr.compare.entries import ALL, Entry, parse_methods
from dqnfed_flwr.config import Settings
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.reproduce.schema import Part, Row


def rows_asked(part: Part, methods: str) -> list[Row | Entry]:
    """Read `NAME,method,method@key=value`, each row once.

    A name that the paper or our tables give a row, whatever its case, takes that row, commas in it or not. The name of
    a method, as this package writes it, takes all rows of that method, and where there is none the method with its
    defaults.

    Raises
    ------
    ConfigError
        As `parse_methods`, for what is no name of a row; it lists these names too.
    """
    if methods.strip() == ALL:
        return _rows_of(part, parse_methods(methods))
    found: list[Row | Entry] = []
    names = [(name, row) for row in part.rows for name in _names(row) if name]
    named: dict[str, list[Row]] = {}
    for name, row in names:
        named.setdefault(name.lower(), []).append(row)
    words = _words(methods, list(named))
    specs = [word for word in words if _is_spec(word, part, named)]
    try:
        read = dict(zip(specs, parse_methods(",".join(specs)), strict=True)) if specs else {}
    except ConfigError as error:
        raise ConfigError(f"{error}\nrows here: {', '.join(dict.fromkeys(name for name, _ in names))}") from None
    for word in words:
        found += _rows_of(part, [read[word]]) if word in read else named[word.lower()]
    return [row for place, row in enumerate(found) if row not in found[:place]]


def _names(row: Row) -> tuple[str, ...]:
    """What the paper and our tables call a row."""
    return (row.title or Settings.from_mapping({**row.own, "method": row.method}).title, row.paper)


def _words(methods: str, names: list[str]) -> list[str]:
    """`methods` at its commas, but for those inside a name; the longest name counts."""
    name = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    pattern = re.compile(rf"\s*((?:{name})(?=\s*,)|[^,]*?)\s*,", re.IGNORECASE)
    return list(dict.fromkeys(match[1] for match in pattern.finditer(f"{methods},")))


def _is_spec(word: str, part: Part, named: Mapping[str, list[Row]]) -> bool:
    """Whether a word is a method rather than the name of a row; `fedavg` is, `FedAvg` is a name."""
    return word.lower() not in named or any(word == row.method for row in part.rows)


def _rows_of(part: Part, asked: list[Entry]) -> list[Row | Entry]:
    found: list[Row | Entry] = []
    for entry in asked:
        found += [row for row in part.rows if row.method == entry.method and not entry.own] or [entry]
    return found
