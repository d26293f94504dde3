"""Which settings go together, whatever the method; what holds for one method alone is in its own file."""

from __future__ import annotations

from collections.abc import Iterator

from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.masked import MOST_IN_SHORT, PEERS, SHORT
from dqnfed_flwr.schema.groups import WHOLE
from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.schema.run import RunSettings
from dqnfed_flwr.schema.work import GRADIENT, LBFGS
from dqnfed_flwr.steps import RULES, rules_for

OBJECT = "object:"
"""Begins the value of a setting that stands for an object of this process, see `data.user`."""

CLASSIFICATION = "classification"
RECORD_TASKS = (CLASSIFICATION, "regression", "huber-regression", "multi-label")
"""Tasks of which a sample is one record with one loss from 0; they tell right answers of others, or the loss alone."""


def faults(run: RunPlan) -> Iterator[str]:
    """What is wrong with a combination, each naming the key, what was found and what to do."""
    settings = run.settings
    yield from _task_faults(run)
    yield from _together_faults(run)
    yield from _autocast_faults(run)
    yield from _message_faults(run)
    yield from _masked_faults(run)
    yield from _record_faults(run)
    yield from _confirm_faults(run)
    if run.stage:
        yield from run.method.faults(run)
        yield from faults(run.stage)
        return
    yield from _work_faults(run)
    yield from run.method.faults(run)
    yield from _rule_faults(run)
    yield from _client_faults(run)
    if settings.min_clients > settings.sampled:
        asked = f"clients x participation asks only {settings.sampled} a round"
        yield f"min-clients: found {settings.min_clients}, but {asked}"
    if settings.early_stopping and not settings.split.validation_fraction:
        yield "early-stopping: needs split.validation-fraction above 0"


def _task_faults(run: RunPlan) -> Iterator[str]:
    """What needs classes, where the task has none that are known here."""
    settings = run.settings
    if settings.task == CLASSIFICATION:
        return
    for part in run.parts:
        if reason := part.method.classes_only(part):
            yield f"task: found {settings.task!r}, but {part.method.name} {reason}"
    if settings.noise.kind != "none":
        yield (
            f"noise.kind: found {settings.noise.kind!r}, but only labels of task {CLASSIFICATION} are replaced, found "
            f"task {settings.task!r}; use none"
        )
    if settings.local.together:
        yield (
            f"local.together: found {settings.local.together}, but only task {CLASSIFICATION} computes gradients "
            f"together, found task {settings.task!r}; use 0"
        )


def _work_faults(run: RunPlan) -> Iterator[str]:
    works = [work.name for work in run.method.works]
    if run.work.name not in works:
        yield (
            f"local.work: {run.method.name} works with {' or '.join(works)}, found {run.work.name!r}; use auto, which "
            f"takes {works[0]}"
        )


def _together_faults(run: RunPlan) -> Iterator[str]:
    local = run.settings.local
    if local.together and (run.work not in (GRADIENT, LBFGS) or local.gradient_batch):
        of = f"mini-batches of {local.gradient_batch}" if local.gradient_batch else f"local work {run.work.name!r}"
        yield (
            f"local.together: found {local.together}, but only gradients of all samples are computed together, found "
            f"{of}; use 0"
        )


def _autocast_faults(run: RunPlan) -> Iterator[str]:
    if run.settings.local.autocast == "none":
        return
    found = f"local.autocast: found {run.settings.local.autocast!r}"
    if run.settings.dtype == "float64":
        yield f"{found} with dtype 'float64', which it would throw away; use none, or dtype float32"
    if run.settings.local.together:
        yield f"{found}, but gradients of several clients are computed together in full precision; use local.together 0"
    if run.differentiates_twice:
        yield f"{found}, but products with Hessians need full precision; use none, or a run without them"


