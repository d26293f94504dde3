"""What does not go together with differential privacy of records: each would give more of one than is accounted for."""

from __future__ import annotations

from collections.abc import Iterator

from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.schema.work import GRADIENT


def record_faults(run: RunPlan) -> Iterator[str]:
    """What is wrong with a run that has `privacy.epsilon`, each naming the key, what was found and what to do."""
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
        ("task", settings.task, "classification", "no bound is known of other figures"),
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
