"""What a report is about, read from a folder of runs of any kind, and the same as Markdown: tables, claims, machine."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dqnfed_flwr.compare.claims import SMOOTH, ClaimFinding, ClaimVerdict, claims_of, findings, near_one
from dqnfed_flwr.compare.files import Written, read_comparison, read_runs, run_folders, unfinished
from dqnfed_flwr.compare.plan import JSON
from dqnfed_flwr.compare.provenance import commits_text, seconds_of
from dqnfed_flwr.compare.results import Comparison, Row
from dqnfed_flwr.compare.tables import Cell, Table, grid_table, markdown, shift_table, tables
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.reproduce.manifests import REPRODUCTION, Reproduction, read_reproductions
from dqnfed_flwr.reproduce.parts import AS_IN_MANIFEST, label_of
from dqnfed_flwr.reproduce.schema import Part
from dqnfed_flwr.reproduce.tables import paper_table
from dqnfed_flwr.run_files import RUN

HOW = "How it was run"
"""A heading that every report has."""
TONES = {
    ClaimVerdict.BORNE_OUT: ("yes", "✓"),
    ClaimVerdict.UNDECIDED: ("open", "?"),
    ClaimVerdict.NOT_BORNE_OUT: ("no", "✗"),
}
"""What a verdict looks like: its class on a page, and its sign."""


@dataclass(frozen=True)
class Section:
    """One comparison.

    Attributes
    ----------
    key, title : str
        Its name, which no other section of the document has, and what it is.
    label : str
        How it differs from what it stands for; `AS_IN_MANIFEST`, or empty where it stands for nothing.
    comparison, tables : Comparison, list[Table]
        Its rows, and what is shown of them, the main table first.
    about : Mapping[str, Any]
        Command, seconds, versions, machine, commit.
    """

    key: str
    title: str
    label: str
    comparison: Comparison
    tables: list[Table]
    about: Mapping[str, Any]

    @cached_property
    def claims(self) -> dict[str, list[ClaimFinding]]:
        """By claim, against each rival."""
        return findings(self.comparison)


@dataclass(frozen=True)
class Chapter:
    """What belongs to one manifest, or to none: a section a comparison.

    `open` is what the paper leaves open, `chosen` what was chosen, `absent` the parts that have no results.
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
    """A report's contents: a chapter a manifest. Its title is that of the chapter where there is one."""

    title: str
    chapters: list[Chapter]


def read_document(directory: Path) -> Document:
    """Read what lies in a folder.

    Raises
    ------
    ConfigError
        If there is nothing to report on.
    """
    if (directory / REPRODUCTION).exists():
        return _reproduction(directory)
    absent: list[str] = []
    if (directory / JSON).exists():
        key, written = "comparison", read_comparison(directory)
    elif folders := run_folders(directory):
        key, written = "run", read_runs(directory, folders)
        absent = [f"{name}: a run that is not at its end, and in no figure." for name in unfinished(directory)]
    else:
        raise ConfigError(
            f"{directory}: no {REPRODUCTION}, {JSON} or {RUN}; "
            "give the folder that dqnfed reproduce, compare or run wrote"
        )
    figure = written.comparison.figure
    less = "" if figure.higher else ", less is better"
    title = f"{directory.name}: test {figure.name} of the clients{less}"
    return Document(title, [Chapter(title, "", [_section(key, title, None, written)], absent=absent)])


def about(section: Section) -> list[tuple[str, str]]:
    """Command, commit, versions and machine, as texts; empty where they were not recorded."""
    found = section.about
    comparison = section.comparison
    versions = found.get("versions", {})
    cores, seconds = found.get("cores"), found.get("seconds")
    return [
        ("command", str(found.get("command", ""))),
        ("commit", commits_text(comparison) or str(found.get("commit") or "")),
        ("versions", ", ".join(f"{name} {number}" for name, number in versions.items())),
        ("machine", ", ".join(str(x) for x in (found.get("processor"), cores and f"{cores} cores") if x)),
        ("accelerator", str(found.get("accelerator") or ("none" if "accelerator" in found else ""))),
        ("platform", str(found.get("platform", ""))),
        ("wall clock", f"{seconds:.0f} s for what was still to be done" if isinstance(seconds, int | float) else ""),
        ("sum of the runs", f"{seconds_of(comparison):.0f} s"),
        ("seeds", ", ".join(map(str, comparison.plan.seeds))),
        (
            "settings",
            ", ".join(f"{k} {value}" for k, value in comparison.plan.config.items() if value not in ("", None)),
        ),
    ]


