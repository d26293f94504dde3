"""The model that a client keeps between messages, so that it need be sent no more than the steps."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr.client.memory import StateArrays
from dqnfed_flwr.errors import ShapeError, WireError
from dqnfed_flwr.params import digest, line_point
from dqnfed_flwr.types import FloatArray
from dqnfed_flwr.wire.codecs import KINDS, LOST_MODEL
from dqnfed_flwr.wire.rounding import Parts
from dqnfed_flwr.wire.task import Course, Leg

THETA = "theta"


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class SharedVector:
    """A vector [D] that is not written to any more, as tensor and as array, and what it was made of, kept with it."""

    values: Tensor
    array: FloatArray
    digest: int
    source: Parts | None = None

    @classmethod
    def of(cls, values: Tensor, source: Parts | None = None) -> SharedVector:
        """The vector of a tensor on the CPU."""
        array = values.numpy()
        return cls(values, array, 0 if source else digest(array), source)


_MODELS: WeakValueDictionary[int, SharedVector] = WeakValueDictionary()
"""By digest."""
_STEPS: WeakValueDictionary[tuple[int, ...], SharedVector] = WeakValueDictionary()
"""By the place of their parts, which are kept with them."""
_SHARING = threading.Lock()


class HeldModel:
    """The last model that a client was told of, and the last step from there, in `bits` a value.

    What follows from both is made once in a process for all clients that hold the same. A message that comes again, or
    that tells of steps which the client has taken already, changes nothing.
    """

    def __init__(self, bits: int) -> None:
        self._codec = KINDS["step"].codecs[bits]
        self._base: SharedVector | None = None
        self._candidate: SharedVector | None = None
        self._parts: Parts = {}
        self._step: SharedVector | None = None

    def follow(self, course: Course, pending: bool) -> tuple[FloatArray, FloatArray | None]:
        """The candidate [D] of a course, and the step [D] that leads there, where its last step is `pending`.

        Raises
        ------
        WireError
            With reason `lost-model` where the client has none of the models at which the steps begin, or comes out at
            another one than the server; what it held is then forgotten.
        """
        try:
            return self._follow(course, pending)
        except WireError:
            self._base = self._candidate = self._step = None
            self._parts = {}
            raise

    def _follow(self, course: Course, pending: bool) -> tuple[FloatArray, FloatArray | None]:
        legs, digests = course.legs[: len(course.legs) - pending], course.digests
        place, base = self._begin(course, digests[: len(legs) + 1])
        for leg, end in zip(legs[place:], digests[place + 1 :], strict=False):
            base, _ = self._along(base, leg, end)
        if base is not self._base:
            self._base, self._candidate = base, None
        candidate, self._step = self._along(base, course.legs[-1], digests[-1]) if pending else (base, None)
        self._candidate = candidate
        return candidate.array, None if self._step is None else self._step.array

    def _begin(self, course: Course, known: tuple[int, ...]) -> tuple[int, SharedVector]:
        """The last of the models with digests `known` that is at hand, and its place among them."""
        if course.theta is not None:
            return 0, _known(known[0]) or _shared(SharedVector.of(torch.tensor(course.theta)), known[0])
        held = {one.digest: one for one in (self._base, self._candidate) if one is not None}
        for place in reversed(range(len(known))):
            if known[place] in held:
                return place, held[known[place]]
        raise WireError(LOST_MODEL, "none of the models at which the steps begin is here")

    def _along(self, base: SharedVector, leg: Leg, end: int) -> tuple[SharedVector, SharedVector]:
        """The model with the digest `end` to which a leg leads, and its step."""
        self._parts = leg.parts or self._parts
        step = self._decoded(len(base.array), base.values.dtype)
        if found := _known(end):
            return found, step
        point, at = base.values, 0.0
        for factor in leg.path:
            point, at = line_point(point, step.values, at, factor), factor
        return _shared(SharedVector.of(point), end), step

    def _decoded(self, dim: int, dtype: torch.dtype) -> SharedVector:
        """The last step [D]."""
        key = (*map(id, self._parts.values()), dim)
        with _SHARING:
            found = _STEPS.get(key)
        if found is None:
            try:
                if not self._fits(dim):
                    raise WireError(LOST_MODEL, "the last step is not here, or is of another size")
                values = torch.from_numpy(self._codec.unpack(self._parts, (dim,))).to(dtype)
            except ShapeError as error:
                raise WireError(LOST_MODEL, f"the step cannot be read: {error}") from None
            found = SharedVector.of(values, self._parts)
            with _SHARING:
                found = _STEPS.setdefault(key, found)
        return found

    def _fits(self, dim: int) -> bool:
        """Whether there are the parts of a step [D]."""
        expected = self._codec.expected((dim,))
        return self._parts.keys() == expected.keys() and all(
            str(self._parts[end].dtype) in dtypes and sides in (None, self._parts[end].shape)
            for end, (sides, dtypes) in expected.items()
        )

    def export(self) -> StateArrays:
        """What the next message builds on, as named arrays; empty if there is nothing yet."""
        return {} if self._base is None else {THETA: self._base.array, **self._parts}

    def load(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        """Inverse of `export`."""
        self._base = self._candidate = self._step = None
        self._parts = {end: values for end, values in arrays.items() if end != THETA}
        if THETA in arrays:
            found = SharedVector.of(torch.tensor(arrays[THETA]))
            self._base = _shared(found, found.digest)


def _known(wanted: int) -> SharedVector | None:
    """The model of this digest, if a client of the process holds it."""
    with _SHARING:
        return _MODELS.get(wanted)


def _shared(made: SharedVector, expected: int) -> SharedVector:
    """The model that all clients of the process hold in place of `made`, whose digest must be as `expected`."""
    if made.digest != expected:
        raise WireError(LOST_MODEL, "the steps lead to another model than the server's")
    with _SHARING:
        return _MODELS.setdefault(made.digest, made)
