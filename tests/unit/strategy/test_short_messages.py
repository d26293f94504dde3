"""The step that is adopted is the one that is sent; what rounding left goes into the next."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, MessageType
from flwr.clientapp import ClientApp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from benchmarks._clock import Clock
from benchmarks._queueing import QueueingGrid
from client_app.app import app
from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.server_run import serve
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.params import digest
from dqnfed_flwr.strategy.short_messages import MOST_TAKEN, RANKS, Line, ShortMessages
from dqnfed_flwr.strategy.solve import unknown
from dqnfed_flwr.strategy.strategy import GradientStrategy
from dqnfed_flwr.types import Float64Array, FloatArray
from dqnfed_flwr.wire import Leg, encode_model
from dqnfed_flwr.wire.codecs import KINDS, MODEL
from dqnfed_flwr.wire.levels import Levels
from tests.helpers.runs import TINY
from tests.helpers.short_runs import reasons

DIM = 700


def short(bits: int | str = 4, seed: int = 0, share: float = 1.0) -> ShortMessages:
    run = {"messages.step": bits, "seed": seed, "clients": 10, "participation": share}
    return ShortMessages(resolve(Settings.from_mapping(run)))


def drawn(seed: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(DIM) * scale).to(dtype)


def test_a_step_of_zeros_and_one_that_is_not_finite_are_themselves() -> None:
    for step in (torch.zeros(DIM), drawn(1) * torch.inf):
        messages = short()
        assert messages.adopt(step, 1) is step
        assert messages.export_state() == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bits", [2, 4, 8, 16])
@given(seed=st.integers(0, 1000), count=st.integers(1, 6))
def test_what_steps_lack_comes_with_the_next(bits: int, dtype: torch.dtype, seed: int, count: int) -> None:
    """Sum of the steps asked for = sum of those taken + what is left."""
    messages, asked, taken = short(bits, seed), torch.zeros(DIM, dtype=torch.float64), torch.zeros(DIM).double()
    for number in range(count):
        step = drawn(seed + number, dtype=dtype)
        asked, taken = asked + step, taken + messages.adopt(step, number).double()
        messages.round_over(moved=True)
    left = messages.export_state()["left"].astype(np.float32)
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
    run = Settings.from_mapping({**TINY, "clients": 4, "rounds": 8, "quorum": 0.7, "deadline": 100.0})
    sent = dict[int, list[bool]]()

    def answer(message: Message, context: Context) -> Message:
        if message.metadata.message_type != MessageType.QUERY:
            arrays = message.content.array_records[MODEL]
            sent.setdefault(message.metadata.dst_node_id, []).append(KINDS["model"].key in arrays)
        return app(message, context)

    grid = QueueingGrid(cast(ClientApp, answer), 4, clock, run.flat())
    for client, node in grid.nodes.items():
        node.seconds = 1.6 if client == 3 else 1.0
    result = serve(grid, run)
    assert reasons(result).get("late", []).count(3) > 2
    assert "lost-model" not in reasons(result)
    assert {sum(whole) for whole in sent.values()} == {1}
    assert len(sent[grid.nodes[3].context.node_id]) > 3


def stubborn(*rows: FloatArray) -> Callable[[Tensor], Float64Array]:
    """Slopes of those who have these rows [K, D]."""
    return lambda vector: np.stack(rows).astype(np.float64) @ vector.numpy().astype(np.float64)


def bits_sent(messages: ShortMessages) -> float:
    """A value of the step that was adopted last."""
    state = messages.export_state()
    return 8 * sum(values.nbytes for name, values in state.items() if name.startswith("sent")) / DIM


def test_a_step_along_which_everybody_descends_is_sent_in_the_fewest_bits() -> None:
    messages, step = short(2), drawn(1)
    adopted = messages.adopt(step, 1, stubborn(step.numpy()))
    assert bits_sent(messages) < 1.8  # a last block that is short, and the frame of so few codes
    assert float(adopted @ step) > 0.85 * float(step @ step)


@pytest.mark.parametrize(
    ("asked", "shares", "tried"),
    [
        (1.0, [0.86], 1),
        (1.0, [0.84, 0.86], 2),
        (0.5, [0.67], 1),
        (0.5, [0.66, 0.67], 2),
        (0.5, [0.5, 0.6, 0.7], 3),
        (0.5, [0.1, 0.1, 0.66, 0.9], 4),
        (0.5, [0.0, -1.0, 0.5, 0.66, 0.66, 0.8], 6),
        (1.0, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 6),
    ],
)
def test_the_first_rounding_that_leaves_most_of_the_slope_is_taken(
    asked: float, shares: list[float], tried: int
) -> None:
    """From the coarsest to the finest, first with what was left before, then without; else the last of them."""
    first, step, messages = drawn(1), drawn(2), short(2, share=asked)
    messages.adopt(first, 1, stubborn(first.numpy()))
    messages.round_over(moved=True)
    left = torch.from_numpy(messages.export_state()["left"])
    shown: list[Tensor] = []

    def slopes(vector: Tensor) -> Float64Array:
        shown.append(vector)
        return np.array([3.0, 1.0 if len(shown) == 1 else shares[len(shown) - 2]])

    adopted = messages.adopt(step, 2, slopes)
    draws = np.random.default_rng(0)
    expected = [
        Levels().unpack(Levels(spacing).pack(aimed.numpy(), draws), (DIM,))
        for aimed in (step + left, step)
        for spacing in (2.0, 1.0, 0.0)
    ]
    assert shown[0] is step
    assert len(shown) == 1 + tried
    for found, wanted in zip(shown[1:], expected, strict=False):
        np.testing.assert_array_equal(found.numpy(), wanted)
    assert adopted is shown[-1]


@pytest.mark.parametrize(
    ("before", "after", "taken"),
    [(-1.0, -1.14, True), (-1.0, -1.16, False), (0.0, 0.0, True), (0.0, -1e-9, False), (np.nan, 1.0, False)],
)
def test_who_climbs_climbs_by_little_more(before: float, after: float, taken: bool) -> None:
    shown: list[Tensor] = []

    def slopes(vector: Tensor) -> Float64Array:
        shown.append(vector)
        return np.array([1.0, before if len(shown) == 1 else after])

    short(2).adopt(drawn(1), 1, slopes)
    assert len(shown) == 1 + (1 if taken else 3)


def test_a_step_is_not_rounded_to_nothing() -> None:
    """Half of two root mean squares is the border to 0, to which an even number of levels is rounded."""
    assert short(2).adopt(torch.ones(512), 1, lambda vector: -np.ones(1) * float(vector.sum())).all()


def test_steps_are_kept_while_they_are_shorter_than_the_model_and_no_more_than_a_few() -> None:
    for values, most in ((100, MOST_TAKEN), (4000, 8)):
        messages: Any = short(2)
        parts = {".codes": np.zeros(values, np.uint8)}
        models = [torch.full((8000,), float(number)) for number in range(100)]
        for here, there in pairwise(models):
            messages._go_on(Line(here, there, Leg((1.0,), parts)))
        assert len(messages._taken) == min(most, 32_000 // values + 1)
        assert [taken.before for taken in messages._taken][-1] == digest(models[-3].numpy())


@given(seed=st.integers(0, 300), tie=st.floats(1e-3, 1.0), share=st.floats(0.0, 1.0))
@settings(max_examples=60)
def test_rounding_leaves_everybody_most_of_the_slope_or_the_finest_step_is_taken(
    seed: int, tie: float, share: float
) -> None:
    """However near two gradients are to opposing each other, and whatever a step before left."""
    draws = np.random.default_rng(seed)
    common, apart = draws.standard_normal((2, DIM)).astype(np.float32)
    rows = np.stack([apart + tie * common, -apart + tie * common])
    slopes, messages = stubborn(*rows), short(2)
    messages.adopt(torch.from_numpy(share * apart + common), 1, slopes)
    messages.round_over(moved=True)
    step = torch.from_numpy(rows.mean(axis=0))
    adopted, wanted = messages.adopt(step, 2, slopes), slopes(step)
    if not (slopes(adopted) >= wanted - 0.15 * abs(wanted)).all():
        assert torch.equal(adopted, short(2).adopt(step, 2, unknown))
        assert np.linalg.norm(adopted - step) < 0.2 * np.linalg.norm(step)


@pytest.mark.parametrize(("pull", "kept"), [(5, True), (-5, False)])
def test_what_is_left_and_has_somebody_climb_is_dropped(pull: float, kept: bool) -> None:
    first, step, messages = drawn(1), drawn(2), short(2)
    messages.adopt(first, 1, stubborn(first.numpy()))
    messages.round_over(moved=True)
    left = messages.export_state()["left"].astype(np.float32)
    slopes = stubborn(step.numpy() + pull * left, step.numpy())
    found = messages.adopt(step, 2, slopes)
    assert torch.equal(found, short(2).adopt(step, 2, slopes)) != kept


def test_without_known_slopes_the_step_is_as_fine_as_it_can_be() -> None:
    step = drawn(5)
    found = short(2).adopt(step, 1)
    finest = Levels().unpack(Levels(0.0).pack(step.numpy(), np.random.default_rng(0)), (DIM,))
    np.testing.assert_array_equal(found.numpy(), finest)


@given(seed=st.integers(0, 300), count=st.integers(1, 3))
@settings(max_examples=30)
def test_a_step_in_low_rank_has_no_more_columns_than_descent_asks_for(seed: int, count: int) -> None:
    """Each of the clients asks for one of so many orthogonal matrices of rank 1, and the step is their sum."""
    draws = np.random.default_rng(seed)
    left, right = (np.linalg.qr(draws.standard_normal((40, 8)))[0][:, :count] for _ in range(2))
    rows = np.stack([np.outer(*pair).reshape(-1) for pair in zip(left.T, right.T, strict=True)]).astype(np.float32)
    messages = short("low-rank")
    messages.shapes = ((40, 40),)
    step = torch.from_numpy(rows.sum(axis=0))
    adopted = messages.adopt(step, 1, stubborn(*rows))
    columns = int(np.linalg.matrix_rank(adopted.numpy().reshape(40, 40)))
    assert count <= columns <= 2 ** (count - 1).bit_length()
    assert float((adopted - step).norm()) < 0.02 * float(step.norm())


def test_without_known_slopes_a_step_has_the_highest_rank() -> None:
    messages, step = short("low-rank"), torch.from_numpy(np.random.default_rng(0).standard_normal(6400)).float()
    messages.shapes = ((80, 80),)
    assert np.linalg.matrix_rank(messages.adopt(step, 1).numpy().reshape(80, 80)) == RANKS[-1]


@pytest.mark.parametrize("more", [{"messages.step": "low-rank"}, {"method": "fedlf"}])
def test_what_goes_by_layers_needs_the_model_that_is_trained(more: dict[str, Any]) -> None:
    chosen = Settings.from_mapping({**TINY, **more})
    who = "method 'fedlf' goes" if "method" in more else "steps in low rank go"
    grid = InProcessGrid(app, chosen.clients, chosen.flat())
    with pytest.raises(ConfigError, match=f"has 650 parameters, the model to be trained has 651; {who} by its layers"):
        GradientStrategy(chosen).start(grid, encode_model(np.zeros(651, np.float32), {}))
