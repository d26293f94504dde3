"""Models as flat vectors: their line along a step, and modules flattened and back, parameters apart from buffers.

What is trained and the persistent buffers travel. The rest, frozen, stays where it was built. A vector holds reals
alone: a complex parameter is pairs of them, real and imaginary part.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dqnfed_flwr.errors import ShapeError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from dqnfed_flwr.types import Vector


def line_point(theta_hat: Tensor, step: Tensor, factor_hat: float, factor: float) -> Tensor:
    """The model theta^{t-1} - `factor` * step, seen from the candidate theta_hat = theta^{t-1} - `factor_hat` * step.

    Server and client call this one function, so that both speak of the same model to the last bit. All vectors are [D],
    of the same dtype and device. The result is `theta_hat` itself when both factors are equal, else a new vector.
    """
    if factor == factor_hat:
        return theta_hat
    return (step * (factor_hat - factor)).add_(theta_hat)  # one new vector, not two


def digest(vector: NDArray[np.floating]) -> int:
    """64 bits that tell a vector [D] from any other, its dtype included."""
    hashed = hashlib.blake2b(vector.dtype.str.encode(), digest_size=8)
    hashed.update(vector.data)
    return int.from_bytes(hashed.digest(), "little")


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
        Trainable parameters in the order of `module.named_parameters()`, complex ones first, so that each begins at an
        even place; frozen and shared ones are left out.
    shapes : tuple[tuple[int, ...], ...]
        Their shapes.
    buffers : tuple[str, ...]
        Persistent buffers that NumPy can hold, in the order of `state_dict()`; see `left_behind`.
    pairs : frozenset[str]
        The names of complex parameters, each value of which is two reals.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    buffers: tuple[str, ...]
    pairs: frozenset[str] = frozenset()

    @classmethod
    def of(cls, module: nn.Module) -> ParamSpec:
        """Read the spec of `module`; `ShapeError` if it has no trainable parameter, or none with a value."""
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not any(p.numel() for _, p in named):
            raise ShapeError(f"model: {type(module).__name__} has no trainable parameter; {_remedy(module)}")
        named.sort(key=lambda one: not one[1].is_complex())
        return cls(
            names=tuple(name for name, _ in named),
            shapes=tuple(tuple(p.shape) for _, p in named),
            buffers=_travelling(module, module.state_dict(keep_vars=True)),
            pairs=frozenset(name for name, p in named if p.is_complex()),
        )

    @property
    def real_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes in reals: [..., 2] for a complex parameter [...]."""
        known = zip(self.names, self.shapes, strict=True)
        return tuple((*shape, 2) if name in self.pairs else shape for name, shape in known)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of reals of each parameter."""
        return tuple(math.prod(shape) for shape in self.real_shapes)

    @property
    def layers(self) -> tuple[slice, ...]:
        """Columns of each layer: the parameters of one module, weight and bias together, in the order of `names`."""
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

        Empty [0, 0] where the last layer is no matrix with at most a bias, or the model has complex parameters.
        """
        import numpy as np

        if self.pairs:
            return np.empty((0, 0), np.int64)
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
        """D, the number of trainable reals."""
        return sum(self.sizes)

    def flatten(self, module: nn.Module) -> Tensor:
        """Copy the trainable parameters of `module` into one vector [D] of their common dtype."""
        import torch

        parameters = dict(module.named_parameters())
        return torch.cat([in_reals(parameters[name].detach()).reshape(-1) for name in self.names])

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Views of `vector` in the shapes of the parameters, by name; `ShapeError` if it has not D values.

        Complex ones are complex; they are views of a copy where the vector begins at an odd place of its memory.
        """
        import torch

        if tuple(vector.shape) != (self.dim,):
            raise ShapeError(f"the vector has shape {tuple(vector.shape)}; this model needs ({self.dim},)")
        if self.pairs and vector.storage_offset() % 2:
            vector = vector.clone()
        parts = torch.split(vector, list(self.sizes))
        views = (part.view(shape) for part, shape in zip(parts, self.real_shapes, strict=True))
        known = zip(self.names, views, strict=True)
        return {name: torch.view_as_complex(view) if name in self.pairs else view for name, view in known}

    def unflatten(self, vector: Tensor, module: nn.Module) -> None:
        """Write `vector` [D] into the trainable parameters of `module`; bit for bit what `flatten` gave."""
        import torch

        parameters = dict(module.named_parameters())
        with torch.no_grad():
            for name, part in self.split(vector).items():
                parameters[name].copy_(part)

    def read_buffers(self, module: nn.Module) -> dict[str, Tensor]:
        """Copies of the buffers that travel, by name."""
        held = dict(module.named_buffers(remove_duplicate=False)) if self.buffers else {}
        return {name: held[name].detach().clone() for name in self.buffers}

    def write_buffers(self, buffers: Mapping[str, torch.Tensor], module: nn.Module) -> None:
        """Write `buffers` into `module`, cast to the dtype of each; `ShapeError` if names or shapes differ.

        Complex values are not written into a real buffer, which would lose their imaginary parts: `ShapeError`.
        """
        if set(buffers) != set(self.buffers):
            raise ShapeError(f"buffers {sorted(buffers)} were sent; this model has {sorted(self.buffers)}")
        held = dict(module.named_buffers(remove_duplicate=False)) if buffers else {}
        for name, value in buffers.items():
            if tuple(value.shape) != tuple(held[name].shape):
                raise ShapeError(f"buffer {name!r} has shape {tuple(value.shape)}; need {tuple(held[name].shape)}")
            if value.is_complex() and not held[name].is_complex():
                raise ShapeError(f"buffer {name!r} is {value.dtype}; need real values, {held[name].dtype}")
            held[name].detach().copy_(value)


def in_reals(tensor: Tensor) -> Tensor:
    """A complex tensor [...] as its reals [..., 2], real and imaginary part; a real one as it is."""
    import torch

    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def count_reals(module: nn.Module) -> int:
    """Reals of all parameters of a module: a complex value counts two."""
    return sum(parameter.numel() * (2 if parameter.is_complex() else 1) for parameter in module.parameters())


def left_behind(module: nn.Module) -> tuple[str, ...]:
    """Entries of `state_dict` that no message and no file of a model can hold: they stay where they were built.

    These are extra states of layers, packed weights of quantised ones, frozen parameters that are sparse or quantised,
    and buffers that NumPy has no dtype or layout for.
    """
    import torch

    state = module.state_dict(keep_vars=True)
    named = module.named_parameters(remove_duplicate=False)
    held = {name for name, p in named if p.layout is torch.strided and not p.is_quantized}
    held |= set(_travelling(module, state))
    return tuple(name for name in state if name not in held)


def _travelling(module: nn.Module, state: Mapping[str, object]) -> tuple[str, ...]:
    """Names of the buffers that travel, in the order of the module's `state_dict`."""
    buffers = dict(module.named_buffers(remove_duplicate=False))
    return tuple(name for name in state if name in buffers and _numpy_holds(buffers[name]))


