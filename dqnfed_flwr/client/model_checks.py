"""Whether a model, which may be the user's own, computes what a client needs of it, and what is worth knowing of it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.utils.spectral_norm import SpectralNorm

from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.loss_checks import not_taken
from dqnfed_flwr.client.samples import HeldSamples, Samples
from dqnfed_flwr.errors import DataError, ModelError
from dqnfed_flwr.models.making import other_dtypes
from dqnfed_flwr.params import left_behind
from dqnfed_flwr.randomness import seeded
from dqnfed_flwr.tasks._base import Task
from dqnfed_flwr.tasks.arrays import ArrayTask
from dqnfed_flwr.tasks.batches import Batch, mapped, same

_TRIED = 8
"""Samples on which a model is asked twice."""
ENDS = {
    nn.Softmax: "the loss takes a softmax once more, which flattens its gradients; return the layer's input",
    nn.Sigmoid: "the loss takes a softmax of values within (0, 1), which flattens its gradients; return its input",
    nn.LogSoftmax: "the loss takes one itself, and the second changes nothing; it can be left out",
}
"""Layers that a model of logits does not end in, and what follows from each."""
SAMPLES = 4
NAMED = 4
"""Entries of `state_dict` that a line names."""
CLOSE = 1e-4
"""How near to one the outputs of a softmax sum up."""


def check_fit(model: FlatModel, samples: Samples, task: ArrayTask, outputs: int) -> None:
    """Pass one sample through the model, the least and the greatest token, and where it may draw a few samples, twice.

    There is at least one sample; `outputs` is the number of outputs it must give, 0 for any. `DataError` if the model
    raises anything, `ModelError` if it gives something else, or gives something else the second time.
    """
    inputs, targets = _looked_at(samples)
    found = _answer_alone(model, inputs)
    wanted = task.output_shape(targets[0], outputs)
    shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    if not isinstance(found, Tensor) or found.ndim != 1 + len(wanted) or (outputs and found.shape[1:] != wanted):
        sides = ", ".join(str(side) if side else "outputs" for side in (1, *wanted))
        raise ModelError(
            f"model: {_described(model, inputs)} gave {shape}; need {task.meant}, [{sides}]: build the last layer for "
            "num_classes outputs"
        )
    check_tokens(model, inputs)
    if model.draws and not _repeats(model, inputs[:_TRIED]):
        raise ModelError(
            f"model: {type(model.module).__name__} gives the same samples other logits each time, though it was set to "
            "evaluate: its loss is no function of the model. Use nn.Dropout, or dropout(x, training=self.training)"
        )


def check_figures(model: FlatModel, samples: Samples, task: Task) -> None:
    """Have the task count its figures on a few of these samples, or on all where so few do not suffice.

    `ConfigError` or `DataError` if metrics or predictions raise, or give no number.
    """
    few = samples.select(torch.arange(min(_TRIED, len(samples))))
    with torch.no_grad():
        try:
            task.evaluate(model.module, few.chunks(_TRIED), len(few))
        except DataError:  # such as a curve, which needs both classes
            chunks = ((mapped(batch, Tensor.clone), count) for batch, count in samples.chunks(_TRIED))
            task.evaluate(model.module, chunks, len(samples))


def _looked_at(samples: Samples) -> Batch:
    """All samples where they are held, else a few."""
    return samples.first(len(samples) if isinstance(samples, HeldSamples) else _TRIED)[0]


def check_held_out_tokens(model: FlatModel, samples: Samples) -> None:
    """`check_tokens` of samples that are not trained on; of those that are not held, a few."""
    if len(samples):
        check_tokens(model, _looked_at(samples)[0])


def check_tokens(model: FlatModel, inputs: Tensor) -> None:
    """Pass the samples with the least and the greatest token [n, ...] through the model; features are left alone.

    `DataError` if it raises anything: layers of embeddings may have no row for them.
    """
    if len(inputs) and not inputs.is_floating_point():
        _answer(model, _extreme(inputs), 0)


def _answer_alone(model: FlatModel, inputs: Tensor) -> object:
    """What the model gives for the first sample, which needs no others."""
    try:
        return _answer(model, inputs[:1], 0)
    except DataError as error:
        try:
            _answer(model, inputs[:2], 0)
        except DataError:
            raise error from error.__cause__
        raise DataError(
            f"{error}; two samples pass: a sample's outputs must depend on that sample alone, so take no statistics of "
            "the batch (GroupNorm in place of BatchNorm without running statistics)"
        ) from error.__cause__


def _answer(model: FlatModel, inputs: Tensor, seed: int) -> object:
    """What the model gives; one that changes its inputs is given copies from now on."""
    given = inputs.clone()
    try:
        with seeded(seed) if model.draws else nullcontext(), torch.no_grad():
            answer: object = model.module(given)
    except Exception as cause:  # whatever layers of the user's own do
        whole = "" if inputs.is_floating_point() else f"; whole numbers count as tokens, here {_range(inputs)}"
        raise DataError(f"model: {type(model.module).__name__} {not_taken(cause, inputs)}{whole}") from cause
    if given._version or not same(given, inputs):
        model.copy_inputs()
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


def model_notes(module: nn.Module, inputs: Tensor, *, gradients: bool, passes: bool) -> list[str]:
    """Look at a model, the module and what it answers to some `inputs` [n, ...]; one line each, most often none.

    `gradients` and `passes` say whether clients compute gradients of it, and whether they train it by local SGD. The
    module is left in evaluation mode. One that raises has no note: a client says what is wrong.
    """
    notes = [
        _end(module, inputs),
        _dropout(module, gradients=gradients),
        _batch_norm(module, gradients, passes),
        _statistics(module, inputs) if gradients else "",
    ]
    return [note for note in notes if note]


def dtype_notes(module: nn.Module, dtype: torch.dtype) -> list[str]:
    """One line where `making.as_dtype` casts tensors of a module, as its author made it, that are no torch defaults."""
    counted = ", ".join(f"{number} of {name}" for name, number in other_dtypes(module, dtype).items())
    wanted = str(dtype).removeprefix("torch.")
    return [f"has tensors of another width ({counted}): they are cast to that of dtype {wanted}"] if counted else []


def left_behind_notes(module: nn.Module) -> list[str]:
    """One line where `state_dict` holds what no message carries."""
    names = left_behind(module)
    some = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    words = "is neither parameters nor buffers that NumPy can hold: it stays on each client, as the model is built"
    return [f"has more in its state_dict ({some}), which {words}"] if names else []


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


def _statistics(module: nn.Module, inputs: Tensor) -> str:
    """Other buffers that a training pass changes, such as those of torch's older `spectral_norm`."""
    known = {id(buffer) for layer in module.modules() if isinstance(layer, _BatchNorm) for buffer in layer.buffers()}
    kept = {name: (buffer, buffer.clone()) for name, buffer in module.named_buffers() if id(buffer) not in known}
    everything = [(buffer, buffer.clone()) for buffer in module.buffers()]
    module.train()
    try:
        with seeded(0), torch.no_grad():
            module(inputs)
    except Exception:  # as in `_sums_to_one`
        return ""
    finally:
        module.eval()
        found = [name for name, (buffer, before) in kept.items() if not torch.equal(buffer, before)]
        for buffer, before in everything:
            buffer.copy_(before)
    if not found:
        return ""
    old = any(
        isinstance(hook, SpectralNorm) for layer in module.modules() for hook in layer._forward_pre_hooks.values()
    )
    remedy = (
        "take torch.nn.utils.parametrizations.spectral_norm" if old else "outputs should depend on parameters alone"
    )
    return (
        f"has buffers that only training passes update ({', '.join(found)}): gradients take them as they are, and "
        f"never update them; {remedy}"
    )


def _names(layers: Iterable[nn.Module]) -> str:
    return ", ".join(sorted({type(layer).__name__ for layer in layers}))
