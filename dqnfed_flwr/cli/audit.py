"""`dqnfed audit`: whether a run left anybody worse off, from data or from what clients say of themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dqnfed_flwr.cli.command import reported, show_files
from dqnfed_flwr.errors import ConfigError, DataError, ModelError, ShapeError, writing

if TYPE_CHECKING:
    from rich.console import Console

    from dqnfed_flwr.audit.carry_out import Progress
    from dqnfed_flwr.audit.verdict import Audit
    from dqnfed_flwr.audit.weights import AuditedRun

WORSE_OFF = 3
"""Exit status: a client is shown to be worse off, or a line does not stand up to verification."""
Paths = list[Path] | None


@reported
def audit(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", show_default=False, help="Output folder of a finished run, or on a node a copy."),
    ] = None,
    against: Annotated[
        Paths,
        typer.Option("--against", metavar="FOLDER", help="Compare with this run of the same data, too; repeatable."),
    ] = None,
    local: Annotated[
        Path | None,
        typer.Option("--local", metavar="FOLDER", help="A run of method local; left out, its models are trained."),
    ] = None,
    records: Annotated[
        Paths,
        typer.Option("--records", metavar="FILE", help="Judge by clients' lines, not by data; repeatable."),
    ] = None,
    client: Annotated[bool, typer.Option("--client", help="Write the line of one client, on its node.")] = False,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, metavar="N", help="With --client: which client this is.")
    ] = None,
    data: Annotated[
        str, typer.Option("--data", metavar="FILE", show_default=False, help="With --client: this node's .npz file.")
    ] = "",
    sign: Annotated[
        Path | None, typer.Option("--sign", metavar="KEY", help="With --client: sign with this node's node.key.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="With --client: where the line goes, not stdout.")
    ] = None,
    verify: Annotated[
        Paths, typer.Option("--verify", metavar="FILE", help="Check lines and signatures; repeatable.")
    ] = None,
    keys: Annotated[
        Paths, typer.Option("--keys", metavar="PATH", help="With --verify: public keys, or a folder; repeatable.")
    ] = None,
) -> None:
    """Show for every client whether the federated model is worse than what it would have without it.

    On each client's test samples, the model that all share is compared with the client's own local-only model, with the
    model that the run began at, and with those of other runs: by the mean loss, and by right answers where the task is
    classification.

    \b
    Examples:
      dqnfed audit runs/mine --against runs/fedavg
      dqnfed audit RUN --client --partition 3 --sign node.key --output 3.jsonl
      dqnfed audit RUN --verify lines --keys federation/nodes
      dqnfed audit RUN --records lines

    Exit status: 0 nobody is shown to be worse off, or all lines are sound; 3 somebody is, or a line is not; 1 failed,
    2 run, data, keys or options are at fault, 130 interrupted.
    """  # noqa: D301  # \b keeps the lines of a help text apart
    _check_options(
        {"--client": client, "--records": bool(records), "--verify": bool(verify)},
        {"--partition": partition is not None, "--data": bool(data), "--sign": bool(sign), "--output": bool(output)},
        {"--against": bool(against), "--local": bool(local)},
        keys=bool(keys),
    )
    try:
        if verify:
            _verify(verify, keys or [], run)
        elif client:
            _write_line(_read(run), partition, data, against or [], local, sign, output)
        elif records:
            _show_lines(_read(run), records)
        else:
            _show(_read(run), against or [], local)
    except (DataError, ModelError, ShapeError) as error:
        raise ConfigError(str(error)) from error


def _check_options(
    modes: dict[str, bool], of_client: dict[str, bool], of_models: dict[str, bool], *, keys: bool
) -> None:
    """Refuse options that do not go together, naming them."""
    chosen = [name for name, given in modes.items() if given]
    if len(chosen) > 1:
        raise ConfigError(f"{' and '.join(chosen)} do not go together; give one of them")
    mode = chosen[0] if chosen else ""
    wrong = [name for name, given in of_client.items() if given and mode != "--client"]
    wrong += [name for name, given in of_models.items() if given and mode in ("--records", "--verify")]
    wrong += ["--keys"] * (keys and mode != "--verify")
    if wrong:
        raise ConfigError(f"{', '.join(wrong)}: of no use {f'with {mode}' if mode else 'by itself'}; leave it out")
    if mode == "--client" and not of_client["--partition"]:
        raise ConfigError("--client: give --partition, the number of this node's client")
    if mode == "--verify" and not keys:
        raise ConfigError("--verify: give --keys, the nodes' public keys")


def _read(folder: Path | None) -> AuditedRun:
    from dqnfed_flwr.audit.weights import read_run

    if folder is None:
        raise ConfigError("RUN: give the output folder of a finished run")
    return read_run(folder.expanduser().resolve())


def _show(run: AuditedRun, against: list[Path], local: Path | None) -> None:
    """Audit all clients of a run here."""
    from rich.console import Console

    from dqnfed_flwr.audit.carry_out import audit_run

    console = Console()
    with _training(console, run.settings.rounds) as progress:
        found = audit_run(run, against, local, progress)
    _tell(found, run, console)


def _show_lines(run: AuditedRun, files: list[Path]) -> None:
    """Audit a run by its clients' lines."""
    from rich.console import Console

    from dqnfed_flwr.audit.carry_out import audit_lines

    _tell(audit_lines(run, files), run, Console())


