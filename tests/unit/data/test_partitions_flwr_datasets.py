"""Flower's own partitioners as oracle; they need the package flwr-datasets."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dqnfed_flwr.data import partitions
from dqnfed_flwr.data.dataset import IntArray

pytest.importorskip("flwr_datasets", reason="needs flwr-datasets")
# datasets sorts with an argument that newer pyarrow calls deprecated
pytestmark = pytest.mark.filterwarnings("ignore:Specifying null_placement:FutureWarning")

CLASSES, EACH, CLIENTS = 10, 500, 20
LABELS = np.random.default_rng(0).permutation(np.arange(CLASSES * EACH) % CLASSES)


def class_counts(parts: list[IntArray]) -> NDArray[np.int64]:
    return np.stack([np.bincount(LABELS[part], minlength=CLASSES) for part in parts])


def flower_counts(partitioner: Any) -> NDArray[np.int64]:
    partitioner.dataset = import_module("datasets").Dataset.from_dict({"label": LABELS.tolist()})
    parts = [np.array(partitioner.load_partition(client)["label"]) for client in range(CLIENTS)]
    return np.stack([np.bincount(part, minlength=CLASSES) for part in parts])


@pytest.mark.parametrize("alpha", [0.3, 1.0, 10.0])
def test_dirichlet_divides_the_classes_alike(alpha: float) -> None:
    from flwr_datasets.partitioner import DirichletPartitioner

    partitioner = DirichletPartitioner(
        num_partitions=CLIENTS, partition_by="label", alpha=alpha, min_partition_size=2, self_balancing=False, seed=7
    )

    ours = class_counts(partitions.dirichlet(LABELS, CLIENTS, alpha, 2, np.random.default_rng(7)))

    # The same generator draws the same proportions; each side rounds them to whole samples.
    assert np.abs(ours - flower_counts(partitioner)).max() <= 1


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_dirichlet_is_as_uneven(alpha: float) -> None:
    from flwr_datasets.partitioner import DirichletPartitioner

    def unevenness(counts: NDArray[np.int64]) -> float:
        return float(np.square(counts / EACH).sum(axis=0).mean())

    ours, theirs = [], []
    for seed in range(20):
        partitioner = DirichletPartitioner(
            num_partitions=CLIENTS,
            partition_by="label",
            alpha=alpha,
            min_partition_size=2,
            self_balancing=False,
            seed=seed,
        )
        theirs.append(unevenness(flower_counts(partitioner)))
        generator = np.random.default_rng(1000 + seed)
        ours.append(unevenness(class_counts(partitions.dirichlet(LABELS, CLIENTS, alpha, 2, generator))))

    spread = np.sqrt((np.var(ours) + np.var(theirs)) / len(ours))
    assert abs(np.mean(ours) - np.mean(theirs)) < 4 * spread
    exact = (alpha + 1) / (CLIENTS * alpha + 1)  # sum of E[p_k^2] of the symmetric distribution
    assert abs(np.mean(ours) - exact) < 4 * spread


def test_shards_have_the_same_structure() -> None:
    from flwr_datasets.partitioner import ShardPartitioner

    shards, size = 2, CLASSES * EACH // (CLIENTS * 2)
    partitioner = ShardPartitioner(
        num_partitions=CLIENTS, partition_by="label", num_shards_per_partition=shards, shard_size=size, seed=7
    )

    ours = class_counts(partitions.sort_by_class(LABELS, CLIENTS, shards, np.random.default_rng(7)))
    theirs = flower_counts(partitioner)

    for counts in (ours, theirs):
        assert (counts % size == 0).all()
        np.testing.assert_array_equal(counts.sum(axis=1), shards * size)
        np.testing.assert_array_equal(counts.sum(axis=0), EACH)
    assert (ours > 0).sum(axis=1).max() == (theirs > 0).sum(axis=1).max() == shards
