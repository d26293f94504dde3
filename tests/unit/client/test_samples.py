from __future__ import annotations

import gc
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dqnfed_flwr import run
from dqnfed_flwr.client import reading
from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.reading import Reading
from dqnfed_flwr.client.samples import HeldSamples, Samples, StreamedSamples, choose_chunk, read_samples
from dqnfed_flwr.client.work import RngKey, sgd
from dqnfed_flwr.config import LocalSettings
from dqnfed_flwr.errors import DataError
from dqnfed_flwr.models import build_model
from dqnfed_flwr.randomness import seeded
from dqnfed_flwr.tasks.classification import CrossEntropy
from tests.helpers.processes import children
from tests.helpers.streamed import CPU, DRAWS, Augmented, Pairs, dies_at, seeded_by_number, streamed

SHAPES = {"logistic": (6,), "cnn": (1, 8, 8), "char-lstm-small": (9,)}
EARLIER: set[int] = set()
"""Processes that tests of other files have left."""


def drawn(name: str, samples: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Samples of noise that a model takes, in four classes."""
    generator = torch.Generator().manual_seed(seed)
    shape = (samples, *SHAPES[name])
    tokens = name == "char-lstm-small"
    inputs = torch.randint(0, 4, shape, generator=generator) if tokens else torch.randn(shape, generator=generator)
    return inputs, torch.randint(0, 4, (samples,), generator=generator)


def figures(name: str, samples: Samples, chunk: int) -> list[Any]:
    """What a client computes on its samples: losses, gradients, passes, evaluations."""
    torch.manual_seed(5)
    model = FlatModel(build_model(name, SHAPES[name], 4, seed=1), CPU)
    loss, theta = LocalLoss(model, samples, chunk=chunk), model.theta.clone()
    rows = torch.arange(len(samples) - 1, 0, -2)
    local = LocalSettings(epochs=2, batch_size=5)
    return [
        loss.loss(theta),
        *loss.loss_and_gradient(theta),
        *loss.loss_and_gradient(theta, rows),
        loss.hessian_product(theta, theta, rows),
        sgd(loss, theta, local, RngKey(1, 2, 3)),
        loss.evaluate(theta, samples),
        torch.tensor(loss.scores(theta, samples).losses),
        torch.get_rng_state(),
    ]


def equal(one: list[Any], other: list[Any]) -> bool:
    """Whether they are, to the last bit."""
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_streamed_client_has_the_bits_of_a_held_one(name: str, workers: int) -> None:
    pairs = drawn(name, 23)
    found = figures(name, streamed(Pairs(*pairs), workers), 4)
    assert equal(found, figures(name, HeldSamples(pairs), 4))


@settings(max_examples=25)
@given(
    samples=st.integers(1, 40), chunk=st.integers(1, 45), workers=st.sampled_from([0, 0, 1, 2]), seed=st.integers(0, 99)
)
def test_any_cut_and_any_processes_give_the_same_loss(samples: int, chunk: int, workers: int, seed: int) -> None:
    pairs = drawn("logistic", samples, seed)
    model = FlatModel(build_model("logistic", (6,), 4, seed=seed), CPU)
    theta = model.theta.clone()
    read = LocalLoss(model, streamed(Pairs(*pairs), workers), chunk=chunk)
    held, whole = (LocalLoss(model, pairs, chunk=size) for size in (chunk, samples))
    assert read.loss(theta) == held.loss(theta) == read.loss_and_gradient(theta)[0]
    assert torch.equal(read.loss_and_gradient(theta)[1], held.loss_and_gradient(theta)[1])
    assert read.loss(theta) == pytest.approx(whole.loss(theta), rel=1e-6)


def test_the_chunk_is_the_same_and_bounds_the_samples_themselves() -> None:
    model = FlatModel(nn.Sequential(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(2, 2)), CPU)
    pairs = torch.randn(20, 2, 2**20), torch.zeros(20, dtype=torch.int64)  # 8 MiB a sample, and no more is saved
    chunks = [choose_chunk(model, samples, CrossEntropy()) for samples in (HeldSamples(pairs), streamed(Pairs(*pairs)))]
    assert chunks == [16, 16]  # 128 MiB: FEWEST samples may fill up to 256
    frozen = FlatModel(nn.Sequential(nn.Flatten(), Sums(), nn.Linear(2, 2)), CPU)
    assert choose_chunk(frozen, streamed(Pairs(pairs[0][:, :, : 2**18], pairs[1])), CrossEntropy()) == 16


class Sums(nn.Module):
    """Keeps nothing of its inputs for a backward pass."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.detach()[:, :2]


def test_processes_stay_for_the_next_pass_and_end_with_the_samples() -> None:
    samples = streamed(Pairs(*drawn("logistic", 9)), 2)
    assert living() == set()
    seen = []
    for _ in range(3):
        assert sum(count for _, count in samples.chunks(2)) == 9
        seen.append(living())
    assert len(seen[0]) == 2
    assert seen[0] == seen[1] == seen[2]
    del samples
    gc.collect()
    assert living() == set()


@pytest.fixture(scope="module", autouse=True)
def _earlier() -> None:
    EARLIER.update(number for number, _ in children(os.getpid()))


def living() -> set[int]:
    """Processes that tests of this file have started, and that live."""
    return {number for number, _ in children(os.getpid())} - EARLIER


def test_only_the_sets_that_were_read_last_keep_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_KEPT", 2)
    several = [streamed(Pairs(*drawn("logistic", 4, seed)), 1) for seed in range(4)]
    expected = [drawn("logistic", 4, seed)[0] for seed in range(4)]
    for _ in range(2):
        for samples, inputs in zip(several, expected, strict=True):
            assert torch.equal(torch.cat([batch[0] for batch, _ in samples.chunks(3)]), inputs)
        assert len(living()) == 2
    del several, samples
    gc.collect()
    assert living() == set()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pass_may_be_left_or_lie_within_another(workers: int) -> None:
    inputs, targets = drawn("logistic", 11)
    samples = streamed(Pairs(inputs, targets), workers)
    for batch, _ in samples.chunks(2):
        inner = [part[0] for part, _ in samples.chunks(3)]
        assert torch.equal(torch.cat(inner), inputs)
        assert torch.equal(batch[0], inputs[:2])
        break
    assert torch.equal(torch.cat([batch[0] for batch, _ in samples.chunks(4)]), inputs)
    outer = []
    for batch, _ in samples.chunks(5):
        assert len(list(samples.chunks(6))) == 2
        outer.append(batch[0])
    assert torch.equal(torch.cat(outer), inputs)


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_seed_themselves_disturb_nobody(workers: int) -> None:
    inputs, targets = drawn("cnn", 12)
    model = FlatModel(nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 4)), CPU)
    theta, local = torch.randn(model.theta.shape), LocalSettings(epochs=2, batch_size=5)
    torch.manual_seed(8)
    before = torch.get_rng_state()
    samples = streamed(Augmented(inputs, targets, seeded_by_number), workers)
    found = sgd(LocalLoss(model, samples), theta, local, RngKey(1, 2, 3))
    assert torch.equal(torch.get_rng_state(), before)
    noise = torch.stack([torch.rand((), generator=torch.Generator().manual_seed(row)) for row in range(12)])
    held = inputs + noise.reshape(-1, 1, 1, 1), targets
    assert torch.equal(found, sgd(LocalLoss(model, held), theta, local, RngKey(1, 2, 3)))


