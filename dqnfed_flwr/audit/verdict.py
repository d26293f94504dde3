"""What the audits of all clients show together: who is worse off, who could be judged at all, and why others not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from dqnfed_flwr.audit.client_audit import LEVEL, ClientAudit, LossRange, PairFigures, picked
from dqnfed_flwr.audit.statistics import PairedTest, corrected, needed
from dqnfed_flwr.audit.weights import FEDERATED, LABELS, RunEnd
from dqnfed_flwr.types import Figure


class ClientVerdict(Enum):
    """What is shown of a client in a comparison."""

    WORSE = "worse"
    BETTER = "better"
    OPEN = "nothing shown"
    UNJUDGED = "not judged"


@dataclass(frozen=True, slots=True)
class JudgedTest:
    """A test with its corrected p-values for worse and better; NaN where no result of it could have counted."""

    test: PairedTest
    worse: float
    better: float

    @property
    def judged(self) -> bool:
        """Whether it is part of the family."""
        return not math.isnan(self.worse)


@dataclass(frozen=True, slots=True)
class JudgedClient:
    """One client in one comparison; `reason` says why it was not judged. Without right answers `accuracy` is None."""

    audit: ClientAudit
    pair: PairFigures
    accuracy: JudgedTest | None
    loss: JudgedTest
    reason: str

    @property
    def verdict(self) -> ClientVerdict:
        """Worse where a corrected p-value for worse is at most the level, in accuracy or in loss."""
        tests = [test for test in (self.accuracy, self.loss) if test is not None and test.judged]
        if not tests:
            return ClientVerdict.UNJUDGED
        if min(test.worse for test in tests) <= LEVEL:
            return ClientVerdict.WORSE
        return ClientVerdict.BETTER if min(test.better for test in tests) <= LEVEL else ClientVerdict.OPEN


@dataclass(frozen=True, slots=True)
class AuditComparison:
    """The federated model against `other`, client by client; `missing` are clients that said nothing, with reasons."""

    other: str
    clients: Sequence[JudgedClient]
    missing: Mapping[int, str]

    @property
    def label(self) -> str:
        """The other model in tables."""
        return LABELS.get(self.other, self.other)

    @property
    def figure(self) -> Figure | None:
        """The task's own figure; None where answers are right or wrong."""
        return self.clients[0].audit.figure if self.clients else None

    def those(self, verdict: ClientVerdict) -> list[JudgedClient]:
        """The clients of which that is shown."""
        return [client for client in self.clients if client.verdict is verdict]

    @property
    def unjudged(self) -> dict[int, str]:
        """Who was left out, with the reasons, rising."""
        found = {client.audit.partition: client.reason for client in self.those(ClientVerdict.UNJUDGED)}
        return dict(sorted({**found, **self.missing}.items()))

    @property
    def summary(self) -> str:
        """The verdict in words, with how many could be judged at all."""
        everybody = len(self.clients) + len(self.missing)
        judged = everybody - len(self.unjudged)
        worse = self.those(ClientVerdict.WORSE)
        names = ", ".join(str(client.audit.partition) for client in worse)
        verdict = f"clients shown to be worse off: {names}" if worse else "nobody is shown to be worse off"
        if not judged:
            verdict = "nothing can be said"
        found = f"{verdict}. {judged} of {everybody} clients could be judged"
        if self.figure is not None:
            return f"{found}, by their loss"
        accuracy = sum(client.accuracy is not None and client.accuracy.judged for client in self.clients)
        loss = sum(client.loss.judged for client in self.clients)
        return f"{found}: by their accuracy {accuracy}, by their loss {loss}"


@dataclass(frozen=True, slots=True)
class Audit:
    """The verdict on a run and how it ended; `faults` are lines of clients that were not used, and further notes."""

    run: str
    comparisons: Sequence[AuditComparison]
    end: RunEnd
    faults: Sequence[str] = field(default_factory=tuple)
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def figure(self) -> Figure | None:
        """The task's own figure; None where answers are right or wrong."""
        return next((comparison.figure for comparison in self.comparisons), None)

    @property
    def loss_range(self) -> LossRange | None:
        """Where losses are cut off; None without a client."""
        audits = (client.audit for comparison in self.comparisons for client in comparison.clients)
        return next((LossRange(audit.floor, audit.bound) for audit in audits), None)

    @property
    def worse(self) -> dict[str, list[int]]:
        """The clients shown to be worse off, by comparison; empty where nobody is."""
        found = {
            comparison.other: [client.audit.partition for client in comparison.those(ClientVerdict.WORSE)]
            for comparison in self.comparisons
        }
        return {other: clients for other, clients in found.items() if clients}

    def to_json(self) -> dict[str, Any]:
        """Everything, as `audit.json` holds it."""
        return {
            "run": self.run,
            "level": LEVEL,
            "ended": self.end.to_json(),
            **(
                {**self.loss_range._asdict(), "figure": self.figure.to_json()}
                if self.figure and self.loss_range
                else {}
            ),
            "worse": self.worse,
            "comparisons": [_comparison_record(comparison) for comparison in self.comparisons],
            "faults": list(self.faults),
            "notes": list(self.notes),
        }


