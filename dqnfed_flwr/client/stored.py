"""A client's arrays left where they are stored, such as a memory-mapped file: samples are read batch by batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dqnfed_flwr.data.client_part import ClientPart
from dqnfed_flwr.data.clients import Part, power_of_ten, take
from dqnfed_flwr.data.dataset import Array, IntArray, sample_kind, sample_shape, to_model_input
from dqnfed_flwr.data.targets import TargetForm, used_targets

_LOOKED_AT = 256
"""Training samples that say how large features are."""
_AT_A_TIME = 4096
_PIECE_BYTES = 1 << 24


@dataclass(frozen=True)
class StoredPart:
    """A map-style data set of samples as the model takes them: inputs and targets, the bits of `to_model_input`.

    Attributes
    ----------
    x, y : Array, Array
        Inputs and targets as they are stored.
    samples, targets : IntArray, IntArray
        Where this part's samples lie in `x` [n], and in `y` [n].
    form : TargetForm
        Of `y`.
    dtype : torch.dtype
        Of inputs that are no tokens, and of targets that are no classes.
    name : str
        Of the set, for errors.
    """

    x: Array
    y: Array
    samples: IntArray
    targets: IntArray
    form: TargetForm
    dtype: torch.dtype
    name: str

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        inputs, targets = self.__getitems__([row])
        return inputs[0], targets[0]

    def __getitems__(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """A batch; `DataError` where features are not finite."""
        inputs = to_model_input(take(self.x, self.samples[rows], self.name), self.dtype)
        return inputs, torch.tensor(self._targets(rows), dtype=target_dtype(self.form, self.dtype))

    @property
    def nbytes(self) -> int:
        """Bytes of all samples as the model takes them."""
        return sum(tensor.nbytes for tensor in self.__getitems__([0])) * len(self) if len(self) else 0

    def input_pieces(self) -> Iterator[Array]:
        """All inputs as they are stored, some at a time; at least one piece. `DataError` as for a batch."""
        one = max(1, self.x.nbytes // max(1, len(self.x)))
        step = max(1, min(_AT_A_TIME, _PIECE_BYTES // one))
        for start in range(0, max(1, len(self)), step):
            yield take(self.x, self.samples[start : start + step], self.name)

    def target_pieces(self) -> Iterator[Array]:
        """All targets, a few thousand at a time; at least one piece."""
        for start in range(0, max(1, len(self)), _AT_A_TIME):
            yield self._targets(range(start, min(start + _AT_A_TIME, len(self))))

    def _targets(self, rows: Sequence[int]) -> Array:
        return used_targets(np.asarray(self.y)[self.targets[rows]], self.form)


@dataclass(frozen=True)
class StoredData:
    """A client's samples where they are stored; in memory are their numbers, and class labels."""

    part: ClientPart

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample as the model sees it, channels first for images."""
        return sample_shape(self.part.data.x_train)

    @property
    def input_kind(self) -> str:
        """`images`, `features` or `tokens`."""
        return sample_kind(self.part.data.x_train)

    @property
    def num_classes(self) -> int:
        """Of the whole set, as far as the data or the settings say."""
        return self.part.data.num_classes

    @property
    def feature_scale(self) -> float:
        """As `ClientData.feature_scale`, by some of the training samples."""
        x, train = self.part.data.x_train, self.part.train
        if self.input_kind != "features":
            return 0.0
        seen = train[:: math.ceil(len(train) / _LOOKED_AT)]
        return power_of_ten(max(float(np.abs(x[sample], dtype=np.float64).max(initial=0.0)) for sample in seen))

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        part = self.part
        held = (part.train, part.validation, part.test, part.noisy)
        return sum(array.nbytes for array in held if array is not None)

    def count(self, part: Part) -> int:
        """Samples of a part."""
        return len({"train": self.part.train, "validation": self.part.validation, "test": self.part.test}[part])

    def of(self, part: Part, dtype: torch.dtype) -> StoredPart:
        """The data set of a part, in the model's dtype."""
        data, found = self.part.data, self.part
        if part == "test":
            x, y, samples = found.x_test, found.y_test, found.test
        else:
            x, y, samples = data.x_train, data.y_train, found.train if part == "train" else found.validation
        targets = samples
        if part == "train" and found.noisy is not None:
            y, targets = found.noisy, np.arange(len(samples))
        return StoredPart(x, y, samples, targets, data.targets, dtype, data.name)


def target_dtype(form: TargetForm, dtype: torch.dtype) -> torch.dtype:
    """Of targets as a model of `dtype` is compared with them."""
    return torch.int64 if form in ("classes", "places") else dtype
