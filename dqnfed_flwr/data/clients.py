"""One client's samples, read, checked and perhaps standardised, and every client of a run in figures.

Each client standardises by statistics of its own training part, which nobody else learns: equal values of two clients
may differ afterwards. Moments are computed in float64, and divide by the number of samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.config import Settings
from dqnfed_flwr.data.client_part import ClientPart, find_part
from dqnfed_flwr.data.dataset import IGNORED, Array, IntArray, TargetForm, sample_kind, sample_shape, used_targets
from dqnfed_flwr.errors import ClientDataError, DataError

Part = Literal["train", "validation", "test"]
Opened = TypeVar("Opened")
MOST = 12
"""Targets, flags or classes that have a figure of their own; of more, one over all."""


@dataclass(frozen=True)
class ClientData:
    """One client's samples, in the dtype they are stored in; labels are int64 [N], other targets as they are read.

    Attributes
    ----------
    x_train, y_train : Array, Array
        What it trains on; at least one sample.
    x_validation, y_validation : Array, Array
        Kept apart from training; empty unless asked for.
    x_test, y_test : Array, Array
        What its figures are measured on; empty where it has too few samples to split.
    num_classes : int
        Of the whole set, as far as the data or the settings say.
    """

    x_train: Array
    y_train: Array
    x_validation: Array
    y_validation: Array
    x_test: Array
    y_test: Array
    num_classes: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample as the model sees it, channels first for images."""
        return sample_shape(self.x_train)

    @property
    def input_kind(self) -> str:
        """`images`, `features` or `tokens`."""
        return sample_kind(self.x_train)

    def count(self, part: Part) -> int:
        """Samples of a part."""
        return len({"train": self.y_train, "validation": self.y_validation, "test": self.y_test}[part])

    @property
    def nbytes(self) -> int:
        """Bytes of all its arrays."""
        xs, ys = (self.x_train, self.x_validation, self.x_test), (self.y_train, self.y_validation, self.y_test)
        return sum(array.nbytes for array in (*xs, *ys))

    @property
    def feature_scale(self) -> float:
        """The power of ten that |x| reaches in training; 0 where x are whole numbers, as pixels and tokens are."""
        if not self.x_train.size or not np.issubdtype(self.x_train.dtype, np.floating):
            return 0.0
        return power_of_ten(max(abs(float(self.x_train.min())), abs(float(self.x_train.max()))))


def power_of_ten(largest: float) -> float:
    """The power of ten that a number, at least 0, reaches; 0 for 0."""
    return 10.0 ** math.floor(math.log10(largest)) if largest else 0.0


def load_client(
    settings: Settings, partition: int, data_path: str | None = None, targets: TargetForm = "classes"
) -> ClientData:
    """Load the samples of one client; equal settings and partition give equal samples.

    Where the set has a test part, a client tests on the same share of each class as it trains on (with natural groups:
    on its own groups); where it has none, `split.test-fraction` of its samples are split off, stratified. Then
    `split.validation-fraction` of its training samples are kept apart, and labels of the rest are replaced as
    `noise.*` asks. With `split.samples`, that many training samples are drawn from the whole set before anything is
    dealt out. With `data-scale`, features are standardised last, see `standardised`.

    Parameters
    ----------
    settings : Settings
        Of the run; `data`, `partition`, `clients`, `num-classes`, `seed`, `split.*`, `noise.*` and `data-scale` count
        here. `data` may be `module:function`: it is called as function(settings.flat(), partition, clients) and returns
        a mapping of this client's own arrays, named as in `dqnfed_flwr.data.sources.Source.arrays`.
    partition : int
        Number of the client, from 0.
    data_path : str | None
        An .npz file of this device, in place of `settings.data`. With the partition `file` all of it is this client's.
    targets : TargetForm
        What the task wants to hear about a sample.

    Raises
    ------
    DataError
        If data or partition cannot be used: the text says what was found, what is allowed and what to do.
    """
    part = find_part(settings, partition, data_path, targets)
    with part.at_fault():
        return take_part(settings, part)


