from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.methods.fedcorr.client import Mixup


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 4, dtype=torch.float64)


def test_the_loss_is_that_of_mixed_inputs_with_mixed_one_hot_labels() -> None:
    """For any share c: c CE(z, y) + (1 - c) CE(z, y') is the cross-entropy with the label c e_y + (1 - c) e_y'."""
    module, x, y = linear(), torch.randn(6, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0, 1])
    found = Mixup(0.7, np.random.default_rng(5))(module, x, y)
    draws = np.random.default_rng(5)
    share, order = draws.beta(0.7, 0.7), torch.tensor(draws.permutation(6))
    one_hot = nn.functional.one_hot(y, 4).double()
    soft = share * one_hot + (1 - share) * one_hot[order]
    logs = module(share * x + (1 - share) * x[order]).log_softmax(1)
    torch.testing.assert_close(found, -(soft * logs).sum(1).mean(), rtol=1e-12, atol=1e-12)


def test_a_batch_of_equal_samples_is_left_as_it_is() -> None:
    module = linear()
    x, y = torch.ones(5, 3, dtype=torch.float64), torch.full((5,), 2)
    expected = nn.functional.cross_entropy(module(x), y)
    torch.testing.assert_close(Mixup(1.0, np.random.default_rng(0))(module, x, y), expected)


def test_every_batch_is_mixed_anew_and_the_same_for_equal_generators() -> None:
    module, x, y = linear(), torch.randn(6, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0, 1])
    one, other = Mixup(1.0, np.random.default_rng(1)), Mixup(1.0, np.random.default_rng(1))
    first = one(module, x, y)
    assert torch.equal(first, other(module, x, y))
    assert not torch.equal(first, one(module, x, y))


def test_tokens_cannot_be_mixed() -> None:
    with pytest.raises(ConfigError, match=r"fedcorr\.mixup: .*int64"):
        Mixup(1.0, np.random.default_rng(0))(linear(), torch.ones(2, 3, dtype=torch.int64), torch.zeros(2))
