"""How samples are dealt out: the rules, each of which returns one array of rising sample numbers a client, and parts.

All are pure in their arguments and the generator. The parts are disjoint; they cover all samples, save that
`pathological` may leave out classes. A rule that the samples, classes or groups do not suffice for raises DataError,
which says what to change. Whole samples are made of shares by `apportion`, and dealt by `deal`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dqnfed_flwr.data.dataset import IntArray
from dqnfed_flwr.errors import DataError

_TRIES = 1000
_ROUNDING = 1e-9  # a quota this close below a whole number counts as that number


def iid(labels: IntArray, clients: int, rng: Generator) -> list[IntArray]:
    """Deal shuffled samples [N] evenly."""
    _check_enough(len(labels), clients, f"{clients} clients", "clients")
    return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), clients)]


def sort_by_class(labels: IntArray, clients: int, shards: int, rng: Generator) -> list[IntArray]:
    """Sort by class, cut into `clients` * `shards` equal runs, and deal each client `shards` of them at random.

    McMahan et al., "Communication-efficient learning of deep networks from decentralized data" (2017), section 3. Runs
    differ by one sample where the number of samples is not a multiple.
    """
    total = clients * shards
    _check_enough(len(labels), total, f"{clients} clients x {shards} shards", "split.shards or clients")
    runs = np.array_split(np.argsort(labels, kind="stable"), total)
    dealt = rng.permutation(total).reshape(clients, shards)
    return [np.sort(np.concatenate([runs[run] for run in row])) for row in dealt]


def dirichlet(labels: IntArray, clients: int, alpha: float, min_samples: int, rng: Generator) -> list[IntArray]:
    """Divide every class among the clients in proportions drawn from a symmetric Dirichlet distribution.

    Yurochkin et al., "Bayesian nonparametric federated learning of neural networks" (2019), section 4. Proportions are
    drawn again, from the same generator, until every client has `min_samples`; 1000 draws are tried.
    """
    _check_enough(len(labels), clients * min_samples, f"{clients} clients x split.min-samples {min_samples}", "clients")
    totals = np.bincount(labels)
    fewest = 0
    for _ in range(_TRIES):
        counts = apportion(totals, rng.dirichlet(np.full(clients, alpha), size=len(totals)).T)
        smallest = int(counts.sum(axis=1).min())
        if smallest >= min_samples:
            return deal(labels, counts, rng)
        fewest = max(fewest, smallest)
    raise DataError(
        f"partition: dirichlet with split.alpha {alpha} gave some of {clients} clients fewer than split.min-samples "
        f"{min_samples} in each of {_TRIES} draws (at best {fewest}); raise split.alpha, or lower split.min-samples or "
        "clients"
    )


def pathological(labels: IntArray, clients: int, classes: int, rng: Generator) -> list[IntArray]:
    """Give every client `classes` different classes at random, each class divided evenly among those that hold it.

    The classes are held by equally many clients, give or take one; with fewer than one holder a class is left out.
    """
    totals = np.bincount(labels)
    present = np.flatnonzero(totals)
    if classes > len(present):
        raise DataError(f"partition: split.classes asks for {classes} classes a client; the data have {len(present)}")
    holds = np.zeros((clients, len(totals)), dtype=np.bool_)
    for client in range(clients):
        order = rng.permutation(present)
        rarest = order[np.argsort(holds.sum(axis=0)[order], kind="stable")]
        holds[client, rarest[:classes]] = True
    holders = holds.sum(axis=0)
    if (holders > totals).any():
        scarce = int(np.flatnonzero(holders > totals)[0])
        raise DataError(
            f"partition: class {scarce} has {totals[scarce]} samples for {holders[scarce]} clients; lower clients or "
            "split.classes, or raise split.samples"
        )
    return deal(labels, apportion(totals, holds / np.maximum(holders, 1)), rng)


def one_class(labels: IntArray, clients: int, classes: int, merge: Sequence[int] = ()) -> list[IntArray]:
    """Give client k all samples of class k of so many `classes`, or of the next `merge[k]` classes.

    One class each is the mutex setting of Pan et al., "FedMDFG" (2023); merged as 1, 2, 2, 2, 3 it is their unbalanced
    one. Every class is held by one client, so that `merge` has to add up to `classes`.
    """
    totals = np.bincount(labels, minlength=classes)
    held = list(merge) or [1] * clients
    if len(held) != clients or min(held) < 1:
        raise DataError(
            f"partition: split.merge: found {','.join(map(str, held))} for {clients} clients; give one number above 0 "
            f"a client, or set clients to {len(held)}"
        )
    if sum(held) != len(totals):
        raise DataError(
            f"partition: one-class gives every class to one client; found {clients} clients and {len(totals)} classes, "
            f"of which {sum(held)} are asked for; set clients to {len(totals)}, choose as many classes as clients with "
            f"split.only-classes, or give a client several with split.merge, numbers that add up to {len(totals)}"
        )
    empty = np.flatnonzero(totals == 0)
    if len(empty):
        raise DataError(
            f"partition: one-class: classes {empty[:10].tolist()} have no sample; raise split.samples or relabel"
        )
    ends = np.cumsum(held)
    return [np.flatnonzero((labels >= end - count) & (labels < end)) for count, end in zip(held, ends, strict=True)]


def choose_groups(sizes: IntArray, least: int, wanted: int, rng: Generator) -> IntArray:
    """Choose `wanted` natural groups at random among those of `least` samples, or all of them; rising numbers.

    `sizes` are the samples of group g [G]; a group of none does not exist.
    """
    large = np.flatnonzero(sizes >= max(least, 1))
    if not len(large) or len(large) < wanted:
        raise DataError(
            f"partition: groups: {len(large)} of {np.count_nonzero(sizes)} groups have split.min-group-samples "
            f"{least}, the largest has {sizes.max()}; lower split.min-group-samples"
            + (f", or split.groups, which asks for {wanted}" if wanted else "")
        )
    return np.sort(rng.permutation(large)[:wanted]) if wanted else large


def group_owners(groups: IntArray, clients: int) -> list[IntArray]:
    """Divide the groups in `groups` [N] among the clients, in rising order, equally many give or take one."""
    names = np.unique(groups)
    if len(names) < clients:
        raise DataError(f"partition: {clients} clients asked for, but the data have {len(names)} groups; lower clients")
    return np.array_split(names, clients)


def _check_enough(samples: int, needed: int, what: str, lower: str) -> None:
    if samples < needed:
        raise DataError(f"partition: {what} need {needed} samples, found {samples}; lower {lower}, or raise samples")


def apportion(totals: IntArray, shares: NDArray[np.float64]) -> IntArray:
    """Round the quotas `shares` * `totals` to whole numbers.

    Every entry is rounded up or down, every column keeps its sum. Class by class, the units left after rounding down go
    to those who are owed most over the classes so far, so that the sums of the rows stay near their quotas as well. The
    samples of each class [C] and the shares of each client in it [K, C] give counts [K, C]. Columns of `shares` sum to
    1, or to 0 where a class is left out.
    """
    quotas = shares * totals
    counts = np.floor(quotas + _ROUNDING).astype(np.int64)
    left = np.rint(quotas.sum(axis=0)).astype(np.int64) - counts.sum(axis=0)
    owed = np.zeros(len(shares))
    for label in np.flatnonzero(quotas.sum(axis=0)):
        remainder = quotas[:, label] - counts[:, label]
        owed += remainder
        if left[label]:
            claims = np.where(remainder > _ROUNDING, owed, -np.inf)
            lucky = np.argsort(-claims, kind="stable")[: left[label]]
            counts[lucky, label] += 1
            owed[lucky] -= 1
    return counts


def fill_empty(counts: IntArray, shares: NDArray[np.float64]) -> IntArray:
    """Move single samples so that no row is empty, if that can be done within the classes of the row.

    A row without a sample takes one of the class it has the largest share of, from the row with most of that class
    among those with a sample to spare. Rows stay empty where there is none.
    """
    counts = counts.copy()
    for row in np.flatnonzero(counts.sum(axis=1) == 0):
        for label in np.argsort(-shares[row], kind="stable"):
            spare = np.where(counts.sum(axis=1) > 1, counts[:, label], 0)
            donor = int(np.argmax(spare))
            if shares[row, label] > 0 and spare[donor] > 0:
                counts[donor, label] -= 1
                counts[row, label] += 1
                break
    return counts


def deal(labels: IntArray, counts: IntArray, rng: Generator) -> list[IntArray]:
    """Deal shuffled samples, of labels [N], so that client k gets `counts[k, c]` of class c; their rising numbers.

    Counts [K, C] are at most as many of each class as there are. Samples beyond them are left out.
    """
    parts: list[list[IntArray]] = [[] for _ in counts]
    for label, ends in enumerate(np.cumsum(counts, axis=0).T.tolist()):
        members = rng.permutation(np.flatnonzero(labels == label))
        for part, start, end in zip(parts, [0, *ends], ends, strict=False):
            part.append(members[start:end])
    return [np.sort(np.concatenate(part)) for part in parts]


def like_train(y_train: IntArray, parts: list[IntArray], y_test: IntArray, rng: Generator) -> list[IntArray]:
    """Deal test samples so that a client holds the share of each class that it holds of the training samples.

    Each count is its exact quota rounded up or down, but for single samples moved to clients who would have none.
    Test samples of classes that no client trains on are left out. Labels are [N] and [M]; `parts` are the training
    samples of each client, the answer its test samples, rising: none where there is none of its classes for it.
    """
    classes = 1 + int(max(y_train.max(), y_test.max()))
    trained = np.stack([np.bincount(y_train[part], minlength=classes) for part in parts])
    shares = trained / np.maximum(trained.sum(axis=0), 1)
    counts = fill_empty(apportion(np.bincount(y_test, minlength=classes), shares), shares)
    return deal(y_test, counts, rng)


def stratified(labels: IntArray, fraction: float, rng: Generator) -> tuple[IntArray, IntArray]:
    """Split samples, of labels [N], into those kept and those set apart, by their rising positions.

    Of each class `fraction`, below 1, is set apart, rounded up or down. At least one sample is kept, and one set apart
    unless `fraction` is 0 or there are fewer than two samples to split.
    """
    if fraction == 0 or len(labels) < 2:
        return np.arange(len(labels)), np.arange(0)
    totals = np.bincount(labels)
    shares = np.outer([1 - fraction, fraction], np.ones(len(totals)))
    order = rng.permutation(len(totals))  # what is owed goes from class to class, and none comes first everywhere
    counts = np.empty(shares.shape, dtype=np.int64)
    counts[:, order] = fill_empty(apportion(totals[order], shares), shares)
    kept, apart = deal(labels, counts, rng)
    return kept, apart
