"""`dqnfed demo`: DQN-Fed and FedAvg on the same ten clients, and what the figures say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dqnfed_flwr.cli.command import Engine, reported
from dqnfed_flwr.cli.run import draw, show_files, train
from dqnfed_flwr.run_files import EVENTS, PLOT, RUN

if TYPE_CHECKING:
    from dqnfed_flwr.engine.result import RunResult

EXPERIMENTS = {"DQN-Fed": "digits", "FedAvg": "digits-fedavg"}


@reported
def demo(
    output: Annotated[
        Path, typer.Option(metavar="DIR", show_default=False, help="Folder of the results; runs/demo by default.")
    ] = Path("runs/demo"),
) -> None:
    """Train ten clients on handwritten digits with DQN-Fed and with FedAvg, side by side.

    The digits come with scikit-learn; nothing is downloaded. Takes less than a minute.
    """
    from rich.console import Console

    from dqnfed_flwr.cli.overrides import read_settings
    from dqnfed_flwr.engine.ending import early_end
    from dqnfed_flwr.report.table import summary_table

    folder = output.expanduser().resolve()
    console = Console()
    console.print(
        "Ten clients hold real handwritten digits, each with its own mix of classes. They train one model together "
        "without showing each other their data: once with DQN-Fed, once with FedAvg.\n"
    )
    results = {
        name: train(read_settings(config, [], folder / config), console, name, Engine.IN_PROCESS, overwrite=True)
        for name, config in EXPERIMENTS.items()
    }
    console.print(summary_table(results))
    console.print("\n".join(verdict(*results.values())), highlight=False)
    for name, result in results.items():
        if words := early_end(result):
            console.print(f"{name}: {words}", highlight=False)
    console.print()
    draw(results, folder / PLOT, console)
    show_files(
        console, [folder / PLOT, *(folder / config / file for config in EXPERIMENTS.values() for file in (RUN, EVENTS))]
    )


def verdict(ours: RunResult, theirs: RunResult) -> list[str]:
    """What the figures of DQN-Fed and FedAvg say, in plain sentences; every one follows from the results given."""
    return [
        f"DQN-Fed: {_losses(ours)}. FedAvg: {_losses(theirs)}.",
        f"The worst client is right on {_percent(ours, 'worst')} of its test digits with DQN-Fed and on "
        f"{_percent(theirs, 'worst')} with FedAvg; on average over clients it is {_percent(ours, 'mean')} and "
        f"{_percent(theirs, 'mean')}.",
    ]


def _losses(result: RunResult) -> str:
    totals = result.totals
    moved = f"{totals.judged} rounds"
    if totals.moved < totals.rounds:
        moved += f" that moved the model, of {totals.rounds}"
    if risen := totals.judged - totals.improved:
        harmed = sum(bool(event.harmed) for event in result.events if event.moved)
        above = "never above" if not harmed else f"in {harmed} of them above"
        entitled = f", {above} what it is entitled to" if harmed < risen else ""
        return f"the training loss of some client rose in {risen} of {moved}{entitled}"
    fell = all(
        after < before
        for event in result.events
        if event.moved
        for before, after in zip(event.losses_before, event.losses_after, strict=True)
        if after == after
    )
    return f"the training loss of every client {'fell' if fell else 'fell or stayed'} in each of {moved}"


def _percent(result: RunResult, key: str) -> str:
    return f"{100 * result.final[key]:.1f}%"
