"""Mixup: passes over convex combinations of pairs of samples.

Zhang, Cisse, Dauphin and Lopez-Paz, "mixup: Beyond Empirical Risk Minimization", ICLR 2018, section 2.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from dqnfed_flwr.client.chunks import cross_entropy
from dqnfed_flwr.errors import ConfigError

STREAM = 3
"""Of the turn's generators, after those of the passes."""


class Mixup:
    """Loss of a mini-batch in which every sample is mixed with another one of it.

        c * CE(f(z), y) + (1 - c) * CE(f(z), y'),    z = c x + (1 - c) x',    c ~ Beta(alpha, alpha)

    with (x', y') the batch in another order; c is drawn once a batch.

    Parameters
    ----------
    alpha : float
        Of the Beta distribution, above 0.
    generator : np.random.Generator
        Draws c and the orders, one batch after the other.
    """

    def __init__(self, alpha: float, generator: np.random.Generator) -> None:
        self._alpha, self._generator = alpha, generator

    def __call__(self, module: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of the batch, a float64 scalar.

        Raises
        ------
        ConfigError
            If the inputs are whole numbers (tokens), which cannot be mixed.
        """
        if not inputs.is_floating_point():
            raise ConfigError(f"fedcorr.mixup: found {self._alpha}, but {inputs.dtype} inputs cannot be mixed; use 0")
        share = float(self._generator.beta(self._alpha, self._alpha))
        order = torch.from_numpy(self._generator.permutation(len(labels))).to(labels.device)
        logits = module(share * inputs + (1 - share) * inputs[order])
        count = len(labels)
        return share * cross_entropy(logits, labels, count) + (1 - share) * cross_entropy(logits, labels[order], count)
