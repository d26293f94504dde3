"""What a hostile client does to its own reply so that its form is wrong, and the reason under which it is counted.

Lies that keep to the form are those of `benchmarks._lies`.
"""

from __future__ import annotations

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import Message

from dqnfed_flwr.config import AttackSettings
from dqnfed_flwr.engine.adversary import Attack, tampered
from dqnfed_flwr.guarantee.overrule import CONTRADICTION
from tests.helpers.bad_replies import Meddle, at, figure, vector

HUGE = 15_000_000
"""Values of an array of 120 MB."""


def _blind(meddle: Meddle) -> Attack:
    """An attack that does not look at what it was asked."""
    return lambda reply, question: meddle(reply)


def _row(attack: AttackSettings) -> Attack:
    """An attack of the package's own that needs neither model nor noise."""
    rng = np.random.default_rng(0)
    return _blind(vector(lambda g: tampered(g, g, attack, rng, displacement=False).astype(g.dtype)))


def _huge(_: object) -> FlowerArray:
    return FlowerArray(np.zeros(HUGE))


def sign_flip(reply: Message, question: Message) -> Message:
    """The row turned round; all words stay true."""
    return vector(lambda g: -g)(reply)


ATTACKS: dict[str, tuple[Attack, str]] = {
    "NaN": (_blind(vector(lambda g: np.full_like(g, np.nan))), "not-finite"),
    "one NaN": (_blind(vector(at(0, np.nan))), "not-finite"),
    "Inf": (_blind(vector(lambda g: np.full_like(g, np.inf))), "not-finite"),
    "zero": (_row(AttackSettings(kind="zero")), "zero-gradient"),
    "NaN loss": (_blind(figure("loss", np.nan)), "not-finite"),
    "1e12 samples": (_blind(figure("num-examples", 10**12)), "bad-count"),
    "negative samples": (_blind(figure("num-examples", -10)), "bad-count"),
    "wrong shape": (_blind(vector(lambda g: g[:-1])), "bad-shape"),
    "broadcastable shape": (_blind(vector(lambda g: g[:1])), "bad-shape"),
    "extra key": (_blind(vector(lambda g: g, key="more")), "extra-key"),
    "complex": (_blind(vector(lambda g: g.astype(complex))), "bad-dtype"),
    "120 MB": (_blind(vector(_huge)), "bad-shape"),
    "1e6 samples": (_blind(figure("num-examples", 10**6)), CONTRADICTION),
}
"""Attacks on the form of a single reply, and a claim that its own node contradicts."""
