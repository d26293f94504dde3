from __future__ import annotations

import pytest
import torch
from torch import nn

from dqnfed_flwr.client.flat_model import FlatModel

CPU = torch.device("cpu")


def test_a_placed_vector_is_the_model_and_is_not_copied() -> None:
    last = nn.Linear(3, 1)
    module = nn.Sequential(nn.Linear(2, 3), last)
    model = FlatModel(module, CPU)
    theta = torch.arange(13.0)
    model.place(theta)
    assert torch.equal(model.spec.flatten(module), theta)
    theta.mul_(2)
    assert torch.equal(last.weight.detach(), torch.tensor([[18.0, 20.0, 22.0]]))
    assert torch.equal(model.flat(model.views(theta)), theta)


def test_shared_and_frozen_parameters_are_counted_once_and_not_at_all() -> None:
    first, second, frozen = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 2)
    second.weight = first.weight
    frozen.requires_grad_(False)
    model = FlatModel(nn.Sequential(first, second, frozen), CPU)
    model.place(torch.eye(2).reshape(-1) * 3)
    assert model.spec.dim == 4
    x = torch.ones(1, 2)
    assert torch.equal(model.module(x), frozen(9 * x))


def test_a_recurrent_model_is_deterministic_unless_it_trains() -> None:
    torch.manual_seed(0)
    lstm = nn.LSTM(2, 3, num_layers=2, dropout=0.5)
    model = FlatModel(lstm, CPU)
    x = torch.randn(4, 1, 2)
    with torch.no_grad():
        assert torch.equal(lstm(x)[0], lstm(x)[0])
        with model.training():
            assert not torch.equal(lstm(x)[0], lstm(x)[0])
        assert torch.equal(lstm(x)[0], lstm(x)[0])


def test_training_mode_ends_with_the_block() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    model = FlatModel(module, CPU)
    assert not module[1].training
    with model.training():
        assert module[1].training
    assert not module[1].training


class Own(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (nn.Linear(2, 2), False),
        (nn.Dropout(0.1), True),
        (nn.LSTM(2, 2), False),
        (nn.LSTM(2, 2, num_layers=2, dropout=0.1), True),
        (nn.MultiheadAttention(2, 1, dropout=0.1), True),
        (Own(), True),  # what it does is not known
    ],
)
def test_layers_that_may_draw_random_numbers_are_known(layer: nn.Module, expected: bool) -> None:
    assert FlatModel(nn.Sequential(nn.Linear(2, 2), layer), CPU).draws == expected
