"""What every benchmark shares: the command line, timing, the environment, and a report with its bars."""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import yaml
from rich.console import Console
from rich.table import Table

Json = str | int | float | bool | None | Sequence["Json"] | Mapping[str, "Json"]
Figures = Mapping[str, Json]

WHOLE: Mapping[str, int] = {"messages.row": 32, "messages.step": 32}
"""Settings of messages in which nothing is rounded, as the pages were measured."""
WIDTH = 150
"""Columns of the tables where the output is no terminal."""
LIBRARIES = ("numpy", "torch", "flwr")


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure is held against.

    Attributes
    ----------
    figure : str
        Key of the figure.
    sense : {"<=", ">="}
        On which side of the limit it should lie.
    limit : float
        The limit.
    """

    figure: str
    sense: Literal["<=", ">="]
    limit: float

    def met(self, value: float) -> bool:
        """Whether `value` lies on the right side; NaN does not."""
        return value <= self.limit if self.sense == "<=" else value >= self.limit


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser whose help begins with `description`, with the option that all benchmarks have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--json", metavar="PATH|-", default="", help="write the figures as JSON to a file, or to stdout"
    )
    return parser


def settings_of(assignments: Sequence[str]) -> dict[str, Any]:
    """Settings from `KEY=VALUE` texts; values are read as YAML."""
    settings: dict[str, Any] = {}
    for assignment in assignments:
        key, sign, value = assignment.partition("=")
        if not sign:
            raise SystemExit(f"--set: found {assignment!r}; write KEY=VALUE")
        settings[key] = yaml.safe_load(value)
    return settings


@contextmanager
def quiet() -> Iterator[None]:
    """Within, Flower's logger, which the package uses too, reports errors alone."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def environment() -> dict[str, Json]:
    """Machine and versions that the figures depend on."""
    return {
        "cpu_count": os.cpu_count(),
        "usable_cpus": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "machine": platform.machine(),
        "python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
        "threads": {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")},
    }


def seconds_of(work: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of each of `repeats` calls, after one that does not count."""
    work()
    return [seconds_once(work) for _ in range(repeats)]


def seconds_once(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    since = time.perf_counter()
    work()
    return time.perf_counter() - since


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of one call: by the clock, and of all threads' processor time, which other jobs lengthen less."""
    since, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - since, time.process_time() - used


def median(values: Sequence[float]) -> float:
    """Median."""
    return statistics.median(values)


def report(title: str, figures: Figures, bars: Sequence[Bar], target: str) -> None:
    """Print figures and bars as a table, or write them as JSON beside the environment.

    Parameters
    ----------
    title : str
        Name of the benchmark.
    figures : Figures
        By key. A list of mappings with equal keys becomes a table of its own; other lists and mappings go to the JSON
        alone.
    bars : Sequence[Bar]
        What some of them are held against.
    target : str
        Path of the JSON, `-` for standard output, empty for the table.
    """
    if not target:
        console = Console(width=None if sys.stdout.isatty() else WIDTH)
        console.print(_table(title, figures, bars))
        for name, value in figures.items():
            if rows := _rows(value):
                console.print(_row_table(name, rows))
        return
    judged: list[Json] = [
        {"figure": bar.figure, "sense": bar.sense, "limit": bar.limit, "met": bar.met(_number(figures, bar))}
        for bar in bars
        if bar.figure in figures
    ]
    record: dict[str, Json] = {**figures, "bars": judged, "environment": environment()}
    text = json.dumps(_finite(record), indent=2, allow_nan=False)
    if target == "-":
        print(text)
    else:
        Path(target).write_text(text + "\n")


def _number(figures: Figures, bar: Bar) -> float:
    value = figures[bar.figure]
    return float(value) if isinstance(value, int | float) else math.nan


def _table(title: str, figures: Figures, bars: Sequence[Bar]) -> Table:
    table = Table(title=title)
    table.add_column("figure")
    table.add_column("measured", justify="right")
    table.add_column("bar", justify="right")
    held = {bar.figure: bar for bar in bars}
    for name, value in figures.items():
        if isinstance(value, int | float | str):
            bar = held.get(name)
            verdict = "" if bar is None else "met" if bar.met(_number(figures, bar)) else "missed"
            table.add_row(name, _shown(value), "" if bar is None else f"{bar.sense} {bar.limit:g}  {verdict}")
    return table


def _rows(value: Json) -> list[Mapping[str, Json]]:
    """The mappings of a list of mappings, else none."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return []
    return [item for item in value if isinstance(item, Mapping)]


def _row_table(title: str, rows: Sequence[Mapping[str, Json]]) -> Table:
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name)
    for row in rows:
        table.add_row(*(_shown(value) for value in row.values()))
    return table


def _shown(value: Json) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _finite(value: Json) -> Json:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, Sequence) else value
