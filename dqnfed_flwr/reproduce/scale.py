"""How a run differs from the experiment that it stands for, in words that go wherever its figures go."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from dqnfed_flwr.compare.entries import show
from dqnfed_flwr.config import KNOWN, Scalar, Settings

SMALLER = ("rounds", *(key for key, known in KNOWN.items() if known.size and key != "rounds"))
EVALUATIONS = "evaluate-every"
"""Decides which rounds enter, once accuracies are averaged over several evaluations."""
QUIET = tuple(key for key, known in KNOWN.items() if known.changes != "experiment")
"""Settings that leave the experiment what it is, or of which the label speaks in its own words."""
AS_IN_MANIFEST = "As in the manifest: what the paper leaves open was chosen, as it is listed at the end of the report"
NAMES = {"split.samples": "training samples", "split.groups": "natural groups"}


def deviations(
    full: Mapping[str, Scalar],
    here: Mapping[str, Scalar],
    seeds: Sequence[int] = (),
    full_seeds: Sequence[int] = (),
    quiet: Collection[str] = QUIET,
) -> str:
    """What is smaller, and what is different: `reduced: rounds 200 of 2000; changed: model mlp for resnet18-gn`.

    Parameters
    ----------
    full, here : Mapping[str, Scalar]
        Dotted keys of the experiment and of the run; absent ones take their defaults.
    seeds, full_seeds : Sequence[int]
        Of the run and of the experiment.
    quiet : Collection[str]
        Keys that are not looked at.
    """
    defaults = Settings().flat()
    reduced, changed = [], []
    for key in [*SMALLER, *sorted((full.keys() | here.keys()) - {*SMALLER, *quiet})]:
        then, now = full.get(key, defaults.get(key, "")), here.get(key, defaults.get(key, ""))
        if now == then:
            continue
        if key in SMALLER and _size(key, now) < _size(key, then):
            reduced.append(f"{NAMES.get(key, key)} {show(now)} of {show(then) if then else 'all'}")
        else:
            changed.append(f"{key} {show(now)} for {show(then)}" if then != "" else f"{key} {show(now)}")
    if set(seeds) < set(full_seeds):
        reduced.append(f"seeds {len(seeds)} of {len(full_seeds)}")
    elif not set(full_seeds) <= set(seeds):
        changed.append(f"seeds {_listed(seeds)} for {_listed(full_seeds)}")
    parts = [f"{word}: {', '.join(found)}" for word, found in (("reduced", reduced), ("changed", changed)) if found]
    return "; ".join(parts)


def _listed(seeds: Sequence[int]) -> str:
    return " ".join(map(str, seeds))


def _size(key: str, value: Scalar) -> float:
    if KNOWN[key].size == "size or all" and not value:
        return float("inf")
    return float(value)
