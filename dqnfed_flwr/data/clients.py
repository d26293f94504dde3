"""One client's samples: its part of the whole set, or its own file, split into train, validation and test."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dqnfed_flwr.config import Settings
from dqnfed_flwr.data.apportion import IntArray
from dqnfed_flwr.data.dataset import DataSet, as_data_set
from dqnfed_flwr.data.dealing import deal_out
from dqnfed_flwr.data.forms import FORMS
from dqnfed_flwr.data.inputs import sample_kind, sample_shape
from dqnfed_flwr.data.noise import with_noise
from dqnfed_flwr.data.sets import is_function, read_arrays
from dqnfed_flwr.data.splits import stratified
from dqnfed_flwr.data.user import call_function
from dqnfed_flwr.errors import DataError

Array = NDArray[Any]
_SPLIT_TEST, _SPLIT_VALIDATION, _NOISE = 3, 4, 6  # streams of the seed, beside those of `dealing`


@dataclass(frozen=True)
class ClientData:
    """One client's samples, in the dtype they are stored in; labels are int64 [N].

    Attributes
    ----------
    x_train, y_train : Array, IntArray
        What it trains on; at least one sample.
    x_validation, y_validation : Array, IntArray
        Kept apart from training; empty unless asked for.
    x_test, y_test : Array, IntArray
        What its accuracy is measured on; at least one sample.
    num_classes : int
        Of the whole set, as far as the data or the settings say.
    """

    x_train: Array
    y_train: IntArray
    x_validation: Array
    y_validation: IntArray
    x_test: Array
    y_test: IntArray
    num_classes: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample as the model sees it, channels first for images."""
        return sample_shape(self.x_train)

    @property
    def input_kind(self) -> str:
        """`images`, `features` or `tokens`."""
        return sample_kind(self.x_train)

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
        largest = max(abs(float(self.x_train.min())), abs(float(self.x_train.max())))
        return 10.0 ** math.floor(math.log10(largest)) if largest else 0.0


def load_client(settings: Settings, partition: int, data_path: str | None = None) -> ClientData:
    """Load the samples of one client; equal settings and partition give equal samples.

    Where the set has a test part, a client tests on the same share of each class as it trains on (with natural groups:
    on its own groups); where it has none, `split.test-fraction` of its samples are split off, stratified. Then
    `split.validation-fraction` of its training samples are kept apart, and labels of the rest are replaced as
    `noise.*` asks. With `split.samples`, that many training samples are drawn from the whole set before anything is
    dealt out.

    Parameters
    ----------
    settings : Settings
        Of the run; `data`, `partition`, `clients`, `num-classes`, `seed`, `split.*` and `noise.*` count here. `data`
        may be `module:function`: it is called as function(settings.flat(), partition, clients) and returns a mapping
        of this client's own arrays, named as in `dqnfed_flwr.data.sets.read_arrays`.
    partition : int
        Number of the client, from 0.
    data_path : str | None
        An .npz file of this device, in place of `settings.data`. With the partition `file` all of it is this client's.

    Raises
    ------
    DataError
        If data or partition cannot be used: the text says what was found, what is allowed and what to do.
    """
    part = find_part(settings, partition, data_path)
    data = part.data
    x_train = _take(data.x_train, part.train, data.name)
    return ClientData(
        x_train=x_train,
        y_train=part.given,
        x_validation=_take(data.x_train, part.validation, data.name),
        y_validation=data.y_train[part.validation],
        x_test=_take(part.x_test, part.test, data.name),
        y_test=part.y_test[part.test],
        num_classes=data.num_classes,
    )


@dataclass(frozen=True)
class ClientPart:
    """Which samples are one client's; none of them is read yet.

    Attributes
    ----------
    data : DataSet
        The set they come from.
    train, validation : IntArray
        Sample numbers in its training part.
    given : IntArray
        Labels of `train` as the client gets to see them, with noise where the settings ask for it; the right ones are
        `data.y_train[train]`.
    x_test, y_test : Array, IntArray
        What `test` counts in: the test part of the set, or its training part where it has none.
    test : IntArray
        Sample numbers.
    """

    data: DataSet
    train: IntArray
    validation: IntArray
    given: IntArray
    x_test: Array
    y_test: IntArray
    test: IntArray


