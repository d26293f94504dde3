"""Runs that begin at a model of one's own, or at one that was trained on one client's data alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file, save_model

from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import load_client, to_model_input
from dqnfed_flwr.deploy.runs import server_settings
from dqnfed_flwr.engine.export import ADAPTER, WEIGHTS, export_run, trained_module
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.engine.start import read_weights
from dqnfed_flwr.errors import CheckpointError, ConfigError
from dqnfed_flwr.models import build_model
from dqnfed_flwr.params import ParamSpec
from dqnfed_flwr.run_files import MODEL
from tests.helpers.runs import TINY

SMALL: dict[str, Any] = {**TINY, "model": "logistic", "rounds": 3, "local.threads": 1}
ALONE: dict[str, Any] = {**SMALL, "partition": "one-class", "clients": 4, "split.only-classes": "0,1,2,3"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunResult, Path]:
    folder = tmp_path_factory.mktemp("run")
    result = run({**SMALL, "seed": 3, "output": str(folder)})
    save_model(trained_module(result), str(folder / WEIGHTS))
    return result, folder


@pytest.mark.parametrize("name", [MODEL, WEIGHTS])
def test_a_run_begins_where_another_ended(name: str, trained: tuple[RunResult, Path]) -> None:
    result, folder = trained
    following = run({**SMALL, "seed": 3, "start.model": str(folder / name)})
    assert following.events[0].losses_before == result.events[-1].losses_after


def test_a_run_that_is_resumed_needs_the_file_no_more(trained: tuple[RunResult, Path], tmp_path: Path) -> None:
    first = tmp_path / "first.npz"
    first.write_bytes((trained[1] / MODEL).read_bytes())
    settings = {**SMALL, "seed": 3, "start.model": str(first)}
    straight = run({**settings, "rounds": 5})
    run({**settings, "output": str(tmp_path / "run")})
    first.unlink()
    resumed = run({**settings, "rounds": 5, "output": str(tmp_path / "run")}, resume=True)
    assert np.array_equal(resumed.theta, straight.theta)


def test_buffers_begin_as_they_were_too(tmp_path: Path) -> None:
    class Counting(torch.nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2)
            self.register_buffer("count", torch.zeros(2))

    module = Counting()
    theta = np.arange(8, dtype=np.float32)
    np.savez(tmp_path / MODEL, allow_pickle=False, theta=theta, **{"buffer.count": np.array([5.0, 6.0])})
    read_weights(tmp_path / MODEL, module, "counting")
    assert ParamSpec.of(module).flatten(module).tolist() == theta.tolist()
    assert module.state_dict()["count"].tolist() == [5, 6]
    np.savez(tmp_path / MODEL, theta=theta)
    with pytest.raises(ConfigError, match=r"start\.model: .*model has \['count'\]"):
        read_weights(tmp_path / MODEL, module, "counting")


def test_infinities_that_a_buffer_of_the_model_holds_are_no_fault_of_the_file(tmp_path: Path) -> None:
    def masked() -> torch.nn.Module:
        module = torch.nn.Linear(2, 1, bias=False)
        module.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
        return module

    mask = np.array([[0, -np.inf], [0, 0]], np.float32)
    np.savez(tmp_path / MODEL, allow_pickle=False, theta=np.ones(2, np.float32), **{"buffer.mask": mask})
    read_weights(tmp_path / MODEL, masked(), "masked")
    np.savez(tmp_path / MODEL, allow_pickle=False, theta=np.ones(2, np.float32), **{"buffer.mask": mask.T})
    with pytest.raises(ConfigError, match="holds NaN or Inf, in mask"):
        read_weights(tmp_path / MODEL, masked(), "masked")


def test_weights_take_the_dtype_of_the_run(trained: tuple[RunResult, Path]) -> None:
    result, folder = trained
    for name in (MODEL, WEIGHTS):
        module = build_model("logistic", (64,), 10, seed=0, dtype=torch.float64)
        read_weights(folder / name, module, "logistic")
        assert np.array_equal(ParamSpec.of(module).flatten(module).numpy(), result.theta.astype(np.float64))


def changed(folder: Path, name: str, source: Path) -> Path:
    """A file that cannot be begun with."""
    target = folder / (f"{name}.npz" if name in ("short", "damaged", "checkpoint", "nan") else f"{name}.safetensors")
    weights = load_file(source / WEIGHTS)
    key = sorted(weights)[0]
    if name == "short":
        np.savez(target, theta=np.zeros(7))
    elif name == "nan":
        np.savez(target, theta=np.full(650, np.nan))
    elif name == "checkpoint":
        np.savez(target, candidate=np.zeros(650))
    elif name in ("damaged", "torn"):
        target.write_bytes(b"PK\x03\x04 no archive")
    elif name == "lacks":
        save_file({other: value for other, value in weights.items() if other != key}, target)
    elif name == "more":
        save_file({**weights, "head.weight": torch.zeros(2)}, target)
    else:
        save_file({**weights, key: torch.zeros(3)}, target)
    return target


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("short", "holds 7 parameters; model logistic for these data has 650. Set model, data and num-classes"),
        ("damaged", "damaged, or no model of a run"),
        ("checkpoint", "holds 0 parameters"),
        ("nan", r"holds NaN or Inf, in .*bias, .*weight"),
        ("torn", "damaged, or no file of safetensors"),
        ("lacks", r"for model logistic: it lacks .*bias; set model"),
        ("more", r"it has also head\.weight"),
        ("shape", r"bias \[3\] for \[10\]"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    name: str, said: str, trained: tuple[RunResult, Path], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"start\.model: ") as refused:
        run({**SMALL, "start.model": str(changed(tmp_path, name, trained[1]))})
    assert refused.match(said)


def test_a_file_that_is_none_is_refused(trained: tuple[RunResult, Path], tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"")
    for place, said in [
        (tmp_path / "absent.npz", "no such file on this machine; the server reads it"),
        (trained[1], r"is a folder; name the file, such as .*model\.npz"),
        (tmp_path / "model.bin", r"found model\.bin; give a run's model\.npz, or a file that ends in \.safetensors"),
    ]:
        with pytest.raises(ConfigError, match=said):
            run({**SMALL, "start.model": str(place)})


def fine_tuned(folder: Path, seed: int = 3) -> RunResult:
    """A run of a model with a frozen layer, drawn from the seed."""
    return run({**SMALL, "model": "tests.helpers.models:half_frozen", "seed": seed, "output": str(folder)})


@pytest.mark.parametrize("name", [MODEL, WEIGHTS, ADAPTER])
def test_a_fine_tuned_model_is_begun_with_where_its_frozen_part_is_the_same(name: str, tmp_path: Path) -> None:
    result = fine_tuned(tmp_path)
    export_run(tmp_path, tmp_path)
    settings = {**SMALL, "model": result.settings.model, "start.model": str(tmp_path / name)}
    assert run({**settings, "seed": 3}).events[0].losses_before == result.events[-1].losses_after
    with pytest.raises(ConfigError, match=r"the frozen parameters of model .*:half_frozen are others than .*no client"):
        run({**settings, "seed": 4})


def test_resuming_needs_the_same_frozen_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = fine_tuned(tmp_path).settings.flat()
    monkeypatch.setattr("tests.helpers.models.FROZEN_SCALE", 2.0)
    with pytest.raises(CheckpointError, match="another frozen part; put its pretrained weights back"):
        run({**settings, "rounds": 5}, resume=True)
    monkeypatch.undo()
    assert len(run({**settings, "rounds": 5}, resume=True).events) == 5


def test_the_server_is_told_an_absolute_path() -> None:
    with pytest.raises(ConfigError, match=r"start\.model: found 'a/model\.npz'; the run is on another machine"):
        server_settings({"start.model": "a/model.npz"}, "", resume=False)


def overfitted(**more: Any) -> RunResult:
    """A run whose first step is too small to be seen."""
    return run({**ALONE, "method": "fedavg", "local.lr": 1e-12, "rounds": 1, "start.epochs": 20, **more})


def test_an_overfitted_start_knows_one_client_only() -> None:
    result = overfitted(**{"start.client": 2})
    assert result.accuracies == {0: 0, 1: 0, 2: 1, 3: 0}
    losses = result.events[0].losses_before
    assert losses[2] < 0.01
    assert min(loss for client, loss in enumerate(losses) if client != 2) > 1


def test_the_start_is_the_same_for_every_method_and_again() -> None:
    settings = {**ALONE, "start.epochs": 2, "rounds": 1}
    runs = [
        run({**settings, **own})
        for own in ({}, {"method": "fedavg", "local.lr": 0.3, "local.batch-size": 5, "local.epochs": 2}, {})
    ]
    assert runs[0].events[0].losses_before == runs[1].events[0].losses_before == runs[2].events[0].losses_before
    other = run({**settings, "seed": 1})
    assert other.events[0].losses_before != runs[0].events[0].losses_before


def test_one_full_batch_epoch_is_one_step_along_the_clients_gradient() -> None:
    more = {"start.epochs": 1, "start.batch-size": 0, "start.lr": 0.25, "start.client": 1}
    begun = overfitted(**more)
    data = load_client(begun.settings, 1)
    module = build_model("logistic", (64,), 4, seed=begun.settings.seed)
    spec = ParamSpec.of(module)
    before = spec.flatten(module)
    x, y = to_model_input(data.x_train, torch.float32), torch.from_numpy(data.y_train)
    loss = torch.nn.functional.cross_entropy(module(x), y)
    gradient = torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, list(module.parameters()))])
    assert begun.theta == pytest.approx((before - 0.25 * gradient).numpy(), abs=1e-6)
    assert abs(gradient).max() > 0.01


def test_the_client_must_be_there() -> None:
    with pytest.raises(ConfigError, match=r"start\.client: found 4; clients = 4 allows 0\.\.3"):
        Settings.from_mapping({**ALONE, "start": {"epochs": 1, "client": 4}})
