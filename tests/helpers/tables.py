"""What is made from the code: tables of the documents, and the defaults in `pyproject.toml`.

    python -m tests.helpers.tables

writes them anew. A test compares every file with what would be written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from dqnfed_flwr.config import Scalar, describe, toml_defaults
from dqnfed_flwr.telemetry.metrics import CLIENT_METRICS, EXPORTER_METRICS, RUN_METRICS, Metric
from tests.helpers.monitoring import rules

ROOT = Path(__file__).parents[2]
METHOD_PAGES = ROOT / "docs" / "methods"


def settings_table() -> str:
    """One row a key: name, default, meaning."""
    lines = ["| key | default | meaning |", "|---|---|---|"]
    lines += [f"| `{key}` | {_shown(default)} | {_escaped(meaning)} |" for key, default, meaning in describe()]
    return "\n".join(lines) + "\n"


def methods_table() -> str:
    """One row a page: its first line names the methods, their rule, and when to choose them; DQN-Fed comes first."""
    lines = ["| `method` | rule | choose it when |", "|---|---|---|"]
    for page in sorted(METHOD_PAGES.glob("*.md"), key=lambda page: (page.stem != "dqn-fed", page.stem)):
        first = page.read_text("utf-8").partition("\n")[0]
        if not (found := re.fullmatch(r"<!-- (.+) \| (.+) \| (.+) -->", first)):
            raise ValueError(f"{page}: found {first!r}; the first line is <!-- method | rule | choose it when -->")
        names, rule, when = found.groups()
        links = ", ".join(f"[`{name}`](methods/{page.name})" for name in names.split(", "))
        lines.append(f"| {links} | {rule} | {when} |")
    return "\n".join(lines) + "\n"


def metrics_table(metrics: tuple[Metric, ...]) -> str:
    """One row a metric: name, which ends in its unit, type with labels, meaning."""
    lines = ["| name | type, labels | meaning |", "|---|---|---|"]
    for metric in metrics:
        kind = ", ".join([metric.kind, *(f"`{label}`" for label in metric.labels)])
        meaning = metric.help.replace("|", "\\|")
        lines.append(f"| `{metric.name}` | {kind} | {meaning} |")
    return "\n".join(lines) + "\n"


def recorded_table() -> str:
    """One row a recorded series."""
    lines = ["| name | expression |", "|---|---|"]
    for rule in rules("recording.yml"):
        expression = " ".join(rule["expr"].split()).replace("|", "\\|")
        lines.append(f"| `{rule['record']}` | `{expression}` |")
    return "\n".join(lines) + "\n"


MADE: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "docs/settings.md": {"settings": settings_table},
    "docs/methods.md": {"methods": methods_table},
    "docs/metrics.md": {
        "run": lambda: metrics_table(RUN_METRICS),
        "client": lambda: metrics_table(CLIENT_METRICS),
        "exporter": lambda: metrics_table(EXPORTER_METRICS),
        "recorded": recorded_table,
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
