"""Tables on the screen: of runs, one column a run; of a comparison; and of what either would be."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from dqnfed_flwr.engine.notices import left_out_words, listed
from dqnfed_flwr.telemetry.events import TEST, mean
from dqnfed_flwr.types import ACCURACY, Figure

if TYPE_CHECKING:
    from dqnfed_flwr.compare.plan import Plan
    from dqnfed_flwr.compare.tables import Table as ComparisonTable
    from dqnfed_flwr.engine.dry_run import DryRun, Line
    from dqnfed_flwr.engine.result import RunResult


UNKNOWN = "–"
STYLES = {0: "", 1: "bold green", 2: "underline"}
"""Of a cell, by its rank."""
NAMED, REASON_WIDTH = 3, 80
"""Clients named in a row at most, and how much of the reason of one that is left out."""


def summary_table(results: Mapping[str, RunResult]) -> Table:
    """Final figures of runs side by side, by the headings of their columns."""
    of = next((result.figure for result in results.values()), ACCURACY)
    title = f"Test {of.name} of the clients, and what it took"
    table = Table(title=escape(title), title_justify="left")
    table.add_column("")
    for heading in results:
        table.add_column(heading, justify="right")
    for label, show in (*fairness_rows(of), *ROWS):
        table.add_row(label, *(show(result) for result in results.values()))
    for label, show in OPTIONAL:
        if any(words := [show(result) for result in results.values()]):
            table.add_row(label, *(word or "nobody" for word in words))
    return table


def print_tables(console: Console, tables: Sequence[ComparisonTable]) -> None:
    """Print the tables of a comparison, with their notes."""
    for table in tables:
        print_fitting(console, _rich(table, " ± "), _rich(table, "\n± "))
        for note in table.notes:
            console.print(Text(note), soft_wrap=not console.is_terminal)
        console.print()


def _rich(table: ComparisonTable, between: str) -> Table:
    shown = Table(title=Text(table.title), title_justify="left")
    for place, heading in enumerate(table.headings):
        shown.add_column(heading, justify="right" if place else "left", min_width=0 if place else 14)
    for row in table.rows:
        shown.add_row(*(Text(cell.text.replace(" ± ", between), style=STYLES[cell.rank]) for cell in row))
    return shown


def print_fitting(console: Console, wide: Table, narrow: Table) -> None:
    """Print a table: as wide as it is in a pipe, in its narrow form on a terminal that is not wide enough."""
    width = console.measure(wide, options=console.options.update(max_width=10_000)).maximum
    if not console.is_terminal:
        Console(file=console.file, width=max(width, len(str(wide.title)))).print(wide)
    else:
        console.print(wide if width <= console.width else narrow)


def human_bytes(count: float) -> str:
    """A number of bytes with three digits and a unit of 1000: `1.23 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def fairness_rows(figure: Figure) -> tuple[tuple[str, Callable[[RunResult], str]], ...]:
    """Figures of fairness: labels, and what stands there of a run."""
    plural = "accuracies" if figure == ACCURACY else "figures"
    headings = {
        "mean": "mean" + ("" if figure.higher else " (less is better)"),
        "std": "σ (spread over clients)",
        "worst10": "worst 10 % of clients",
        "best10": "best 10 % of clients",
        "worst": "worst client",
    }

    def final(key: str, text: Callable[[float], str]) -> Callable[[RunResult], str]:
        def show(result: RunResult) -> str:
            value = result.final.get(key, math.nan)
            return UNKNOWN if math.isnan(value) else text(value)

        return show

    return (
        *((heading, final(key, lambda value: figure.text(value, 2))) for key, heading in headings.items()),
        (f"angle to equal {plural}", final("angle_deg", "{:.2f}°".format)),
        (f"KL to equal {plural}", final("kl_uniform", "{:.5f}".format)),
    )


def _summary(ratios: list[float], summary: Callable[[list[float]], float]) -> str:
    found = [ratio for ratio in ratios if not math.isnan(ratio)]
    return f"{summary(found):.3f}" if found else UNKNOWN


def _heard(result: RunResult) -> str:
    totals = result.totals
    return f"{totals.heard:.1f} of {totals.asked:.1f}" if totals.rounds else UNKNOWN


def _overruled(result: RunResult) -> str:
    found = result.totals.overruled
    return f"{sum(found.values())} ({listed(list(found), NAMED)})" if found else "0"


def _seen(of: RunResult | DryRun) -> str:
    return "inner products and sums (masked)" if of.settings.privacy.mode == "masked" else ""


def _in_rounds(counts: Mapping[int, int], rounds: int) -> str:
    found = [f"{client} in {count}" for client, count in counts.items()]
    return f"{listed(found, NAMED)} of {rounds} rounds" if found else ""


def _without_figure(result: RunResult) -> str:
    clients = result.without_figure.get(TEST, [])
    return f"{len(clients)} ({listed(clients, NAMED)})" if clients else ""


def _ended(result: RunResult) -> str:
    """The status, with whose it is where the result is an earlier model, as that is the last one confirmed."""
    model, of_a_model = result.confirmed, result.status.endswith(("-stationary", "-failed"))
    newer = model is not None and any(event.moved for event in result.events[model.round :])
    return f"{result.status}, of the newest model" if of_a_model and newer else str(result.status)


def _per_round(result: RunResult) -> str:
    return f"{result.exchanges / len(result.events):.2f}" if result.events else UNKNOWN


def _clients(result: RunResult) -> str:
    found = f"{len(result.joined)} of {result.settings.clients}"
    if 0 < len(result.accuracies) < len(result.joined):
        found += f"; {'accuracies' if result.figure == ACCURACY else 'figures'} of {len(result.accuracies)}"
    if not result.left_out:
        return found
    reasons = [
        f"{who.removeprefix('client ')} ({textwrap.shorten(why, REASON_WIDTH, placeholder=' ...')})"
        for who, why in result.left_out.items()
    ]
    return escape(f"{found}; left out: {listed(reasons, NAMED)}")


ROWS: tuple[tuple[str, Callable[[RunResult], str]], ...] = (
    ("ρ mean (clients whose loss did not rise)", lambda result: _summary(result.improved_of_asked, mean)),
    ("ρ minimum", lambda result: _summary(result.improved_of_asked, min)),
    ("not harmed, mean (or below the entitlement)", lambda result: _summary(result.unharmed_ratio, mean)),
    ("moved the model", lambda result: f"{result.totals.moved} of {len(result.events)} rounds"),
    ("ρ mean, where moved", lambda result: _summary([result.totals.improved_of_asked], mean)),
    ("not harmed, mean, where moved", lambda result: _summary([result.totals.unharmed_ratio], mean)),
    (
        "every client asked improved, where moved",
        lambda result: f"{result.totals.improved} of {result.totals.judged} rounds",
    ),
    ("clients", _clients),
    ("heard of those asked, mean", _heard),
    ("overruled (clients)", _overruled),
    ("rounds", lambda result: str(len(result.events))),
    ("ended", _ended),
    ("exchanges a round", _per_round),
    ("bytes up, from clients", lambda result: human_bytes(result.bytes_up)),
    ("bytes down, to clients", lambda result: human_bytes(result.bytes_down)),
    ("seconds", lambda result: f"{result.seconds:.1f}"),
)
OPTIONAL: tuple[tuple[str, Callable[[RunResult], str]], ...] = (
    ("no part in most rounds, though asked", lambda result: listed(left_out_words(result.totals), NAMED)),
    ("evaluated, but without a figure (clients)", _without_figure),
    (
        "claims that exclude each other, not heard",
        lambda result: _in_rounds(result.totals.contradicted, result.totals.rounds),
    ),
    (
        "hold up the others: refused a step",
        lambda result: _in_rounds(result.totals.holding_up, result.totals.rounds),
    ),
    ("the server sees", _seen),
    ("confirmed", lambda result: result.confirmed.words if result.confirmed else ""),
    ("privacy of a record", lambda result: result.totals.privacy.words if result.totals.privacy else ""),
)
"""Rows that stand in the table where they say something."""


def run_table(title: str, found: DryRun, where: str, line: Line | None = None) -> Table:
    """Sizes, bytes and seconds of a run, on a `line` too where one is given, and where it would write."""
    settings = found.settings
    each, all_rounds = f"{found.round_seconds:.2g}", duration(found.round_seconds * settings.rounds)
    return _lines(
        title,
        {
            **data_lines(found),
            "method": f"{settings.title}, step rule {found.step_rule}",
            **({"the server sees": seen} if (seen := _seen(found)) else {}),
            **({"messages": rounded} if (rounded := found.rounded) else {}),
            "rounds": str(settings.rounds),
            "bytes of a client in a round": f"{human_bytes(found.bytes_up)} up, {human_bytes(found.bytes_down)} down",
            "bytes of a round without a miss": f"{_round_bytes(found)} (up, down)",
            **({"seconds on a line": _on_line(found, line)} if line else {}),
            "seconds of a round": f"about {each} here, in process; all rounds {all_rounds} ({_basis(found)})",
            "folder": where,
        },
    )


def data_lines(found: DryRun) -> dict[str, str]:
    """Data, clients and model."""
    samples = [client.train for place, client in enumerate(found.clients) if place not in found.left_out]
    held, tests = (sum(getattr(client, part) for client in found.clients) for part in ("validation", "test"))
    settings, out = found.settings, bool(found.left_out)
    data, model = (f"of task {settings.task}",) * 2 if found.own else (settings.data, settings.model)
    return {
        "data": f"{data}: {sum(samples)} samples to train on, {held} for validation, {tests} to test on",
        "clients": f"{len(found.clients)}, {settings.sampled} asked in a round",
        **({"left out": "; ".join(f"client {place}: {why}" for place, why in found.left_out.items())} if out else {}),
        "samples of a client": f"{min(samples)} to {max(samples)}, median {np.median(samples):.0f}",
        "model": f"{model}, D = {found.dim} parameters",
    }


def plan_lines(plan: Plan, rounds: int) -> dict[str, str]:
    """Methods, seeds, rounds, number of runs and folder of a comparison."""
    searches, finals = sum(len(plan.search(spec)) for spec in plan.specs), len(plan.specs) * len(plan.seeds)
    return {
        "methods": "; ".join(spec.title for spec in plan.specs),
        "seeds": ", ".join(map(str, plan.seeds)),
        "rounds": f"{rounds}" + (f", {plan.grid_rounds or rounds} in the search" if searches else ""),
        "runs": f"{finals} final" + (f" and {searches} of the search" if searches else ""),
        "folder": str(plan.directory),
    }


def comparison_tables(plan: Plan, found: Sequence[DryRun], workers: int, line: Line | None = None) -> list[Table]:
    """What is common to all rows, and sizes, bytes and seconds of a round of each; `found` are in the order of rows."""
    first = found[0]
    total = 0.0
    rows = Table(title="A round without a miss", title_justify="left")
    for heading in ("", "bytes up", "bytes down", "seconds, about", *([f"a client's, on {line}"] if line else [])):
        rows.add_column(heading, justify="right" if heading else "left")
    for spec, one in zip(plan.specs, found, strict=True):
        asked, seconds = one.settings.sampled, one.seconds * one.settings.sampled
        searched = len(plan.search(spec)) * (plan.grid_rounds or one.settings.rounds)
        total += seconds * (len(plan.seeds) * one.settings.rounds + searched)
        up, down = human_bytes(asked * one.bytes_up), human_bytes(asked * one.bytes_down)
        on_line = [duration(sum(one.on_line(line)))] if line else []
        rows.add_row(Text(spec.title), up, down, f"{seconds:.2g}", *on_line)
    lines = {**data_lines(first), **plan_lines(plan, first.settings.rounds)}
    lines["time"] = f"about {duration(total / workers)} with {workers} processes ({_basis(first)})"
    return [_lines("Nothing was run", lines), rows]


def _lines(title: str, lines: Mapping[str, str]) -> Table:
    table = Table(title=Text(title), title_justify="left", show_header=False)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for name, text in lines.items():
        table.add_row(Text(name), Text(text))
    return table


def _round_bytes(found: DryRun) -> str:
    return ", ".join(human_bytes(found.settings.sampled * each) for each in (found.bytes_up, found.bytes_down))


def _on_line(found: DryRun, line: Line) -> str:
    """What the messages of a client in a round take on its line."""
    down, up = found.on_line(line)
    exchanges = "one exchange" if found.exchanges == 1 else f"{found.exchanges} exchanges"
    return (
        f"{line}: {duration(down + up)} a round ({down:.2g} down, {up:.2g} up) in {exchanges}; a miss is another one. "
        "Headers, computing and Flower's pauses come on top"
    )


def _basis(found: DryRun) -> str:
    """What stands behind the seconds."""
    number = f"{found.measured} client{'' if found.measured == 1 else 's'}"
    evaluated = "" if found.settings.evaluate_every == 1 else ", without evaluations"
    return f"an estimate from the work of {number}{evaluated}"


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} seconds"