def claim_notes(comparison: Comparison, reference: Row, *, units: bool = True) -> list[str]:
    """How to read the claims about the reference of a comparison."""
    listed = "; ".join(f"{claim.text}: {claim.unit}" for claim in claims_of(comparison.figure))
    return [
        f"Each interval is that of the difference to the rival, drawn so that to the right is better for "
        f"{reference.label}. ✓ borne out: all of the interval is on the claim's side of 0; ✗ not borne out: all on the "
        "other; ? undecided: 0 lies inside, or there is one seed.",
        "Intervals are Student's 95 % intervals of the differences of runs with the same seed; they are not corrected "
        f"for the number of rivals. Rounds are counted on means of up to {SMOOTH} evaluations. Other forms of the "
        "method itself and methods with a model for every client are no rivals.",
        *[f"Units: {listed}."] * units,
    ]


def _reproduction(directory: Path) -> Document:
    found = read_reproductions(directory)
    chapters = [_chapter(directory, each, f"{each.key}-" if len(found) > 1 else "") for each in found]
    if not any(chapter.sections for chapter in chapters):
        names = ", ".join(each.name for each in found)
        raise ConfigError(f"{directory}: no part has results yet; run dqnfed reproduce {names} to its end")
    title = f"{directory.name}: {', '.join(each.key for each in found)}"
    return Document(chapters[0].title if len(chapters) == 1 else title, chapters)


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
    return Section(key, title, label, comparison, shown, written.about)


def report_markdown(document: Document) -> str:
    """The whole report; with several chapters, each is a level lower."""
    if len(document.chapters) == 1:
        parts = _chapter_markdown(document.chapters[0], "#")
    else:
        parts = [
            f"# {document.title}",
            *(part for chapter in document.chapters for part in _chapter_markdown(chapter, "##")),
        ]
    return "\n\n".join(parts) + "\n"


def _chapter_markdown(chapter: Chapter, mark: str) -> list[str]:
    """Its paragraphs, below a heading of so many marks."""
    parts = [f"{mark} {chapter.title}", *([chapter.source] if chapter.source else [])]
    for section in chapter.sections:
        label = f"**{section.label[:1].upper()}{section.label[1:]}.**" if section.label else ""
        found = [*section.tables, *_claim_tables(section)]
        own = section.title != chapter.title
        parts += [*([f"{mark}# {section.title}"] if own else []), *([label] if label else [])]
        below = f"{mark}##" if own else f"{mark}#"
        parts.append(re.sub("^## ", f"{below} ", markdown(found, "").strip(), flags=re.MULTILINE))
        parts.append(_listed(f"{below} {HOW}", [f"{name}: {text}" for name, text in about(section) if text]))
    return parts + [_listed(f"{mark}# {head}", texts) for head, texts in chapter.lists]


def _claim_tables(section: Section) -> list[Table]:
    reference = section.comparison.reference
    if reference is None or not any(section.claims.values()):
        return []
    claims = claims_of(section.comparison.figure)
    rivals = [finding.rival.label for finding in section.claims[claims[0].key]]
    rows = tuple(
        (
            Cell(rival),
            *(
                Cell(f"{TONES[found.verdict][1]} {found.verdict.value} {found.text}")
                for found in (section.claims[claim.key][place] for claim in claims)
            ),
        )
        for place, rival in enumerate(rivals)
    )
    lowest, verdict = near_one(reference)
    seed = "" if math.isnan(lowest) else f" (lowest seed {lowest:.4f})"
    near = f"ρ of {reference.label} near 1: {verdict.value}{seed}."
    headings = ("rival", *(f"{claim.text} ({claim.unit})" for claim in claims))
    notes = (near, *claim_notes(section.comparison, reference, units=False))
    return [Table(f"Does it hold? {reference.label} against each rival", headings, rows, notes)]


def _listed(heading: str, texts: Sequence[str]) -> str:
    return "\n".join([heading, "", *(f"- {text}" for text in texts)])
