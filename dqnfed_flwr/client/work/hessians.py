"""Hessians of a client's loss as matrices: of a whole small model, and of its last layer.

| function | what | cost |
|---|---|---|
| `dense_hessian` | exact, all of it, D up to `MAX_DENSE` | D double backward passes, in batches |
| `head_hessian` | exact, of the last linear layer | a forward pass, and n C^2 m^2 or n C m^2 multiplications |
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from dqnfed_flwr.client.gradients import LocalLoss, cross_entropy
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.linalg.hessian_blocks import check_dense

BATCH = 64
"""Columns of a dense Hessian that one batched backward pass gives."""


def dense_hessian(loss: LocalLoss, theta: Tensor, rows: Tensor | None = None) -> Tensor:
    """The Hessian of f_k at `theta` [D, D], symmetric to the last bit, the ridge of f_k included once.

    `rows` is the mini-batch, int64 [b]; None for all samples.

    Raises
    ------
    ConfigError
        If D is above `MAX_DENSE`.
    """
    dim, head = loss.model.spec.dim, loss.model.spec.head
    check_dense(dim)
    loss.model.place(theta)
    if head.size == dim and _ends_in_its_head(loss):
        order = torch.from_numpy(head.reshape(-1).argsort()).to(theta.device)
        return head_hessian(loss, theta, by_class=False, rows=rows)[0][order][:, order]
    identity = torch.eye(dim, dtype=theta.dtype, device=theta.device)
    if loss.model.recurrent or loss.model.attends:  # their backward passes cannot be batched
        hessian = torch.stack([loss.hessian_product(theta, column, rows) for column in identity])
        return (hessian + hessian.T) / 2
    with loss.twice_differentiable():
        hessian = _in_batches(loss, identity, rows)
    return (hessian + hessian.T) / 2 + loss.ridge * identity


def _in_batches(loss: LocalLoss, identity: Tensor, rows: Tensor | None) -> Tensor:
    """The Hessian of the mean cross-entropy [D, D], some columns at a time."""
    hessian, dim = torch.zeros_like(identity), len(identity)
    for inputs, labels, samples in chunks(loss, rows):
        part = cross_entropy(loss.model.module(inputs), labels, samples)
        gradient = loss.model.flat(differentiate(part, loss.model.parameters, create_graph=True))
        if not gradient.requires_grad:
            continue
        for start in range(0, dim, BATCH):
            basis = identity[start : start + BATCH]
            columns = torch.autograd.grad(
                gradient,
                loss.model.parameters,
                basis,
                retain_graph=True,
                is_grads_batched=True,
                allow_unused=True,
                materialize_grads=True,
            )
            hessian[start : start + BATCH] += torch.cat([c.reshape(len(basis), -1) for c in columns], dim=1)
    return hessian


def head_hessian(loss: LocalLoss, theta: Tensor, *, by_class: bool, rows: Tensor | None = None) -> Tensor:
    """The Hessian of f_k with respect to the last layer alone, at `theta` [D]: [1, C m, C m].

    With features h (1 appended where a bias is trained) and class probabilities p, it is the mean of
    (diag p - p p^T) x (h h^T), plus the ridge. Values are in the order of `ParamSpec.head`: class by class. With
    `by_class` only the blocks of one class with itself, [C, m, m]. `rows` are as in `dense_hessian`.

    Raises
    ------
    ConfigError
        If the model does not end in a linear layer over the classes.
    """
    loss.model.place(theta)
    layer = _head(loss)
    total: Tensor | None = None
    for inputs, _, samples in chunks(loss, rows):
        with torch.no_grad():
            features, logits = _through(loss, layer, inputs)
        if features is None:
            raise ConfigError("form: the model does not return what its last layer gives once; use another form")
        part = _head_part(features, logits, layer, by_class=by_class) / samples
        total = part if total is None else total + part
    if total is None:
        raise ConfigError("a mini-batch without samples has no Hessian; draw at least one")
    symmetric = (total + total.mT) / 2
    return symmetric + loss.ridge * torch.eye(total.shape[-1], dtype=total.dtype, device=total.device)


def _head(loss: LocalLoss) -> nn.Linear:
    layer = _last_module(loss)
    if not isinstance(layer, nn.Linear):
        raise ConfigError(
            f"form: last-layer needs a model whose last trained module is nn.Linear, found {type(layer).__name__}; "
            "use another form"
        )
    return layer


def _ends_in_its_head(loss: LocalLoss) -> bool:
    """Whether the loss is that of a linear layer on features that no parameter has a part in."""
    layer = _last_module(loss)
    if not isinstance(layer, nn.Linear):
        return False
    with torch.enable_grad():
        features, _ = _through(loss, layer, loss.tensors[0][:1])
    return features is not None and not features.requires_grad


def _through(loss: LocalLoss, layer: nn.Linear, inputs: Tensor) -> tuple[Tensor | None, Tensor]:
    """What goes into the last layer [n, m], None where it has another use than to give the logits; and the logits."""
    caught: list[tuple[Tensor, Tensor]] = []
    hook = layer.register_forward_hook(lambda _, inputs, output: caught.append((inputs[0], output)))
    try:
        logits: Tensor = loss.model.module(inputs)
    finally:
        hook.remove()
    if len(caught) != 1:
        return None, logits
    ((features, output),) = caught
    return features if features.ndim == 2 and torch.equal(output, logits) else None, logits


def _last_module(loss: LocalLoss) -> nn.Module:
    return loss.model.module.get_submodule(loss.model.spec.names[-1].rpartition(".")[0])


def _head_part(features: Tensor, logits: Tensor, layer: nn.Linear, *, by_class: bool) -> Tensor:
    if layer.bias is not None and layer.bias.requires_grad:
        features = torch.cat([features, features.new_ones(len(features), 1)], dim=1)
    p = logits.softmax(dim=1)
    if by_class:
        return torch.stack([(features * (q * (1 - q))[:, None]).T @ features for q in p.T])
    outer = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    width = features.shape[1] * p.shape[1]
    return torch.einsum("nab,ni,nj->aibj", outer, features, features).reshape(1, width, width)


def differentiate(value: Tensor, parameters: list[nn.Parameter], *, create_graph: bool = False) -> tuple[Tensor, ...]:
    """Gradients of `value`, zero for parameters that it does not depend on."""
    return torch.autograd.grad(value, parameters, create_graph=create_graph, allow_unused=True, materialize_grads=True)


def chunks(loss: LocalLoss, rows: Tensor | None) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Inputs and labels, `loss.chunk` samples at a time, with the number of samples in all."""
    inputs, labels = loss.tensors if rows is None else (loss.tensors[0][rows], loss.tensors[1][rows])
    for start in range(0, len(labels), loss.chunk):
        yield inputs[start : start + loss.chunk], labels[start : start + loss.chunk], len(labels)
