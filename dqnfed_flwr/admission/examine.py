"""Plausibility of the replies of a round, each against all of them and against its client's own past."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from dqnfed_flwr.admission.robust import log_of, middle_and_limit
from dqnfed_flwr.config import AdmissionSettings
from dqnfed_flwr.types import Float64Array

NORM, LOSS, RATE = "norm-out-of-range", "loss-out-of-range", "rate-out-of-range"
COSINE, COUNT, ZERO = "cosine-out-of-range", "count-above-registered", "zero-gradient"
REASONS = (NORM, LOSS, RATE, COSINE, COUNT, ZERO)
VECTOR = "vector "
"""Begins the name of the norm of a vector that comes beside the row."""
Limits = Mapping[str, tuple[float, float]]
"""Median of each figure and the limit above it, in logarithms."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What is judged of one reply.

    Attributes
    ----------
    logs : Mapping[str, float]
        Logarithms of `norm`, `loss`, `rate` (d_k / |g_k|^2) and `vector <name>`; minus infinity for what is not
        positive.
    examples, registered : int
        Samples that it claims, and those that the node registered with; 0 where that is not known.
    """

    logs: Mapping[str, float]
    examples: int = 1
    registered: int = 0


@dataclass(frozen=True, slots=True)
class Past:
    """What a client's replies were, of those that were believed; logarithms as in `Figures`.

    Attributes
    ----------
    last : Mapping[str, float]
        Of the last one.
    largest : Mapping[str, float]
        The largest value of each figure.
    vouched : Mapping[str, float]
        The largest value of each figure that lay within the limits of its round, by what the other clients showed.
    """

    last: Mapping[str, float] = field(default_factory=dict)
    largest: Mapping[str, float] = field(default_factory=dict)
    vouched: Mapping[str, float] = field(default_factory=dict)


NOTHING = Past()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a reply is not believed.

    Attributes
    ----------
    reason : str
        One of `REASONS`.
    detail : str
        What was found, and the limit.
    cut : Mapping[str, float]
        By what to multiply the row (`norm`) and the vectors to come within the limit; empty where that is no cure.
    """

    reason: str
    detail: str
    cut: Mapping[str, float] = field(default_factory=dict)


def figures_of(norm: float, loss: float, rate: float, vectors: Mapping[str, float]) -> dict[str, float]:
    """The logarithms of `Figures`, from |g_k|, f_k, d_k and the norms of further vectors."""
    curvature = log_of(rate) - 2 * log_of(norm) if norm > 0 else -math.inf
    logs = {"norm": log_of(norm), "loss": log_of(loss), "rate": curvature}
    return logs | {VECTOR + name: log_of(length) for name, length in vectors.items()}


def examine(
    figures: Mapping[int, Figures],
    limits: Limits,
    cosines: Mapping[int, float],
    past: Mapping[int, Past],
    settings: AdmissionSettings,
) -> dict[int, Refusal]:
    """The replies that are not believed, by client.

    Parameters
    ----------
    figures : Mapping[int, Figures]
        Of every reply with a row.
    limits : Limits
        Of the round, see `limits_of`.
    cosines : Mapping[int, float]
        Of each row with the sum of the others' unit rows; may lack clients.
    past : Mapping[int, Past]
        Of every client that was believed before, those without a reply now too.
    settings : AdmissionSettings
        The limits.
    """
    refused = {}
    usual = _usual(past.values(), settings)
    for client, mine in figures.items():
        own = past.get(client, NOTHING)
        vouched = {name: min(value, usual[name]) for name, value in own.vouched.items()}
        refusal = _judge(mine, limits, cosines.get(client, 1.0), replace(own, vouched=vouched), settings)
        if refusal:
            refused[client] = refusal
    return refused


