from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dqnfed_flwr import run
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.client.parts import DeviceParts, StoredData, open_client
from dqnfed_flwr.client.samples import HeldSamples, StreamedSamples
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import ClientData, to_model_input
from dqnfed_flwr.errors import DataError
from dqnfed_flwr.tasks import task_of
from dqnfed_flwr.types import ClientTask

KINDS: dict[str, tuple[Any, ...]] = {
    "classification": ((8, 8), np.uint8),
    "regression": ((5,), np.float32),
    "multi-label": ((3, 4), np.float64),
    "segmentation": ((6, 6, 3), np.uint8),
    "next-token": ((7,), np.int16),
}


def drawn(task: str, samples: int) -> dict[str, NDArray[Any]]:
    """Samples and targets of noise for a task, as they are stored."""
    draw, (shape, dtype) = np.random.default_rng(1), KINDS[task]
    floats = np.issubdtype(dtype, np.floating)
    x = draw.normal(size=(samples, *shape)) if floats else draw.integers(0, 7, (samples, *shape))
    targets: dict[str, NDArray[Any]] = {
        "classification": np.arange(samples) % 3,
        "regression": draw.normal(size=samples),
        "multi-label": draw.integers(0, 2, (samples, 4)),
        "segmentation": draw.integers(-1, 3, (samples, 6, 6)).astype(np.int8),
        "next-token": draw.integers(0, 7, (samples, 7)).astype(np.int16),
    }
    return {"x_train": x.astype(dtype), "y_train": targets[task]}


def configured(folder: Path, task: str, **changes: Any) -> Settings:
    """Two clients that share a file of 60 samples."""
    np.savez(folder / "set.npz", allow_pickle=False, **drawn(task, 60))
    config = {"data": str(folder / "set.npz"), "task": task, "clients": 2, "partition": "iid"}
    return Settings.from_mapping({**config, "split.validation-fraction": 0.2, **changes})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("task", KINDS)
def test_a_stored_client_has_the_bits_of_a_copied_one(tmp_path: Path, task: str, dtype: str) -> None:
    held = configured(tmp_path, task, dtype=dtype)
    stored = held.model_copy(update={"local": held.local.model_copy(update={"held_bytes": 0})})
    one, other = (open_client(settings, 1) for settings in (held, stored))
    assert isinstance(one, ClientData)
    assert isinstance(other, StoredData)
    for name in ("input_shape", "input_kind", "num_classes"):
        assert getattr(one, name) == getattr(other, name)
    assert other.nbytes < one.nbytes
    parts, streamed = (
        DeviceParts(settings, task_of(settings), source, 1, 7, torch.device("cpu"))
        for settings, source in ((held, one), (stored, other))
    )
    for part in ("train", "validation", "test"):
        assert one.count(part) == other.count(part) > 0
        copied, read = parts.part(part), streamed.part(part)
        assert isinstance(copied, HeldSamples)
        assert isinstance(read, StreamedSamples)
        for (a, _), (b, _) in zip(copied.chunks(5), read.chunks(5), strict=True):
            assert [t.dtype for t in a] == [t.dtype for t in b]
            assert all(torch.equal(x, y) and x.stride() == y.stride() for x, y in zip(a, b, strict=True))


def test_nothing_is_copied_of_what_is_stored(tmp_path: Path) -> None:
    settings = configured(tmp_path, "segmentation", **{"local.held-bytes": 0})
    data = open_client(settings, 0)
    assert isinstance(data, StoredData)
    stored = data.of("train", torch.float32)
    assert all(
        isinstance(array.base if array.base is not None else array, np.memmap) or isinstance(array, np.memmap)
        for array in (stored.x, stored.y)
    )
    np.testing.assert_array_equal(stored.samples, data.part.train)


def test_what_is_stored_is_not_standardised(tmp_path: Path) -> None:
    settings = configured(tmp_path, "regression", **{"local.held-bytes": 0, "data-scale": "standardise"})
    with pytest.raises(DataError, match=r"data-scale: standardise needs .* local.held-bytes allows 0; raise it"):
        open_client(settings, 0)


