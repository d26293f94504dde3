"""FedAvg of a model with BatchNorm: parameters and statistics are the clients' own, averaged by samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import load_client
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.models import build_model
from dqnfed_flwr.params import ParamSpec
from dqnfed_flwr.types import ClientReply, ClientTask
from tests.helpers.runs import TINY

NORM: dict[str, Any] = {**TINY, "method": "fedavg", "model": "tests.helpers.models:norm_mlp", "local.batch-size": 16}


def replies(settings: Settings) -> tuple[np.ndarray[Any, Any], list[ClientReply]]:
    """The first model, and what every client makes of it."""
    data = [load_client(settings, client) for client in range(settings.clients)]
    model = build_model(settings.model, data[0].input_shape, data[0].num_classes, seed=settings.seed)
    spec = ParamSpec.of(model)
    theta, buffers = spec.flatten(model), {name: value.numpy() for name, value in spec.read_buffers(model).items()}
    clients = [DQNFedClient(settings, number, part) for number, part in enumerate(data)]
    return theta.numpy(), [client.work(ClientTask(1, 1), theta, None, buffers) for client in clients]


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_round_averages_parameters_and_buffers_by_samples(epochs: int) -> None:
    settings = Settings.from_mapping({**NORM, "rounds": 1, "local.epochs": epochs})
    theta, answers = replies(settings)
    shares = np.array([answer.num_examples for answer in answers]) / sum(answer.num_examples for answer in answers)
    result = run(settings)
    updates = np.array([answer.row for answer in answers], dtype=np.float64)
    np.testing.assert_allclose(result.theta, theta - shares @ updates, rtol=1e-5, atol=1e-7)
    assert set(result.buffers) == set(answers[0].buffers)
    for name in ("2.running_mean", "2.running_var"):
        expected = sum(share * answer.buffers[name] for share, answer in zip(shares, answers, strict=True))
        np.testing.assert_allclose(np.asarray(result.buffers[name], np.float64), expected, rtol=1e-6)
    batches = [epochs * -(-answer.num_examples // 16) for answer in answers]
    assert result.buffers["2.num_batches_tracked"] == round(float(shares @ batches))


def test_statistics_learned_in_one_round_serve_the_next() -> None:
    short, long = (run(Settings.from_mapping({**NORM, "rounds": rounds})) for rounds in (1, 6))
    assert int(str(long.buffers["2.num_batches_tracked"])) > int(str(short.buffers["2.num_batches_tracked"]))
    losses = [float(np.mean(event.losses_before)) for event in long.events]
    assert losses[-1] < losses[0]


def test_passes_beside_a_gradient_leave_the_statistics_and_with_them_the_losses_alone() -> None:
    keys = {**NORM, "split.samples": 0, "method": "dqn-fed", "dqn-fed.anchor": "fedavg", "rounds": 20}
    result = run(keys)
    first = replies(Settings.from_mapping({**keys, "method": "fedavg"}))[1][0]
    assert set(result.buffers) == set(first.buffers)
    assert int(str(result.buffers["2.num_batches_tracked"])) == 0
    assert len(result.events) == 20
    for event, following in zip(result.events, result.events[1:], strict=False):
        assert following.losses_before == event.losses_after