@pytest.mark.parametrize("most", [0, 1 << 30])
@pytest.mark.parametrize("kind", DRAWS)
def test_samples_that_draw_random_numbers_are_refused(kind: str, most: int) -> None:
    dataset = Augmented(*drawn("logistic", 9), DRAWS[kind])
    with pytest.raises(DataError, match="client 4: sample 0 draws random numbers"):
        read_samples(dataset, Reading(torch.utils.data.default_collate, torch.float32, CPU, 0, most, 4))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_process_that_dies_costs_its_client_alone() -> None:
    samples = streamed(Pairs(*drawn("logistic", 9), dies_at(5)), 1, client=7)
    with pytest.raises(DataError, match=r"client 7: reading ahead failed .*local\.workers 0"):
        list(samples.chunks(2))


def test_a_process_that_dies_between_passes_is_found_by_the_next_and_replaced() -> None:
    samples = streamed(Pairs(*drawn("logistic", 9)), 1, client=7)
    list(samples.chunks(2))
    (worker,) = living()
    os.kill(worker, signal.SIGKILL)
    time.sleep(0.2)  # an exception of a signal handler would be raised here
    with pytest.raises(DataError, match="client 7: reading ahead failed"):
        list(samples.chunks(2))
    gc.collect()
    assert sum(count for _, count in samples.chunks(2)) == 9


def test_a_process_starts_while_another_thread_draws_random_numbers() -> None:
    over, read = threading.Event(), list[int]()

    def draw() -> None:
        while not over.is_set():
            with seeded(0):
                torch.empty(2_000_000).normal_()  # keeps the generator locked all the while

    def start() -> None:
        for _ in range(5):
            samples = streamed(Pairs(*drawn("logistic", 9)), 1)
            read.append(sum(count for _, count in samples.chunks(2)))

    drawing, reading_ahead = (threading.Thread(target=work, daemon=True) for work in (draw, start))
    drawing.start()
    reading_ahead.start()
    reading_ahead.join(60)
    over.set()
    drawing.join()
    for worker in living() if reading_ahead.is_alive() else ():
        os.kill(worker, signal.SIGKILL)
    assert read == [9] * 5


