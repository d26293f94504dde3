"""Which settings have no effect with a method, its local work and its step rule.

A key that is not named here counts as one with an effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from dqnfed_flwr.config.profiles import PASSES, PROFILES, Rule, Work

if TYPE_CHECKING:
    from dqnfed_flwr.config.settings import Settings

WORKS: Mapping[str, tuple[Work, ...]] = {
    "local.epochs": (*PASSES, "lbfgs", "newton"),
    "local.batch-size": PASSES,
    "local.momentum": PASSES,
    "local.decay": PASSES,
    "local.proximal": PASSES,
    "local.gradient": ("lbfgs",),
    "local.gradient-batch": ("gradient", "lbfgs", "newton", "fednl", "fednew"),
    **dict.fromkeys(
        (f"curvature.{key}" for key in ("kind", "previous", "memory", "filter", "damping")),
        ("gradient", "lbfgs", "newton"),
    ),
}
"""Keys that only some local work reads."""
RULES: Mapping[str, tuple[Rule, ...]] = {
    "step.lr": ("fixed",),
    "step.decay": ("fixed",),
    "step.radius": ("clipped",),
    **dict.fromkeys(
        (f"step.{key}" for key in ("armijo", "start", "max-factor", "max-fall", "halvings", "ladder", "grow-every")),
        ("probed",),
    ),
    **dict.fromkeys((f"guarantee.{key}" for key in ("entitlement", "tolerate")), ("probed",)),
    "fedmdfg.search": ("search",),
    "fedmdfg.beta": ("search",),
}
"""Keys that only some step rules read."""
Asks = Callable[["Settings"], bool]
_FUNCTION = re.compile(r"[\w.]+:\w+")


def _dealt(partition: str) -> Asks:
    """Where data are dealt out so; a function of the user's, `module:name`, may look at the settings of any."""
    return lambda settings: settings.partition == partition or bool(_FUNCTION.fullmatch(settings.data))


def _anchored(settings: Settings) -> bool:
    return settings.dqn_fed.form == "anchored" and settings.reference != "none"


def _rates_differ(settings: Settings) -> bool:
    """Whether rates are more than lr times the squared lengths of the rows."""
    passes = settings.local_work == "lbfgs" and settings.local.epochs > 1
    return passes or (settings.local_work in ("gradient", "lbfgs") and settings.curvature.kind != "none")


READ_WHERE: Mapping[str, Asks] = {
    **dict.fromkeys(("split.alpha", "split.min-samples"), _dealt("dirichlet")),
    "split.shards": _dealt("shards"),
    "split.classes": _dealt("pathological"),
    "split.merge": _dealt("one-class"),
    **dict.fromkeys(("split.groups", "split.min-group-samples"), _dealt("groups")),
    **dict.fromkeys(("noise.clients", "noise.level"), lambda settings: settings.noise.kind != "none"),
    **dict.fromkeys(("attack.share", "attack.clients"), lambda settings: settings.attack.kind != "none"),
    "attack.factor": lambda settings: settings.attack.kind == "enlarged",
    **dict.fromkeys(
        (f"start.{key}" for key in ("client", "lr", "batch-size")), lambda settings: settings.start.epochs > 0
    ),
    "curvature.kind": lambda settings: settings.reads_curvature,
    **dict.fromkeys(
        (f"curvature.{key}" for key in ("previous", "memory", "filter", "damping")),
        lambda settings: settings.reads_curvature and settings.curvature.kind != "none",
    ),
    "step.min-move": lambda settings: settings.rule == "probed" or settings.step.on_stationary == "relax",
    **dict.fromkeys(("dqn-fed.lr", "dqn-fed.scale"), _anchored),
    "dqn-fed.rate-spread": _rates_differ,
    "dqn-fed.reference": lambda settings: settings.dqn_fed.form == "anchored",
    "dqn-fed.beta": lambda settings: _anchored(settings) and settings.reference == "momentum",
    "dqn-fed.memory": lambda settings: _anchored(settings) and settings.reference == "lbfgs",
    "dqn-fed.absent-rounds": lambda settings: _anchored(settings) and settings.sampled < settings.clients,
    **dict.fromkeys(("dqn-fed.ridge", "dqn-fed.cutoff"), lambda settings: settings.dqn_fed.form == "two-sided"),
    "fedfv.tau": lambda settings: settings.sampled < settings.clients,
    **dict.fromkeys(("fednl.size", "fednl.compressor"), lambda settings: settings.fednl.form != "diagonal"),
    "fednl.probes": lambda settings: settings.fednl.form == "diagonal",
    "fednl.damping": lambda settings: settings.fednl.form == "last-layer",
    "fednl.fresh": lambda settings: settings.sampled >= settings.clients,
    "fednew.refresh": lambda settings: settings.fednew.form == "exact",
    **dict.fromkeys(
        (f"fednew.{key}" for key in ("iterations", "tolerance", "matrix")),
        lambda settings: settings.fednew.form == "cg",
    ),
    **dict.fromkeys(
        (f"local-newton.{key}" for key in ("iterations", "tolerance", "damping", "matrix")),
        lambda settings: settings.local_newton.solver == "cg",
    ),
}
"""Keys that are only read where other settings ask for them."""
METHOD_OF: Mapping[str, str] = {"fedmgda": "fedmgda+"}
"""Methods of groups of settings that have another name than their method."""


def without_effect(settings: Settings, keys: Iterable[str]) -> list[str]:
    """Those of the dotted `keys` that change nothing in a run with `settings`, in their order."""
    last = settings.stage_settings
    methods = {settings.method, last.method}
    works: set[Work] = {settings.local_work, last.local_work}
    if settings.wants_update:
        works.add("sgd")
    return [
        key
        for key in keys
        if _of_other_methods(key, methods)
        or (key in WORKS and works.isdisjoint(WORKS[key]))
        or (key in RULES and settings.rule not in RULES[key])
        or (key in READ_WHERE and not READ_WHERE[key](settings))
    ]


def one_full_step(settings: Settings) -> bool:
    """Whether a client's local SGD is one step on all its samples, as in FedSGD."""
    local = settings.local
    return settings.local_work in PASSES and local.epochs == 1 and not local.batch_size


def _of_other_methods(key: str, methods: set[str]) -> bool:
    group, dot, _ = key.partition(".")
    method = METHOD_OF.get(group, group)
    return bool(dot) and method in PROFILES and method not in methods