def find_part(settings: Settings, partition: int, data_path: str | None = None) -> ClientPart:
    """Find the samples of one client, as `load_client` does, without reading them.

    Raises
    ------
    DataError
        As `load_client`.
    """
    source = data_path or settings.data
    if partition < 0:
        raise DataError(f"partition-id: found {partition}; clients are numbered from 0")
    if settings.partition == "file" or is_function(source):
        if not is_function(source):
            _refuse_choice(settings)
            _refuse_numbering(source)
        data = as_data_set(_own_arrays(settings, source, partition), source, settings.num_classes)
        test = None if data.y_test is None else np.arange(len(data.y_test))
        return _split(settings, partition, data, np.arange(len(data.y_train)), test)
    if partition >= settings.clients:
        raise DataError(
            f"partition-id: found {partition}; clients = {settings.clients} allows 0..{settings.clients - 1}"
        )
    dealt = deal_out(settings, source)
    test = None if dealt.test is None else dealt.test[partition]
    return _split(settings, partition, dealt.data, dealt.train[partition], test)


def _refuse_choice(settings: Settings) -> None:
    """A client's own file is taken whole; a function of the user's may look at these settings itself.

    Raises
    ------
    DataError
        If they ask for a part of it.
    """
    asked = {"split.only-classes": settings.split.only_classes, "split.samples": settings.split.samples}
    if given := [key for key, value in asked.items() if value]:
        raise DataError(
            f"partition: file takes a client's whole file, and {', '.join(given)} cannot choose from it; leave "
            f"{'it' if len(given) == 1 else 'them'} out, and store what the client is to have"
        )


def _refuse_numbering(source: str) -> None:
    """A client's own file has to say itself which class is which.

    Raises
    ------
    DataError
        If it is of a form that numbers the classes that it finds.
    """
    name = source.partition(":")[0]
    form = FORMS.get(name)
    if form is not None and form.numbers_classes:
        raise DataError(
            f"partition: file: {name} numbers the classes that a file holds, so that they could differ from device to "
            "device; store each device's samples as .npz, with the same numbers everywhere"
        )


def _own_arrays(settings: Settings, source: str, partition: int) -> Mapping[str, Array]:
    if not is_function(source):
        return read_arrays(source)
    arrays = call_function(source, "data", DataError, settings.flat(), partition, settings.clients)
    if not isinstance(arrays, Mapping):
        raise DataError(f"data: {source} returned {type(arrays).__name__}; it must return a mapping of arrays by name")
    try:
        return {str(key): np.asarray(value) for key, value in arrays.items()}
    except (TypeError, ValueError, RuntimeError) as error:  # whatever an array of the user's says
        raise DataError(f"data: {source} returned what is no array ({' '.join(str(error).split())})") from error


def _split(settings: Settings, partition: int, data: DataSet, train: IntArray, test: IntArray | None) -> ClientPart:
    """Split test samples off where the set has none, then validation samples; then replace labels."""
    split, y = settings.split, data.y_train
    x_test, y_test = data.x_test, data.y_test
    if x_test is None or y_test is None or test is None:
        x_test, y_test = data.x_train, y
        kept, apart = stratified(y[train], split.test_fraction, _stream(settings, _SPLIT_TEST, partition))
        train, test = train[kept], train[apart]
    kept, apart = stratified(y[train], split.validation_fraction, _stream(settings, _SPLIT_VALIDATION, partition))
    validation, train = train[apart], train[kept]
    given = with_noise(y[train], settings.noise, data.num_classes, _stream(settings, _NOISE, partition))
    return ClientPart(data, train, validation, given, x_test, y_test, test)


def _stream(settings: Settings, stream: int, partition: int) -> Generator:
    return np.random.default_rng((settings.seed, stream, partition))


def check_features(part: ClientPart) -> None:
    """Read the features of a client, and refuse what `load_client` would; images and tokens are left alone.

    Raises
    ------
    DataError
        If some are not finite.
    """
    data = part.data
    for x, samples in ((data.x_train, part.train), (data.x_train, part.validation), (part.x_test, part.test)):
        if np.issubdtype(x.dtype, np.floating):
            _take(x, samples, data.name)


def _take(x: Array, samples: IntArray, name: str) -> Array:
    taken: Array = np.asarray(x)[samples]
    if np.issubdtype(taken.dtype, np.floating) and not np.isfinite(taken).all():
        bad = samples[~np.isfinite(taken.reshape(len(taken), -1)).all(axis=1)]
        raise DataError(
            f"data: {name}: {len(bad)} of {len(samples)} samples hold NaN or infinite features, first number {bad[0]}; "
            "fill or drop them"
        )
    return taken
