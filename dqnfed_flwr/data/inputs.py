"""From stored samples to what a model sees: one rule for shapes, one for values.

| stored | model input | shape of one sample |
|---|---|---|
| uint8 images [N, H, W] or [N, H, W, C] | channels first, 0..255 scaled to [-1, 1] | (1, H, W) or (C, H, W) |
| float features [N, ...] | as they are | (...) |
| integer tokens [N, L] | int64 | (L,) |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.errors import DataError

if TYPE_CHECKING:
    import torch


MOST_COLOURS = 4
"""Channels of common images; more are taken where the axes leave no doubt, as of satellites."""


def sample_shape(x: NDArray[Any]) -> tuple[int, ...]:
    """Shape of one sample as the model sees it, channels first for images.

    Raises
    ------
    DataError
        If dtype and number of axes are those of no kind of sample, or images seem to have their channels first.
    """
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        height, width, *channels = x.shape[1:]
        if channels and height <= MOST_COLOURS < min(width, *channels):
            raise DataError(f"data: found uint8 images of shape {x.shape}: looks like [N, C, H, W]; store [N, H, W, C]")
        return (channels[0] if channels else 1, height, width)
    if np.issubdtype(x.dtype, np.floating) and x.dtype.itemsize <= 8 and x.ndim >= 2:
        return x.shape[1:]
    if np.issubdtype(x.dtype, np.integer) and x.dtype != np.uint8 and x.ndim == 2:
        return x.shape[1:]
    raise DataError(
        f"data: found samples of dtype {x.dtype} and shape {x.shape}; allowed are uint8 images [N, H, W] or "
        "[N, H, W, C], float features [N, ...] of at most 64 bits and integer tokens [N, L] (int16, int32 or int64)"
    )


def sample_kind(x: NDArray[Any]) -> str:
    """`images`, `features` or `tokens`: what decides how stored values become the model's, see above."""
    if x.dtype == np.uint8:
        return "images"
    return "features" if np.issubdtype(x.dtype, np.floating) else "tokens"


def to_model_input(x: NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
    """Turn stored samples into the tensor that the model takes.

    Parameters
    ----------
    x : NDArray
        Samples [N, ...] of one of the kinds above.
    dtype : torch.dtype
        Of the result for images and features; tokens become int64.

    Returns
    -------
    Tensor
        [N, *sample_shape(x)] on the CPU, contiguous, sharing no memory with `x`.

    Raises
    ------
    DataError
        As `sample_shape`.
    """
    import torch

    shape = sample_shape(x)
    if x.dtype == np.uint8:
        channels_first = np.moveaxis(x, -1, 1) if x.ndim == 4 else x[:, None]
        pixels = torch.from_numpy(np.array(channels_first, order="C")).to(dtype)
        return pixels.div_(255).sub_(0.5).div_(0.5)
    values = torch.from_numpy(np.array(x, dtype=x.dtype.newbyteorder("="), order="C"))
    tensor = values.to(dtype if np.issubdtype(x.dtype, np.floating) else torch.int64)
    return tensor.reshape(len(x), *shape)
