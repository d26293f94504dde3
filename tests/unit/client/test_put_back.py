"""What a forward pass, or a pass of training, changes beside the vector is put back, or the model is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.shared_models import Frozen
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.engine.start import form_here, notes_on_model
from dqnfed_flwr.errors import DQNFedError
from dqnfed_flwr.params import NOTHING_FROZEN
from tests.helpers.odd_models import Merging, merging
from tests.helpers.runs import TINY

CPU = torch.device("cpu")
SETTINGS: dict[str, Any] = {**TINY, "local.threads": 1, "clients": 4, "rounds": 6}
MODELS = "tests.helpers.odd_models"


def held(model: FlatModel) -> list[int]:
    return [p.data_ptr() for p in model.module.parameters() if not p.requires_grad]


def test_a_merged_weight_is_put_back_where_clients_share_it() -> None:
    torch.manual_seed(0)
    module = merging((4,), 3)
    before = Frozen.of(module, CPU).tensors["0.weight"]
    values, kept = before.clone(), module.get_parameter("0.weight")
    model = FlatModel(module, CPU)
    model.place(model.theta)
    nn.init.normal_(module.get_parameter("0.up"))
    for _ in range(20):
        module(torch.randn(5, 4))
    assert held(model) != [before.data_ptr()]
    model.place(model.theta)
    assert held(model) == [before.data_ptr()]
    assert module.get_parameter("0.weight") is kept
    assert torch.equal(before, values)
    model.check_trained()


def test_a_merged_weight_that_is_left_as_no_parameter_is_put_back() -> None:
    layer = Merging(4, 3)
    module = nn.Sequential(layer)
    model = FlatModel(module, CPU)
    kept = layer.weight
    del layer.weight
    layer.weight = kept.detach() + 1  # as where a pass raised in between
    model.put_back()
    assert layer.weight is kept
    assert dict(module.named_parameters())["0.weight"] is kept


@pytest.mark.parametrize("jobs", [2, 1])
@pytest.mark.parametrize("method", ["dqn-fed", "fedavg"])
def test_runs_of_a_merging_adapter_repeat_and_resume(method: str, jobs: int, tmp_path: Path) -> None:
    settings = {**SETTINGS, "model": f"{MODELS}:merging", "method": method}
    straight, again = (run({**settings, "output": str(tmp_path / name)}, jobs=jobs) for name in ("one", "two"))
    assert straight.theta.tobytes() == again.theta.tobytes()
    part = {**settings, "output": str(tmp_path / "part")}
    run({**part, "rounds": 3}, jobs=jobs)
    assert run(part, resume=True, jobs=jobs).theta.tobytes() == straight.theta.tobytes()


@pytest.mark.parametrize("model", ["renewing", "renewing_memory"])
def test_a_model_that_replaces_what_is_trained_is_refused_before_round_1(model: str) -> None:
    with pytest.raises(DQNFedError, match="puts other values in the place of weight as it computes"):
        run({**SETTINGS, "model": f"{MODELS}:{model}"})


class Noting(nn.Module):
    """Changes a buffer that is not kept, one that is kept, and sets one that was None."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.register_buffer("kept", torch.zeros(2))
        self.register_buffer("seen", torch.zeros(2), persistent=False)
        self.register_buffer("cache", None)

    def forward(self) -> None:
        self.get_buffer("kept").add_(1)
        self.get_buffer("seen").add_(1)
        self.cache = torch.ones(3)


def test_buffers_that_do_not_travel_are_those_of_before_after_training() -> None:
    module = Noting()
    model = FlatModel(module, CPU)
    with model.training():
        module()
        assert module.get_buffer("seen").tolist() == [1, 1]
    assert module.get_buffer("seen").tolist() == [0, 0]
    assert module.cache is None
    assert module.get_buffer("kept").tolist() == [1, 1]


@pytest.mark.parametrize("model", ["stateful", "tensor_state"])
def test_extra_states_stay_and_runs_repeat(model: str) -> None:
    settings = {**SETTINGS, "model": f"{MODELS}:{model}", "method": "fedavg", "local.epochs": 2}
    one, two = run(settings, jobs=1), run(settings, jobs=2)
    assert one.theta.tobytes() == two.theta.tobytes()
    assert one.buffers == {}
    assert one.form.frozen == NOTHING_FROZEN
    assert one.events[-1].losses_after < one.events[0].losses_before
    own = Settings.from_mapping(settings)
    assert [note for note in notes_on_model(own, form_here(own)) if "_extra_state" in note] == [
        f"model: {MODELS}:{model} has more in its state_dict (_extra_state), which is neither parameters nor buffers "
        "that NumPy can hold: it stays on each client, as the model is built"
    ]


def test_a_dtype_that_is_cast_is_told_once() -> None:
    own = Settings.from_mapping({**SETTINGS, "model": f"{MODELS}:halves"})
    assert notes_on_model(own, form_here(own)) == [
        f"model: {MODELS}:halves has tensors of another width (2 of bfloat16): they are cast to that of dtype float32"
    ]
