"""What is made from the code: the tables of settings, and the defaults in `pyproject.toml`.

    python -m tests.helpers.tables

writes them anew. A test compares every file with what would be written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from dqnfed_flwr.config import KNOWN, Scalar, describe, toml_defaults
from dqnfed_flwr.schema.group import Level

ROOT = Path(__file__).parents[2]


def settings_table(level: Level) -> str:
    """One row a key of the level: name, default, meaning."""
    rows = [row for row in describe() if KNOWN[row[0]].level == level]
    lines = ["| key | default | meaning |", "|---|---|---|"]
    lines += [f"| `{key}` | {_shown(default)} | {_escaped(meaning)} |" for key, default, meaning in rows]
    return "\n".join(lines) + "\n"


MADE: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "docs/settings.md": {
        "everyday": lambda: settings_table("everyday"),
        "expert": lambda: settings_table("expert"),
    },
    "pyproject.toml": {"settings": toml_defaults},
}
"""By file, what stands between the marks `NAME: begin` and `NAME: end`."""


def made_anew(file: str) -> str:
    """The text of a file with everything between its marks as the code has it today.

    Raises
    ------
    ValueError
        If a mark is missing.
    """
    text = (ROOT / file).read_text("utf-8")
    for name, make in MADE[file].items():
        marks = re.compile(rf"(^[^\n]*\b{name}: begin\b[^\n]*\n).*?(^[^\n]*\b{name}: end\b)", re.DOTALL | re.MULTILINE)
        text, found = marks.subn(lambda match, make=make: match[1] + make() + match[2], text)  # type: ignore[misc]
        if found != 1:
            raise ValueError(f"{file}: the marks of {name} are missing")
    return text


def _shown(default: Scalar) -> str:
    if default == "":
        return "empty"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _escaped(meaning: str) -> str:
    return meaning.replace("|", "\\|").replace("<", "\\<").replace("_", "\\_")


if __name__ == "__main__":
    for name in MADE:
        (ROOT / name).write_text(made_anew(name), "utf-8")
