"""What only a CUDA device can show: `make test-gpu`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks import gpu
from dqnfed_flwr.client.device import prepare_torch
from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.reading import Reading
from dqnfed_flwr.client.samples import CUDA_PART, MAX_CHUNK, bytes_of_one, read_samples
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.engine.run import run_in_process
from dqnfed_flwr.linalg.row_store import RowMemory
from dqnfed_flwr.linalg.rows import RowSet
from dqnfed_flwr.models import build_model
from tests.helpers.runs import WHOLE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SMALL: Mapping[str, Any] = {"device": "cuda", "model": "cnn", "clients": 4, "rounds": 3, "split.samples": 400, **WHOLE}
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


def test_adapters_in_a_transformer_have_the_same_bits_in_turns_and_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused attention would add up gradients in any order."""
    monkeypatch.setenv(gpu.SIZE, "medium")
    settings = {**WHOLE, "device": "cuda", "clients": 4, "rounds": 3, "task": "benchmarks.gpu:Characters"}
    runs = [run_in_process(Settings.from_mapping({**settings, "local.threads": 1}), jobs=jobs) for jobs in (1, 1, 4)]
    one, again, together = runs
    assert np.array_equal(one.theta, again.theta)
    assert np.array_equal(one.theta, together.theta)


def test_clients_that_share_a_card_have_the_bits_of_those_that_take_turns() -> None:
    assert np.array_equal(trained(jobs=4).theta, trained(jobs=1).theta)


@pytest.mark.parametrize("model", ["mlp", "cnn", "resnet18-gn"])
@pytest.mark.parametrize("bf16", [False, True])
def test_a_loss_that_judges_is_that_of_a_float32_pass_to_the_bit(model: str, bf16: bool) -> None:
    device = torch.device("cuda")
    inputs, labels = (part.to(device) for part in images(50))
    flat = FlatModel(build_model(model, SHAPE, 4, seed=0), device, bf16=bf16)
    loss = LocalLoss(flat, (inputs, labels), chunk=16)
    theta = flat.theta.clone()
    value, gradient = loss.loss_and_gradient(theta)
    with flat.full_precision():
        assert loss.loss(theta) == loss.loss_and_gradient(theta)[0]
    assert (loss.loss(theta) != value) == bf16
    assert gradient.dtype == torch.float32
    assert torch.equal(gradient, loss.loss_and_gradient(theta)[1])


@pytest.mark.parametrize("model", ["cnn", "resnet18-gn"])
@pytest.mark.parametrize("chunk", [16, 50])
def test_products_are_made_in_float32(model: str, chunk: int) -> None:
    """TF32 would leave a gradient off by a hundredth, and curvature pairs are differences of gradients."""

    def found(name: str, dtype: torch.dtype) -> tuple[float, Tensor]:
        device = torch.device(name)
        prepare_torch(1, device)
        inputs, labels = images(50)
        flat = FlatModel(build_model(model, SHAPE, 4, seed=0).to(dtype), device)
        loss = LocalLoss(flat, (inputs.to(device, dtype), labels.to(device)), chunk=chunk)
        value, gradient = loss.loss_and_gradient(flat.theta)
        return value, gradient.cpu().double()

    exact, rounded = found("cpu", torch.float64), found("cuda", torch.float32)
    assert rounded[0] == pytest.approx(exact[0], rel=1e-6)
    assert float((rounded[1] - exact[1]).norm() / exact[1].norm()) < 1e-3


@pytest.mark.parametrize("bf16", [False, True])
def test_chunks_fill_a_part_of_the_card_with_and_without_autocast(bf16: bool) -> None:
    """Half of that part or more: which of the two fills it with fewer samples is told by their bytes alone."""
    device = torch.device("cuda")
    inputs, labels = (part.to(device) for part in images(2))
    flat = FlatModel(build_model("resnet18-gn", SHAPE, 4, seed=0), device, bf16=bf16)
    loss = LocalLoss(flat, (inputs, labels))
    most = torch.cuda.get_device_properties(device).total_memory // CUDA_PART
    assert loss.chunk >= 32
    assert loss.chunk * bytes_of_one(flat, loss.samples, loss.task) <= most
    assert 2 * loss.chunk * bytes_of_one(flat, loss.samples, loss.task) > most or loss.chunk == MAX_CHUNK


def test_rows_of_the_card_go_into_the_servers_gramian() -> None:
    rows = torch.randn(5, 20_000, generator=torch.Generator().manual_seed(0))
    there = rows.cuda()
    held = RowSet(5, 20_000)
    for slot, row in enumerate(there):
        held.put(slot, row)
    exact = (rows.double() @ rows.double().T).numpy()
    np.testing.assert_allclose(held.gram(range(5)), exact, rtol=1e-5, atol=1e-3)


def test_rows_that_stay_on_the_card_have_the_same_bits_in_any_order_and_the_figures_of_float64() -> None:
    draw, order = torch.Generator(device="cuda").manual_seed(0), [3, 1, 4, 0, 2]
    rows = torch.randn(5, 600_000, generator=draw, device="cuda")
    weights, found = np.linspace(-1, 2, 5), []
    for turn in (range(5), order):
        held = RowSet(5, 600_000, memory=RowMemory(device=rows.device))
        for slot in turn:
            held.put(slot, rows[slot])
        found.append((held.gram(range(5)), held.combine(weights)))
    assert np.array_equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert found[0][1].is_cuda
    wide = rows.double().cpu()
    assert np.abs(found[0][0] - (wide @ wide.T).numpy()).max() < 1e-7 * 600_000
    step = torch.from_numpy(weights) @ wide
    assert float((found[0][1].cpu().double() - step).norm() / step.norm()) < 1e-6


@pytest.mark.parametrize("method", ["dqn-fed", "fedavg", "fedadam", "median", "fednl"])
def test_a_run_with_rows_on_the_card_ends_where_one_with_rows_on_the_host_ends(method: str) -> None:
    on_host: dict[str, Any] = {"rows.device": "host"}
    stays, host = trained(method=method), trained(method=method, **on_host)
    assert np.linalg.norm(stays.theta - host.theta) <= 1e-3 * np.linalg.norm(host.theta)
    assert np.array_equal(stays.theta, trained(jobs=4, method=method).theta)


def test_a_run_with_rows_on_the_card_goes_on_from_its_checkpoint_with_the_same_bits(tmp_path: Path) -> None:
    trained(rounds=1, output=str(tmp_path))
    rest = run_in_process(Settings.from_mapping({**SMALL, "output": str(tmp_path), "resume": True}))
    assert np.array_equal(rest.theta, trained().theta)


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
    from dqnfed_flwr.client.shared_models import Frozen

    device = torch.device("cuda")
    modules = []
    for _ in range(3):
        torch.manual_seed(0)
        modules.append(nn.Sequential(nn.Linear(1000, 1000).requires_grad_(False), nn.Linear(1000, 2)))
    before = torch.cuda.memory_allocated()
    held = [(Frozen.of(module, device), FlatModel(module, device)) for module in modules]
    assert len({id(frozen) for frozen, _ in held}) == 1
    assert torch.cuda.memory_allocated() - before < 1.5 * 4 * 1000 * 1001
