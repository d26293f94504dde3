"""The report as Markdown: tables, claims, machine."""

from __future__ import annotations

from collections.abc import Sequence

from dqnfed_flwr.compare.claims import CLAIMS, near_one
from dqnfed_flwr.compare.tables import Cell, Table, markdown
from dqnfed_flwr.report.page.blocks import CLAIM_NOTES, TONES, about
from dqnfed_flwr.report.page.document import Document, Section


def report_markdown(document: Document) -> str:
    """The whole report."""
    parts = [f"# {document.title}", *([document.source] if document.source else [])]
    for section in document.sections:
        label = f"**{section.label[:1].upper()}{section.label[1:]}.**" if section.label else ""
        found = [*section.tables, *_claims(section)]
        parts += [f"## {section.title}", *([label] if label else [])]
        parts.append(markdown(found, "").strip().replace("\n## ", "\n### ").replace("## ", "### ", 1))
        parts.append(_listed("### How it was run", [f"{name}: {text}" for name, text in about(section) if text]))
    parts += [
        _listed(f"## {head}", texts)
        for head, texts in (
            ("What the paper leaves open", document.open),
            ("What was chosen here", document.chosen),
            ("Parts without results", document.absent),
        )
        if texts
    ]
    return "\n\n".join(parts) + "\n"


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
    near = f"ρ of {reference.label} near 1: {verdict.value} (lowest seed {lowest:.4f})."
    headings = ("rival", *(f"{claim.text} ({claim.unit})" for claim in CLAIMS))
    notes = (near, *(text.format(name=reference.label) for text in CLAIM_NOTES))
    return [Table(f"Does it hold? {reference.label} against each rival", headings, rows, notes)]


def _listed(heading: str, texts: Sequence[str]) -> str:
    return "\n".join([heading, "", *(f"- {text}" for text in texts)])
