"""Whether a model, which may be the user's own, computes what a client needs of it."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.errors import ModelError
from dqnfed_flwr.randomness import seeded

_TRIED = 8
"""Samples on which a model is asked twice."""


def check_fit(model: FlatModel, inputs: Tensor, outputs: int) -> None:
    """Pass one sample through the model, the least and the greatest token, and where it may draw a few samples, twice.

    `inputs` are [n, ...], n at least 1; `outputs` is the number of logits it must give, 0 for any. `ModelError` if the
    model raises anything, gives something else, or gives something else the second time.
    """
    logits = _answer(model, inputs[:1], 0)
    shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if not isinstance(logits, Tensor) or logits.ndim != 2 or (outputs and logits.shape[1] != outputs):
        raise ModelError(
            f"model: {_described(model, inputs)} gave {shape}; need one logit a class, "
            f"[1, {outputs or 'classes'}]: build the last layer for num_classes outputs"
        )
    check_tokens(model, inputs)
    if model.draws and not _repeats(model, inputs[:_TRIED]):
        raise ModelError(
            f"model: {type(model.module).__name__} gives the same samples other logits each time, though it was set to "
            "evaluate: its loss is no function of the model. Use nn.Dropout, or dropout(x, training=self.training)"
        )


def check_tokens(model: FlatModel, inputs: Tensor) -> None:
    """Pass the samples with the least and the greatest token [n, ...] through the model; features are left alone.

    `ModelError` if it raises anything: layers of embeddings may have no row for them.
    """
    if len(inputs) and not inputs.is_floating_point():
        _answer(model, _extreme(inputs), 0)


def _answer(model: FlatModel, inputs: Tensor, seed: int) -> object:
    try:
        with seeded(seed) if model.draws else nullcontext(), torch.no_grad():
            answer: object = model.module(inputs.clone())
    except Exception as cause:  # whatever layers of the user's own do
        whole = "" if inputs.is_floating_point() else f"; whole numbers count as tokens, here {_range(inputs)}"
        words = " ".join(f"{type(cause).__name__}: {cause}".split())
        raise ModelError(f"model: {_described(model, inputs)} raised {words}{whole}") from cause
    return answer


def _repeats(model: FlatModel, inputs: Tensor) -> bool:
    """Whether other random numbers leave the logits as they are."""
    one, other = (torch.as_tensor(_answer(model, inputs, seed)) for seed in (0, 1))
    return torch.equal(one.nan_to_num(), other.nan_to_num())


def _extreme(tokens: Tensor) -> Tensor:
    """The samples that hold the least and the greatest token."""
    flat = tokens.reshape(len(tokens), -1)
    return tokens[torch.stack([flat.amin(1).argmin(), flat.amax(1).argmax()])]


def _range(tokens: Tensor) -> str:
    return f"{int(tokens.min())} to {int(tokens.max())}: store samples as float, or build the model for so many tokens"


def _described(model: FlatModel, inputs: Tensor) -> str:
    sample = f"shape {list(inputs.shape[1:])}, {str(inputs.dtype).removeprefix('torch.')}"
    return f"{type(model.module).__name__} on a sample of {sample}"
