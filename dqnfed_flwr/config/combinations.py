"""Which settings go together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dqnfed_flwr.config.fedcorr import fedcorr_faults
from dqnfed_flwr.config.scenario import scenario_faults
from dqnfed_flwr.config.second_order import second_order_faults, second_order_title

if TYPE_CHECKING:
    from dqnfed_flwr.config.settings import Settings


def faults(settings: Settings) -> Iterator[str]:
    """What is wrong with a combination, each naming the key, what was found and what to do."""
    yield from _together_faults(settings)
    if settings.method == "fedcorr":
        yield from fedcorr_faults(settings)
        yield from faults(settings.stage_settings)
        return
    yield from _work_faults(settings)
    yield from _rule_faults(settings)
    yield from second_order_faults(settings)
    yield from scenario_faults(settings)
    if settings.min_clients > settings.sampled:
        yield (
            f"min-clients: found {settings.min_clients}, but clients x participation asks only {settings.sampled} a "
            "round"
        )
    if settings.profile.everybody and settings.sampled < settings.clients:
        yield f"participation: {settings.method} needs every client in every round, found {settings.participation}"
    if settings.early_stopping and not settings.split.validation_fraction:
        yield "early-stopping: needs split.validation-fraction above 0"


def _work_faults(settings: Settings) -> Iterator[str]:
    works, work = settings.profile.works, settings.local_work
    if work not in works:
        yield (
            f"local.work: {settings.method} works with {' or '.join(works)}, found {work!r}; use auto, which takes "
            f"{works[0]}"
        )
    anchored = settings.method == "dqn-fed" and settings.dqn_fed.form == "anchored"
    if anchored and work != "gradient":
        yield (
            "local.work: the anchored form holds every client to its true gradient at the received model, found "
            f"{work!r}; use gradient or auto, or dqn-fed.form two-sided or one-sided"
        )


def _together_faults(settings: Settings) -> Iterator[str]:
    local, work = settings.local, settings.local_work
    if local.together and (work not in ("gradient", "lbfgs") or local.gradient_batch):
        of = f"mini-batches of {local.gradient_batch}" if local.gradient_batch else f"local work {work!r}"
        yield (
            f"local.together: found {local.together}, but only gradients of all samples are computed together, found "
            f"{of}; use 0"
        )


def _rule_faults(settings: Settings) -> Iterator[str]:
    rules, rule, work = settings.profile.rules, settings.rule, settings.local_work
    if rule not in rules:
        yield f"step-rule: {settings.method} goes with {', '.join(rules)}, found {rule!r}; use auto for {rules[0]}"
    if rule not in ("probed", "search"):
        return
    if work != "gradient" and not (work == "lbfgs" and settings.local.epochs == 1):
        several = f" with {settings.local.epochs} epochs" if work == "lbfgs" else ""
        yield (
            f"step-rule: {rule} compares losses with slopes of true gradients, which local work {work!r}{several} does "
            "not return; use newton, fixed or clipped, or local.work gradient"
        )
    if settings.local.gradient_batch:
        yield (
            f"local.gradient-batch: found {settings.local.gradient_batch}, but {rule} compares the loss on all samples "
            "with its slope; use 0, or step-rule newton, fixed or clipped"
        )


def title_of(settings: Settings) -> str:
    """The method's name in tables, with what it is beside the paper's main form in brackets."""
    if settings.method == "fedcorr":
        return f"{settings.profile.title} + {title_of(settings.stage_settings)}"
    return second_order_title(settings) or settings.profile.title
