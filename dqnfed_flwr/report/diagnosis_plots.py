"""What a diagnosis shows on a terminal, as tables, and in one picture."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from rich.table import Table

from dqnfed_flwr.report.diagnosis import DiagnosedRound, Diagnosis
from dqnfed_flwr.report.drawing import COLOURS, MUTE, STYLE, save, ticks
from dqnfed_flwr.telemetry.events import RoundEvent

NAMED = 3
"""Clients that a cell names at most."""
DOT = 10.0
"""Area of the dot of one client, in square points."""


def rounds_table(diagnosis: Diagnosis) -> Table:
    """One line a measured round: lengths taken, allowed and best, what they bring, and who holds the others up."""
    table = Table("round", title="Lengths of the step, as factors")
    for column in ("taken", "suits all", "suits half", "best for the mean", "mean loss fell by", "at best"):
        table.add_column(column, justify="right")
    table.add_column("held up by clients")
    for found in diagnosis.rounds:
        lengths = (found.taken, found.common, found.median, found.best)
        falls = (f"{found.fall:.4f}", f"{found.best_fall:.4f}")
        table.add_row(str(found.round), *map(factor_label, lengths), *falls, _named(found.holders))
    return table


def rises_table(diagnosis: Diagnosis) -> Table:
    """How often losses rose above earlier ones, and how much longer steps could then be (geometric mean)."""
    table = Table("against the largest of its last", title="A client's loss after a round")
    table.add_column("rose in", justify="right")
    table.add_column("so judged, steps could be", justify="right")
    for window, share in diagnosis.rises.items():
        ratios = [found.within[window] / found.common for found in diagnosis.rounds if found.common]
        gained = f"{math.exp(float(np.mean(np.log(ratios)))):.2f} times as long" if ratios else "–"
        losses = "loss" if window == 1 else f"{window} losses"
        table.add_row(losses, "–" if math.isnan(share) else f"{share:.1%} of rounds", gained)
    return table


def factor_label(factor: float) -> str:
    """A factor below 1 as a fraction where it is a power of two."""
    inverse = 1 / factor if factor else 0.0
    return f"1/{inverse:g}" if inverse > 1 and inverse == int(inverse) else f"{factor:g}"


FACTORS = FuncFormatter(lambda factor, _: factor_label(factor))


def _named(clients: Sequence[int]) -> str:
    more = f" and {len(clients) - NAMED} more" if len(clients) > NAMED else ""
    return ", ".join(map(str, clients[:NAMED])) + more


@rc_context(STYLE)
def plot_diagnosis(diagnosis: Diagnosis, events: Sequence[RoundEvent], path: Path) -> Path:
    """Draw what each client would allow round by round, and the losses along the last measured step, into one PNG.

    Raises
    ------
    RunError
        If the file cannot be written.
    """
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    lengths, losses = figure.subplots(1, 2)
    _draw_lengths(lengths, diagnosis.rounds)
    measured = [event for event in events if event.along is not None]
    if measured:
        _draw_losses(losses, measured[-1], diagnosis.rounds[-1])
    return save(figure, path)


def _draw_lengths(axes: Axes, rounds: Sequence[DiagnosedRound]) -> None:
    axes.set(title="How far the step of a round could go", xlabel="round", ylabel="factor")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(FACTORS)
    numbers = [found.round for found in rounds]
    dots = Counter((found.round, factor) for found in rounds for factor in found.allowed.values() if factor)
    places = np.array([*dots], float).reshape(-1, 2)
    sizes = [DOT * count for count in dots.values()]
    axes.scatter(places[:, 0], places[:, 1], sizes, color=MUTE, label="clients alone would allow (area: how many)")
    for name, colour, dashes in (("best", COLOURS[1], "--"), ("taken", COLOURS[0], "-")):
        values = [getattr(found, name) or math.nan for found in rounds]
        label = "taken" if name == "taken" else "best for the mean loss"
        axes.plot(numbers, values, dashes, color=colour, marker="o", ms=3, label=label)
    axes.xaxis.set_major_locator(ticks(whole=True))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, fontsize=8)


def _draw_losses(axes: Axes, event: RoundEvent, found: DiagnosedRound) -> None:
    along = event.along
    if along is None:
        return
    known = dict(zip(event.participants, event.losses_before, strict=True))
    changes = np.array([np.array(along.losses[client]) - known[client] for client in found.allowed])
    reach = 1.5 * max(np.nanmax(-changes), 1e-12)  # what rises further is not of interest
    for client, change in zip(found.allowed, changes, strict=True):
        held = client in found.holders
        label = f"client {client}" if held else None
        axes.plot(along.factors, change, color=COLOURS[3] if held else MUTE, lw=1.4 if held else 0.9, label=label)
    axes.plot(along.factors, changes.mean(axis=0), color=COLOURS[1], lw=2.2, label="mean")
    axes.axhline(0, color=MUTE, lw=0.8)
    if found.taken:
        axes.axvline(found.taken, color=COLOURS[0], lw=1.2, label="taken")
    axes.set(title=f"Losses along the step of round {event.round}", xlabel="factor", ylabel="change of the loss")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FACTORS)
    axes.set_ylim(-reach, reach)
    axes.legend(loc="upper left", fontsize=8)
