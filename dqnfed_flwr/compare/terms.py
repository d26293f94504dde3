"""Whether the rows of a table run on equal terms: the same local work, and no step whose length nobody looked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from dqnfed_flwr.config import Settings
from dqnfed_flwr.schema.run import LENGTH_KEYS
from dqnfed_flwr.steps.blind import FixedSettings


@dataclass(frozen=True, slots=True)
class Entry:
    """A row as it is judged here.

    Attributes
    ----------
    label : str
        Its name in the table.
    settings : Settings
        Of one of its runs; of the last stage where the method has stages.
    searched : Collection[str]
        The keys that a grid searched for it.
    """

    label: str
    settings: Settings
    searched: Collection[str] = ()


def terms_notes(entries: Sequence[Entry]) -> list[str]:
    """Which rows do other local work than most, and why; and whose step may have the wrong length."""
    return [*_work_notes(entries), *_length_notes(entries)]


def first_order(settings: Settings) -> bool:
    """Whether a row belongs to those that share one local work: its clients send nothing of a second derivative."""
    return not any(work.twice for work in settings.works)


def local_work(settings: Settings) -> str:
    """The local work of a round in words, as far as rows can differ in it."""
    last, local = settings.stage_settings, settings.local
    passes = f"{local.epochs} epoch{'s' * (local.epochs > 1)} of SGD"
    passes += f" in batches of {local.batch_size}" if local.batch_size else " on all samples at once"
    if last.work.passes:
        return passes
    gradient = f"one gradient of {local.gradient_batch or 'all'} samples"
    if (anchor := last.anchor_settings) and last.sends_anchor_row:
        return f"{gradient} and {local_work(anchor)}"
    if last.work.gradient_row and not last.work.epochs:
        return gradient
    return f"{local.epochs} step{'s' * (local.epochs > 1)} of {last.work.name}"


def _work_notes(entries: Sequence[Entry]) -> list[str]:
    """One note a reason; none where all rows of first order do the same."""
    alike = [entry for entry in entries if first_order(entry.settings)]
    works = Counter(local_work(entry.settings) for entry in alike)
    if len(works) < 2:
        return []
    usual = _usual(alike, works)
    others: dict[tuple[str, str], list[str]] = {}
    for entry in alike:
        if (work := local_work(entry.settings)) != usual:
            others.setdefault((work, _reason(entry.settings)), []).append(entry.label)
    return [
        f"{', '.join(labels)}: {work} a round, where the other rows take {usual}: {reason}."
        for (work, reason), labels in others.items()
    ]


def _usual(entries: Iterable[Entry], works: Counter[str]) -> str:
    """The local work that the others are held against: passes of SGD where there are any, else the most frequent."""
    passes = Counter(local_work(each.settings) for each in entries if each.settings.stage_settings.work.passes)
    return (passes or works).most_common(1)[0][0]


def _reason(settings: Settings) -> str:
    """Why a row does other local work."""
    last = settings.stage_settings
    by_default = settings.local.work == "auto" or last.work is last.profile.works[0]
    return (by_default and last.profile.one_gradient) or "its settings say so"


def _length_notes(entries: Sequence[Entry]) -> list[str]:
    """The rows whose step has no length of its own and was taken as it came."""
    found = [entry.label for entry in entries if _length_untried(entry)]
    keys = " and ".join(LENGTH_KEYS)
    text = f"the length of the step is free, and {keys} were not searched; figures may be below what is possible"
    return [f"{', '.join(found)}: {text}."] if found else []


def _length_untried(entry: Entry) -> bool:
    last = entry.settings.stage_settings
    step = last.group_of(FixedSettings)
    as_it_came = last.rule.name == "newton" or (last.rule.name == "fixed" and (step.lr, step.decay) == (1.0, 1.0))
    return last.profile.free_length and as_it_came and not set(LENGTH_KEYS) & set(entry.searched)
