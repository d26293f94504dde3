"""The verdict, shown as tables on the screen, and as a page like the report's: one file that needs no network."""

from __future__ import annotations

from dqnfed_flwr.audit.client_audit import LEVEL, LossRange
from dqnfed_flwr.audit.verdict import Audit, AuditComparison, ClientVerdict, JudgedClient, JudgedTest
from dqnfed_flwr.audit.weights import FEDERATED
from dqnfed_flwr.compare.tables import Cell, Table
from dqnfed_flwr.report.drawing import render_page
from dqnfed_flwr.types import Figure, decimals

MOST_ROWS = 25
"""Clients of a table at most; those that are worse off are always in it."""
SAMPLES, RIGHT = ("client", "samples"), ("right", "other", "alone", "p", "worse")
LOSS = ("loss", "other", "p", "worse", "")
UNKNOWN = "–"
STRONG = 2
"""Rank of a cell that stands out."""
TONES = {
    ClientVerdict.WORSE: ("no", "✗"),
    ClientVerdict.BETTER: ("yes", "✓"),
    ClientVerdict.OPEN: ("open", "?"),
    ClientVerdict.UNJUDGED: ("open", "–"),
}
"""What a verdict on a client looks like: its class, and its sign."""
PIXELS, REACH = 60, 56
"""Middle of an interval's drawing, and how far it goes to either side."""


def tables(audit: Audit) -> list[Table]:
    """One table a comparison; its last note is the verdict."""
    return [_table(comparison) for comparison in audit.comparisons]


def left_out(comparison: AuditComparison) -> list[str]:
    """Who was not judged in a comparison, and why."""
    found = [f"client {client}, not judged: {reason}" for client, reason in comparison.unjudged.items()]
    more = [f"{len(found) - MOST_ROWS} more that were not judged: see audit.json"] * (len(found) > MOST_ROWS)
    return [*found[:MOST_ROWS], *more]


def reading(audit: Audit) -> list[str]:
    """How to read the tables."""
    if audit.figure is not None and audit.loss_range is not None:
        return _reading_of(audit.figure, audit.loss_range)
    return [
        "right, other: test accuracy, %, of the federated model and the other one. alone: test samples that only the "
        "federated model has right / only the other. loss: mean test loss, each sample's cut off at 2 ln C. p: "
        "two-sided, McNemar's exact test and a paired bootstrap.",
        f"worse: one-sided p that the federated model is worse, by Holm over both tests of all clients; {LEVEL:g} "
        "or less shows it, wrongly in at most 5 % of comparisons. That nothing is shown is no proof of no harm.",
    ]


def _reading_of(figure: Figure, within: LossRange) -> list[str]:
    """The same where answers are neither right nor wrong."""
    direction, bound = "more" if figure.higher else "less", f"{within.bound:.{decimals(within.bound)}f}"
    times = "twice" if not within.floor else f"twice as far above the floor, {within.floor:g}, as"
    return [
        f"{own_name(figure)}, other: the task's own figure on the test samples, {direction} is better, of the "
        "federated model and the other one; it is not tested. loss: mean test loss, each sample's cut off at "
        f"{bound}, {times} the mean training loss that the run began at. p: two-sided, a paired bootstrap.",
        f"worse: one-sided p that the federated model's mean loss is higher, by Holm over all clients; {LEVEL:g} or "
        "less shows it, wrongly in at most 5 % of comparisons. That nothing is shown is no proof of no harm.",
    ]


def shown(test: JudgedTest) -> tuple[str, str]:
    """The two-sided p, and the corrected one for worse."""
    ps = (test.test.two_sided, test.worse)
    two_sided, worse = (f"{p:.2g}" if not p < 0.0001 else "<.0001" for p in ps)
    return two_sided, worse if test.judged else UNKNOWN


def _table(comparison: AuditComparison) -> Table:
    clients = comparison.clients
    if len(clients) > MOST_ROWS:
        worst_first = sorted(clients, key=lambda client: client.verdict is not ClientVerdict.WORSE)
        worse = len(comparison.those(ClientVerdict.WORSE))
        clients = worst_first[: max(MOST_ROWS, worse)]
    cut = len(comparison.clients) - len(clients)
    more = (
        [f"{cut} more clients are in audit.json and on the page; none of them is shown to be worse off"] if cut else []
    )
    return Table(
        f"The federated model against {comparison.label}",
        (*SAMPLES, *own_headings(comparison), *LOSS),
        tuple(_cells(client, comparison.other) for client in clients),
        (*more, *left_out(comparison), f"{comparison.summary}."),
    )


def own_texts(client: JudgedClient, other: str) -> list[str]:
    """Right answers of both models and their test, or the task's own figure of both."""
    audit, pair = client.audit, client.pair
    models = (audit.models[FEDERATED], audit.models[other])
    if audit.figure is not None:
        return [UNKNOWN if model.figure is None else audit.figure.text(model.figure) for model in models]
    shares = [percent(model.correct or 0, audit.examples) for model in models]
    tested = [] if client.accuracy is None else [*shown(client.accuracy)]
    return [*shares, f"{pair.only_federated}/{pair.only_other}", *tested]


def own_name(figure: Figure) -> str:
    """What a figure is called; the mean loss, beside which a cut-off one stands, is told from that."""
    return "uncut loss" if figure.name == "loss" else figure.name


def loss_text(client: JudgedClient, loss: float) -> str:
    """A loss, or a difference of two; where losses have a unit of their own, with as many digits as it needs."""
    return f"{loss:.{3 if client.audit.figure is None else decimals(loss)}f}"


def _cells(client: JudgedClient, other: str) -> tuple[Cell, ...]:
    audit = client.audit
    texts = [
        *(str(audit.partition), str(audit.examples)),
        *own_texts(client, other),
        *(loss_text(client, audit.models[name].loss) for name in (FEDERATED, other)),
        *shown(client.loss),
        client.verdict.value,
    ]
    strong = client.verdict is ClientVerdict.WORSE
    return tuple(Cell(text, STRONG * (strong and place in (0, len(texts) - 1))) for place, text in enumerate(texts))


def percent(correct: int, examples: int) -> str:
    """A share in per cent."""
    return f"{100 * correct / examples:.1f}" if examples else UNKNOWN


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


def own_headings(comparison: AuditComparison) -> tuple[str, ...]:
    """Of the columns of `own_texts`."""
    return RIGHT if comparison.figure is None else (own_name(comparison.figure), "other")


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