def _numpy_holds(tensor: Tensor) -> bool:
    """Whether NumPy has the dtype and the layout of a tensor: not bfloat16, float8, quantised or sparse ones."""
    import torch

    if tensor.layout is not torch.strided or hasattr(tensor, "__tensor_flatten__"):
        return False
    try:
        torch.empty(0, dtype=tensor.dtype).numpy()
    except (TypeError, RuntimeError):
        return False
    return True


NOTHING_FROZEN = "none"
"""The fingerprint of a model that travels whole."""
EXTRA_STATE = "_extra_state"
"""How torch ends the name of what `get_extra_state` of a layer gives."""


def frozen_fingerprint(module: nn.Module) -> str:
    """The SHA-256 of all that stays: names, shapes, dtypes and bytes of frozen parameters, buffers and packed weights.

    Buffers are those that do not travel. What a layer gives as its extra state has no part in it: it may follow from
    what is trained. `NOTHING_FROZEN` where nothing stays. Two modules of one fingerprint and one flat vector are the
    same model.
    """
    state = module.state_dict(keep_vars=True)
    travelling = set(_travelling(module, state))
    staying: list[tuple[str, object]] = [(name, p) for name, p in module.named_parameters() if not p.requires_grad]
    staying += [(name, buffer) for name, buffer in module.named_buffers() if name not in travelling]
    known = {name for name, _ in (*module.named_parameters(remove_duplicate=False), *module.named_buffers())}
    known |= travelling
    staying += [(name, it) for name, it in state.items() if name not in known and not name.endswith(EXTRA_STATE)]
    if not staying:
        return NOTHING_FROZEN
    digest = hashlib.sha256()
    for name, value in staying:
        for piece in _pieces(name, value):
            digest.update(piece)
    return digest.hexdigest()


def _pieces(name: str, value: object) -> Iterator[bytes]:
    """What identifies a value of a module: of a tensor its form and bytes; of an object that cannot be read its name.

    A quantised tensor is read as the floats that it stands for.
    """
    import torch

    if isinstance(value, torch.Tensor):
        yield f"{name} {tuple(value.shape)} {value.dtype}\n".encode()
        for tensor in _plain(value.detach()):
            yield _bytes(tensor)
    elif isinstance(value, list | tuple):
        for place, part in enumerate(value):
            yield from _pieces(f"{name}/{place}", part)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _pieces(f"{name}/{key}", part)
    else:
        plain = value is None or isinstance(value, bool | int | float | complex | str | bytes | torch.dtype)
        yield f"{name} {value!r}\n".encode() if plain else f"{name}\n".encode()


def _plain(tensor: Tensor) -> Iterator[Tensor]:
    """The strided tensors that a tensor of any layout consists of."""
    import torch

    if hasattr(tensor, "__tensor_flatten__"):
        for part in tensor.__tensor_flatten__()[0]:
            yield from _plain(getattr(tensor, part))
    elif tensor.is_quantized:
        yield tensor.dequantize()
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor.coalesce().indices(), tensor.coalesce().values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    else:
        yield tensor


def _bytes(tensor: Tensor) -> bytes:
    """The bytes of a strided tensor of any dtype; NumPy has no bfloat16."""
    import torch

    plain = tensor.cpu().resolve_conj().resolve_neg().contiguous()
    raw: bytes = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    return raw


def _remedy(module: nn.Module) -> str:
    """What to do about a module without a trainable parameter; one of `peft` calls its adapters `peft_config`."""
    if any(hasattr(part, "peft_config") for part in module.modules()):
        return "it is a peft model: make its adapter with inference_mode=False, or load it with is_trainable=True"
    return "set requires_grad on at least one"
