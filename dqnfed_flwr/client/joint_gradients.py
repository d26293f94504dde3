"""Losses and gradients of several clients at one model, from one pass over all their samples.

The samples go through the model one behind the other. Backwards, the pass stops at the outputs of the layers that own
parameters; with a layer's input and the gradient at its output, the gradient of a client's parameters is a product
over that client's samples alone, written straight to its place in the client's vector [D]. These products are left to
the moment when the client is asked for its gradient: only activations are held for all of them at the same time. A sum
may run in another order than for a client by itself, so the last bits may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from dqnfed_flwr.client.flat_model import FlatModel, dense_reals
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.errors import ModelError

AGREEMENT = 1e-3
"""Relative difference to a client's own gradient above which the model cannot be taken apart layer by layer."""

_convolution_weight: Callable[..., Tensor] = conv2d_weight
Parts = Mapping[str, Tensor]
"""Views of a client's gradient, by the name of the parameter in its layer."""


@dataclass(slots=True)
class _Seen:
    """What went through a layer."""

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)


class JointPass:
    """Passes of several clients through one model.

    The model is its own: between `run` and the last gradient no other vector may be placed. Every trainable parameter
    must belong to one layer, which is called once in a pass, with a batch of samples, and gives a batch back; else a
    `ModelError` is raised.
    """

    def __init__(self, model: FlatModel) -> None:
        self.model = model
        self._layers = _layers(model)

    def run(self, theta: Tensor, losses: Sequence[LocalLoss]) -> list[tuple[float, Callable[[], Tensor]]]:
        """Mean cross-entropy over the training part, and what makes its gradient [D], for each, at `theta` [D]."""
        self.model.place(theta)
        inputs, labels = (torch.cat(parts) for parts in zip(*(loss.tensors for loss in losses), strict=True))
        sizes = [loss.num_examples for loss in losses]
        with self._watched() as seen:
            logits = self.model.module(inputs)
        for layer, what in seen.items():
            _check(layer, what, len(labels))
        each = nn.functional.cross_entropy(logits.double(), labels, reduction="none")
        means = [part.sum() / size for part, size in zip(torch.split(each, sizes), sizes, strict=True)]
        outputs = [what.outputs[0] for what in seen.values()]
        slopes = torch.autograd.grad(torch.stack(means).sum(), outputs, allow_unused=True, materialize_grads=True)
        inputs_of = zip(*(torch.split(what.inputs[0].detach(), sizes) for what in seen.values()), strict=True)
        slopes_of = zip(*(torch.split(slope, sizes) for slope in slopes), strict=True)
        products = [partial(self._gradient, *of) for of in zip(inputs_of, slopes_of, strict=True)]
        return list(zip(torch.stack(means).tolist(), products, strict=True))

    def _gradient(self, inputs: Sequence[Tensor], slopes: Sequence[Tensor]) -> Tensor:
        """One client's gradient [D], from what went into each layer and the gradient at what came out."""
        gradient = torch.empty_like(self.model.theta)
        views = self.model.views(gradient)
        for (layer, places), x, slope in zip(self._layers.items(), inputs, slopes, strict=True):
            _writer(layer)(layer, x, slope, {name: views[place] for name, place in places.items()})
        return gradient

    @contextmanager
    def _watched(self) -> Iterator[dict[nn.Module, _Seen]]:
        seen = {layer: _Seen() for layer in self._layers}

        def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            seen[layer].inputs.extend(inputs)
            seen[layer].outputs.append(output)

        with ExitStack() as stack:
            for layer in seen:
                stack.callback(layer.register_forward_hook(note).remove)
            yield seen

    def check(self, theta: Tensor, losses: Sequence[LocalLoss]) -> None:
        """Compare the first client's gradient at `theta` [D], in a pass with the others, with what it gets by itself.

        If they differ, this model cannot be taken apart: a `ModelError` is raised.
        """
        (_, gradient), *_ = self.run(theta, losses)
        first = losses[0]
        own = first.loss_and_gradient(theta)[1] - first.ridge * theta
        difference = float(torch.linalg.vector_norm(gradient() - own))
        if not difference <= AGREEMENT * float(torch.linalg.vector_norm(own)):
            raise ModelError(
                f"local.together: a client's gradient differs by {difference:.1e} from the one computed by itself; the "
                "model mixes samples, changes outputs of layers in place, or uses parameters outside of their layers; "
                "set local.together 0"
            )