@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_data_set_raises_is_named_with_sample_and_line(workers: int) -> None:
    def touch(row: int) -> None:
        if row == 4:
            raise ValueError("no such scan")

    samples = streamed(Pairs(*drawn("logistic", 9), touch), workers)  # 4 is not tried as the set is opened
    with pytest.raises(
        DataError, match=r"client 3: sample 4 raised ValueError: no such scan \(.*streamed.py, line \d+"
    ):
        list(samples.chunks(2))


@pytest.mark.parametrize("workers", [0, 1])
def test_what_collate_raises_is_named(workers: int) -> None:
    def collate(items: list[Any]) -> Any:
        if len(items) == 3:
            raise KeyError("mask")
        return torch.utils.data.default_collate(items)

    samples = streamed(Pairs(*drawn("logistic", 9)), workers, collate=collate)
    with pytest.raises(DataError, match="client 3: collate, for 3 samples from 0, raised KeyError: 'mask'"):
        list(samples.chunks(3))


def test_a_data_set_that_changes_is_refused() -> None:
    dataset = Pairs(*drawn("logistic", 9))
    samples = streamed(dataset)
    list(samples.chunks(4))
    dataset.inputs[0] += 1
    with pytest.raises(DataError, match="client 3: sample 0 is another one than in the pass before"):
        list(samples.chunks(4))
    dataset.inputs = dataset.inputs[:8]
    with pytest.raises(DataError, match="had 9 samples and has 8 now"):
        list(samples.chunks(4))


def test_a_batch_of_everything_is_refused_where_it_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dqnfed_flwr.client.samples.MOST_BATCH_BYTES", 100)
    samples = streamed(Pairs(*drawn("logistic", 9)))
    model = FlatModel(build_model("logistic", (6,), 4, seed=1), CPU)
    loss = LocalLoss(model, samples, chunk=2)
    with pytest.raises(DataError, match=r"a batch of 9 samples fills 288 bytes, more than 100; set local\.batch-size"):
        sgd(loss, model.theta.clone(), LocalSettings(), RngKey(1, 1, 1))
    sgd(loss, model.theta.clone(), LocalSettings(batch_size=2), RngKey(1, 1, 1))


@pytest.mark.parametrize(("bytes_", "kind"), [(9 * 32, HeldSamples), (9 * 32 - 1, StreamedSamples)])
def test_a_data_set_is_held_up_to_the_bytes_that_are_allowed(bytes_: int, kind: type) -> None:
    read = Reading(torch.utils.data.default_collate, torch.float32, CPU, 0, bytes_)
    samples = read_samples(Pairs(*drawn("logistic", 9)), read)
    assert isinstance(samples, kind)
    assert [count for _, count in samples.chunks(4)] == [4, 4, 1]


def test_a_batch_with_text_is_not_held() -> None:
    class Named(Pairs):
        def __getitem__(self, row: int) -> Any:
            return *super().__getitem__(row), f"patient {row}"

    read = Reading(torch.utils.data.default_collate, torch.float32, CPU)
    samples = read_samples(Named(*drawn("logistic", 5)), read)
    assert [batch[2] for batch, _ in samples.chunks(3)] == [
        ("patient 0", "patient 1", "patient 2"),
        ("patient 3", "patient 4"),
    ]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Images of two clients, a file each."""
    draw = np.random.default_rng(0)
    for client in ("0", "1"):
        for part, count in (("train", 14), ("test", 5), ("validation", 6)):
            place = tmp_path / client / part
            place.mkdir(parents=True)
            for number in range(count):
                np.save(place / f"{number:02}.npy", draw.integers(0, 17, (8, 8), dtype=np.uint8))
    monkeypatch.setenv("FOLDER", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_a_federation_that_streams_has_the_bits_of_one_that_holds(tmp_path: Path) -> None:
    config = {
        "task": "tests.helpers.streamed:Brightness",
        **{"clients": 2, "rounds": 3, "method": "fedavg", "local.batch-size": 4, "step.judge": "both"},
        **{"local.threads": 1, "local.chunk": 4, "local.lr": 0.01},
    }
    found = {}
    for held, workers in ((1 << 30, 0), (0, 0), (0, 2)):
        output = tmp_path / f"run-{held}-{workers}"
        run({**config, "local.held-bytes": held, "local.workers": workers, "output": str(output)})
        found[held, workers] = (output / "model.npz").read_bytes()
    assert len(set(found.values())) == 1
    assert living() == set()
