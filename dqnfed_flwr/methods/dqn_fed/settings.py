"""The settings of DQN-Fed: which step meets the rates, and whose step is changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import field_validator

from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.schema.group import Group, own
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


def anchor_of(run: RunSettings) -> str:
    """The method that is the anchor, with `auto` resolved.

    It is momentum of the clients' local passes, where there are such. From gradients alone it is L-BFGS on the server;
    with sampling, its history of mean gradients would mix different clients, and where clients may lie, it would mix
    what was set aside with what was not, so momentum takes its place.
    """
    named = run.group_of(DqnFedSettings).anchor
    if named != AUTO:
        return named
    gradients_alone = run.sampled >= run.clients and not _doubted(run) and not _follows_passes(run)
    return "server-lbfgs" if gradients_alone else "momentum"


def _doubted(run: RunSettings) -> bool:
    """Whether clients may lie."""
    return bool(run.guarantee.tolerate) and run.rule == "probed"


def left_to_passes(run: RunSettings) -> bool:
    """Whether it is left to the clients' local passes what the anchor is."""
    own = run.group_of(DqnFedSettings)
    return anchored(run) and own.anchor == own.anchor_work == AUTO and not _doubted(run)


def _follows_passes(run: RunSettings) -> bool:
    """Whether the anchor that `auto` stands for goes by the clients' local passes.

    A pass that is one step on all samples says no more than the gradient does, which is sent anyway.
    """
    own, local = run.group_of(DqnFedSettings), run.local
    if left_to_passes(run):
        return local.epochs > 1 or local.batch_size > 0
    return own.anchor == AUTO and own.anchor_work == SGD.name


def anchor_run(run: RunSettings) -> RunSettings | None:
    """What the anchor runs with; None for the other forms.

    Its local work is its own default, unless `anchor-work` names another, or `auto` goes by the clients' passes.
    """
    if not anchored(run):
        return None
    work = SGD.name if _follows_passes(run) else run.group_of(DqnFedSettings).anchor_work
    local = run.local.model_copy(update={"work": work})
    return run.model_copy(update={"method": anchor_of(run), "local": local, "step_rule": AUTO})


def _rates_differ(run: RunSettings) -> bool:
    """Whether rates are more than lr times the squared lengths of the rows."""
    passes = run.work is LBFGS and run.local.epochs > 1
    return passes or (run.work in GRADIENTS and run.curvature.kind != "none")


def _two_sided(run: RunSettings) -> bool:
    return run.group_of(DqnFedSettings).form == "two-sided"


def _sends_row(run: RunSettings) -> bool:
    """Whether clients send a row for the anchor next to their gradient."""
    return run.sends_anchor_row


class DqnFedSettings(Group):
    """DQN-Fed: which step meets the rates."""

    form: Literal["two-sided", "one-sided", "anchored"] = own("anchored", "grads @ step = or >= rates")
    anchor: str = own(
        AUTO,
        "method whose step is changed as little as the rates demand, with its own settings; auto: momentum of the "
        "clients' local passes; without such passes, or where clients may lie, see algorithm.md",
        read=anchored,
    )
    anchor_work: LocalWorkName = own(
        AUTO,
        "local work of the anchor; auto asks the method; gradient, with anchor auto, spares clients the second row",
        read=anchored,
    )
    anchor_bits: Literal[2, 4, 8, 32] = own(
        4, "bits a value of the row that clients send for the anchor; 32 sends it as it is", read=_sends_row
    )
    anchor_share: float = own(
        1.0, "share of a round's clients that send that row, drawn anew in each round", read=_sends_row, gt=0, le=1
    )
    scale: float = own(1.0, "c: rates over the anchor's own mean descent (anchored)", read=anchored, gt=0)
    rate_spread: float = own(
        2.0,
        "hold d_k/|g_k|^2 within this factor, at least 1, of its median; 0 leaves the rates alone",
        read=_rates_differ,
        ge=0,
    )
    absent_rounds: int = own(
        3,
        "rounds for which the last gradient of a client that is absent counts (anchored, with sampling)",
        read=lambda run: anchored(run) and run.sampled < run.clients,
        ge=0,
    )
    ridge: float = own(0.0, "added to the unit-diagonal Gramian (two-sided)", read=_two_sided, ge=0)
    cutoff: float = own(
        1e-7, "eigenvalues below cutoff * largest count as zero (two-sided)", read=_two_sided, gt=0, lt=1
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