def take_part(settings: Settings, part: ClientPart) -> ClientData:
    """The samples of one client, copied into memory and scaled; `DataError` where features are not finite."""
    data = part.data
    check_scale(settings, data.x_train)
    taken = ((data.x_train, part.train), (data.x_train, part.validation), (part.x_test, part.test))
    xs = [take(x, samples, data.name) for x, samples in taken]
    x_train, x_validation, x_test = standardised(*xs) if settings.data_scale == "standardise" else xs
    return ClientData(
        x_train=x_train,
        y_train=part.given,
        x_validation=x_validation,
        y_validation=used_targets(data.y_train[part.validation], data.targets),
        x_test=x_test,
        y_test=used_targets(part.y_test[part.test], data.targets),
        num_classes=data.num_classes,
    )


def take(x: Array, samples: IntArray, name: str) -> Array:
    """A copy of these samples of the set `name`; DataError where features are not finite."""
    taken: Array = np.asarray(x)[samples]
    if np.issubdtype(taken.dtype, np.floating) and not np.isfinite(taken).all():
        bad = samples[~np.isfinite(taken.reshape(len(taken), -1)).all(axis=1)]
        raise DataError(
            f"data: {name}: {len(bad)} of {len(samples)} samples hold NaN or infinite features, first number {bad[0]}; "
            "fill or drop them"
        )
    return taken


def check_scale(settings: Settings, x: Array) -> None:
    """Raise DataError where `data-scale` asks for what samples `x` cannot have."""
    if settings.data_scale != "none" and (kind := sample_kind(x)) != "features":
        raise DataError(
            f"data-scale: found {settings.data_scale!r}, but {settings.data} holds {kind} of dtype {x.dtype}; only "
            "float features can be standardised: set data-scale none"
        )


def standardised(train: NDArray[Any], *others: NDArray[Any]) -> list[NDArray[Any]]:
    """Standardise every float feature of several parts [N, ...] by its mean and deviation in the first.

    A feature that is constant in `train` is 0 in all of them. DataError if values are too large, or too small, for
    their variance and their scaled value to be numbers.
    """
    exact = train.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        mean, deviation, constant = exact.mean(axis=0), exact.std(axis=0), train.max(axis=0) == train.min(axis=0)
        inverse = np.where(constant, 0.0, 1.0 / np.where(constant | (deviation == 0), 1.0, deviation))
        scaled = [((part - np.where(constant, 0, mean)) * inverse).astype(train.dtype) for part in (train, *others)]
    unfit = ~constant & ~((deviation > 0) & np.isfinite(deviation))
    if unfit.any() or not all(np.isfinite(part).all() for part in scaled):
        raise DataError(
            "data-scale: features are too large or too small to be standardised; give them another unit, or set none"
        )
    return scaled


@dataclass(frozen=True)
class ClientSummary:
    """One client in figures.

    Samples of each class are `train` and `test` [C]; training labels are counted as they are given, with noise.
    """

    train: IntArray
    test: IntArray
    validation: int  # samples kept apart
    wrong: int  # training labels that differ from the right ones
    groups: tuple[str, ...]  # natural groups it holds, by name where the set has names
    class_names: tuple[str, ...]  # of the set; empty where it has none
    fault: str = ""  # why its data cannot be used, so that a run goes on without it; it has no sample then

    @property
    def samples(self) -> int:
        """Training samples."""
        return int(self.train.sum())

    @property
    def lacking(self) -> IntArray:
        """Classes without a training sample."""
        return np.flatnonzero(self.train == 0)


def summarise(settings: Settings) -> list[ClientSummary]:
    """Figures of every client of a run, in their order. Of the samples only features are read, to check them.

    Raises
    ------
    DataError
        As `load_client`; what is one client's own fault is noted, unless all have one.
    """
    parts, faults = each_usable(lambda partition: _checked_part(settings, partition), settings.clients)
    classes = max(part.data.num_classes for part in parts.values())
    first = _summary(next(iter(parts.values())), classes)
    none, names = np.zeros(classes, dtype=np.int64), first.class_names
    unfit = {place: ClientSummary(none, none, 0, 0, (), names, fault) for place, fault in faults.items()}
    found = {place: _summary(part, classes) for place, part in parts.items()} | unfit
    return [found[partition] for partition in range(settings.clients)]