def _message_faults(run: RunPlan) -> Iterator[str]:
    """Who needs a model that is not sent."""
    if run.step_bits == WHOLE:
        return
    yield from (f"messages.step: found {run.settings.messages.step!r}{why}" for why in run.model_needed())
    if run.settings.rows.device == "device":
        why = "which are rounded on the host; use rows.device auto or host, or messages.row 32 and messages.step 32"
        yield f"rows.device: found 'device' with {run.rounded}, {why}"


def _masked_faults(run: RunPlan) -> Iterator[str]:
    """What a server that sees no row cannot do; what a method needs of rows is another matter."""
    settings = run.settings
    if not run.masked:
        return
    if settings.sampled <= PEERS:
        yield f"clients: found {settings.sampled} a round; privacy.mode masked needs {PEERS + 1}: a sum is to hide each"
    wrong = {
        "guarantee.tolerate": (settings.guarantee.tolerate, "nobody can see which client's part spoils a sum; use 0"),
        "step.on-stationary": (
            settings.step.on_stationary == "relax" and "relax",
            "the mean's step would be a second sum at one model; use stop or stay",
        ),
        "messages.row": (
            run.sum_bits < SHORT and run.sum_bits,
            "each word must hold the sum over all clients, to more than a few levels; use 16 or 32",
        ),
        "clients": (
            run.sum_bits == SHORT and settings.sampled > MOST_IN_SHORT and settings.sampled,
            f"words of 16 bits hold the sum of {MOST_IN_SHORT} clients; use messages.row 32",
        ),
        "rows.device": (settings.rows.device == "device" and "device", "the server has no rows; use auto or host"),
        "attack.kind": (settings.attack.kind != "none" and settings.attack.kind, "rows are tampered with open ones"),
        "method": (run.stage and settings.method, "a method of stages changes what rows are; take one without"),
    }
    for key, (found, why) in wrong.items():
        if found:
            yield f"{key}: found {found!r} with privacy.mode masked, where {why}, or privacy.mode open"


def _record_faults(run: RunPlan) -> Iterator[str]:
    """What would give more of a record than is accounted for, with `privacy.epsilon`."""
    settings, local, step = run.settings, run.settings.local, run.settings.step
    if not run.private:
        return
    epsilon = f"privacy.epsilon {settings.privacy.epsilon:g}"
    if not run.masked:
        yield f"privacy.mode: found 'open' with {epsilon}, where the server has each gradient as it is; use masked"
        return
    works = [work.name for work in run.works if work is not GRADIENT]
    demands = (
        ("local.work", works[0] if works else GRADIENT.name, GRADIENT.name, "an exchange gives one gradient"),
        ("local.gradient-batch", local.gradient_batch, 0, "gradients are of all records"),
        ("local.together", local.together, 0, "each client cuts the gradients of its own records"),
        ("local.autocast", local.autocast, "none", "these are cut in full precision"),
        ("curvature.kind", settings.curvature.kind, "none", "it needs more gradients"),
        ("data-scale", settings.data_scale, "none", "each record would change all others"),
        ("start.epochs", settings.start.epochs, 0, "the model of one client would be shown"),
        ("step.judge", step.judge, "training", "it asks more of the records"),
        ("step.diagnose-every", step.diagnose_every, 0, "each length would cost one more loss"),
        ("step.probe-first", step.probe_first, False, "exchanges would be spent without a gradient"),
        (
            "step-rule",
            run.rule.name if run.rule.judged_by == "losses" else "probed",
            "probed",
            "others ask many losses",
        ),
        ("guarantee.window", settings.guarantee.window, 1, "noise is allowed for in the last loss alone"),
    )
    for key, found, allowed, why in demands:
        if found != allowed:
            yield f"{key}: found {found!r} with {epsilon}, where {why}; use {str(allowed).lower()}"
    if settings.task not in RECORD_TASKS:
        yield (
            f"task: found {settings.task!r} with {epsilon}, where each record has one loss and nothing else is told of "
            f"it: not one at each of its places, nor figures of your own; use one of {', '.join(RECORD_TASKS)}"
        )


