"""`resolve`: the settings of a run turned into its plan, once, where it begins."""

from __future__ import annotations

from dataclasses import replace

from dqnfed_flwr.config.methods import METHODS, profile_of
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.masked.budget import Budget, Protection, exchanges_of
from dqnfed_flwr.schema.plan import LastStage, Profile, RunPlan
from dqnfed_flwr.schema.run import AUTO, RunSettings
from dqnfed_flwr.schema.work import GENERAL
from dqnfed_flwr.steps import RULES


def resolve(settings: RunSettings) -> RunPlan:
    """The plan of a run.

    Raises
    ------
    ConfigError
        If there is no such method, step rule, last stage or anchor.
    """
    method = profile_of(settings.method)
    stage = method.last_stage(settings)
    last = _alone(settings, _last_of(stage, settings) if stage else method, settings.local.work, settings.step_rule)
    if chosen := last.method.anchor(last):
        last = replace(last, anchor=_alone(settings, _named(chosen.key, chosen.method), chosen.work, AUTO))
    if stage is None:
        return last
    return replace(last, method=method, work=method.works[0], stage=last, before=stage.before)


def protection_of(settings: RunSettings) -> Protection | None:
    """What the records of a run's clients are protected by; None where nothing is promised."""
    privacy = settings.privacy
    if not privacy.epsilon:
        return None
    budget = Budget(privacy.epsilon, privacy.delta, exchanges_of(settings.rounds))
    return Protection(budget, privacy.clip, privacy.largest_loss)


def check_stages(settings: RunSettings) -> None:
    """Refuse a last stage whose method is none or has stages itself, of any method: `ConfigError`."""
    for stage in filter(None, (profile.last_stage(settings) for profile in METHODS.values())):
        _last_of(stage, settings)


def _last_of(stage: LastStage, settings: RunSettings) -> Profile:
    profile = _named(stage.key, stage.method)
    if profile.last_stage(settings):
        found = f"{stage.key}: found {stage.method!r}"
        raise ConfigError(f"{found}; the last stage needs a method of another name, such as fedavg")
    return profile


def _named(key: str, method: str) -> Profile:
    """The method that a key names."""
    try:
        return profile_of(method)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None


def _alone(settings: RunSettings, method: Profile, work: str, rule: str) -> RunPlan:
    """The plan of one method, without stages or anchor: `auto` is its own default."""
    works, name = GENERAL | {each.name: each for each in method.works}, method.rule if rule == AUTO else rule
    if name not in RULES:
        raise ConfigError(f"step-rule: found {name!r}; allowed: {AUTO}, {', '.join(RULES)}")
    found = method.works[0] if work == AUTO else works[work]
    return RunPlan(settings=settings, method=method, work=found, rule=RULES[name])
