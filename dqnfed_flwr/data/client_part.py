"""Which samples are one client's, split into train, validation and test, and the labels that it gets to see.

They are dealt out from the whole set, or the client's own. Wrong labels are made as in FedCorr's experiments: Xu, Chen,
Quek and Chong, "FedCorr: Multi-Stage Federated Learning for Label Noise Correction" (2022), section 4.1: a client is
noisy with probability rho; its level mu is uniform in (tau, 1); the share mu of its training labels, chosen at random,
is replaced. `symmetric` replaces a label by one drawn from all classes, its own among them, so that about
mu (C - 1) / C of the labels are wrong. `pair` replaces class c by c + 1, and the last by the first.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from dqnfed_flwr.config import NoiseSettings, Settings
from dqnfed_flwr.data.dataset import Array, DataSet, IntArray, TargetForm, as_data_set, used_targets
from dqnfed_flwr.data.dealing import deal_out
from dqnfed_flwr.data.forms import FORMS
from dqnfed_flwr.data.frames import unmasked
from dqnfed_flwr.data.partitions import stratified
from dqnfed_flwr.data.sources import Source, source_of
from dqnfed_flwr.data.user import call_function
from dqnfed_flwr.errors import ClientDataError, DataError, of_one_client

logger = logging.getLogger("flwr")
_SPLIT_TEST, _SPLIT_VALIDATION, _NOISE = 3, 4, 6  # streams of the seed, besides those of `dealing`


@dataclass(frozen=True)
class ClientPart:
    """Which samples are one client's, numbered within the parts of the set `data`; none of them is read yet."""

    data: DataSet
    train: IntArray
    validation: IntArray  # of the training part, as `train`
    noisy: IntArray | None  # labels of `train` where some were replaced; None where all are the right ones
    x_test: Array  # the test part of the set, or its training part where it has none
    y_test: Array
    test: IntArray
    own: bool = False  # whether the client brings its samples, which are no part of a set that all share

    def at_fault(self) -> AbstractContextManager[None]:
        """Whose fault it is if the samples cannot be used: a client's that brings its own, else that of the set."""
        return of_one_client() if self.own else nullcontext()

    @property
    def given(self) -> Array:
        """Targets of `train` as the client gets to see them, perhaps with noise; right are `data.y_train[train]`."""
        return used_targets(self.data.y_train[self.train], self.data.targets) if self.noisy is None else self.noisy


def find_part(
    settings: Settings, partition: int, data_path: str | None = None, targets: TargetForm = "classes"
) -> ClientPart:
    """Which samples are one client's, for the arguments of `clients.load_client` and with its errors; none is read."""
    source = source_of(data_path or settings.data)
    if partition < 0:
        raise DataError(f"partition-id: found {partition}; clients are numbered from 0")
    if source.is_of_each(settings.partition):
        with of_one_client():
            return _own_part(settings, source, partition, targets)
    if partition >= settings.clients:
        raise DataError(
            f"partition-id: found {partition}; clients = {settings.clients} allows 0..{settings.clients - 1}"
        )
    dealt = deal_out(settings, source, targets)
    test = None if dealt.test is None else dealt.test[partition]
    return _split(settings, partition, dealt.data, dealt.train[partition], test)


def _own_part(settings: Settings, source: Source, partition: int, targets: TargetForm) -> ClientPart:
    """All of a client's own file, or what a function gives for it."""
    if source.kind != "function":
        _refuse_choice(settings)
        _refuse_numbering(source, targets)
    arrays = _own_arrays(settings, source, partition)
    _refuse_numbered(source, arrays, targets)
    data = as_data_set(arrays, source.name, settings.num_classes, targets)
    test = None if data.y_test is None else np.arange(len(data.y_test))
    part = replace(_split(settings, partition, data, np.arange(len(data.y_train)), test), own=True)
    if not len(part.test):
        logger.warning(
            "data: client %d has %d sample(s) in %s: it trains on them, and has neither test part nor figure; give it "
            "two or more, or x_test and y_test",
            partition,
            len(data.y_train),
            source.name,
        )
    return part


def _refuse_choice(settings: Settings) -> None:
    """A client's own file is taken whole; a function of the user's may look at these settings itself."""
    asked = {"split.only-classes": settings.split.only_classes, "split.samples": settings.split.samples}
    if given := [key for key, value in asked.items() if value]:
        raise DataError(
            f"partition: file takes a client's whole file, and {', '.join(given)} cannot choose from it; leave "
            f"{'it' if len(given) == 1 else 'them'} out, and store what the client is to have"
        )