def test_small_parts_of_a_large_client_are_held(tmp_path: Path) -> None:
    settings = configured(tmp_path, "classification", **{"local.held-bytes": 8 * (64 * 4 + 8)})
    parts = DeviceParts(settings, task_of(settings), open_client(settings, 0), 0, 3, torch.device("cpu"))
    kinds = [type(parts.part(part)) for part in ("train", "validation", "test")]
    assert [len(parts.part(part)) for part in ("train", "validation", "test")] == [19, 5, 6]
    assert kinds == [StreamedSamples, HeldSamples, HeldSamples]


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "dqn-fed", "step.judge": "both"},
        {"method": "fedavg", "local.batch-size": 7, "noise.kind": "pair", "noise.clients": 1.0},
        {
            "dqn-fed.form": "two-sided",
            "step-rule": "newton",
            "local.work": "lbfgs",
            "local.epochs": 2,
            "local.gradient-batch": 9,
        },
    ],
)
def test_a_run_on_stored_arrays_has_the_bits_of_one_in_memory(tmp_path: Path, changes: dict[str, Any]) -> None:
    plain = configured(tmp_path, "classification", rounds=3, model="cnn", **{"local.threads": 1, "local.chunk": 8})
    found = []
    for held, workers in ((1 << 30, 0), (0, 0), (0, 1)):
        own = {"local.held-bytes": held, "local.workers": workers, "output": str(tmp_path / f"{held}-{workers}")}
        run({**plain.flat(), **changes, **own})
        found.append((tmp_path / f"{held}-{workers}" / "model.npz").read_bytes())
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("workers", [0, 1])
def test_features_that_are_not_finite_are_found_as_they_are_read(tmp_path: Path, workers: int) -> None:
    arrays = drawn("regression", 60)
    arrays["x_train"][40, 2] = np.nan
    np.savez(tmp_path / "bad.npz", allow_pickle=False, **arrays)
    config = {"task": "regression", "partition": "file", "local.held-bytes": 0, "local.chunk": 8, "model": "logistic"}
    settings = Settings.from_mapping({**config, "data": str(tmp_path / "bad.npz"), "local.workers": workers})
    client = DQNFedClient(settings, 0, open_client(settings, 0))
    theta = np.zeros(6, np.float32)
    with pytest.raises(DataError, match="1 of 8 samples hold NaN or infinite features, first number 40"):
        client.work(ClientTask(1, 1, num_classes=1), theta)


def test_labels_beyond_the_model_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    settings = configured(tmp_path, "segmentation", **{"local.held-bytes": 0})
    parts = DeviceParts(settings, task_of(settings), open_client(settings, 1), 1, 2, torch.device("cpu"))
    with pytest.raises(DataError, match=r"labels from -1 to 2 in the data of client 1; 2 classes allow 0\.\.1"):
        parts.part("train")


@pytest.mark.parametrize(("value", "scale"), [(2500.0, 1000.0), (-0.5, 0.1), (0.0, 0.0)])
def test_the_scale_of_features_is_found_by_some_of_them(tmp_path: Path, value: float, scale: float) -> None:
    x, y = np.full((40, 2), value, np.float32), np.arange(40) % 2
    np.savez(tmp_path / "set.npz", allow_pickle=False, x_train=x, y_train=y)
    config = {"data": str(tmp_path / "set.npz"), "partition": "file", "local.held-bytes": 0}
    source = open_client(Settings.from_mapping(config), 0)
    assert source.feature_scale == scale


def test_a_method_that_needs_samples_in_memory_says_so(tmp_path: Path) -> None:
    settings = configured(tmp_path, "classification", method="fedcorr", rounds=40, **{"local.held-bytes": 0})
    client = DQNFedClient(settings, 0, open_client(settings, 0))
    with pytest.raises(Exception, match=r"local\.held-bytes: this method needs inputs and class labels in memory"):
        client.work(ClientTask(1, 1, num_classes=3), np.zeros(1, np.float32))


def test_inputs_are_those_of_the_whole_array(tmp_path: Path) -> None:
    settings = configured(tmp_path, "classification", **{"local.held-bytes": 0})
    data = open_client(settings, 0)
    assert isinstance(data, StoredData)
    part = data.of("test", torch.float32)
    whole = to_model_input(drawn("classification", 60)["x_train"][part.samples], torch.float32)
    assert torch.equal(torch.stack([part[row][0] for row in range(len(part))]), whole)
