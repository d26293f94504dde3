"""The page that `benchmarks/guarantee.py` makes of its CSVs."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks._guarantee_runs import ABSENT, RIVALS, SETUPS

Row = dict[str, str]
MEAN_BAR, WORST_BAR, NAMED_BAR = -2.0, -5.0, 3


def page(folder: Path, before: Path | None) -> str:
    """Markdown, of whichever of the three CSVs `folder` has; `before` is an ordinary.csv to compare with."""
    parts: list[Callable[[], str]] = []
    if (folder / "unlike.csv").exists():
        parts.append(lambda: _unlike(_read(folder / "unlike.csv")))
    if (folder / "ordinary.csv").exists():
        parts.append(lambda: _ordinary(_read(folder / "ordinary.csv"), _read(before) if before else []))
    if (folder / "lies.csv").exists():
        parts.append(lambda: _lies(_read(folder / "lies.csv")))
    return "\n".join(part() for part in parts)


def _unlike(rows: Sequence[Row]) -> str:
    lines = ["## One client unlike the others", ""]
    table: list[Sequence[str]] = [
        ("case", "run", "client 7: loss", "accuracy", "mean", "worst", "ρ", "not harmed", "moved")
    ]
    for case in dict.fromkeys(row["case"] for row in rows):
        for side in dict.fromkeys(row["side"] for row in rows):
            found = [row for row in rows if (row["case"], row["side"]) == (case, side)]
            moved = f"{sum(int(row['moved']) for row in found)} of {60 * len(found)}"
            figures = [_spread(found, key, 2) for key in ("other_loss", "other_accuracy", "mean", "worst")]
            table.append((case, side, *figures, _spread(found, "rho", 2), _spread(found, "unharmed", 2), moved))
    return "\n".join([*lines, *_table(table), ""])


def _ordinary(rows: Sequence[Row], before: Sequence[Row]) -> str:
    lines = ["## Ordinary federations", ""]
    head = ("federation", "mean", "worst 10 %", "ρ", "harmed", "left out, overruled", "exchanges a round")
    table: list[Sequence[str]] = [(*head, "before: mean", "worst 10 %", "exchanges a round") if before else head]
    for case in dict.fromkeys(row["case"] for row in rows):
        found, old = ([row for row in each if row["case"] == case] for each in (rows, before))
        out = sum(int(row["left_out"]) + int(row["overruled"]) for row in found)
        harmed = sum(int(row["harmed"]) for row in found)
        figures = [_spread(found, "mean"), _spread(found, "worst10"), _spread(found, "rho", 2), str(harmed), str(out)]
        earlier = [_spread(old, "mean"), _spread(old, "worst10"), _exchanges(old)] if old else ["–"] * 3
        table.append((case, *figures, _exchanges(found), *(earlier if before else ())))
    return "\n".join([*lines, *_table(table), ""])


def _lies(rows: Sequence[Row]) -> str:
    lines = ["## Clients that lie", ""]
    for setup in SETUPS:
        mine = [row for row in rows if row["setup"] == setup]
        head = (
            "lie",
            "f = liars: mean",
            "worst",
            "named in round",
            "honest overruled",
            "ended",
            "f = 0: mean",
            "ended",
        )
        table: list[Sequence[str]] = [(*head, *RIVALS)]
        cells = [_lie(mine, lie) for lie in dict.fromkeys(row["lie"] for row in mine) if lie != ABSENT]
        table += cells
        good = sum("**" not in cell[1] + cell[2] + cell[5] for cell in cells)
        lines += [f"### {setup}", "", *_table(table), "", f"Within the bars: {good} of {len(cells)}.", ""]
    return "\n".join(lines)


def _lie(rows: Sequence[Row], lie: str) -> tuple[str, ...]:
    """One line: differences from the runs of the same seeds in which the hostile clients are absent."""
    tolerated, strict = (_difference(rows, lie, side) for side in ("tolerated", "none tolerated"))
    mine = [row for row in rows if (row["lie"], row["side"]) == (lie, "tolerated")]
    first = [int(row["named"]) for row in mine]
    named = "–" if not any(first) else ", ".join(str(number) if number else "never" for number in sorted(set(first)))
    overruled = f"{sum(int(row['overruled']) for row in mine)}"
    ended = _ended(mine)
    rivals = [_signed(_difference(rows, lie, side)[0]) for side in RIVALS]
    cells = (
        _bar(tolerated[0], MEAN_BAR),
        _bar(tolerated[1], WORST_BAR),
        named,
        overruled,
        f"**{ended}**" if ended else "no",
    )
    other = _ended([row for row in rows if (row["lie"], row["side"]) == (lie, "none tolerated")])
    return (lie, *cells, _signed(strict[0]), other or "no", *rivals)


def _difference(rows: Iterable[Row], lie: str, side: str) -> tuple[float, float]:
    """Mean and worst accuracy of the honest clients minus those of the same seed without the hostile ones."""
    by = {(row["lie"], row["side"], row["seed"]): row for row in rows}
    pairs = [
        (row, by.get((ABSENT, side, seed))) for (name, kind, seed), row in by.items() if (name, kind) == (lie, side)
    ]
    found = [
        tuple(_number(row[key]) - _number(absent[key]) for key in ("mean", "worst")) for row, absent in pairs if absent
    ]
    return (mean(d[0] for d in found), mean(d[1] for d in found)) if found else (math.nan, math.nan)


def _ended(rows: Sequence[Row]) -> str:
    reasons = [row["ended"] for row in rows if row["ended"]]
    return f"{len(reasons)} of {len(rows)} ({', '.join(sorted(set(reasons)))})" if reasons else ""


def _read(path: Path) -> list[Row]:
    return list(csv.DictReader(path.read_text().splitlines()))


def _number(text: str) -> float:
    return float(text) if text else math.nan


def _spread(rows: Sequence[Row], key: str, digits: int = 1) -> str:
    values = [value for row in rows if not math.isnan(value := _number(row[key]))]
    if not values:
        return "–"
    return f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}" if len(values) > 1 else f"{values[0]:.{digits}f}"


def _exchanges(rows: Sequence[Row]) -> str:
    return f"{mean(int(row['exchanges']) / int(row['rounds']) for row in rows):.3f}"


def _signed(value: float) -> str:
    return "fails" if math.isnan(value) else f"{value:+.1f}"


def _bar(value: float, least: float) -> str:
    return _signed(value) if value >= least else f"**{_signed(value)}**"


def _table(rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return [lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]
