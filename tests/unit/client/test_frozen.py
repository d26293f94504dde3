"""What stays of a model is held once in a process, and goes when its last user goes."""

from __future__ import annotations

import gc

import numpy as np
import torch
from torch import nn

from dqnfed_flwr.client.frozen import Frozen, copied
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.client.parts import open_client
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.params import NOTHING_FROZEN, ParamSpec
from dqnfed_flwr.types import ClientTask
from tests.helpers.models import half_frozen
from tests.helpers.runs import TINY

CPU = torch.device("cpu")
TUNED = {**TINY, "model": "tests.helpers.models:half_frozen", "local.threads": 1}


def drawn(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return half_frozen((4,), 3)


def place(module: nn.Module) -> int:
    return module.get_parameter("1.weight").data_ptr()


def test_equal_frozen_parts_are_one_and_others_are_not() -> None:
    one, same, other = drawn(1), drawn(1), drawn(2)
    held = [Frozen.of(module, CPU) for module in (one, same, other)]
    assert place(one) == place(same) != place(other)
    assert one.get_parameter("3.weight").data_ptr() != same.get_parameter("3.weight").data_ptr()
    assert held[0] is held[1] is not held[2]
    del held, one, same, other
    gc.collect()
    again = drawn(1)
    assert torch.equal(Frozen.of(again, CPU).tensors["1.weight"], drawn(1).get_parameter("1.weight"))


def test_a_model_that_travels_whole_shares_nothing() -> None:
    held = Frozen.of(nn.Linear(2, 2), CPU)
    assert (held.fingerprint, held.tensors) == (NOTHING_FROZEN, {})


def test_a_copy_shares_what_is_frozen_alone() -> None:
    module = drawn(1)
    other = copied(module)
    assert place(module) == place(other)
    assert module.get_parameter("3.weight").data_ptr() != other.get_parameter("3.weight").data_ptr()
    x = torch.rand(5, 4)
    assert torch.equal(module(x), other(x))


def test_clients_send_and_step_the_trained_part_alone() -> None:
    settings = Settings.from_mapping(TUNED)
    clients = [DQNFedClient(settings, k, open_client(settings, k)) for k in range(2)]
    said = [client.get_properties({}) for client in clients]
    assert said[0]["dim"] == 8 * 10 + 10
    assert said[0]["frozen"] == said[1]["frozen"] != NOTHING_FROZEN
    reply = clients[0].work(ClientTask(1, 1), np.zeros(90, np.float32))
    assert reply.row is not None
    assert reply.row.shape == (90,)


def test_a_run_moves_what_is_trained_and_leaves_the_rest() -> None:
    result = run(TUNED)
    assert result.form is not None
    assert result.theta.shape == (result.form.dim,) == (90,)
    assert len(result.form.frozen) == 64
    assert all(event.improved_ratio == 1 for event in result.events)
    together = run({**TUNED, "local.together": 3})
    np.testing.assert_allclose(together.theta, result.theta, rtol=1e-4, atol=1e-5)


def test_local_passes_move_what_is_trained_alone() -> None:
    result = run({**TUNED, "method": "fedavg", "local.epochs": 2, "local.batch-size": 10})
    assert result.form is not None
    assert result.events[-1].losses_after < result.events[0].losses_before
    assert ParamSpec.of(half_frozen((1, 8, 8), 10)).dim == result.theta.size
