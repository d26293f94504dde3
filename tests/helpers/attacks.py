"""What a hostile client does to its own reply: the attacks that a federation must outlive, and some it cannot see."""

from __future__ import annotations

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import Message

from dqnfed_flwr import wire
from dqnfed_flwr.admission.examine import COUNT, NORM
from dqnfed_flwr.admission.votes import VETO
from dqnfed_flwr.attacks import tampered
from dqnfed_flwr.config import AttackSettings
from dqnfed_flwr.engine.hostile import Attack
from tests.helpers.bad_replies import Meddle, at, figure, vector

HUGE = 15_000_000
"""Values of an array of 120 MB."""


def _blind(meddle: Meddle) -> Attack:
    """An attack that does not look at what it was asked."""
    return lambda reply, question: meddle(reply)


def _row(attack: AttackSettings) -> Attack:
    """An attack of the package's own that needs neither model nor noise."""
    rng = np.random.default_rng(0)
    return _blind(vector(lambda g: tampered(g, g, attack, rng, displacement=False).astype(np.float32)))


def _times(factor: float) -> Attack:
    return _row(AttackSettings(kind="enlarged", factor=factor))


def _huge(_: object) -> FlowerArray:
    return FlowerArray(np.zeros(HUGE))


def _says(reply: Message, loss: float, holds: bool, back_factor: float | None = None) -> Message:
    """Put words of the candidate into a reply, where it has any."""
    figures = reply.content.metric_records[wire.FIGURES]
    if "probe-holds" not in figures:
        return reply
    for key in ("probe-grown-holds", "probe-back-factor", "probe-back-loss"):
        if key in figures:
            del figures[key]
    figures["probe-loss"], figures["probe-holds"] = loss, int(holds)
    if back_factor is not None:
        figures["probe-back-factor"], figures["probe-back-loss"] = back_factor, 0.0
    return reply


def _veto(reply: Message, question: Message) -> Message:
    """No factor suits it, ever."""
    task = wire.decode_task(question.content).task
    return _says(reply, 2 * task.reference_loss, holds=False)


def _creeping_veto(reply: Message, question: Message) -> Message:
    """Of the rungs that it is asked for, only the smallest suits it, in every exchange anew."""
    task = wire.decode_task(question.content).task
    return _says(reply, 2 * task.reference_loss, holds=False, back_factor=task.factor * 0.5**task.halvings)


class PatientVeto:
    """The same, but the rung that it named suits it when it is tried: the step shrinks from round to round."""

    def __init__(self) -> None:
        self._named: dict[int, tuple[int, float]] = {}

    def __call__(self, reply: Message, question: Message) -> Message:
        task = wire.decode_task(question.content).task
        if not task.probe:
            return reply
        smallest = task.factor * 0.5**task.halvings
        client, before = question.metadata.dst_node_id, (task.round, task.factor)
        if self._named.get(client) == before:
            return _says(reply, 0.0, holds=True)
        self._named[client] = (task.round, smallest)
        return _says(reply, 2 * task.reference_loss, holds=False, back_factor=smallest)


def _content(reply: Message, question: Message) -> Message:
    """Its loss always fell, to nothing."""
    return _says(reply, 0.0, holds=True)


def _backwards(reply: Message, question: Message) -> Message:
    """As a gradient it sends the federation's own step, turned round and of the usual length."""
    step = wire.decode_task(question.content).step
    if step is None:
        return reply

    def turned(gradient: np.ndarray) -> np.ndarray:
        length = np.linalg.norm(step)
        return np.asarray(-step * (np.linalg.norm(gradient) / length if length else 1.0), np.float32)

    return vector(turned)(reply)


ATTACKS: dict[str, tuple[Attack, str]] = {
    "NaN": (_blind(vector(lambda g: np.full_like(g, np.nan))), "not-finite"),
    "one NaN": (_blind(vector(at(0, np.nan))), "not-finite"),
    "Inf": (_blind(vector(lambda g: np.full_like(g, np.inf))), "not-finite"),
    "x 100": (_times(100.0), NORM),
    "x 1e6": (_times(1e6), NORM),
    "sign flip x 10": (_times(-10.0), NORM),
    "zero": (_row(AttackSettings(kind="zero")), "zero-gradient"),
    "NaN loss": (_blind(figure("loss", np.nan)), "not-finite"),
    "1e12 samples": (_blind(figure("num-examples", 10**12)), "bad-count"),
    "negative samples": (_blind(figure("num-examples", -10)), "bad-count"),
    "wrong shape": (_blind(vector(lambda g: g[:-1])), "bad-shape"),
    "broadcastable shape": (_blind(vector(lambda g: g[:1])), "bad-shape"),
    "extra key": (_blind(vector(lambda g: g, key="more")), "extra-key"),
    "complex": (_blind(vector(lambda g: g.astype(complex))), "bad-dtype"),
    "120 MB": (_blind(vector(_huge)), "bad-shape"),
}
"""The fifteen of the table, each with the reason under which it is counted."""

FURTHER: dict[str, tuple[Attack, str]] = {
    "sign flip": (_times(-1.0), VETO),
    "1e6 samples": (_blind(figure("num-examples", 10**6)), COUNT),
    "veto": (_veto, VETO),
    "creeping veto": (_creeping_veto, VETO),
}
"""Attacks within the limits of a single message that are found out."""

UNSEEN: dict[str, tuple[Attack, str]] = {
    "x 7": (_times(7.0), ""),
    "rate x 900": (_blind(figure("rate", lambda rate: 900 * rate)), ""),
    "always content": (_content, ""),
    "step reversed": (_backwards, ""),
    "patient veto": (PatientVeto(), ""),
}
"""Lies within every limit: nothing finds them out by itself."""
