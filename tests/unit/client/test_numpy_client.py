from __future__ import annotations

import math
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
import torch
from flwr.client import NumPyClient
from numpy.typing import NDArray
from torch import Tensor, nn

from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import ClientData
from dqnfed_flwr.errors import ClientDataError, ConfigError, DataError, ShapeError
from dqnfed_flwr.types import ClientReply, ClientTask, on_host
from tests.helpers.transport import task_config

Vector = NDArray[np.float64]
DIM = 4 * 3 + 3  # logistic regression on 4 features and 3 classes


def samples(n: int = 30, seed: int = 0) -> ClientData:
    generator = np.random.default_rng(seed)
    x, y = generator.normal(size=(n, 4)), generator.integers(0, 3, n)
    return ClientData(x, y, x[:6] + 1, y[:6], x[:9] - 1, y[:9], 3)


def client(
    settings: dict[str, Any] | None = None, *, data: ClientData | None = None, state: dict[str, Any] | None = None
) -> DQNFedClient:
    defaults = {"model": "logistic", "dtype": "float64", "device": "cpu", "local.threads": 1}
    return DQNFedClient(Settings.from_mapping(defaults | (settings or {})), 7, data or samples(), state)


def theta(seed: int = 1, dim: int = DIM) -> Vector:
    return np.random.default_rng(seed).normal(size=dim)


class BatchNormModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(x))
        return logits


