"""Models by name, the same for one seed everywhere.

Importing this package does not import torch; `build_model` does.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from dqnfed_flwr.data.user import call_function
from dqnfed_flwr.errors import ModelError
from dqnfed_flwr.randomness import seeded

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import nn

MODELS = ("logistic", "mlp", "cnn", "resnet18-gn", "char-lstm", "char-lstm-small")
"""By the names of the functions in `architectures`."""


def build_model(
    name: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    seed: int,
    dtype: torch.dtype | None = None,
    least_outputs: int = 2,
) -> nn.Module:
    """Build a model with initial values that depend on `seed` alone.

    The global random state of torch is left as it was. Values are drawn in torch's default dtype and then cast, so
    that a float64 model starts where the float32 one does.

    Parameters
    ----------
    name : str
        One of `MODELS`, or `module:function`, called as function(input_shape, num_classes) for an `nn.Module`.
    input_shape : tuple[int, ...]
        Of one sample as the model sees it: (channels, height, width) for images, (length,) for tokens.
    num_classes : int
        Width of the output.
    seed : int
        Of the initial values, at least 0.
    dtype : torch.dtype | None
        Of the floating-point parameters and buffers, see `making.as_dtype`; None leaves them as they were made.
    least_outputs : int
        The fewest that make sense: 2 for a classifier.

    Returns
    -------
    nn.Module
        On the CPU, in training mode: a batch [N, *input_shape] to logits [N, num_classes].

    Raises
    ------
    ModelError
        If the name is unknown, the model does not fit the shape of the data, or its parameters cannot be trained.
    """
    import torch

    from dqnfed_flwr.models.making import as_dtype, check_parameters

    if num_classes < least_outputs:
        raise ModelError(f"model: found {num_classes} classes; at least {least_outputs} are needed; set num-classes")
    check_name(name)
    with seeded(seed), torch.device("cpu"):
        model = _builder(name)(tuple(input_shape), num_classes)
    if not isinstance(model, torch.nn.Module):
        raise ModelError(f"model: {name} returned {type(model).__name__}; it must return a torch.nn.Module")
    check_parameters(model, f"model: {name}")
    return as_dtype(model, dtype)


def check_name(name: str) -> None:
    """Raise ModelError if `model` cannot be `name`; a function of the user's is not looked for."""
    if name not in MODELS and ":" not in name:
        raise ModelError(f"model: unknown name {name!r}; allowed: {', '.join(MODELS)}, or module:function")


def _builder(name: str) -> Callable[..., object]:
    if name not in MODELS:
        return partial(call_function, name, "model", ModelError)
    builder: Callable[..., object] = getattr(import_module(f"{__name__}.architectures"), name.replace("-", "_"))
    return builder