def each_usable(open_one: Callable[[int], Opened], clients: int) -> tuple[dict[int, Opened], dict[int, str]]:
    """What `open_one` gives for each client, and why those without it cannot be used; `ClientDataError` if none can."""
    found: dict[int, Opened] = {}
    faults: dict[int, str] = {}
    for partition in range(clients):
        try:
            found[partition] = open_one(partition)
        except ClientDataError as error:
            faults[partition] = str(error)
            if len(faults) == clients:
                raise
    return found, faults


def _checked_part(settings: Settings, partition: int) -> ClientPart:
    """A client's part, of which features are read."""
    part = find_part(settings, partition)
    x = part.data.x_train
    with part.at_fault():
        check_scale(settings, x)
        for values, samples in ((x, part.train), (x, part.validation), (part.x_test, part.test)):
            if np.issubdtype(values.dtype, np.floating):
                take(values, samples, part.data.name)
    return part


def _summary(part: ClientPart, classes: int) -> ClientSummary:
    groups, names = part.data.groups_train, part.data.group_names
    held = () if groups is None else np.unique(groups[part.train])
    classes_named = () if part.data.class_names is None else part.data.class_names
    return ClientSummary(
        train=np.bincount(part.given, minlength=classes),
        test=np.bincount(part.y_test[part.test], minlength=classes),
        validation=len(part.validation),
        wrong=int(np.count_nonzero(part.given != part.data.y_train[part.train])),
        groups=tuple(str(group) if names is None else str(names[group]) for group in held),
        class_names=tuple(map(str, classes_named)),
    )


@dataclass(frozen=True)
class TargetSummary:
    """Samples of one client by part, and figures of its training targets by what they are; see `figures_of`."""

    train: int
    validation: int
    test: int
    figures: Mapping[str, float] = field(default_factory=dict)
    fault: str = ""  # as in `ClientSummary`


def summarise_targets(settings: Settings, form: TargetForm) -> list[TargetSummary]:
    """Figures of every client of a run, in their order; errors are those of `summarise`."""
    loaded, faults = each_usable(lambda partition: load_client(settings, partition, None, form), settings.clients)
    outputs = max(client.num_classes for client in loaded.values())
    found = {
        partition: TargetSummary(
            client.count("train"),
            client.count("validation"),
            client.count("test"),
            figures_of(client.y_train, form, outputs),
        )
        for partition, client in loaded.items()
    }
    return with_faults(found, faults)


def with_faults(found: Mapping[int, TargetSummary], faults: Mapping[int, str]) -> list[TargetSummary]:
    """Figures of all clients in their order; NaN for those whose data cannot be used."""
    names = next(iter(found.values())).figures
    unfit = {place: TargetSummary(0, 0, 0, dict.fromkeys(names, math.nan), fault) for place, fault in faults.items()}
    return [summary for _, summary in sorted({**found, **unfit}.items())]


def figures_of(y: Array, form: TargetForm, outputs: int) -> dict[str, float]:
    """What training targets of `outputs` values, flags or classes are like.

    Of one value mean, standard deviation, least and most, of several the mean of each; of flags the share that is set
    of each, in per cent; of places how many are asked, and the share of each class among them, in per cent. Where there
    are more than `MOST`, all are taken together.
    """
    if form == "values":
        if outputs == 1 or outputs > MOST:
            return {"mean": y.mean(), "σ": y.std(), "min": y.min(), "max": y.max()}
        return {f"mean {place}": value for place, value in enumerate(y.mean(axis=0, dtype=np.float64))}
    if form == "flags":
        shares = 100 * y.mean(axis=0)
        if outputs > MOST:
            return {"set %": float(shares.mean())}
        return {f"flag {place} %": share for place, share in enumerate(shares)}
    asked = y[y != IGNORED]
    found = {"places": float(asked.size)}
    if outputs > MOST:
        return {**found, "classes": float(len(np.unique(asked)))}
    shares = 100 * np.bincount(asked, minlength=outputs) / max(asked.size, 1)
    return {**found, **{f"class {place} %": share for place, share in enumerate(shares)}}
