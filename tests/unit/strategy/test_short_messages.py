"""The step that is adopted is the one that is sent; what rounding left goes into the next."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, MessageType
from flwr.clientapp import ClientApp
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from benchmarks._clock import Clock
from benchmarks._queueing import QueueingGrid
from client_app.app import app
from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.engine.server_run import serve
from dqnfed_flwr.strategy.short_messages import ShortMessages
from dqnfed_flwr.wire.codecs import KINDS, MODEL
from tests.helpers.runs import TINY
from tests.helpers.short_runs import reasons

DIM = 700


def short(bits: int = 4, seed: int = 0) -> ShortMessages:
    return ShortMessages(resolve(Settings.from_mapping({"messages.step": bits, "seed": seed})))


def drawn(seed: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(DIM) * scale).to(dtype)


def test_a_step_of_zeros_and_one_that_is_not_finite_are_themselves() -> None:
    for step in (torch.zeros(DIM), drawn(1) * torch.inf):
        messages = short()
        assert messages.adopt(step, 1) is step
        assert messages.export_state() == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bits", [4, 8, 16])
@given(seed=st.integers(0, 1000), count=st.integers(1, 6))
def test_what_steps_lack_comes_with_the_next(bits: int, dtype: torch.dtype, seed: int, count: int) -> None:
    """Sum of the steps asked for = sum of those taken + what is left."""
    messages, asked, taken = short(bits, seed), torch.zeros(DIM, dtype=torch.float64), torch.zeros(DIM).double()
    for number in range(count):
        step = drawn(seed + number, dtype=dtype)
        asked, taken = asked + step, taken + messages.adopt(step, number).double()
        messages.round_over(moved=True)
    left = messages.export_state()["left"]
    np.testing.assert_allclose(taken.numpy() + left, asked.numpy(), atol=2e-6)
    assert np.linalg.norm(left) > 0


def test_what_is_left_is_dropped_after_a_round_that_did_not_move_and_beside_a_shorter_step() -> None:
    fresh = short().adopt(drawn(2), 5)
    stayed = short()
    for moved in (True, False):
        stayed.adopt(drawn(1), 1)
        stayed.round_over(moved=moved)
    assert torch.equal(stayed.adopt(drawn(2), 5), fresh)
    fed = short()
    fed.adopt(drawn(1), 1)
    fed.round_over(moved=True)
    assert not torch.equal(fed.adopt(drawn(2), 5), fresh)
    small = drawn(2, 1e-4)
    assert torch.equal(fed.adopt(small, 6), short().adopt(small, 6))


def test_the_mean_of_what_is_adopted_is_the_step() -> None:
    step, count = drawn(3), 1500
    mean = torch.stack([short().adopt(step, number) for number in range(count)]).double().mean(dim=0)
    level = float(step.abs().max()) / 7 * (1 + 2**-7)
    assert float((mean - step).abs().max()) <= 5 * level / 2 / count**0.5


def test_draws_are_those_of_seed_and_exchange() -> None:
    step = drawn(4)
    one, same, later, other = (short(4, s).adopt(step, exchange) for s, exchange in ((0, 1), (0, 1), (0, 2), (1, 1)))
    assert torch.equal(one, same)
    assert not torch.equal(one, later)
    assert not torch.equal(one, other)


def test_a_checkpoint_brings_back_what_the_next_exchange_needs() -> None:
    messages: Any = short(8)
    messages.adopt(drawn(1), 1)
    messages.round_over(moved=True)
    messages.adopt(drawn(2), 2)
    messages.place(1.0, anew=True)
    messages.place(0.5, anew=False)
    state = {name: np.array(values) for name, values in messages.export_state().items()}
    assert set(state) == {"left", "rest", "path", "sent.codes", "sent.scales"}
    restored: Any = short(8)
    restored.restore_state(state)
    assert restored._path == (1.0, 0.5)
    assert {name: values.tolist() for name, values in restored.export_state().items()} == {
        name: values.tolist() for name, values in state.items()
    }
    for each in (messages, restored):
        each.round_over(moved=True)
    assert torch.equal(messages.adopt(drawn(3), 3), restored.adopt(drawn(3), 3))


def test_a_node_that_is_always_late_is_sent_the_whole_model_once(clock: Clock) -> None:
    settings = Settings.from_mapping({**TINY, "clients": 4, "rounds": 8, "quorum": 0.7, "deadline": 100.0})
    sent = dict[int, list[bool]]()

    def answer(message: Message, context: Context) -> Message:
        if message.metadata.message_type != MessageType.QUERY:
            arrays = message.content.array_records[MODEL]
            sent.setdefault(message.metadata.dst_node_id, []).append(KINDS["model"].key in arrays)
        return app(message, context)

    grid = QueueingGrid(cast(ClientApp, answer), 4, clock, settings.flat())
    for client, node in grid.nodes.items():
        node.seconds = 1.6 if client == 3 else 1.0
    result = serve(grid, settings)
    assert reasons(result).get("late", []).count(3) > 2
    assert "lost-model" not in reasons(result)
    assert {sum(whole) for whole in sent.values()} == {1}
    assert len(sent[grid.nodes[3].context.node_id]) > 3