def precompute(joint: JointPass, theta: Tensor, losses: Sequence[LocalLoss]) -> None:
    """Give each of `losses` its loss and gradient at `theta` [D], from passes of as many samples as a chunk holds.

    A client that has more than that computes by itself.
    """
    for members in _packed(losses):
        for loss, (value, gradient) in zip(members, joint.run(theta, members), strict=True):
            loss.precompute(theta, value, gradient)


def _packed(losses: Sequence[LocalLoss]) -> Iterator[list[LocalLoss]]:
    """Runs of at least two, in their order."""
    packed: list[LocalLoss] = []
    for loss in losses:
        if sum(member.num_examples for member in packed) + loss.num_examples > loss.chunk:
            yield from [packed] if len(packed) > 1 else []
            packed = []
        packed.append(loss)
    yield from [packed] if len(packed) > 1 else []


def _layers(model: FlatModel) -> dict[nn.Module, dict[str, int]]:
    """For each layer the places of its trainable parameters in the model's list, by their name in the layer."""
    places = {parameter: place for place, parameter in enumerate(model.parameters)}
    layers: dict[nn.Module, dict[str, int]] = {}
    for layer in model.module.modules():
        own = {name: places[p] for name, p in layer.named_parameters(recurse=False) if p in places}
        if own:
            layers[layer] = own
    if sum(map(len, layers.values())) > len(places):
        raise ModelError("local.together: layers of this model share parameters; set local.together 0")
    return layers


def _check(layer: nn.Module, seen: _Seen, samples: int) -> None:
    """One tensor in, one out, a sample a row."""
    through = [*seen.inputs, *seen.outputs]
    if len(through) != 2 or any(not isinstance(x, Tensor) or x.shape[:1] != (samples,) for x in through):
        raise ModelError(
            f"local.together: {type(layer).__name__} is not called once, with one tensor of a sample a row, to give "
            "another; set local.together 0 for this model"
        )


def _linear(layer: nn.Module, inputs: Tensor, slopes: Tensor, parts: Parts) -> None:
    del layer
    rows, columns = slopes.flatten(0, -2), inputs.flatten(0, -2)
    if "weight" in parts:
        torch.mm(rows.t(), columns, out=parts["weight"])
    if "bias" in parts:
        torch.sum(rows, 0, out=parts["bias"])


def _convolution(layer: nn.Conv2d, inputs: Tensor, slopes: Tensor, parts: Parts) -> None:
    if "weight" in parts:
        shape, how = parts["weight"].shape, (layer.stride, layer.padding, layer.dilation, layer.groups)
        parts["weight"].copy_(_convolution_weight(inputs, shape, slopes, *how))
    if "bias" in parts:
        torch.sum(slopes, (0, 2, 3), out=parts["bias"])


def _any(layer: nn.Module, inputs: Tensor, slopes: Tensor, parts: Parts) -> None:
    """Through the layer once more, with this client's samples."""
    parameters = [layer.get_parameter(name) for name in parts]
    with torch.enable_grad():
        found = torch.autograd.grad(layer(inputs), parameters, slopes, allow_unused=True, materialize_grads=True)
    for part, gradient in zip(parts.values(), found, strict=True):
        part.copy_(dense_reals(gradient))


def _writer(layer: nn.Module) -> Callable[..., None]:
    own = dict(layer.named_parameters(recurse=False))
    if own.keys() - {"weight", "bias"} or any(parameter.is_complex() for parameter in own.values()):
        return _any
    if type(layer) is nn.Linear:
        return _linear
    if type(layer) is nn.Conv2d and layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
        return _convolution
    return _any
