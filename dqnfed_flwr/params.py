"""Models as flat vectors: their line along a step, and modules flattened and back, parameters apart from buffers.

What is trained and the persistent buffers travel. The rest, frozen, stays where it was built.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dqnfed_flwr.errors import ShapeError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor, nn

    Vector = NDArray[np.floating] | Tensor


def line_point(theta_hat: Tensor, step: Tensor, factor_hat: float, factor: float) -> Tensor:
    """The model theta^{t-1} - `factor` * step, seen from the candidate theta_hat = theta^{t-1} - `factor_hat` * step.

    Server and client call this one function, so that both speak of the same model to the last bit. All vectors are [D],
    of the same dtype and device. The result is `theta_hat` itself when both factors are equal, else a new vector.
    """
    if factor == factor_hat:
        return theta_hat
    return (step * (factor_hat - factor)).add_(theta_hat)  # one new vector, not two


class Line:
    """theta^{t-1} - a * step through the candidate `theta`; the step is read when it is first needed.

    Attributes
    ----------
    theta : Tensor
        The candidate [D].
    known : bool
        Whether a step was sent that leads there.
    """

    def __init__(self, theta: Tensor, step: Vector | None, factor: float, read: Callable[[Vector], Tensor]) -> None:
        self.theta = theta
        self.known = step is not None and factor > 0
        self._factor = factor
        self._sent = step
        self._read = read
        self._step: Tensor | None = None

    @property
    def step(self) -> Tensor:
        """The step [D]; `ShapeError` if none was sent."""
        if self._sent is None:
            raise ShapeError("the task needs the line through the model, but no step was sent; send it with the model")
        if self._step is None:
            self._step = self._read(self._sent)
        return self._step

    def at(self, factor: float) -> Tensor:
        """The model theta^{t-1} - `factor` * step [D]; `ShapeError` if it is not the candidate and no step was sent."""
        return self.theta if factor == self._factor else line_point(self.theta, self.step, self._factor, factor)


@dataclass(frozen=True)
class ParamSpec:
    """Order, names and shapes of a module's trainable parameters, and the names of its buffers.

    Attributes
    ----------
    names : tuple[str, ...]
        Trainable parameters in the order of `module.named_parameters()`; frozen and shared ones are left out.
    shapes : tuple[tuple[int, ...], ...]
        Their shapes.
    buffers : tuple[str, ...]
        Persistent buffers: what `state_dict()` holds without parameters.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    buffers: tuple[str, ...]

    @classmethod
    def of(cls, module: nn.Module) -> ParamSpec:
        """Read the spec of `module`; `ShapeError` if it has no trainable parameter."""
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not named:
            raise ShapeError(f"model: {type(module).__name__} has no trainable parameter; {_remedy(module)}")
        parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
        return cls(
            names=tuple(name for name, _ in named),
            shapes=tuple(tuple(p.shape) for _, p in named),
            buffers=tuple(name for name in module.state_dict() if name not in parameters),
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of values of each parameter."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def layers(self) -> tuple[slice, ...]:
        """Columns of each layer: the parameters of one module, weight and bias together, in the model's order."""
        found: list[tuple[str, slice]] = []
        start = 0
        for name, size in zip(self.names, self.sizes, strict=True):
            module = name.rpartition(".")[0]
            if found and found[-1][0] == module:
                found[-1] = (module, slice(found[-1][1].start, start + size))
            else:
                found.append((module, slice(start, start + size)))
            start += size
        return tuple(columns for _, columns in found)

    @property
    def head(self) -> NDArray[np.int64]:
        """Columns of the last layer by output class, int64 [C, m]: the weights of a class, then its bias.

        Empty [0, 0] where the last layer is no matrix with at most a bias.
        """
        import numpy as np

        module = self.names[-1].rpartition(".")[0]
        shapes = [s for name, s in zip(self.names, self.shapes, strict=True) if name.rpartition(".")[0] == module]
        if len(shapes[0]) != 2 or shapes[1:] not in ([], [shapes[0][:1]]):
            return np.empty((0, 0), np.int64)
        classes, width = shapes[0]
        columns = np.arange(self.layers[-1].start, self.dim)
        weights, bias = np.split(columns, [classes * width])
        return np.hstack([weights.reshape(classes, width), bias.reshape(classes, -1)])

    @property
    def dim(self) -> int:
        """D, the number of trainable values."""
        return sum(self.sizes)

    def flatten(self, module: nn.Module) -> Tensor:
        """Copy the trainable parameters of `module` into one vector [D] of their common dtype."""
        import torch

        parameters = dict(module.named_parameters())
        return torch.cat([parameters[name].detach().reshape(-1) for name in self.names])

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Views of `vector` in the shapes of the parameters, by name; `ShapeError` if it has not D values."""
        import torch

        if tuple(vector.shape) != (self.dim,):
            raise ShapeError(f"the vector has shape {tuple(vector.shape)}; this model needs ({self.dim},)")
        parts = torch.split(vector, list(self.sizes))
        return {name: part.view(shape) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)}

    def unflatten(self, vector: Tensor, module: nn.Module) -> None:
        """Write `vector` [D] into the trainable parameters of `module`; bit for bit what `flatten` gave."""
        import torch

        parameters = dict(module.named_parameters())
        with torch.no_grad():
            for name, part in self.split(vector).items():
                parameters[name].copy_(part)

    def read_buffers(self, module: nn.Module) -> dict[str, Tensor]:
        """Copies of the persistent buffers, by name."""
        state = module.state_dict() if self.buffers else {}
        return {name: state[name].detach().clone() for name in self.buffers}

    def write_buffers(self, buffers: Mapping[str, torch.Tensor], module: nn.Module) -> None:
        """Write `buffers` into `module`, cast to the dtype of each; `ShapeError` if names or shapes differ."""
        if set(buffers) != set(self.buffers):
            raise ShapeError(f"buffers {sorted(buffers)} were sent; this model has {sorted(self.buffers)}")
        state = module.state_dict() if buffers else {}
        for name, value in buffers.items():
            if tuple(value.shape) != tuple(state[name].shape):
                raise ShapeError(f"buffer {name!r} has shape {tuple(value.shape)}; need {tuple(state[name].shape)}")
            state[name].copy_(value)


NOTHING_FROZEN = "none"
"""The fingerprint of a model that travels whole."""


def frozen_fingerprint(module: nn.Module) -> str:
    """The SHA-256 of all that stays: names, shapes, dtypes and bytes of frozen parameters and non-persistent buffers.

    `NOTHING_FROZEN` where there is neither. Two modules of one fingerprint and one flat vector are the same model.
    """
    kept = module.state_dict(keep_vars=True)
    staying: list[tuple[str, Tensor]] = [(name, p) for name, p in module.named_parameters() if not p.requires_grad]
    staying += [(name, buffer) for name, buffer in module.named_buffers() if name not in kept]
    if not staying:
        return NOTHING_FROZEN
    digest = hashlib.sha256()
    for name, tensor in staying:
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(_bytes(tensor.detach()))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> bytes:
    """The bytes of a tensor of any dtype; NumPy has no bfloat16."""
    import torch

    raw: bytes = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return raw


def _remedy(module: nn.Module) -> str:
    """What to do about a module without a trainable parameter; one of `peft` calls its adapters `peft_config`."""
    if any(hasattr(part, "peft_config") for part in module.modules()):
        return "it is a peft model: make its adapter with inference_mode=False, or load it with is_trainable=True"
    return "set requires_grad on at least one"