def cosines_with_others(gram: Float64Array) -> Float64Array:
    """Cosine of each row with the sum of the others' unit rows [K]; 1 where a row or that sum is 0.

    Unit rows, because one long row would make the sum its own.
    """
    norms = np.sqrt(np.maximum(np.diag(gram), 0.0))
    safe = np.where(norms > 0, norms, 1.0)
    unit = gram / np.outer(safe, safe)
    with_others = unit.sum(axis=1) - np.diag(unit)
    squared = unit.sum() - 2 * unit.sum(axis=1) + np.diag(unit)
    known = (norms > 0) & (squared > 0)
    return np.where(known, with_others / np.sqrt(np.where(known, squared, 1.0)), 1.0)


def limits_of(figures: Mapping[int, Figures], settings: AdmissionSettings) -> Limits:
    """What the replies of a round say about each other: of every figure that enough of them have above 0."""
    by_name: dict[str, list[float]] = {}
    for mine in figures.values():
        for name, value in mine.logs.items():
            if math.isfinite(value):
                by_name.setdefault(name, []).append(value)
    return {
        name: middle_and_limit(values, _factor(name, settings), settings.spread)
        for name, values in by_name.items()
        if len(values) >= settings.min_replies
    }


def _usual(pasts: Iterable[Past], settings: AdmissionSettings) -> dict[str, float]:
    """How much of what a client has shown counts at most, by the median client: a round may have been a liars' own."""
    by_name: dict[str, list[float]] = {}
    for past in pasts:
        for name, value in past.vouched.items():
            by_name.setdefault(name, []).append(value)
    return {name: float(np.median(values)) + math.log(_factor(name, settings)) for name, values in by_name.items()}


def _factor(name: str, settings: AdmissionSettings) -> float:
    return {"loss": settings.loss_factor, "rate": settings.rate_factor}.get(name, settings.norm_factor)


def _judge(mine: Figures, limits: Limits, cosine: float, past: Past, settings: AdmissionSettings) -> Refusal | None:
    if 0 < mine.registered < mine.examples:
        return Refusal(COUNT, f"{mine.examples} samples; the node registered {mine.registered}")
    if not math.isfinite(mine.logs["norm"]) and "norm" in limits:
        return Refusal(ZERO, "the row is 0; those of the others are not")
    vectors = [name for name in mine.logs if name.startswith(VECTOR)]
    for reason, names in ((NORM, ["norm", *vectors]), (LOSS, ["loss"]), (RATE, ["rate"])):
        found, cut = [], {}
        for name in names:
            excess, said = _excess(name, mine.logs[name], limits, past, settings)
            if excess > 0:
                found.append(said)
                cut[name] = math.exp(-excess)
        if found:
            return Refusal(reason, "; ".join(found), cut if reason == NORM else {})
    if "norm" in limits and cosine < settings.min_cosine:
        return Refusal(COSINE, f"cosine {cosine:.3g} with the others; the least is {settings.min_cosine:g}")
    return None


def _excess(name: str, value: float, limits: Limits, past: Past, settings: AdmissionSettings) -> tuple[float, str]:
    """How far a value lies above its limit, in logarithms, and the words for it; 0 where it is within.

    A client may be as far off as it once was among its peers: while others near their optima, the steps of those who
    are sampled take the model away from those who are not. Where too few replies are there to compare with, the
    client's largest is the measure and not its last: who had learnt its samples nearly by heart is honest with figures
    many times its last, once others have moved the model.
    """
    if name in limits:
        middle, limit = limits[name]
        against = "the median"
        if name in past.last and value - past.last[name] <= math.log(settings.past_factor):
            limit = 2 * limit
        if name in past.vouched:
            limit = max(limit, past.vouched[name] + math.log(settings.past_factor) - middle)
    elif name in past.largest:
        middle, limit, against = past.largest[name], 2 * math.log(_factor(name, settings)), "the client's own largest"
    else:
        return 0.0, ""
    distance = value - middle
    return max(distance - limit, 0.0), f"{name} {_times(distance)} times {against}; the most is {_times(limit)}"


def _times(log: float) -> str:
    return f"{math.exp(min(log, 700.0)):.3g}"
