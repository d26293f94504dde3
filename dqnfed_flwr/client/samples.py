"""A client's samples on the device that it computes on, as tensors that its model takes."""

from __future__ import annotations

from typing import Any, Literal

import torch
from numpy.typing import NDArray

from dqnfed_flwr.client.gradients import Samples
from dqnfed_flwr.data import ClientData, to_model_input
from dqnfed_flwr.errors import DataError

Part = Literal["train", "validation", "test"]


class DeviceSamples:
    """The parts of a client's data on one device; each is moved there when it is first asked for, and kept.

    Labels must be below `num_classes`; `partition` names the client in errors.
    """

    def __init__(
        self, data: ClientData, partition: int, num_classes: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._arrays: dict[Part, tuple[NDArray[Any], NDArray[Any]]] = {
            "train": (data.x_train, data.y_train),
            "validation": (data.x_validation, data.y_validation),
            "test": (data.x_test, data.y_test),
        }
        self._partition, self._num_classes = partition, num_classes
        self._dtype, self._device = dtype, device
        self._held: dict[Part, Samples] = {}

    def part(self, name: Part) -> Samples:
        """Inputs [n, ...] and labels int64 [n] of a part, which may be empty.

        Raises
        ------
        DataError
            If a label does not fit the classes.
        """
        if name not in self._held:
            x, y = self._arrays[name]
            self._check(y)
            inputs = to_model_input(x, self._dtype).to(self._device)
            self._held[name] = inputs, torch.tensor(y, dtype=torch.int64, device=self._device)
        return self._held[name]

    def some(self, name: Part) -> Samples | None:
        """As `part`; None where it is empty."""
        return self.part(name) if len(self._arrays[name][1]) else None

    def _check(self, y: NDArray[Any]) -> None:
        if len(y) and not 0 <= y.min() <= y.max() < self._num_classes:
            raise DataError(
                f"labels from {y.min()} to {y.max()} in the data of client {self._partition}; {self._num_classes} "
                f"classes allow 0..{self._num_classes - 1}; set num-classes"
            )
