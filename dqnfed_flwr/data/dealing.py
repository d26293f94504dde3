"""Deal a whole data set, or some of its classes only, out to all clients of a run, once in a process."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.config import PartitionName, Settings, SplitSettings
from dqnfed_flwr.data import partitions
from dqnfed_flwr.data.dataset import DataSet, IntArray, TargetForm, as_data_set
from dqnfed_flwr.data.partitions import like_train
from dqnfed_flwr.data.sources import Source
from dqnfed_flwr.errors import DataError

logger = logging.getLogger("flwr")
NAMED = 10
"""Clients named at most."""
LEFT_OUT = -1
"""Label of a sample whose class is not among those kept."""
_SUBSAMPLE, _TRAIN, _TEST = range(3)  # streams of the seed; 3, 4 and 6 are those of `clients`
_GROUPS = 5


def only_classes(data: DataSet, wanted: str) -> DataSet:
    """Number the classes in `wanted` anew from 0, in the order given, and mark the samples of all others `LEFT_OUT`.

    `wanted` are class numbers between commas, such as `0,2,6`; empty keeps every class and number. Samples stay where
    they are. DataError if a number is none of the set's classes, or stands twice, or fewer than two are left.
    """
    kept = numbers("split.only-classes", wanted, "0,2,6")
    if not kept:
        return data
    if len(set(kept)) != len(kept) or len(kept) < 2 or not 0 <= min(kept) <= max(kept) < data.num_classes:
        raise DataError(
            f"split.only-classes: found {wanted!r}; give two or more different numbers from 0 to {data.num_classes - 1}"
        )
    renumbered = np.full(data.num_classes, LEFT_OUT, dtype=np.int64)
    renumbered[kept] = np.arange(len(kept))
    y_test = None if data.y_test is None else renumbered[data.y_test]
    names = None if data.class_names is None else data.class_names[kept]
    return replace(data, y_train=renumbered[data.y_train], y_test=y_test, num_classes=len(kept), class_names=names)


def numbers(key: str, text: str, example: str) -> list[int]:
    """Whole numbers between commas; none in empty text, DataError for anything else."""
    try:
        return [int(number) for number in text.split(",")] if text.strip() else []
    except ValueError:
        raise DataError(f"{key}: found {text!r}; give numbers between commas: {example}") from None


def present(labels: IntArray) -> IntArray:
    """Rising positions of the samples that are not `LEFT_OUT`."""
    return np.flatnonzero(labels != LEFT_OUT)


@dataclass(frozen=True)
class Dealt:
    """A whole data set and, one array a client, the rising sample numbers in its training and in its test part.

    The arrays of a part are disjoint; a client may have no test sample. `test` is None where the set has no such part:
    clients split their own samples.
    """

    data: DataSet
    train: list[IntArray]
    test: list[IntArray] | None


def deal_out(settings: Settings, source: Source, targets: TargetForm = "classes") -> Dealt:
    """Deal the set `source`, whose y are of the form `targets`, to `settings.clients` clients by `settings.partition`.

    The answer is kept for the next client of the same process; it is a function of `source` and its contents,
    `partition`, `clients`, `num-classes`, `seed` and `split.*`. DataError if the set cannot be loaded, or not be dealt
    out this way.
    """
    kept = (settings.num_classes, settings.partition, settings.clients, settings.seed, settings.split)
    return _deal_out(source, source.stamp(), *kept, targets)


@lru_cache(maxsize=1)
def _loaded(source: Source, stamp: tuple[str, int, int], num_classes: int, chosen: str, targets: TargetForm) -> DataSet:
    """The set, once for all ways to deal it out; `stamp` tells another file of the same name."""
    del stamp
    if not chosen:
        return source.load(num_classes, targets)
    if targets != "classes":
        raise DataError(f"split.only-classes: found {chosen!r}, but the targets of this task are no classes; leave it")
    data = only_classes(as_data_set(source.arrays(), source.name), chosen)  # those left out may lack samples
    if 0 < num_classes < data.num_classes:
        raise DataError(f"num-classes: found {num_classes}, but split.only-classes keeps {data.num_classes}; give 0")
    return replace(data, num_classes=num_classes or data.num_classes)


@lru_cache(maxsize=4)
def _deal_out(
    source: Source,
    stamp: tuple[str, int, int],
    num_classes: int,
    partition: PartitionName,
    clients: int,
    seed: int,
    split: SplitSettings,
    targets: TargetForm,
) -> Dealt:
    data = _loaded(source, stamp, num_classes, split.only_classes, targets)
    if targets != "classes" and partition not in ("iid", "groups"):
        raise DataError(
            f"partition: found {partition!r}, which deals samples out by their class, and this task has none; use iid, "
            "groups or file"
        )
    chosen = present(data.strata_train)
    if partition == "groups":
        chosen = chosen[_in_chosen_groups(data, chosen, split, seed)]
    chosen = chosen[_subsample(len(chosen), split.samples, seed)]
    if partition == "groups":
        dealt = _deal_groups(data, chosen, clients)
    else:
        dealt = _deal_classes(data, chosen, partition, clients, split, seed)
    _check_tested(dealt, partition)
    return dealt


def _deal_classes(
    data: DataSet, chosen: IntArray, partition: PartitionName, clients: int, split: SplitSettings, seed: int
) -> Dealt:
    labels = data.strata_train[chosen]
    parts = _deal_labels(partition, labels, data.num_classes, clients, split, seed)
    test = None
    if (strata_test := data.strata_test) is not None:
        tested = present(strata_test)
        dealt = like_train(labels, parts, strata_test[tested], np.random.default_rng((seed, _TEST)))
        test = [tested[part] for part in dealt]
    return Dealt(data, [chosen[part] for part in parts], test)


def _subsample(samples: int, wanted: int, seed: int) -> IntArray:
    if wanted > samples:
        raise DataError(f"split.samples: found {wanted}, but the set has {samples} training samples; 0 takes them all")
    if not wanted:
        return np.arange(samples)
    return np.sort(np.random.default_rng((seed, _SUBSAMPLE)).permutation(samples)[:wanted])


def _deal_labels(
    partition: PartitionName, labels: IntArray, classes: int, clients: int, split: SplitSettings, seed: int
) -> list[IntArray]:
    rng = np.random.default_rng((seed, _TRAIN))
    match partition:
        case "iid":
            return partitions.iid(labels, clients, rng)
        case "shards":
            return partitions.sort_by_class(labels, clients, split.shards, rng)
        case "dirichlet":
            return partitions.dirichlet(labels, clients, split.alpha, split.min_samples, rng)
        case "pathological":
            return partitions.pathological(labels, clients, split.classes, rng)
        case "one-class":
            merge = numbers("split.merge", split.merge, "1,2,2,2,3")
            return partitions.one_class(labels, clients, classes, merge)
    raise DataError(f"partition: {partition} does not deal out one set by its labels")


def _in_chosen_groups(data: DataSet, samples: IntArray, split: SplitSettings, seed: int) -> NDArray[np.bool_]:
    """Which of these training samples are of the natural groups that are used."""
    groups = _groups(data)[samples]
    if not split.groups and not split.min_group_samples:
        return np.ones(len(samples), dtype=np.bool_)
    names, sizes = np.unique(groups, return_counts=True)
    if data.groups_test is not None and (strata_test := data.strata_test) is not None:
        tested = data.groups_test[present(strata_test)]
        sizes = sizes + np.bincount(np.searchsorted(names, tested[np.isin(tested, names)]), minlength=len(names))
    used = partitions.choose_groups(
        sizes, split.min_group_samples, split.groups, np.random.default_rng((seed, _GROUPS))
    )
    return np.isin(groups, names[used])


def _groups(data: DataSet) -> IntArray:
    if data.groups_train is None:
        raise DataError(f"partition: groups needs the array groups_train, which {data.name} lacks; add it to the file")
    return data.groups_train


def _deal_groups(data: DataSet, chosen: IntArray, clients: int) -> Dealt:
    groups = _groups(data)[chosen]
    owners = partitions.group_owners(groups, clients)
    train = [chosen[np.isin(groups, owned)] for owned in owners]
    if (strata_test := data.strata_test) is None:
        return Dealt(data, train, None)
    advice = "leave x_test and y_test out so that each client's own samples are split"
    if data.groups_test is None:
        raise DataError(f"partition: groups: {data.name} has a test part without groups_test; add it, or {advice}")
    tested = present(strata_test)
    return Dealt(data, train, [tested[np.isin(data.groups_test[tested], owned)] for owned in owners])


def _check_tested(dealt: Dealt, partition: PartitionName) -> None:
    """Name the clients that get no test sample, once: they train all the same. `DataError` if nobody gets one."""
    least, parts = (2, dealt.train) if dealt.test is None else (1, dealt.test)
    lacking = [client for client, part in enumerate(parts) if len(part) < least]
    if not lacking:
        return
    if dealt.test is None:
        found, remedy = "a single sample, which cannot be split", _larger_parts(dealt, partition)
    else:
        of = "groups" if partition == "groups" else "classes"
        found = f"no test sample of their {of}"
        remedy = "lower clients, or leave the test part (x_test, y_test) out so that each client's own are split"
    if len(lacking) == len(parts):
        raise DataError(f"partition: {partition}: all {len(parts)} clients have {found}, so no figure; {remedy}")
    named = ", ".join(_described(dealt, client) for client in lacking[:NAMED])
    more = f" and {len(lacking) - NAMED} more" if len(lacking) > NAMED else ""
    logger.warning(
        "partition: %s: %d of %d clients have %s: they train, and have neither test part nor figure: client %s%s; "
        "where that is not meant, %s",
        *(partition, len(lacking), len(parts), found, named, more, remedy),
    )


def _larger_parts(dealt: Dealt, partition: PartitionName) -> str:
    """What to set so that every client has two samples."""
    if partition != "groups":
        return "lower clients, or raise split.samples where it is set"
    groups = _groups(dealt.data)
    _, sizes = np.unique(np.concatenate([groups[part] for part in dealt.train]), return_counts=True)
    large = min(len(dealt.train), int(np.count_nonzero(sizes > 1)))
    join = "lower clients, so that groups are joined"
    return f"set split.min-group-samples=2 and clients={large} to leave such groups out, or {join}" if large else join


def _described(dealt: Dealt, client: int) -> str:
    """A client by number, the groups it holds, and its training samples."""
    train, groups, names = dealt.train[client], dealt.data.groups_train, dealt.data.group_names
    held = [] if groups is None else np.unique(groups[train]).tolist()
    words = [str(group if names is None else names[group]) for group in held[:2]]
    of = f"{', '.join(words)}{', ...' * (len(held) > len(words))}; " if words else ""
    return f"{client} ({of}{len(train)} to train on)"
