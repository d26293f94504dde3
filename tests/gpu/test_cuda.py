"""What only a CUDA device can show: `make test-gpu`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.opening import read_samples
from dqnfed_flwr.client.reading import Reading
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.engine.run import run_in_process
from dqnfed_flwr.linalg.gram import Basis
from dqnfed_flwr.models import build_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SMALL: Mapping[str, Any] = {"device": "cuda", "model": "cnn", "clients": 4, "rounds": 3, "split.samples": 400}
SHAPE = (3, 32, 32)


def trained(jobs: int = 0, **more: Any) -> RunResult:
    return run_in_process(Settings.from_mapping({**SMALL, **more}), jobs=jobs)


def images(count: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(count, *SHAPE, generator=draw), torch.randint(0, 4, (count,), generator=draw)


@pytest.mark.parametrize("more", [{}, {"method": "fedavg", "local.batch-size": 20}, {"local.autocast": "bf16"}])
def test_the_same_bits_twice(more: dict[str, Any]) -> None:
    one, again = trained(**more), trained(**more)
    assert np.array_equal(one.theta, again.theta)
    assert [event.losses_after for event in one.events] == [event.losses_after for event in again.events]


def test_clients_that_share_a_card_have_the_bits_of_those_that_take_turns() -> None:
    assert np.array_equal(trained(jobs=4).theta, trained(jobs=1).theta)


@pytest.mark.parametrize("model", ["mlp", "cnn", "resnet18-gn"])
@pytest.mark.parametrize("bf16", [False, True])
def test_probe_and_pass_agree_to_the_bit(model: str, bf16: bool) -> None:
    device = torch.device("cuda")
    inputs, labels = (part.to(device) for part in images(50))
    flat = FlatModel(build_model(model, SHAPE, 4, seed=0), device, bf16=bf16)
    loss = LocalLoss(flat, (inputs, labels), chunk=16)
    theta = flat.theta.clone()
    value, gradient = loss.loss_and_gradient(theta)
    assert loss.loss(theta) == value
    assert gradient.dtype == torch.float32
    assert torch.equal(gradient, loss.loss_and_gradient(theta)[1])


def test_the_loss_is_that_of_the_processor() -> None:
    values = []
    for name in ("cpu", "cuda"):
        device = torch.device(name)
        samples = tuple(part.to(device) for part in images(50))
        flat = FlatModel(build_model("cnn", SHAPE, 4, seed=0), device)
        loss = LocalLoss(flat, (samples[0], samples[1]))
        values.append((loss.loss(flat.theta), loss.loss_and_gradient(flat.theta)[1].cpu()))
    assert values[0][0] == pytest.approx(values[1][0], rel=1e-5)
    torch.testing.assert_close(values[0][1], values[1][1], rtol=1e-3, atol=1e-5)


def test_rows_of_the_card_go_into_the_servers_gramian() -> None:
    rows = torch.randn(5, 20_000, generator=torch.Generator().manual_seed(0))
    there = rows.cuda()
    basis = Basis(5, 20_000)
    for slot, row in enumerate(there):
        basis.put(slot, row)
    exact = (rows.double() @ rows.double().T).numpy()
    np.testing.assert_allclose(basis.gram(range(5)), exact, rtol=1e-5, atol=1e-3)


class Images(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Images that are made when they are read."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, labels = images(40)
        return inputs[index], labels[index]


@pytest.mark.parametrize("workers", [0, 2])
def test_chunks_that_are_copied_ahead_have_the_bits_of_those_that_are_held(workers: int) -> None:
    device = torch.device("cuda")
    held = tuple(part.to(device) for part in images(40))
    reading = Reading(torch.utils.data.default_collate, torch.float32, device, workers, most=0)
    flat = FlatModel(build_model("cnn", SHAPE, 4, seed=0), device)
    streamed = LocalLoss(flat, read_samples(Images(), reading), chunk=8).loss_and_gradient(flat.theta)
    whole = LocalLoss(flat, (held[0], held[1]), chunk=8).loss_and_gradient(flat.theta)
    assert streamed[0] == whole[0]
    assert torch.equal(streamed[1], whole[1])


def test_a_frozen_part_is_on_the_card_once() -> None:
    from dqnfed_flwr.client.frozen import Frozen

    device = torch.device("cuda")
    modules = []
    for _ in range(3):
        torch.manual_seed(0)
        modules.append(nn.Sequential(nn.Linear(1000, 1000).requires_grad_(False), nn.Linear(1000, 2)))
    before = torch.cuda.memory_allocated()
    held = [(Frozen.of(module, device), FlatModel(module, device)) for module in modules]
    assert len({id(frozen) for frozen, _ in held}) == 1
    assert torch.cuda.memory_allocated() - before < 1.5 * 4 * 1000 * 1001
