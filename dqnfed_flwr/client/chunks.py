"""Samples that pass through a model together: how many, and their share in the loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dqnfed_flwr.client.flat_model import FlatModel

CHUNK_BYTES = {"cpu": 32 * 2**20}
MOST_CHUNK_BYTES = 256 * 2**20
"""Activations kept for one backward pass when the chunk is left to choose, by kind of device and on any other.

Larger ones are no faster on a processor, and a device at the edge has little memory.
"""
MAX_CHUNK = 4096
FEWEST = 16
"""Samples of a chunk that may fill `MOST_CHUNK_BYTES` on any device.

Every chunk reads all parameters and adds a gradient of their size: four samples of ResNet-18 at a time take a quarter
longer than sixteen (`benchmarks/chunks.py`).
"""


def cross_entropy(logits: Tensor, labels: Tensor, samples: int) -> Tensor:
    """Share of a chunk in the mean cross-entropy over `samples` samples, in float64.

    Parameters
    ----------
    logits : Tensor
        [n, classes]; MPS has no float64, its logits move to the CPU.
    labels : Tensor
        int64 [n].
    samples : int
        Samples of the whole sum, n among them.

    Returns
    -------
    Tensor
        A float64 scalar.
    """
    if logits.device.type == "mps":
        logits, labels = logits.cpu(), labels.cpu()
    return nn.functional.cross_entropy(logits.double(), labels, reduction="sum") / samples


def choose_chunk(model: FlatModel, inputs: Tensor, labels: Tensor) -> int:
    """Samples whose saved activations fill at most the bytes of the device: a power of two, at most `MAX_CHUNK`.

    `FEWEST` samples, or as many of them as fit, may fill `MOST_CHUNK_BYTES` instead. Counted is what one sample leaves
    behind for its backward pass; the parameters, which all share, do not count.
    """
    shared = {tensor.untyped_storage().data_ptr() for tensor in model.module.state_dict().values()}
    saved: dict[int, torch.UntypedStorage] = {}  # held, so that no other takes its place, and the count is the same

    def count(tensor: Tensor) -> None:  # a hook that gave the tensor back would tie a knot that is never freed
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in shared:
            saved[storage.data_ptr()] = storage

    with torch.autograd.graph.saved_tensors_hooks(count, lambda nothing: nothing):
        cross_entropy(model.module(inputs[:1].clone()), labels[:1].clone(), 1)
    size = sum(storage.nbytes() for storage in saved.values())
    most = CHUNK_BYTES.get(model.theta.device.type, MOST_CHUNK_BYTES)
    chunk = MAX_CHUNK
    while chunk > 1 and chunk * size > (most if chunk > FEWEST else MOST_CHUNK_BYTES):
        chunk //= 2
    return chunk