def _tell(found: Audit, run: AuditedRun, console: Console) -> None:
    """Show and write the verdict, and end with its status."""
    from dqnfed_flwr.audit.carry_out import write
    from dqnfed_flwr.audit.tables import reading, tables
    from dqnfed_flwr.report.table import print_tables

    print_tables(console, tables(found))
    faults = [f"not used, {fault}" for fault in found.faults]
    for text in (found.end.words, *faults, *found.notes, *reading(found)):
        console.print(text, markup=False, highlight=False, soft_wrap=not console.is_terminal)
    show_files(console, write(found, run))
    for other, clients in found.worse.items():
        numbers = ", ".join(map(str, clients))
        typer.echo(f"dqnfed: worse off than with {other}: clients {numbers}", err=True)
    if found.worse:
        raise typer.Exit(WORSE_OFF)


def _write_line(
    run: AuditedRun,
    partition: int | None,
    data: str,
    against: list[Path],
    local: Path | None,
    sign: Path | None,
    output: Path | None,
) -> None:
    """Audit one client, and write its line."""
    from rich.console import Console

    from dqnfed_flwr.audit.carry_out import audit_node
    from dqnfed_flwr.audit.records import canonical, record_of
    from dqnfed_flwr.audit.signing import signed
    from dqnfed_flwr.run_files import replacing

    if sign:
        signed({}, sign)  # a key that cannot be used is told before anything is trained
    with _training(Console(stderr=True), run.settings.rounds) as progress:
        found, notes = audit_node(run, partition or 0, data, against, local, progress)
    for note in notes:
        typer.echo(f"dqnfed: {note}", err=True)
    record = record_of(found)
    line = canonical(signed(record, sign) if sign else record)
    if output is None:
        typer.echo(line)
        return
    with writing(output), replacing(output) as file:
        file.write(f"{line}\n".encode())


def _verify(files: list[Path], keys: list[Path], folder: Path | None) -> None:
    """Name every line that is not sound."""
    from dqnfed_flwr.audit.records import read_lines
    from dqnfed_flwr.audit.signing import read_keys, verify

    lines = read_lines(files)
    faults = verify(lines, read_keys(keys), _read(folder) if folder else None)
    for fault in faults:
        typer.echo(fault)
    if faults:
        raise typer.Exit(WORSE_OFF)
    whole = "" if folder else "; without RUN nobody knows whether all clients are there"
    typer.echo(f"{len(lines)} lines, each signed by a key of its own, of one model{whole}")


@contextmanager
def _training(console: Console, rounds: int) -> Iterator[Progress]:
    """A bar for each local-only model that is trained; nothing is shown where none is."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=console) as bars:
        task = bars.add_task("", total=rounds, visible=False)

        def begun(partition: int) -> Callable[[], None]:
            bars.reset(task, description=f"training client {partition} alone, round", total=rounds, visible=True)
            return lambda: bars.advance(task)

        yield begun
