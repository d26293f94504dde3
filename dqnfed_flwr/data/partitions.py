"""The rules by which samples are dealt out: each returns one array of rising sample numbers a client.

All are pure in their arguments and the generator. The parts are disjoint; they cover all samples, save that
`pathological` may leave out classes. A rule that the samples, classes or groups do not suffice for raises DataError,
which says what to change.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from dqnfed_flwr.data.dataset import IntArray
from dqnfed_flwr.data.splits import apportion, deal
from dqnfed_flwr.errors import DataError

_TRIES = 1000


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
