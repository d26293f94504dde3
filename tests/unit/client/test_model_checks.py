from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dqnfed_flwr.client.model_checks import model_notes, random_inputs
from dqnfed_flwr.models import MODELS, build_model


class Own(nn.Module):
    """A model of the user's own whose last step is a function."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.layer = kind, nn.Linear(3, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.layer(inputs)
        if self.kind == "raises":
            raise ValueError("not today")
        return {"softmax": logits.softmax(1), "logits": logits, "one": logits.softmax(1).sum(1, keepdim=True)}[
            self.kind
        ]


def notes(module: nn.Module, *, gradients: bool = True, passes: bool = False) -> list[str]:
    return model_notes(module, random_inputs((3,), "features", torch.float32), gradients=gradients, passes=passes)


@pytest.mark.parametrize(
    ("module", "begins"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.Softmax(1)), "ends in Softmax: the loss takes a softmax once more"),
        (nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), nn.Softmax(1))), "ends in Softmax"),
        (nn.Sequential(nn.Linear(3, 4), nn.Sigmoid()), "ends in Sigmoid"),
        (nn.Sequential(nn.Linear(3, 4), nn.LogSoftmax(1)), "ends in LogSoftmax: the loss takes one itself"),
        (Own("softmax"), "gives probabilities, which sum to 1: the loss takes a softmax once more"),
    ],
)
def test_a_softmax_at_the_end_is_named(module: nn.Module, begins: str) -> None:
    (note,) = notes(module)
    assert note.startswith(begins)


@pytest.mark.parametrize(
    "module", [Own("logits"), Own("raises"), Own("one"), nn.Sequential(nn.Linear(3, 4), nn.ReLU())]
)
def test_other_models_have_no_note(module: nn.Module) -> None:
    assert notes(module) == []


def test_dropout_is_named_where_gradients_switch_it_off() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 4), nn.Dropout(0.0))
    (note,) = notes(module)
    assert note.startswith("has dropout (Dropout): it is off where clients compute gradients")
    assert notes(module, gradients=False, passes=True) == []
    assert notes(nn.Sequential(nn.Dropout(0.0))) == []


def test_dropout_within_recurrent_and_attention_layers_counts() -> None:
    (note,) = notes(nn.ModuleList([nn.LSTM(3, 4, 2, dropout=0.1), nn.MultiheadAttention(4, 2, dropout=0.1)]))
    assert "(LSTM, MultiheadAttention)" in note


def test_batch_norm_is_named_with_what_local_work_makes_of_it() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    (frozen,), (trained,) = notes(module), notes(module, gradients=False, passes=True)
    assert frozen == (
        "has BatchNorm (BatchNorm1d): gradients take its running statistics, which they never update; GroupNorm needs "
        "none"
    )
    assert "averages the running ones; GroupNorm" in trained
    assert "never update" not in trained


def test_looking_draws_nothing_from_torchs_generator() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5))
    before = torch.random.get_rng_state()
    notes(module)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("name", MODELS)
def test_shipped_models_have_no_note(name: str) -> None:
    shape, kind = ((80,), "tokens") if name.startswith("char") else ((3, 16, 16), "images")
    module = build_model(name, shape, 80 if kind == "tokens" else 10, seed=0)
    assert model_notes(module, random_inputs(shape, kind, torch.float32), gradients=True, passes=True) == []
