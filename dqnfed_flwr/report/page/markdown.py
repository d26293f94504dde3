"""The report as Markdown: tables, claims, machine."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from dqnfed_flwr.compare.claims import CLAIMS, near_one
from dqnfed_flwr.compare.sheets import Cell, Table, markdown
from dqnfed_flwr.report.page.blocks import CLAIM_NOTES, TONES, about
from dqnfed_flwr.report.page.document import Chapter, Document, Section

HOW = "How it was run"
"""A heading that every report has."""


def is_report(text: str) -> bool:
    """Whether a Markdown file is one of these reports, and not of somebody's own."""
    return re.search(f"^#+ {HOW}$", text, re.MULTILINE) is not None


def report_markdown(document: Document) -> str:
    """The whole report; with several chapters, each is a level lower."""
    if len(document.chapters) == 1:
        parts = _chapter(document.chapters[0], "#")
    else:
        parts = [f"# {document.title}", *(part for chapter in document.chapters for part in _chapter(chapter, "##"))]
    return "\n\n".join(parts) + "\n"


def _chapter(chapter: Chapter, mark: str) -> list[str]:
    """Its paragraphs, below a heading of so many marks."""
    parts = [f"{mark} {chapter.title}", *([chapter.source] if chapter.source else [])]
    for section in chapter.sections:
        label = f"**{section.label[:1].upper()}{section.label[1:]}.**" if section.label else ""
        found = [*section.tables, *_claims(section)]
        own = section.title != chapter.title
        parts += [*([f"{mark}# {section.title}"] if own else []), *([label] if label else [])]
        below = f"{mark}##" if own else f"{mark}#"
        parts.append(re.sub("^## ", f"{below} ", markdown(found, "").strip(), flags=re.MULTILINE))
        parts.append(_listed(f"{below} {HOW}", [f"{name}: {text}" for name, text in about(section) if text]))
    return parts + [_listed(f"{mark}# {head}", texts) for head, texts in chapter.lists]


def _claims(section: Section) -> list[Table]:
    reference = section.comparison.reference
    if reference is None or not any(section.claims.values()):
        return []
    rivals = [finding.rival.label for finding in section.claims[CLAIMS[0].key]]
    rows = tuple(
        (
            Cell(rival),
            *(
                Cell(f"{TONES[found.verdict][1]} {found.verdict.value} {found.text}")
                for found in (section.claims[claim.key][place] for claim in CLAIMS)
            ),
        )
        for place, rival in enumerate(rivals)
    )
    lowest, verdict = near_one(reference)
    told = "" if math.isnan(lowest) else f" (lowest seed {lowest:.4f})"
    near = f"ρ of {reference.label} near 1: {verdict.value}{told}."
    headings = ("rival", *(f"{claim.text} ({claim.unit})" for claim in CLAIMS))
    notes = (near, *(text.format(name=reference.label) for text in CLAIM_NOTES))
    return [Table(f"Does it hold? {reference.label} against each rival", headings, rows, notes)]


def _listed(heading: str, texts: Sequence[str]) -> str:
    return "\n".join([heading, "", *(f"- {text}" for text in texts)])
