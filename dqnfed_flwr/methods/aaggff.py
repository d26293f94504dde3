"""AAggFF: weights as decisions of an online learner, which sees how high each client's loss is among the others.

Hahn, Kim and Lee, "Pursuing Overall Welfare in Federated Learning through Sequential Decision Making", ICML 2024:
AAggFF-S for few clients that are all present (Online Newton Step), AAggFF-D for many of which some are sampled
(follow the regularised leader with the entropy). Nothing here comes from its code, which is not for commercial use.

With F the losses present, F' their mean, K the clients of the federation, C the share sampled:

    response   r_k = c CDF(F_k / F'),    c = 1 / K in AAggFF-S, C in AAggFF-D
    loss of a decision p on the simplex    -log(1 + p . r)

Deviations from the paper: a client that drops out in AAggFF-S has the mean response. A client whose number is not below
K has no part in the decision and the weight of a mean client; it is counted (note `strangers`). In AAggFF-D the part
of the gradient that is the same for all clients is left out, for it moves no weight; the rate goes by the bound of the
rest, 1. CDFs are centred at F' where they have a centre; that of Weibull has shape 2.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.linalg.box_qp import box_simplex_weights
from dqnfed_flwr.methods._base import GramMethod, RoundRows
from dqnfed_flwr.schema.group import Group, expert
from dqnfed_flwr.schema.plan import Profile, RunPlan
from dqnfed_flwr.types import Combination, Float64Array, RoundBatch, Sees

MOST_CLIENTS = 1000
"""Clients whose K x K matrix AAggFF-S solves with in every round."""
CdfName = Literal["normal", "logistic", "gumbel", "exponential", "weibull"]


def _normal(x: Float64Array) -> Float64Array:
    from scipy.special import ndtr

    return np.asarray(ndtr(x - 1))


def _logistic(x: Float64Array) -> Float64Array:
    from scipy.special import expit

    return np.asarray(expit(x - 1))


CDFS: Mapping[CdfName, Callable[[Float64Array], Float64Array]] = {
    "normal": _normal,
    "logistic": _logistic,
    "gumbel": lambda x: np.asarray(np.exp(-np.exp(1 - x))),
    "exponential": lambda x: np.asarray(-np.expm1(-x)),
    "weibull": lambda x: np.asarray(-np.expm1(-(x**2))),
}
"""Of a loss over the mean loss, [K] >= 0 to [K] in [0, 1]."""


class AaggffSettings(Group):
    """AAggFF."""

    form: Literal["auto", "silo", "device"] = expert(
        "auto", "AAggFF-S or AAggFF-D; auto takes device where clients are sampled"
    )
    cdf: CdfName = expert("normal", "distribution that turns a loss over the mean loss into a response")


class Aaggff(GramMethod):
    """step = eta sum p_k g_k, p normalised over the clients present, and decided after their losses are seen.

    Attributes
    ----------
    most : float
        c, the largest response.
    """

    sees = Sees.NORMS

    def __init__(self, run: RunPlan) -> None:
        super().__init__(run)
        self._cdf = CDFS[run.group_of(AaggffSettings).cdf]
        self._clients, self.most = run.settings.clients, 1.0
        self._strangers = 0

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """Take the responses of the round into the decision."""
        clients = np.array(batch.clients)
        known = clients < self._clients
        self._strangers = int((~known).sum())
        if not known.any():
            return
        losses = batch.losses[known]
        mean = float(losses.mean())
        relative = losses / mean if mean > 0 else np.ones(len(losses))
        self._decide(clients[known], self.most * self._cdf(np.maximum(relative, 0.0)))

    @abstractmethod
    def _decide(self, clients: NDArray[np.int64], responses: Float64Array) -> None:
        """Move p by the responses [n] of the clients present [n], each below K."""

    @abstractmethod
    def present(self, clients: NDArray[np.int64]) -> Float64Array:
        """p of these clients [n], normalised; K stands for one that has no place in p."""

    def weights(self, batch: RoundBatch) -> Combination:
        """eta p_k."""
        weights = self.present(np.minimum(batch.clients, self._clients))
        notes = {"largest_weight": float(weights.max()), "strangers": float(self._strangers)}
        return Combination(self._row_lr * weights, notes=notes)


class AaggffSilo(Aaggff):
    """AAggFF-S: the decision p minimises over the simplex what is known of the rounds t so far.

        sum_t g_t . p + alpha / 2 |p|^2 + beta / 2 sum_t (g_t . (p - p_t))^2,    alpha = 4 K L, beta = 1 / (4 L)

    with g_t = -r_t / (1 + p_t . r_t), p_t the decision before round t, and L = 1 / K, which bounds the entries of g_t.
    The decision before round 1 is the same for all.
    """

    _remembered = ("decision", "linear", "quadratic")

    def __init__(self, run: RunPlan) -> None:
        super().__init__(run)
        count = self._clients
        self.most = bound = 1 / count
        self._beta = 1 / (4 * bound)
        self._decision = np.full(count, 1 / count)
        self._linear = np.zeros(count)
        self._quadratic = 4 * count * bound * np.eye(count)

    def _decide(self, clients: NDArray[np.int64], responses: Float64Array) -> None:
        every = np.full(self._clients, responses.mean())
        every[clients] = responses
        gradient = -every / (1 + self._decision @ every)
        self._linear = self._linear - gradient + self._beta * float(gradient @ self._decision) * gradient
        self._quadratic = self._quadratic + self._beta * np.outer(gradient, gradient)
        self._decision = box_simplex_weights(self._quadratic, linear=self._linear).weights

    def present(self, clients: NDArray[np.int64]) -> Float64Array:
        """p of these clients [n], normalised; alike where all of it lies with others."""
        held = np.append(self._decision, 1 / self._clients)[clients]
        total = float(held.sum())
        return np.asarray(held / total) if total > 0 else np.full(len(held), 1 / len(held))


class AaggffDevice(Aaggff):
    """AAggFF-D: after t rounds p_k is proportional to exp(sum_t s_tk sqrt(log K / (t + 1))).

    -s_t is the gradient, linearised at the mean response r' of those present, at the doubly robust estimate of all
    responses: r' + (r_k - r') / C for those present and r' for the others, over 1 + r'.
    """

    _remembered = ("scores", "rounds")

    def __init__(self, run: RunPlan) -> None:
        super().__init__(run)
        self.most = run.settings.sampled / run.settings.clients
        self._scores = np.zeros(self._clients)
        self._rounds = 0

    def _decide(self, clients: NDArray[np.int64], responses: Float64Array) -> None:
        mean = float(responses.mean())
        estimate = np.full(self._clients, mean)
        estimate[clients] += (responses - mean) / self.most
        self._scores = self._scores + estimate / (1 + mean)
        self._rounds += 1

    def present(self, clients: NDArray[np.int64]) -> Float64Array:
        """p of these clients [n], normalised."""
        scores = np.append(self._scores, self._scores.mean())[clients] * math.sqrt(
            math.log(self._clients) / (self._rounds + 1)
        )
        powers = np.exp(scores - scores.max())
        return np.asarray(powers / powers.sum())


def _form(run: RunPlan) -> str:
    form = run.group_of(AaggffSettings).form
    return form if form != "auto" else "device" if run.settings.sampled < run.settings.clients else "silo"


def _build(run: RunPlan) -> Aaggff:
    return AaggffSilo(run) if _form(run) == "silo" else AaggffDevice(run)


class _Aaggff(Profile):
    def title_of(self, run: RunPlan) -> str:
        return "AAggFF-S" if _form(run) == "silo" else "AAggFF-D"

    def nonnegative(self, run: RunPlan, *, floor: bool) -> str:
        return "takes losses over their mean"

    def faults(self, run: RunPlan) -> Iterator[str]:
        clients = run.settings.clients
        if _form(run) == "silo" and clients > MOST_CLIENTS:
            yield (
                f"aaggff.form: silo solves with a matrix of clients by clients, found {clients} clients; allowed are "
                f"up to {MOST_CLIENTS}; use aaggff.form device"
            )


METHODS = (_Aaggff(name="aaggff", title="AAggFF", settings=AaggffSettings, build=_build),)
