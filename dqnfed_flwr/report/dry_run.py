"""What a run or a comparison would be, on the screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from rich.table import Table
from rich.text import Text

from dqnfed_flwr.compare.plan import Plan
from dqnfed_flwr.engine.dry_run import DryRun
from dqnfed_flwr.report.table import human_bytes


def run_table(title: str, found: DryRun, where: str) -> Table:
    """Sizes, bytes and seconds of a run, and where it would write."""
    settings = found.settings
    each, all_rounds = f"{found.round_seconds:.2g}", duration(found.round_seconds * settings.rounds)
    return _lines(
        title,
        {
            **data_lines(found),
            "method": f"{settings.title}, step rule {settings.rule}",
            "rounds": str(settings.rounds),
            "bytes of a client in a round": f"{human_bytes(found.bytes_up)} up, {human_bytes(found.bytes_down)} down",
            "bytes of a round without a miss": f"{_round_bytes(found)} (up, down)",
            "seconds of a round": f"about {each} here, in process; all rounds {all_rounds} ({_basis(found)})",
            "folder": where,
        },
    )


def data_lines(found: DryRun) -> dict[str, str]:
    """Data, clients and model."""
    samples = [client.train for client in found.clients]
    held, tests = (sum(getattr(client, part) for client in found.clients) for part in ("validation", "test"))
    settings = found.settings
    data, model = (f"of task {settings.task}",) * 2 if found.own else (settings.data, settings.model)
    return {
        "data": f"{data}: {sum(samples)} samples to train on, {held} for validation, {tests} to test on",
        "clients": f"{len(samples)}, {settings.sampled} asked in a round",
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


def comparison_tables(plan: Plan, found: Sequence[DryRun], workers: int) -> list[Table]:
    """What is common to all rows, and sizes, bytes and seconds of a round of each; `found` are in the order of rows."""
    first = found[0]
    total = 0.0
    rows = Table(title="A round without a miss", title_justify="left")
    for heading in ("", "bytes up", "bytes down", "seconds, about"):
        rows.add_column(heading, justify="right" if heading else "left")
    for spec, one in zip(plan.specs, found, strict=True):
        asked, seconds = one.settings.sampled, one.seconds * one.settings.sampled
        searched = len(plan.search(spec)) * (plan.grid_rounds or one.settings.rounds)
        total += seconds * (len(plan.seeds) * one.settings.rounds + searched)
        up, down = human_bytes(asked * one.bytes_up), human_bytes(asked * one.bytes_down)
        rows.add_row(Text(spec.title), up, down, f"{seconds:.2g}")
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
