"""`dqnfed reproduce`: the experiments of a published table, ours beside the paper's."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dqnfed_flwr.cli.effects import set_keys, tell_unread
from dqnfed_flwr.cli.failures import Interrupted
from dqnfed_flwr.cli.single import overridden, show_files
from dqnfed_flwr.compare.plan import Plan
from dqnfed_flwr.compare.results import Comparison, compare_rows, reference_of
from dqnfed_flwr.compare.row_specs import check_overrides
from dqnfed_flwr.config import Settings
from dqnfed_flwr.errors import ConfigError, RunError
from dqnfed_flwr.reproduce.manifests import Reproduction, load_manifest, manifest_names, write_reproduction
from dqnfed_flwr.reproduce.parts import ReproduceOptions, config_of, plan_part
from dqnfed_flwr.reproduce.schema import Manifest, Part

PIPE = 100
"""Columns of a list where nobody says how many there are."""
RECORD_SECONDS = 10.0
"""How long to wait for another part that is written into the record just now."""


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    name: str
    part: str
    reduced: bool
    methods: str
    seeds: str
    jobs: int
    output: Path | None
    overrides: Sequence[str]
    rounds: int | None
    dry_run: bool


def list_manifests() -> None:
    """Carry out `dqnfed reproduce --list`."""
    table = Table(title="Published tables and figures", title_justify="left")
    for heading in ("name", "what", "data", "needs", "published methods"):
        table.add_column(heading, no_wrap=heading == "name")
    for name in manifest_names():
        manifest = load_manifest(name)
        parts = list(manifest.parts.values())
        data = dict.fromkeys(str(part.own.get("data", "digits")) for part in parts)
        needs = dict.fromkeys(need for part in parts for need in part.needs)
        methods = dict.fromkeys(row.paper.partition("(")[0] for part in parts for row in part.rows if row.paper)
        table.add_row(*(Text(t) for t in (name, manifest.title, _few(data), _few(needs), _few(methods))))
    console = Console()
    (console if console.is_terminal or "COLUMNS" in os.environ else Console(width=PIPE)).print(table)


def reproduce(options: Options) -> None:
    """Carry out `dqnfed reproduce NAME`.

    Raises
    ------
    ConfigError
        Before anything runs: an unknown name, a part that cannot be run, settings at fault.
    RunError
        If no run of a part came to its end, or the results cannot be written.
    """
    console = Console()
    manifest = load_manifest(options.name)
    parts = {options.part: manifest.part(options.part)} if options.part else manifest.parts
    possible = {key: part for key, part in parts.items() if part.runs}
    for key, part in parts.items():
        for need in part.needs:
            kind = "needs" if part.runs else "cannot be run here, for it needs"
            console.print(f"{key} {kind}: {need}", soft_wrap=True, markup=False, highlight=False)
    if not possible:
        raise ConfigError(f"{options.name}: nothing here can be run; see what it needs above, and docs/reproduce.md")
    directory = (options.output or Path("runs/reproduce") / Path(options.name).stem).expanduser().resolve()
    wanted = _wanted(options)
    plans = {key: plan_part(part, manifest.seeds, wanted, directory / key) for key, part in possible.items()}
    tell_unread(set_keys(options.overrides), (job for plan in plans.values() for job in plan.possible()))
    if options.dry_run:
        _show_plans(console, manifest, possible, plans, wanted)
        return
    failed = [
        key
        for key, part in possible.items()
        if not _run_part(console, manifest, key, part, plans[key], options, directory)
    ]
    _write_report(console, directory)
    if failed:
        raise RunError(f"{', '.join(failed)}: every run failed; the reasons are below the table")


def _wanted(options: Options) -> ReproduceOptions:
    overrides = overridden({}, options.overrides)
    check_overrides(overrides)
    if options.rounds is not None:
        if "rounds" in overrides:
            raise ConfigError("--rounds and --set rounds: give one of the two")
        overrides["rounds"] = options.rounds
    return ReproduceOptions(options.reduced, options.methods, options.seeds, overrides)


def _run_part(
    console: Console, manifest: Manifest, key: str, part: Part, plan: Plan, options: Options, directory: Path
) -> bool:
    """Carry a part out and show its tables; tell whether any run came to its end."""
    from dqnfed_flwr.compare.execute import execute
    from dqnfed_flwr.compare.files import as_json, write_files
    from dqnfed_flwr.compare.tables import difference_table, print_tables, tables
    from dqnfed_flwr.engine.run import usable_cores
    from dqnfed_flwr.engine.run_folder import directory_lock
    from dqnfed_flwr.report.compare_progress import CompareProgress
    from dqnfed_flwr.reproduce.tables import paper_table

    since = time.perf_counter()
    command = _command(options, key, directory)
    with directory_lock(plan.directory):
        with directory_lock(directory, RECORD_SECONDS):
            write_reproduction(directory, Reproduction(options.name, manifest, {key: command}))
        try:
            with CompareProgress(console, plan.most_runs) as progress:
                rows = execute(
                    plan,
                    progress,
                    workers=options.jobs or usable_cores(),
                    engine="in-process",
                    select=part.search.select,
                    last=part.last,
                )
        except KeyboardInterrupt:
            raise Interrupted(f"finished runs are kept; go on with: {command}") from None
        present = any(spec.method == manifest.reference for spec in plan.specs)
        reference = reference_of(plan, manifest.reference if present else None)
        comparison: Comparison = compare_rows(plan, rows, reference, part.search.select, part.last)
        figures = as_json(comparison, command, time.perf_counter() - since)
        write_files(plan.directory, comparison, figures, tables(comparison))
    shown = [paper_table(part, comparison), difference_table(comparison)]
    print_tables(console, [table for table in shown if table])
    return any(row.good for row in rows)


def _write_report(console: Console, directory: Path) -> None:
    from dqnfed_flwr.report.page import write_report

    show_files(console, write_report(directory, None))


def _show_plans(
    console: Console, manifest: Manifest, parts: dict[str, Part], plans: dict[str, Plan], wanted: ReproduceOptions
) -> None:
    """What would run."""
    console.print(f"{manifest.title} ({manifest.source})", soft_wrap=True, markup=False, highlight=False)
    for key, plan in plans.items():
        table = Table(title=Text(f"{key}: {parts[key].title}"), title_justify="left", show_header=False)
        searches = sum(len(plan.search(spec)) for spec in plan.specs)
        finals = len(plan.specs) * len(plan.seeds)
        rounds = config_of(parts[key], wanted).get("rounds", Settings().rounds)
        lines = {
            "scale": plan.note or "as in the manifest",
            "methods": ", ".join(spec.title for spec in plan.specs),
            "seeds": ", ".join(map(str, plan.seeds)),
            "rounds": f"{rounds}" + (f", {plan.grid_rounds or rounds} in the search" if searches else ""),
            "runs": f"{finals} final" + (f" and {searches} of the search" if searches else ""),
            "folder": str(plan.directory),
        }
        for name, text in lines.items():
            table.add_row(Text(name), Text(text))
        console.print(table)
    for heading, texts in (("left open by the paper", manifest.open), ("chosen here", manifest.chosen)):
        for text in texts:
            console.print(f"{heading}: {text}", soft_wrap=True, markup=False, highlight=False)


def _command(options: Options, part: str, directory: Path) -> str:
    """The command that runs this part, for a shell."""
    words = ["dqnfed", "reproduce", options.name, "--part", part, *(["--reduced"] if options.reduced else [])]
    given = {"--methods": options.methods, "--seeds": options.seeds, "--rounds": options.rounds, "--jobs": options.jobs}
    words += [word for key, value in given.items() if value for word in (key, str(value))]
    words += [word for item in options.overrides for word in ("--set", item)]
    return shlex.join([*words, "--output", str(directory)])


def _few(words: dict[str, None]) -> str:
    return ", ".join(words) or "–"
