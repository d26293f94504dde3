"""The verdict as a page like the report's: one file, light and dark, that needs no network."""

from __future__ import annotations

from dqnfed_flwr.audit.tables import left_out, loss_text, own_name, own_texts, reading, shown
from dqnfed_flwr.audit.verdict import Audit, AuditComparison, ClientVerdict, JudgedClient
from dqnfed_flwr.audit.weights import FEDERATED
from dqnfed_flwr.report.rendering import render_page

TONES = {
    ClientVerdict.WORSE: ("no", "✗"),
    ClientVerdict.BETTER: ("yes", "✓"),
    ClientVerdict.OPEN: ("open", "?"),
    ClientVerdict.UNJUDGED: ("open", "–"),
}
"""What a verdict on a client looks like: its class, and its sign."""
PIXELS, REACH = 60, 56
"""Middle of an interval's drawing, and how far it goes to either side."""


def html(audit: Audit) -> str:
    """The whole page."""
    names = {
        "audit": audit,
        "federated": FEDERATED,
        "left_out": left_out,
        "loss_text": loss_text,
        "marks_of": marks_of,
        "own_headings": own_headings,
        "own_texts": own_texts,
        "reading": reading,
        "shown": shown,
        "tiles": tiles,
        "tones": TONES,
    }
    return render_page("audit.html", names, package="dqnfed_flwr.audit")


def own_headings(comparison: AuditComparison) -> list[str]:
    """Of the columns of `own_texts`."""
    if comparison.figure is None:
        return ["right %", "other %", "alone", "p", "worse"]
    return [own_name(comparison.figure), "other"]


def tiles(comparison: AuditComparison) -> list[tuple[str, str, str]]:
    """A comparison in figures: number, what stands small behind it, and what it is."""
    everybody = len(comparison.clients) + len(comparison.missing)
    judged = everybody - len(comparison.unjudged)
    counts = {verdict: str(len(comparison.those(verdict))) for verdict in ClientVerdict}
    return [
        (counts[ClientVerdict.WORSE], f" of {judged} judged", "clients shown to be worse off"),
        (counts[ClientVerdict.BETTER], f" of {judged} judged", "clients shown to be better off"),
        (counts[ClientVerdict.OPEN], f" of {judged} judged", "clients without a shown difference"),
        (str(len(comparison.unjudged)), f" of {everybody}", "clients that could not be judged"),
    ]


def marks_of(client: JudgedClient, comparison: AuditComparison) -> list[float]:
    """Places along the drawing of low, difference and high; to the right is a lower loss of the federated model."""
    reach = max((max(abs(each.pair.low), abs(each.pair.high)) for each in comparison.clients), default=0.0) or 1.0
    pair = client.pair
    return sorted(round(PIXELS - REACH * value / reach, 1) for value in (pair.low, pair.difference, pair.high))
