"""Whether the rows of a table run on equal terms: the same local work, and no step whose length nobody looked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from dqnfed_flwr.schema.plan import FREE_LENGTH, LENGTH_KEYS, RunPlan
from dqnfed_flwr.schema.run import AUTO
from dqnfed_flwr.steps._base import FixedSettings


@dataclass(frozen=True, slots=True)
class Entry:
    """A row as it is judged here.

    Attributes
    ----------
    label : str
        Its name in the table.
    run : RunPlan
        Of one of its runs.
    searched : Collection[str]
        The keys that a grid searched for it.
    """

    label: str
    run: RunPlan
    searched: Collection[str] = ()


def terms_notes(entries: Sequence[Entry]) -> list[str]:
    """Which rows do other local work than most, and why; and whose step may have the wrong length."""
    return [*_work_notes(entries), *_length_notes(entries)]


def first_order(run: RunPlan) -> bool:
    """Whether a row belongs to those that share one local work: its clients send nothing of a second derivative."""
    return not any(work.twice for work in run.works)


def one_full_step(run: RunPlan) -> bool:
    """Whether a client's local SGD is one step on all its samples, as in FedSGD."""
    return run.work.passes and run.settings.local.epochs == 1 and not run.settings.local.batch_size


def local_work(run: RunPlan) -> str:
    """The local work of a round in words, as far as rows can differ in it."""
    last, local = run.last, run.settings.local
    passes = f"{local.epochs} epoch{'s' * (local.epochs > 1)} of SGD"
    passes += f" in batches of {local.batch_size}" if local.batch_size else " on all samples at once"
    if last.work.passes:
        return passes
    gradient = f"one gradient of {local.gradient_batch or 'all'} samples"
    if last.anchor and last.sends_anchor_row:
        return f"{gradient} and {local_work(last.anchor)}"
    if last.work.gradient_row and not last.work.epochs:
        return gradient
    return f"{local.epochs} step{'s' * (local.epochs > 1)} of {last.work.name}"


def _work_notes(entries: Sequence[Entry]) -> list[str]:
    """One note a reason; none where all rows of first order do the same."""
    alike = [entry for entry in entries if first_order(entry.run)]
    works = Counter(local_work(entry.run) for entry in alike)
    if len(works) < 2:
        return []
    usual = _usual(alike, works)
    others: dict[tuple[str, str], list[str]] = {}
    for entry in alike:
        if (work := local_work(entry.run)) != usual:
            others.setdefault((work, _reason(entry.run)), []).append(entry.label)
    return [
        f"{', '.join(labels)}: {work} a round, where the other rows take {usual}: {reason}."
        for (work, reason), labels in others.items()
    ]


def _usual(entries: Iterable[Entry], works: Counter[str]) -> str:
    """The local work that the others are held against: passes of SGD where there are any, else the most frequent."""
    passes = Counter(local_work(each.run) for each in entries if each.run.last.work.passes)
    return (passes or works).most_common(1)[0][0]


def _reason(run: RunPlan) -> str:
    """Why a row does other local work."""
    last, method = run.last, run.last.method
    by_default = run.settings.local.work == AUTO or last.work is method.works[0]
    return (by_default and method.one_gradient) or "its settings say so"


def _length_notes(entries: Sequence[Entry]) -> list[str]:
    """The rows whose step has no length of its own and was taken as it came."""
    found = [entry.label for entry in entries if _length_untried(entry)]
    keys = " and ".join(LENGTH_KEYS)
    text = f"the length of the step is free, and {keys} were not searched; figures may be below what is possible"
    return [f"{', '.join(found)}: {text}."] if found else []


def _length_untried(entry: Entry) -> bool:
    last = entry.run.last
    step = last.group_of(FixedSettings)
    as_it_came = last.rule.name == "newton" or (last.rule.name == "fixed" and (step.lr, step.decay) == (1.0, 1.0))
    return last.method.rule == FREE_LENGTH and as_it_came and not set(LENGTH_KEYS) & set(entry.searched)
