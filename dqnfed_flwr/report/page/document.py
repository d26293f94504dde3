"""What a report is about, read from a folder: a reproduction, a comparison, a single run, or a folder of runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from dqnfed_flwr.compare.claims import Finding, findings
from dqnfed_flwr.compare.files import JSON
from dqnfed_flwr.compare.reading import Written, read_comparison, read_runs, run_folders
from dqnfed_flwr.compare.results import BASELINE, Comparison, Row
from dqnfed_flwr.compare.sheets import Table
from dqnfed_flwr.compare.tables import grid_table, shift_table, tables
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.reproduce.parts import label_of
from dqnfed_flwr.reproduce.record import REPRODUCTION, Reproduction, read_reproductions
from dqnfed_flwr.reproduce.scale import AS_IN_MANIFEST
from dqnfed_flwr.reproduce.schema import Part
from dqnfed_flwr.reproduce.tables import paper_table
from dqnfed_flwr.run_files import RUN

BRIGHT = 6
"""Methods that stand out: the reference, FedAvg, and the best of the others."""


@dataclass(frozen=True)
class Section:
    """One comparison.

    Attributes
    ----------
    key, title : str
        Its name, which no other section of the document has, and what it is.
    label : str
        How it differs from what it stands for; `AS_IN_MANIFEST`, or empty where it stands for nothing.
    comparison : Comparison
        Its rows.
    tables : list[Table]
        The main one first.
    claims : dict[str, list[Finding]]
        By claim, against each rival.
    about : Mapping[str, Any]
        Command, seconds, versions, machine, commit.
    """

    key: str
    title: str
    label: str
    comparison: Comparison
    tables: list[Table]
    claims: dict[str, list[Finding]]
    about: Mapping[str, Any]


@dataclass(frozen=True)
class Chapter:
    """What belongs to one manifest, or to none.

    Attributes
    ----------
    title, source : str
        What it is about.
    sections : list[Section]
        One a comparison.
    open, chosen, absent : list[str]
        What the paper leaves open, what was chosen, and which parts have no results.
    """

    title: str
    source: str
    sections: list[Section]
    open: list[str] = field(default_factory=list)
    chosen: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)

    @property
    def lists(self) -> list[tuple[str, list[str]]]:
        """What stands at its end: headings and texts, without the empty ones."""
        found = [
            ("What the paper leaves open", self.open),
            ("What was chosen here", self.chosen),
            ("Parts without results", self.absent),
        ]
        return [(heading, texts) for heading, texts in found if texts]


@dataclass(frozen=True)
class Document:
    """A report's contents.

    Attributes
    ----------
    title : str
        What it is about; that of the chapter where there is one.
    chapters : list[Chapter]
        One a manifest.
    bright : list[str]
        Names of the rows that stand out, the same ones in every section, in the order of their colours.
    """

    title: str
    chapters: list[Chapter]
    bright: list[str]


def read_document(directory: Path) -> Document:
    """Read what lies in a folder.

    Raises
    ------
    ConfigError
        If there is nothing to report on.
    """
    if (directory / REPRODUCTION).exists():
        return _reproduction(directory)
    if (directory / JSON).exists():
        section = _section("comparison", _named(directory), None, read_comparison(directory))
        return _document([Chapter(section.title, "", [section])])
    if folders := run_folders(directory):
        section = _section("run", _named(directory), None, read_runs(directory, folders))
        return _document([Chapter(section.title, "", [section])])
    raise ConfigError(
        f"{directory}: no {REPRODUCTION}, {JSON} or {RUN}; give the folder that dqnfed reproduce, compare or run wrote"
    )


def name_of(row: Row) -> str:
    """What a row is known by from section to section: its title, without what a grid chose."""
    return row.entry.title


def _reproduction(directory: Path) -> Document:
    found = read_reproductions(directory)
    chapters = [_chapter(directory, each, f"{each.key}-" if len(found) > 1 else "") for each in found]
    if not any(chapter.sections for chapter in chapters):
        names = ", ".join(each.name for each in found)
        raise ConfigError(f"{directory}: no part has results yet; run dqnfed reproduce {names} to its end")
    return _document(chapters, f"{directory.name}: {', '.join(each.key for each in found)}")


def _document(chapters: list[Chapter], title: str = "") -> Document:
    bright = _bright(list(chain.from_iterable(chapter.sections for chapter in chapters)))
    return Document(chapters[0].title if len(chapters) == 1 else title, chapters, bright)


def _chapter(directory: Path, found: Reproduction, prefix: str) -> Chapter:
    manifest = found.manifest
    sections, absent = [], []
    for key, part in manifest.parts.items():
        if (directory / key / JSON).exists():
            written = _seen_by(found, key, read_comparison(directory / key))
            sections.append(_section(prefix + key, part.title, part, written))
        else:
            needs = f"; it needs {', '.join(part.needs)}" if part.needs else ""
            absent.append(f"{part.title}: {'not run' if part.runs else 'cannot be run here'}{needs}.")
    return Chapter(manifest.title, manifest.source, sections, manifest.open, manifest.chosen, absent)


def _seen_by(found: Reproduction, key: str, written: Written) -> Written:
    """A comparison with the label and the command of one manifest, whichever manifest ran it last."""
    comparison = written.comparison
    note = label_of(found.manifest.parts[key], found.manifest.seeds, comparison.plan)
    about = {**written.about, "command": found.commands.get(key, written.about.get("command", ""))}
    return Written(replace(comparison, plan=replace(comparison.plan, note=note)), about)


def _section(key: str, title: str, part: Part | None, written: Written) -> Section:
    comparison = written.comparison
    shown = tables(comparison)[:2]
    if part:
        shown[0] = paper_table(part, comparison)
    shown += [table for table in (shift_table(comparison), grid_table(comparison)) if table]
    label = comparison.plan.note or (AS_IN_MANIFEST if part else "")
    return Section(key, title, label, comparison, shown, findings(comparison), written.about)


def _bright(sections: list[Section]) -> list[str]:
    """The reference, FedAvg, and those whose worst 10 % are best, on average over the sections by rank."""
    first: dict[str, None] = {}
    places: dict[str, list[int]] = {}
    for section in sections:
        comparison = section.comparison
        good = comparison.comparable({place: figures for place, figures in enumerate(comparison.figures) if figures})
        for rank, place in enumerate(sorted(good, key=lambda place: -comparison.figures[place]["worst10"].mean)):
            places.setdefault(name_of(comparison.rows[place]), []).append(rank)
        if comparison.reference:
            first[name_of(comparison.reference)] = None
    for section in sections:
        first |= {name_of(row): None for row in section.comparison.rows if row.entry.method == BASELINE}
    ordered = sorted(places, key=lambda name: sum(places[name]) / len(places[name]))
    return list(dict.fromkeys([*(name for name in first if name in places), *ordered]))[:BRIGHT]


def _named(directory: Path) -> str:
    return f"{directory.name}: test accuracy of the clients"
