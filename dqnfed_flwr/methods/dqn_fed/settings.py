"""The settings of DQN-Fed: which step meets the rates, and whose step is changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import field_validator

from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.schema.group import Group, expert, own
from dqnfed_flwr.schema.groups import LocalWorkName
from dqnfed_flwr.schema.run import GRADIENTS, RunSettings
from dqnfed_flwr.schema.work import GENERAL, GRADIENT, LBFGS, SGD

AUTO = "auto"
WHOLE = 32
"""Bits of a row that is sent as it is."""
NAME = "dqn-fed"


def anchored(run: RunSettings) -> bool:
    """Whether a run of DQN-Fed has the anchored form."""
    return run.group_of(DqnFedSettings).form == "anchored"


def choose_anchor(run: RunSettings, *, passes: bool) -> tuple[str, str]:
    """The anchor's method and local work: the first row that fits in docs/methods/dqn-fed.md.

    `passes` is whether clients take more than one step. A single step on all samples says no more than the gradient,
    which is sent anyway. A history of mean gradients is kept only of the same clients each time, none of whom may lie.
    """
    own, may_lie = run.group_of(DqnFedSettings), run.guarantee.tolerate > 0 and run.rule.judged_by == "test"
    if own.anchor != AUTO:
        return own.anchor, own.anchor_work
    if own.anchor_work == SGD.name or (own.anchor_work == AUTO and passes and not may_lie):
        return "momentum", SGD.name
    if run.sampled >= run.clients and not may_lie:
        return "server-lbfgs", own.anchor_work
    return "momentum", own.anchor_work


def left_to_passes(run: RunSettings) -> bool:
    """Whether it is left to the clients' local passes what the anchor is."""
    return anchored(run) and choose_anchor(run, passes=True) != choose_anchor(run, passes=False)


def anchor_run(run: RunSettings) -> RunSettings | None:
    """What the anchor runs with; None for the other forms."""
    if not anchored(run):
        return None
    method, work = choose_anchor(run, passes=run.local.epochs > 1 or run.local.batch_size > 0)
    local = run.local.model_copy(update={"work": work})
    return run.model_copy(update={"method": method, "local": local, "step_rule": AUTO})


def _rates_differ(run: RunSettings) -> bool:
    """Whether rates are more than lr times the squared lengths of the rows."""
    passes = run.work is LBFGS and run.local.epochs > 1
    return passes or (run.work in GRADIENTS and run.curvature.kind != "none")


def _sends_row(run: RunSettings) -> bool:
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
    margin: float = expert(
        0.0,
        "ask each client for so many times the fall that a step of factor 1 needs, by the curvature of its loss along "
        "earlier steps; for deep networks, about 1.2; 0 does not ask (anchored)",
        read=anchored,
        ge=0,
    )
    rate_spread: float = expert(
        2.0,
        "hold d_k/|g_k|^2 within this factor, at least 1, of its median; 0 leaves the rates alone",
        read=_rates_differ,
        ge=0,
    )
    absent_rounds: int = expert(
        3,
        "rounds for which the last gradient of a client that is absent counts (anchored, with sampling)",
        read=lambda run: anchored(run) and run.sampled < run.clients,
        ge=0,
    )

    @field_validator("rate_spread")
    @classmethod
    def _check_spread(cls, spread: float) -> float:
        if 0 < spread < 1:
            raise ValueError(f"found {spread:g}; give a factor of at least 1, or 0 to leave the rates alone")
        return spread


def faults(run: RunSettings) -> Iterator[str]:
    """What is wrong with the settings of a run of DQN-Fed."""
    if not anchored(run):
        return
    if run.work is not GRADIENT:
        yield (
            f"local.work: the anchored form holds every client to its true gradient at the received model, found "
            f"{run.work.name!r}; use gradient or auto, or {NAME}.form two-sided or one-sided"
        )
    anchor = anchor_run(run)
    if anchor is None:
        return
    try:
        profile = anchor.profile
    except ConfigError as error:
        yield f"{NAME}.anchor: {error}"
        return
    stages, personal = "it is made of stages", "its models are the clients' own, and would not be reported"
    if why := profile.no_anchor or (profile.last and stages) or (personal if profile.personal else ""):
        yield f"{NAME}.anchor: found {profile.name!r}, which cannot be one: {why}"
        return
    works, found = [work.name for work in profile.works], anchor.work.name
    if found not in works:
        yield f"{NAME}.anchor-work: {profile.name} works with {' or '.join(works)}, found {found!r}; use auto"
        return
    share = run.group_of(DqnFedSettings).anchor_share
    if share < 1 and anchor.work.name not in GENERAL:
        yield f"{NAME}.anchor-share: found {share:g}; {profile.name} needs what all clients of a round send; use 1"
    yield from profile.faults(anchor)
