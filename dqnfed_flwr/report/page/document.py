"""What a report is about, read from a folder: a reproduction, a comparison, or a single run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dqnfed_flwr.compare.claims import Finding, findings
from dqnfed_flwr.compare.files import JSON
from dqnfed_flwr.compare.plan import RUN
from dqnfed_flwr.compare.reading import Written, read_comparison, read_single
from dqnfed_flwr.compare.results import BASELINE, Comparison, Row
from dqnfed_flwr.compare.tables import Table, grid_table, shift_table, tables
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.reproduce.record import REPRODUCTION, read_reproduction
from dqnfed_flwr.reproduce.schema import Part
from dqnfed_flwr.reproduce.tables import AS_PUBLISHED, paper_table

BRIGHT = 6
"""Methods that stand out: the reference, FedAvg, and the best of the others."""


@dataclass(frozen=True)
class Section:
    """One comparison.

    Attributes
    ----------
    key, title : str
        Its name, and what it is.
    label : str
        How it differs from what it stands for; `AS_PUBLISHED`, or empty where it stands for nothing.
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
class Document:
    """A report's contents.

    Attributes
    ----------
    title, source : str
        What it is about.
    sections : list[Section]
        One a comparison.
    bright : list[str]
        Names of the rows that stand out, the same ones in every section, in the order of their colours.
    open, chosen, absent : list[str]
        What the paper leaves open, what was chosen, and which parts have no results.
    """

    title: str
    source: str
    sections: list[Section]
    bright: list[str]
    open: list[str] = field(default_factory=list)
    chosen: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)


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
        return Document(section.title, "", [section], _bright([section]))
    if (directory / RUN).exists():
        section = _section("run", _named(directory), None, read_single(directory))
        return Document(section.title, "", [section], _bright([section]))
    raise ConfigError(
        f"{directory}: no {REPRODUCTION}, {JSON} or {RUN}; give the folder that dqnfed reproduce, compare or run wrote"
    )


def name_of(row: Row) -> str:
    """What a row is known by from section to section: its title, without what a grid chose."""
    return row.entry.title


def _reproduction(directory: Path) -> Document:
    found = read_reproduction(directory)
    manifest = found.manifest
    sections, absent = [], []
    for key, part in manifest.parts.items():
        if (directory / key / JSON).exists():
            sections.append(_section(key, part.title, part, read_comparison(directory / key)))
        else:
            needs = f"; it needs {', '.join(part.needs)}" if part.needs else ""
            absent.append(f"{part.title}: {'not run' if part.runs else 'cannot be run here'}{needs}.")
    if not sections:
        raise ConfigError(f"{directory}: no part has results yet; run dqnfed reproduce {found.name} to its end")
    source = manifest.source
    return Document(manifest.title, source, sections, _bright(sections), manifest.open, manifest.chosen, absent)


def _section(key: str, title: str, part: Part | None, written: Written) -> Section:
    comparison = written.comparison
    shown = tables(comparison)[:2]
    if part:
        shown[0] = paper_table(part, comparison)
    shown += [table for table in (shift_table(comparison), grid_table(comparison)) if table]
    label = comparison.plan.note or (AS_PUBLISHED if part else "")
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