def judge(audits: Sequence[ClientAudit], missing: Mapping[int, str]) -> list[AuditComparison]:
    """Compare the clients' own audits, one a client, with the level of each comparison; those `missing` with reasons.

    The tests of a comparison, of the loss of every client and of its accuracy where there are right answers, are one
    family: with probability of at least 1 - `LEVEL` no client is called worse that is not. Comparisons stand in the
    order in which clients name them.
    """
    others = list(dict.fromkeys(other for audit in audits for other in audit.pairs))
    return [_judged(other, sorted(audits, key=lambda audit: audit.partition), missing) for other in others]


def _judged(other: str, audits: Sequence[ClientAudit], missing: Mapping[int, str]) -> AuditComparison:
    those = [audit for audit in audits if other in audit.pairs]
    silent = {audit.partition: "it did not compare with this model" for audit in audits if other not in audit.pairs}
    counted = {audit.partition: test for audit in those if (test := audit.pairs[other].accuracy) is not None}
    tests = [*counted.values(), *(audit.loss_test(other) for audit in those)]
    smallest = np.array([test.smallest for test in tests])
    worse = corrected(np.array([test.worse for test in tests]), smallest, LEVEL)
    better = corrected(np.array([test.better for test in tests]), smallest, LEVEL)
    threshold = needed(smallest, LEVEL)
    judged = [JudgedTest(*figures) for figures in zip(tests, worse.tolist(), better.tolist(), strict=True)]
    accuracy = dict(zip(counted, judged, strict=False))
    clients = [
        JudgedClient(audit, audit.pairs[other], a, loss, _why_not(audit, a, loss, threshold))
        for audit, loss in zip(those, judged[len(counted) :], strict=True)
        for a in [accuracy.get(audit.partition)]
    ]
    return AuditComparison(other, clients, {**missing, **silent})


def _why_not(audit: ClientAudit, accuracy: JudgedTest | None, loss: JudgedTest, threshold: float) -> str:
    """Why a client could not be judged, empty where it could."""
    if loss.judged or (accuracy is not None and accuracy.judged):
        return ""
    if not audit.examples:
        return "no test samples"
    of_accuracy = "" if accuracy is None else f"{accuracy.test.smallest:.2g} for accuracy and "
    return (
        f"with {audit.examples} test samples p could not be below {of_accuracy}{loss.test.smallest:.2g} for loss; "
        f"{threshold:.2g} is needed"
    )


def _comparison_record(comparison: AuditComparison) -> dict[str, Any]:
    return {
        "against": comparison.other,
        "verdict": comparison.summary,
        "worse": [client.audit.partition for client in comparison.those(ClientVerdict.WORSE)],
        "better": [client.audit.partition for client in comparison.those(ClientVerdict.BETTER)],
        "not_judged": {str(client): reason for client, reason in comparison.unjudged.items()},
        "clients": [_client_record(client, comparison.other) for client in comparison.clients],
    }


def _client_record(client: JudgedClient, other: str) -> dict[str, Any]:
    audit, fields = client.audit, client.audit.fields
    return {
        "client": audit.partition,
        "standing": client.verdict.value,
        "examples": audit.examples,
        "federated": picked(audit.models[FEDERATED], fields.model),
        "other": picked(audit.models[other], fields.model),
        **picked(client.pair, fields.pair),
        **({} if client.accuracy is None else {"accuracy": _test_record(client.accuracy)}),
        "loss": _test_record(client.loss),
    }


def _test_record(found: JudgedTest) -> dict[str, float | None]:
    corrected_p = {"worse_corrected": found.worse, "better_corrected": found.better}
    figures = {"worse": found.test.worse, "two_sided": found.test.two_sided, "smallest_possible": found.test.smallest}
    return figures | {name: value if found.judged else None for name, value in corrected_p.items()}
