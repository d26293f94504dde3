"""One client's samples, read and checked, and every client of a run in figures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dqnfed_flwr.config import Settings
from dqnfed_flwr.data.client_part import ClientPart, find_part
from dqnfed_flwr.data.dataset import Array, IntArray, sample_kind, sample_shape
from dqnfed_flwr.data.scaling import check_scale, standardised
from dqnfed_flwr.data.sets import is_function
from dqnfed_flwr.data.targets import TargetForm, used_targets
from dqnfed_flwr.errors import DataError

Part = Literal["train", "validation", "test"]


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
        What its figures are measured on; at least one sample.
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
    dealt out. With `data-scale`, features are standardised last, see `scaling`.

    Parameters
    ----------
    settings : Settings
        Of the run; `data`, `partition`, `clients`, `num-classes`, `seed`, `split.*`, `noise.*` and `data-scale` count
        here. `data` may be `module:function`: it is called as function(settings.flat(), partition, clients) and returns
        a mapping of this client's own arrays, named as in `dqnfed_flwr.data.sets.read_arrays`.
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
    return take_part(settings, find_part(settings, partition, data_path, targets))


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


@dataclass(frozen=True)
class ClientSummary:
    """One client in figures.

    Attributes
    ----------
    train, test : IntArray
        Samples of each class [C]; training labels are counted as they are given, with noise.
    validation : int
        Samples kept apart.
    wrong : int
        Training labels that differ from the right ones.
    groups : tuple[str, ...]
        Natural groups it holds, by name where the set has names.
    class_names : tuple[str, ...]
        Of the set; empty where it has none.
    """

    train: IntArray
    test: IntArray
    validation: int
    wrong: int
    groups: tuple[str, ...]
    class_names: tuple[str, ...]

    @property
    def samples(self) -> int:
        """Training samples."""
        return int(self.train.sum())

    @property
    def lacking(self) -> IntArray:
        """Classes without a training sample."""
        return np.flatnonzero(self.train == 0)


def dealt_by(settings: Settings) -> str:
    """What deals the samples out: the partition of the settings, or `own function` where `data` is a function."""
    return "own function" if is_function(settings.data) else settings.partition


def summarise(settings: Settings) -> list[ClientSummary]:
    """Figures of every client of a run, in their order. Of the samples only features are read, to check them.

    Raises
    ------
    DataError
        As `load_client`.
    """
    parts = [find_part(settings, partition) for partition in range(settings.clients)]
    for part in parts:
        x = part.data.x_train
        check_scale(settings, x)
        for values, samples in ((x, part.train), (x, part.validation), (part.x_test, part.test)):
            if np.issubdtype(values.dtype, np.floating):
                take(values, samples, part.data.name)
    classes = max(part.data.num_classes for part in parts)
    return [_summary(part, classes) for part in parts]


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
