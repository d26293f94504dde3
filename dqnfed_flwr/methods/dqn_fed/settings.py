"""The settings of DQN-Fed: which step meets the rates, and whose step is changed."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from dqnfed_flwr.schema.group import Group, expert, own
from dqnfed_flwr.schema.groups import LocalWorkName
from dqnfed_flwr.schema.plan import GRADIENTS, RunPlan
from dqnfed_flwr.schema.work import GRADIENT, LBFGS, SGD

AUTO = "auto"
NAME = "dqn-fed"


def anchored(run: RunPlan) -> bool:
    """Whether a run of DQN-Fed has the anchored form."""
    return run.group_of(DqnFedSettings).form == "anchored"


def choose_anchor(run: RunPlan, *, passes: bool) -> tuple[str, str]:
    """The anchor's method and local work: the first row that fits in docs/methods/dqn-fed.md.

    `passes` is whether clients take more than one step. A single step on all samples says no more than the gradient,
    which is sent anyway. A history of mean gradients is kept only of the same clients each time, none of whom may lie.
    """
    own, may_lie = run.group_of(DqnFedSettings), run.settings.guarantee.tolerate > 0 and run.rule.judged_by == "test"
    by_passes = own.anchor_work == SGD.name or (own.anchor_work == AUTO and passes and not may_lie)
    everybody = run.settings.sampled >= run.settings.clients
    rows = (
        (own.anchor != AUTO, own.anchor, own.anchor_work),
        (run.masked, "momentum", GRADIENT.name),
        (by_passes, "momentum", SGD.name),
        (everybody and not may_lie, "server-lbfgs", own.anchor_work),
        (True, "momentum", own.anchor_work),
    )
    return next((method, work) for fits, method, work in rows if fits)


def _rates_differ(run: RunPlan) -> bool:
    """Whether rates are more than lr times the squared lengths of the rows."""
    passes = run.work is LBFGS and run.settings.local.epochs > 1
    return passes or (run.work in GRADIENTS and run.settings.curvature.kind != "none")


def _some_absent(run: RunPlan) -> bool:
    """Whether clients are absent from rounds of the anchored form, with open rows: not asked, or not waited for."""
    return anchored(run) and not run.masked and (run.settings.sampled < run.settings.clients or run.settings.quorum < 1)


def _sends_row(run: RunPlan) -> bool:
    """Whether clients send a row for the anchor next to their gradient."""
    return run.sends_anchor_row


class DqnFedSettings(Group):
    """DQN-Fed: which step meets the rates."""

    form: Literal["two-sided", "one-sided", "anchored"] = expert("anchored", "grads @ step = or >= rates")
    anchor: str = own(
        AUTO,
        "method whose step is changed as little as the rates demand, with its own settings; auto: see "
        "methods/dqn-fed.md",
        read=anchored,
    )
    anchor_work: LocalWorkName = expert(
        AUTO,
        "local work of the anchor; auto asks the method; gradient, with anchor auto, spares clients the second row",
        read=anchored,
    )
    anchor_bits: Literal[2, 4, 8, 32] = expert(
        4, "bits a value of the row that clients send for the anchor; 32 sends it as it is", read=_sends_row
    )
    anchor_share: float = expert(
        1.0, "share of a round's clients that send that row, drawn anew in each round", read=_sends_row, gt=0, le=1
    )
    scale: float = expert(1.0, "c: rates over the anchor's own mean descent (anchored)", read=anchored, gt=0)
    rate_spread: float = expert(
        2.0,
        "hold d_k/|g_k|^2 within this factor, at least 1, of its median; 0 leaves the rates alone",
        read=_rates_differ,
        ge=0,
    )
    absent_rounds: int = expert(
        3,
        "rounds for which the last gradient of a client that is absent counts (anchored, with sampling or a quorum)",
        read=_some_absent,
        ge=0,
    )

    @field_validator("rate_spread")
    @classmethod
    def _check_spread(cls, spread: float) -> float:
        if 0 < spread < 1:
            raise ValueError(f"found {spread:g}; give a factor of at least 1, or 0 to leave the rates alone")
        return spread