def _confirm_faults(run: RunPlan) -> Iterator[str]:
    """What does not go with models that every client confirms by its training loss alone."""
    settings = run.settings
    if not settings.guarantee.confirm:
        return
    demands = (
        ("privacy.mode", settings.privacy.mode, "open", "losses are asked for beside the rounds"),
        ("guarantee.tolerate", settings.guarantee.tolerate, 0, "each client can refuse a model, and none is overruled"),
        ("step.judge", settings.step.judge, "training", "models are confirmed by training losses"),
        ("early-stopping", settings.early_stopping, 0, "the result is the last confirmed model, not the best one"),
    )
    if run.stage:
        found = settings.guarantee.confirm
        yield f"guarantee.confirm: found {found}, but stages of {settings.method} change the loss; use 0"
    for key, given, allowed, why in demands:
        if given != allowed:
            yield f"{key}: found {given!r} with guarantee.confirm, where {why}; use {allowed}, or guarantee.confirm 0"


def _rule_faults(run: RunPlan) -> Iterator[str]:
    settings = run.settings
    rules, rule = rules_for(run.method), run.rule
    if rule.name not in rules:
        yield f"step-rule: {run.method.name} goes with {', '.join(rules)}, found {rule.name!r}; use auto for {rules[0]}"
    if not rule.compares_slopes:
        return
    *blind, other = (name for name, each in RULES.items() if not each.compares_slopes)
    without = f"{', '.join(blind)} or {other}"
    if run.work is not GRADIENT and not (run.work is LBFGS and settings.local.epochs == 1):
        several = f" with {settings.local.epochs} epochs" if run.work is LBFGS else ""
        yield (
            f"step-rule: {rule.name} compares losses with slopes of true gradients, which local work {run.work.name!r}"
            f"{several} does not return; use {without}, or local.work gradient"
        )
    if settings.local.gradient_batch:
        yield (
            f"local.gradient-batch: found {settings.local.gradient_batch}, but {rule.name} compares the loss on all "
            f"samples with its slope; use 0, or step-rule {without}"
        )
    if run.judges_held_out and not settings.split.validation_fraction:
        yield (
            f"step.judge: found {settings.step.judge!r}, but no client keeps samples apart to judge by; set "
            "split.validation-fraction above 0, such as 0.2, or use training"
        )


def _client_faults(run: RunPlan) -> Iterator[str]:
    """Clients that there are not."""
    start, attack, clients = run.settings.start, run.settings.attack, run.settings.clients
    if start.epochs and start.client >= clients:
        yield f"start.client: found {start.client}; clients = {clients} allows 0..{clients - 1}"
    if attack.kind == "none":
        return
    try:
        listed = attack.listed
    except ConfigError as error:
        yield str(error)
        return
    if listed and max(listed) >= clients:
        yield f"attack.clients: found {max(listed)}; clients = {clients} allows 0..{clients - 1}"


def check_for_nodes(run: RunSettings) -> None:
    """Refuse what only the in-process engine does, before a run of nodes begins.

    Raises
    ------
    ConfigError
        Naming each key, and what to do.
    """
    found = []
    if run.start.epochs:
        found.append(
            f"start.epochs: found {run.start.epochs}, but only the in-process engine reads a client's data; make "
            "the model with dqnfed run there, and name its model.npz as start.model"
        )
    if run.attack.kind != "none":
        found.append(
            f"attack.kind: found {run.attack.kind!r}, but hostile clients are simulated by the in-process engine "
            "alone; use dqnfed run without --engine flower, or attack.kind none"
        )
    if keys := [key for key in ("task", "data", "model") if getattr(run, key).startswith(OBJECT)]:
        found.append(
            f"{', '.join(keys)}: given as an object, which other processes do not know; put it into a module that is "
            "installed on every node, and name module:name"
        )
    if found:
        raise ConfigError("\n".join(found))