def _refuse_numbering(source: Source, targets: TargetForm) -> None:
    """A client's own file has to say itself which class is which, not be of a form that numbers those it finds.

    Targets that are numbers are the same everywhere.
    """
    if source.form and FORMS[source.form].numbers_classes and targets != "values":
        raise DataError(
            f"partition: file: {source.form} numbers the classes that a file holds, so that they could differ from "
            "device to device; store each device's samples as .npz, with the same numbers everywhere"
        )


def _refuse_numbered(source: Source, arrays: Mapping[str, Array], targets: TargetForm) -> None:
    """Nor may the texts of its table have numbered classes or features."""
    learnt = dict(source.files().options).get("label") if targets == "values" and source.is_decoded else None
    if columns := [column for column in arrays.get("numbered", ()) if column != learnt]:
        raise DataError(
            f"partition: file: {source.name} numbers the values of the columns {', '.join(map(str, columns))} as it "
            "finds them, so that they could differ from device to device; give the order of labels, classes=no+yes, "
            "and store other texts as numbers"
        )


def _own_arrays(settings: Settings, source: Source, partition: int) -> Mapping[str, Array]:
    if source.kind != "function":
        return source.arrays()
    arrays = call_function(source.name, "data", DataError, settings.flat(), partition, settings.clients)
    if not isinstance(arrays, Mapping):
        raise DataError(
            f"data: {source.name} returned {type(arrays).__name__}; it must return a mapping of arrays by name"
        )
    try:
        return {str(key): np.asarray(unmasked(value, f"data: {source.name}: {key}")) for key, value in arrays.items()}
    except (TypeError, ValueError, RuntimeError) as error:  # whatever an array of the user's says
        raise DataError(f"data: {source.name} returned what is no array ({' '.join(str(error).split())})") from error


def _split(settings: Settings, partition: int, data: DataSet, train: IntArray, test: IntArray | None) -> ClientPart:
    """Split test samples off where the set has none, then validation samples; then replace labels."""
    split, y, strata = settings.split, data.y_train, data.strata_train
    x_test, y_test = data.x_test, data.y_test
    if x_test is None or y_test is None or test is None:
        x_test, y_test = data.x_train, y
        kept, apart = stratified(strata[train], split.test_fraction, _stream(settings, _SPLIT_TEST, partition))
        train, test = train[kept], train[apart]
    kept, apart = stratified(strata[train], split.validation_fraction, _stream(settings, _SPLIT_VALIDATION, partition))
    validation, train = train[apart], train[kept]
    if not len(train):
        raise ClientDataError(f"split: client {partition} has no training sample; give it at least one")
    if split.validation_fraction and not len(validation):
        logger.warning(
            "split: client %d has %d training sample(s): none is kept apart for split.validation-fraction",
            partition,
            len(train),
        )
    noisy = None
    if data.targets == "classes":
        noisy = with_noise(y[train], settings.noise, data.num_classes, _apart(settings, _NOISE, partition))
    elif settings.noise.kind != "none":
        raise DataError(f"noise.kind: found {settings.noise.kind!r}, but this task has no classes to mix up; use none")
    return ClientPart(data, train, validation, noisy, x_test, y_test, test)


def _stream(settings: Settings, stream: int, partition: int) -> Generator:
    return np.random.default_rng((settings.seed, stream, partition))


def _apart(settings: Settings, stream: int, partition: int) -> Generator:
    """A stream that is none of the rounds': those of (seed, round) would show who is noisy by who is sampled."""
    return np.random.default_rng(np.random.SeedSequence(settings.seed, spawn_key=(stream, partition)))


def noise_level(settings: NoiseSettings, rng: Generator) -> float:
    """Draw a client's mu, 0 for a clean one; the first draws of the client's stream."""
    noisy, place = rng.random() < settings.clients, rng.random()
    return settings.level + (1 - settings.level) * float(place) if noisy and settings.kind != "none" else 0.0


def with_noise(labels: IntArray, settings: NoiseSettings, num_classes: int, rng: Generator) -> IntArray:
    """Labels as one client gets to see them, of the right ones [N]: a new array where there is noise.

    C is that of the whole set. Equal streams give equal noise.
    """
    level = noise_level(settings, rng)
    if not level:
        return labels
    replaced = rng.permutation(len(labels))[: round(level * len(labels))]
    noisy = labels.copy()
    if settings.kind == "symmetric":
        noisy[replaced] = rng.integers(num_classes, size=len(replaced))
    else:
        noisy[replaced] = (labels[replaced] + 1) % num_classes
    return noisy