def batchnorm_model(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return BatchNormModel()


@pytest.mark.parametrize("part", ["x_validation", "x_test"])
def test_tokens_that_are_only_tested_are_checked_before_the_first_round(part: str) -> None:
    tokens = np.arange(24).reshape(3, 8) % 3
    parts = {"x_train": tokens, "x_validation": tokens, "x_test": tokens, part: np.where(tokens == 1, 800, tokens)}
    y = np.arange(3)
    data = ClientData(parts["x_train"], y, parts["x_validation"], y, parts["x_test"], y, 3)
    with pytest.raises(ClientDataError, match=r"whole numbers count as tokens, here 0 to 800"):
        client({"model": "char-lstm-small", "dtype": "float32"}, data=data).get_properties({})


@pytest.fixture
def batchnorm(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(sys.modules, "own_models", sys.modules[__name__])
    return "own_models:batchnorm_model"


def test_importing_the_client_imports_no_torch() -> None:
    script = "import sys, dqnfed_flwr.client.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_training_task_returns_loss_gradient_and_rate_of_the_received_model() -> None:
    reply = client({"ridge": 0.1}).work(ClientTask(1, 1), theta())
    assert reply.row is not None
    assert reply.row.dtype == np.float64
    assert reply.num_examples == 30
    assert (reply.probe, reply.test, reply.validation, reply.vectors, dict(reply.buffers)) == (None,) * 3 + ({}, {})
    for i in (0, 7, 14):
        h = np.zeros(DIM)
        h[i] = 1e-6
        up, down = (client({"ridge": 0.1}).work(ClientTask(1, 1), theta() + s * h).loss for s in (1, -1))
        assert reply.row[i] == pytest.approx((up - down) / 2e-6, rel=1e-6)
    assert reply.rate == pytest.approx(0.1 * reply.row @ reply.row)


def test_vectors_of_a_reply_are_read_only_and_theta_is_copied() -> None:
    model = theta()
    one = client({"curvature.kind": "secant"})
    reply = one.work(ClientTask(1, 1), model)
    assert reply.row is not None
    with pytest.raises(ValueError, match="read-only"):
        reply.row[0] = 1
    model += 1
    expected = one.work(ClientTask(2, 2), theta(2)).rate
    other = client({"curvature.kind": "secant"})
    other.work(ClientTask(1, 1), theta())
    assert other.work(ClientTask(2, 2), theta(2)).rate == expected


def test_read_only_and_float32_vectors_and_tensors_are_welcome() -> None:
    model = theta().astype(np.float32)
    model.flags.writeable = False
    expected = client().work(ClientTask(1, 1), model.astype(np.float64)).loss
    assert client().work(ClientTask(1, 1), model).loss == expected
    assert client().work(ClientTask(1, 1), torch.tensor(model)).loss == expected


def test_the_candidate_is_probed_on_the_line_the_message_names() -> None:
    one, start = client(), theta()
    at_start = one.work(ClientTask(1, 1), start)
    g = at_start.row
    assert g is not None
    step, slope = 50 * g, float(50 * g @ g)  # far too long

    def loss(a: float) -> float:
        return one.work(ClientTask(9, 9), start - a * step).loss

    task = ClientTask(2, 2, True, True, False, 1.0, True, 12, at_start.loss, slope=slope)
    reply = one.work(task, start - step, step)
    probe = reply.probe
    assert probe is not None
    assert reply.loss == probe.loss == loss(1.0)
    assert not probe.holds
    assert probe.back_factor is not None
    assert probe.back_loss is not None
    assert probe.back_loss == pytest.approx(loss(probe.back_factor), rel=1e-12)
    assert probe.back_loss <= at_start.loss - 1e-4 * probe.back_factor * slope
    assert loss(2 * probe.back_factor) > at_start.loss - 1e-4 * 2 * probe.back_factor * slope

    small = probe.back_factor / 4
    again = one.work(
        ClientTask(3, 2, False, True, False, small, True, 0, at_start.loss, slope=slope), start - small * step, step
    )
    assert again.probe is not None
    assert (again.probe.holds, again.probe.grown_holds) == (True, True)
    assert again.row is None
    assert math.isnan(again.loss)


def test_losses_at_the_candidate_have_the_same_bits_with_and_without_training() -> None:
    task = ClientTask(1, 1, probe=True, reference_loss=1e9)
    for model in ("mlp", "logistic"):
        one = client({"model": model, "dtype": "float32"})
        model_at = theta(dim=int(one.get_properties({})["dim"])) / 10
        probe = one.work(ClientTask(1, 1, train=False, probe=True, reference_loss=1e9), model_at).probe
        assert probe is not None
        assert one.work(task, model_at).loss == probe.loss


def test_a_line_without_a_step_is_refused() -> None:
    with pytest.raises(ShapeError, match="no step was sent"):
        client().work(ClientTask(1, 1, probe=True, factor=1.0, grow=True, reference_loss=1e9), theta())


def test_recomputed_pairs_come_from_the_line() -> None:
    start, step = theta(1), theta(2)
    cached = client({"curvature.kind": "secant"})
    cached.work(ClientTask(1, 1), start)
    expected = cached.work(ClientTask(2, 2), start - 0.5 * step)
    recomputed = client({"curvature.kind": "secant", "curvature.previous": "recomputed"})
    found = recomputed.work(ClientTask(2, 2, factor=0.5), start - 0.5 * step, step)
    assert found.rate == pytest.approx(expected.rate, rel=1e-9)
    assert found.pairs_kept == expected.pairs_kept == 1
    assert recomputed.work(ClientTask(3, 3), start).pairs_kept == 0
    assert recomputed.export_state() == {}


def test_a_mini_batch_gives_the_gradient_and_all_samples_the_loss() -> None:
    model, settings = theta(), {"local.gradient-batch": 5, "step-rule": "fixed"}
    batch, full = client(settings), client()
    first, second = (batch.work(ClientTask(t, t), model) for t in (1, 2))
    whole = full.work(ClientTask(1, 1), model)
    assert first.loss == second.loss == whole.loss
    assert first.row is not None
    assert second.row is not None
    assert whole.row is not None
    assert not np.array_equal(first.row, second.row)
    mean = np.mean([np.asarray(batch.work(ClientTask(t, t), model).row) for t in range(1, 2000)], axis=0)
    assert np.linalg.norm(mean - whole.row) < 0.1 * np.linalg.norm(first.row - whole.row)


def test_evaluation_counts_on_test_and_validation_part() -> None:
    data, model = samples(), theta()
    reply = client(data=data).work(ClientTask(1, 1, train=False, evaluate=True), model)
    weight, bias = model[:12].reshape(3, 4), model[12:]
    for found, x, y in (
        (reply.test, data.x_test, data.y_test),
        (reply.validation, data.x_validation, data.y_validation),
    ):
        assert found is not None
        assert found.examples == len(y)
        assert found.correct == int(np.sum(np.argmax(x @ weight.T + bias, axis=1) == y))
    without = ClientData(data.x_train, data.y_train, data.x_train[:0], data.y_train[:0], data.x_test, data.y_test, 3)
    assert client(data=without).work(ClientTask(1, 1, evaluate=True), model).validation is None


def test_local_sgd_returns_the_displacement_and_the_loss_before_it() -> None:
    model = theta()
    one = client({"method": "fedavg", "local.epochs": 1, "local.lr": 0.3})
    plain = client().work(ClientTask(1, 1), model)
    reply = one.work(ClientTask(1, 1, probe=True, reference_loss=1e9), model)
    assert reply.row is not None
    assert plain.row is not None
    assert reply.loss == plain.loss
    np.testing.assert_allclose(reply.row, 0.3 * plain.row, rtol=1e-9, atol=1e-14)
    assert reply.rate == pytest.approx(0.3 * reply.row @ reply.row)


def test_the_anchors_row_comes_beside_the_true_gradient() -> None:
    model = theta()
    settings: dict[str, Any] = {"dqn-fed.anchor": "fedavg", "dqn-fed.anchor-bits": 32, "local.epochs": 3}
    reply = client(settings).work(ClientTask(1, 1), model)
    plain = client().work(ClientTask(1, 1), model)
    moved = client({"method": "fedavg", "local.epochs": 3}).work(ClientTask(1, 1), model)
    assert moved.row is not None
    np.testing.assert_array_equal(reply.row, plain.row)
    np.testing.assert_array_equal(reply.vectors["anchor"], moved.row)


@pytest.mark.parametrize("gradient", ["final", "pseudo"])
def test_one_lbfgs_pass_is_the_plain_gradient(gradient: str) -> None:
    settings = {"local.work": "lbfgs", "dqn-fed.form": "one-sided", "step-rule": "newton", "local.gradient": gradient}
    one = client(settings).work(ClientTask(1, 1), theta())
    two = client({**settings, "local.epochs": 2}).work(ClientTask(1, 1), theta())
    plain = client().work(ClientTask(1, 1), theta())
    np.testing.assert_array_equal(one.row, plain.row)
    assert not np.array_equal(np.asarray(two.row), np.asarray(one.row))
    assert two.loss == one.loss == plain.loss


def buffers() -> dict[str, NDArray[Any]]:
    return {
        "norm.running_mean": np.arange(4.0),
        "norm.running_var": np.full(4, 2.0),
        "norm.num_batches_tracked": np.array(9),
    }


def test_buffers_come_back_trained_from_sgd_and_not_at_all_from_gradients(batchnorm: str) -> None:
    model = theta(dim=8 + 15)
    task = ClientTask(1, 1, probe=True, evaluate=True, reference_loss=1e9)
    still = client({"model": batchnorm}).work(task, model, None, buffers())
    assert still.buffers == {}
    trained = client({"model": batchnorm, "method": "fedavg", "local.batch-size": 10}).work(
        task, model, None, buffers()
    )
    assert trained.buffers["norm.num_batches_tracked"] == 12
    assert not np.array_equal(trained.buffers["norm.running_mean"], np.arange(4.0))
    assert (trained.loss, trained.test, trained.probe) == (still.loss, still.test, still.probe)
    with pytest.raises(ShapeError, match=r"buffers \['x'\] were sent"):
        client({"model": batchnorm}).work(task, model, None, {"x": np.zeros(1)})


def test_fit_and_evaluate_speak_lists(batchnorm: str) -> None:
    one, direct = (client({"model": batchnorm, "curvature.kind": "secant"}) for _ in range(2))
    assert isinstance(one, NumPyClient)
    model, step = theta(dim=23), theta(3, dim=23)
    values = list(buffers().values())
    task = ClientTask(2, 1, True, True, True, 0.5, True, 2, reference_loss=1e9)
    expected = direct.work(task, model, step, buffers())
    arrays, examples, metrics = one.fit([model, step, *values], task_config(task, has_step=True))
    assert examples == 30
    assert len(arrays) == 1
    np.testing.assert_array_equal(arrays[0], expected.row)
    assert set(metrics) == {
        "loss", "rate", "pairs-kept", "pairs-rejected", "probe-loss", "probe-holds", "probe-grown-holds", "seconds",
        "test-correct", "test-examples", "test-loss", "validation-correct", "validation-examples", "validation-loss",
    }  # fmt: skip
    assert (metrics["loss"], metrics["rate"]) == (expected.loss, expected.rate)

    loss, examples, metrics = one.evaluate(
        [model, *values], task_config(ClientTask(3, 1, evaluate=True), has_step=False)
    )
    assert expected.test is not None
    assert (loss, examples, metrics["test-correct"]) == (expected.test.loss, 9, expected.test.correct)
    probing = task_config(ClientTask(3, 1, probe=True, reference_loss=1e9), has_step=False)
    assert one.evaluate([model], probing)[:2] == (expected.loss, 30)
    with pytest.raises(ConfigError, match="neither probe nor evaluate"):
        one.evaluate([model], task_config(ClientTask(3, 1), has_step=False))
    with pytest.raises(ShapeError, match="3 arrays were sent; need theta and, in all or not at all, 3 buffers"):
        one.fit([model, *values[:2]], task_config(ClientTask(3, 1), has_step=False))


def test_fit_returns_the_anchors_row_after_the_gradient() -> None:
    settings: dict[str, Any] = {"dqn-fed.anchor": "fedavg", "dqn-fed.anchor-bits": 32}
    arrays, _, _ = client(settings).fit([theta()], task_config(ClientTask(1, 1), has_step=False))
    reply = client(settings).work(ClientTask(1, 1), theta())
    assert len(arrays) == 2
    np.testing.assert_array_equal(arrays[1], reply.vectors["anchor"])
    packed, _, _ = client({"dqn-fed.anchor": "fedavg"}).fit([theta()], task_config(ClientTask(1, 1), has_step=False))
    assert [array.dtype for array in packed[1:]] == [np.uint8, np.uint16]


def figures(reply: ClientReply) -> tuple[float, float, int, int, bytes]:
    gradient = b"" if reply.row is None else on_host(reply.row).tobytes()
    return reply.loss, reply.rate, reply.pairs_kept, reply.pairs_rejected, gradient


@pytest.mark.parametrize("previous", ["cached", "recomputed"])
@pytest.mark.parametrize("kind", ["secant", "hvp"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_client_with_its_state_goes_on_with_the_same_bits(kind: str, previous: str, dtype: str) -> None:
    settings = {"curvature.kind": kind, "curvature.previous": previous, "curvature.memory": 2, "dtype": dtype}
    models = [theta(seed) for seed in range(7)]
    steady, returning = client(settings), client(settings)
    state: dict[str, Any] = {}
    for t in range(1, 7):
        task, step = ClientTask(t, t, factor=1.0), models[t - 1] - models[t]
        expected = figures(steady.work(task, models[t], step))
        newborn = client(settings, state=state)
        assert figures(newborn.work(task, models[t], step)) == expected
        returning.restore_state(state)
        assert figures(returning.work(task, models[t], step)) == expected
        state = {key: np.array(value) for key, value in newborn.export_state().items()}
        returning.work(ClientTask(t + 1, t + 1), theta(50 + t))
    steady.restore_state({})
    assert steady.export_state() == {}


def test_an_exchange_done_again_after_later_ones_has_the_same_bits() -> None:
    one = client({"curvature.kind": "secant", "curvature.memory": 2})
    replies = {t: figures(one.work(ClientTask(t, t), theta(t))) for t in range(1, 8)}
    for t in (6, 7):
        assert figures(one.work(ClientTask(t, t), theta(t))) == replies[t]


def test_a_state_of_another_model_is_refused() -> None:
    other = client({"curvature.kind": "secant"})
    other.work(ClientTask(1, 1), theta())
    one = client({"curvature.kind": "secant", "model": "mlp"}, state=other.export_state())
    with pytest.raises(ShapeError, match="start the client with an empty state"):
        one.get_properties({})


def test_properties_describe_client_and_model() -> None:
    assert client().get_properties({}) == {
        "partition": 7,
        "num-examples": 30,
        "test-examples": 9,
        "input-shape": "4",
        "input-kind": "features",
        "num-classes": 3,
        "feature-scale": 1.0,
        "dim": 15,
        "frozen": "none",
        "version": version("dqnfed-flwr"),
    }
    assert client().get_properties({"num-classes": 5})["dim"] == 25


def test_the_classes_of_the_task_shape_the_model() -> None:
    one = client()
    assert one.work(ClientTask(1, 1, num_classes=6), theta(dim=30)).row is not None
    assert one.work(ClientTask(2, 2), theta()).row is not None
    with pytest.raises(DataError, match="labels from 0 to 2 in the data of client 7; 2 classes"):
        one.work(ClientTask(3, 3, num_classes=2), theta(dim=10))


def test_unfit_models_and_devices_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"shape \(14,\) was sent; this model needs \(15,\)"):
        client().work(ClientTask(1, 1), theta(dim=14))
    with pytest.raises(ShapeError, match="a vector of <U3; need numbers"):
        client().work(ClientTask(1, 1), np.array(["one"] * 15))
    with pytest.raises(ConfigError, match="device: found 'tpu'"):
        client({"device": "tpu"}).work(ClientTask(1, 1), theta())


def test_a_client_at_work_tells_of_the_model_that_it_works_with() -> None:
    one = client({"curvature.kind": "secant"})
    assert one.get_properties({})["dim"] == DIM
    one.work(ClientTask(1, 1, num_classes=5), theta(dim=5 * 4 + 5))
    assert one.get_properties({})["dim"] == 5 * 4 + 5
