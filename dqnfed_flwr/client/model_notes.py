"""What is worth knowing of a user's model before it is trained: a softmax at its end, dropout, BatchNorm."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from dqnfed_flwr.randomness import seeded

ENDS = {
    nn.Softmax: "the loss takes a softmax once more, which flattens its gradients; return the layer's input",
    nn.Sigmoid: "the loss takes a softmax of values within (0, 1), which flattens its gradients; return its input",
    nn.LogSoftmax: "the loss takes one itself, and the second changes nothing; it can be left out",
}
"""Layers that a model of logits does not end in, and what follows from each."""
SAMPLES = 4
CLOSE = 1e-4
"""How near to one the outputs of a softmax sum up."""


def model_notes(module: nn.Module, inputs: Tensor, *, gradients: bool, passes: bool) -> list[str]:
    """Look at a model, the module and what it answers to some `inputs` [n, ...]; one line each, most often none.

    `gradients` and `passes` say whether clients compute gradients of it, and whether they train it by local SGD. The
    module is left in evaluation mode. One that raises has no note: a client says what is wrong.
    """
    notes = [_end(module, inputs), _dropout(module, gradients=gradients), _batch_norm(module, gradients, passes)]
    return [note for note in notes if note]


def random_inputs(shape: tuple[int, ...], kind: str, dtype: torch.dtype) -> Tensor:
    """Some samples of a shape; tokens are all 0, for how many a model knows is not said."""
    if kind == "tokens":
        return torch.zeros((SAMPLES, *shape), dtype=torch.int64)
    with seeded(0):
        return torch.randn((SAMPLES, *shape)).to(dtype)


def _end(module: nn.Module, inputs: Tensor) -> str:
    last = _last(module)
    for kind, words in ENDS.items():
        if isinstance(last, kind):
            return f"ends in {kind.__name__}: {words}"
    return f"gives probabilities, which sum to 1: {ENDS[nn.Softmax]}" if _sums_to_one(module, inputs) else ""


def _last(module: nn.Module) -> nn.Module:
    """The last layer of a chain; of a model of another kind itself, for which layer comes last is not known."""
    while isinstance(module, nn.Sequential) and len(module):
        module = module[-1]
    return module


def _sums_to_one(module: nn.Module, inputs: Tensor) -> bool:
    """Whether all answers are probabilities; one class alone says nothing."""
    module.eval()
    try:
        with seeded(0), torch.no_grad():
            answer = module(inputs)
    except Exception:  # whatever layers of the user's own do; the clients' check names it
        return False
    if not isinstance(answer, Tensor) or answer.ndim != 2 or answer.shape[1] < 2 or not answer.is_floating_point():
        return False
    return bool((answer >= 0).all() and ((answer.sum(1) - 1).abs() < CLOSE).all())


def _dropout(module: nn.Module, *, gradients: bool) -> str:
    """Local SGD drops as everywhere; a gradient does not, which may surprise."""
    names = _names(layer for layer in module.modules() if _drops(layer))
    if not names or not gradients:
        return ""
    return f"has dropout ({names}): it is off where clients compute gradients and losses, so that these can be compared"


def _drops(layer: nn.Module) -> bool:
    rate = layer.p if isinstance(layer, _DropoutNd) else getattr(layer, "dropout", 0.0)
    return isinstance(rate, int | float) and rate > 0


def _batch_norm(module: nn.Module, gradients: bool, passes: bool) -> str:
    names = _names(layer for layer in module.modules() if isinstance(layer, _BatchNorm))
    if not names:
        return ""
    frozen = "gradients take its running statistics, which they never update" if gradients else ""
    trained = "local SGD takes those of its batches, and the server averages the running ones" if passes else ""
    return f"has BatchNorm ({names}): {' and '.join(filter(None, (frozen, trained)))}; GroupNorm needs none"


def _names(layers: Iterable[nn.Module]) -> str:
    return ", ".join(sorted({type(layer).__name__ for layer in layers}))
