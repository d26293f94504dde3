"""A client's test on its held-out part, and what it remembers for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dqnfed_flwr.client.held_out import KEPT, HeldOutJudge, HeldOutMemory, HeldOutTest
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.client.worker import Worker, probe
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import load_client
from dqnfed_flwr.errors import ShapeError
from dqnfed_flwr.guarantee.held_out import level
from dqnfed_flwr.types import ClientTask, Float64Array, Probe
from tests.helpers.runs import TINY

SETTINGS = Settings.from_mapping(
    {**TINY, "clients": 2, "partition": "iid", "step.judge": "both", "split.validation-fraction": 0.3}
)
LOW = np.linspace(0.0, 1.0, 20)
UP = LOW + 1 + 0.1 * np.sin(np.arange(20.0))
"""Above any doubt higher than `LOW`."""


def table(**more: Float64Array) -> Callable[[float], Float64Array]:
    """Held-out losses by factor, written as `f1`, `f05`."""
    known = {"f2": LOW, "f1": LOW, "f05": LOW, "f025": LOW, **more}
    return lambda factor: known[f"f{factor:g}".replace(".", "")]


def one_test(*, alone: bool = False, grow: bool = False, **losses: Float64Array) -> HeldOutTest:
    task = ClientTask(2, 2, probe=True, factor=1.0, grow=grow, halvings=2, reference_loss=1.0)
    return HeldOutTest(task, table(**losses), [LOW], 1, 0.1, alone)


def found(test: HeldOutTest, *training: float) -> Probe:
    """The probe with these training losses at factors 1, 1/2, 1/4 and behind; 2 has that of 1."""
    factors = dict(zip((1.0, 0.5, 0.25, -0.25), training, strict=True))
    return probe(lambda factor: factors.get(factor, factors[1.0]), test.task, 0.0, test)


def test_a_candidate_must_suit_both_and_each_can_refuse() -> None:
    assert found(one_test(), 0.5, 0.6, 0.7, 2.0) == Probe(0.5, True, held_out=True)
    refused = found(one_test(f1=UP), 0.5, 0.6, 0.7, 2.0)
    assert refused == Probe(0.5, False, back_factor=0.5, back_loss=0.6, held_out=False)
    by_training = found(one_test(), 1.5, 0.6, 0.7, 2.0)
    assert by_training == Probe(1.5, False, back_factor=0.5, back_loss=0.6, held_out=True)
    half = found(one_test(f05=UP), 1.5, 0.6, 0.7, 2.0)  # training refuses the candidate, the held-out part its half
    assert half == Probe(1.5, False, back_factor=0.25, back_loss=0.7, behind_loss=2.0, held_out=False)


def test_the_held_out_part_alone_lets_training_losses_rise_but_not_without_end() -> None:
    assert found(one_test(alone=True), 9.0, 9.0, 9.0, 2.0) == Probe(9.0, True, held_out=True)
    assert found(one_test(alone=True, f1=UP), 0.5, 9.0, 0.7, 2.0) == Probe(
        0.5, False, back_factor=0.5, back_loss=9.0, held_out=False
    )
    lost = found(one_test(alone=True), math.inf, 9.0, 0.7, 2.0)
    assert (lost.holds, lost.held_out, lost.back_factor) == (False, False, 0.5)


def test_growing_is_a_test_too_but_no_refusal() -> None:
    task = one_test(grow=True).task
    for losses, grown in ((LOW, True), (UP, False)):
        test = replace(one_test(f2=losses), task=task)
        assert found(test, 0.5, 0.6, 0.7, 2.0) == Probe(0.5, True, grown_holds=grown, held_out=True)


def test_each_test_has_a_level_of_its_own() -> None:
    judge = HeldOutJudge(0.1, 20, alone=False)
    judge.visit(ClientTask(1, 1), table(f0=LOW))
    answers = []
    for exchange, grow in ((2, False), (3, True), (4, False), (3, True), (9, False)):
        asked = ClientTask(exchange, 2, probe=True, factor=1.0, grow=grow)
        test = judge.visit(asked, table())
        assert test is not None
        answers.append(test.answer)
    assert answers == [1, 2, 4, 2, 4]  # an exchange that comes again has its number again
    assert level(0.1, 4) < level(0.1, 2)


def losses_of_round(number: int) -> Float64Array:
    return np.full(5, float(number))


def memory(*rounds: int) -> HeldOutMemory:
    """Of a client that trained and judged in these rounds."""
    kept = HeldOutMemory(5)
    for number in rounds:
        kept.before_step(number - 1)
        kept.train(number, losses_of_round(number))
    return kept


def rounds_before(kept: HeldOutMemory, number: int) -> list[float]:
    return [float(losses[0]) for losses in kept.before_step(number)]


def test_a_step_is_compared_with_its_start_and_a_model_for_each_doubling() -> None:
    assert rounds_before(memory(1), 1) == [1]
    assert rounds_before(memory(*range(1, 3)), 2) == [1, 2]
    assert rounds_before(memory(*range(1, 4)), 3) == [1, 2, 3]
    assert rounds_before(memory(*range(1, 22)), 21) == [1, 2, 4, 8, 16, 21]
    assert rounds_before(memory(*range(1, 17)), 16) == [1, 2, 4, 8, 16]


def test_a_model_that_was_not_judged_from_is_not_the_federations() -> None:
    kept = memory(3, 7, 8)  # nobody asked it about the step of round 3
    assert rounds_before(kept, 8) == [7, 8]
    assert rounds_before(kept, 9) == []


def test_a_round_that_comes_again_finds_what_it_found() -> None:
    kept = memory(*range(1, 11))
    first = rounds_before(kept, 10)
    kept.train(11, losses_of_round(11))
    for missed in range(2):  # another candidate of the same step
        assert rounds_before(kept, 10) == first
        kept.train(11, losses_of_round(11 + missed))
    kept.train(10, losses_of_round(10))  # the method fell back
    assert rounds_before(kept, 10) == first
    assert rounds_before(kept, 11) == []


def test_it_goes_through_a_checkpoint_and_is_of_these_samples() -> None:
    kept = memory(*range(1, 11))
    kept.count_answer(4, 2)
    arrays = kept.export()
    assert sum(name.startswith("trained.") for name in arrays) == KEPT
    again = HeldOutMemory(5)
    again.load(arrays)
    assert again.export().keys() == arrays.keys()
    assert all(np.array_equal(values, arrays[name]) for name, values in again.export().items())
    assert rounds_before(again, 10) == rounds_before(kept, 10)
    assert again.count_answer(5, 1) == 3
    assert HeldOutMemory(5).export() == {}
    for bad in ({"trained.3": np.zeros(4)}, {"best.3": np.zeros(5)}, {"trained.x": np.zeros(5)}):
        with pytest.raises(ShapeError, match=r"held-out memory: entry '.*5 held-out samples"):
            again.load(bad)


def client(**changes: Any) -> DQNFedClient:
    settings = Settings.from_mapping({**SETTINGS.flat(), **changes})
    return DQNFedClient(settings, 0, load_client(settings, 0))


def theta() -> Float64Array:
    """The model of the settings as it is drawn."""
    data = load_client(SETTINGS, 0)
    with Worker(SETTINGS, 0, data, data.num_classes, {}).models.lend() as model:
        return model.theta.double().numpy().copy()


def test_losses_of_each_held_out_sample_have_the_mean_that_an_evaluation_has() -> None:
    data = load_client(SETTINGS, 0)
    worker = Worker(SETTINGS, 0, data, data.num_classes, {})
    at = torch.tensor(theta(), dtype=torch.float32)
    samples = worker._samples.part("validation")
    with worker._borrowed():
        each, mean = worker._loss.scores(at, samples).losses, worker._loss.evaluate(at, samples).loss
    assert each.dtype == np.float64
    assert each.shape == (len(data.y_validation),)
    assert each.mean() == pytest.approx(mean, rel=1e-12)


def test_a_client_with_few_held_out_samples_judges_by_training_alone_and_keeps_nothing() -> None:
    one = client(**{"split.validation-fraction": 0.05})
    reply = one.work(ClientTask(1, 1), theta())
    asked = one.work(ClientTask(2, 2, probe=True, reference_loss=reply.loss + 1), theta())
    assert asked.probe is not None
    assert (asked.probe.holds, asked.probe.held_out) == (True, None)
    assert one.export_state() == {}


def test_a_client_refuses_a_step_against_its_held_out_part_and_does_so_again_after_a_restart() -> None:
    one, start = client(**{"step.judge": "held-out"}), theta()
    g = one.work(ClientTask(1, 1), start).row
    assert g is not None
    asked = ClientTask(2, 2, probe=True, factor=1.0, halvings=2, reference_loss=9.0, slope=1.0)
    state = one.export_state()
    for step, holds in ((0.01 * g, True), (-5 * g, False)):
        reply = one.work(asked, start - step, step)
        assert reply.probe is not None
        assert (reply.probe.holds, reply.probe.held_out) == (holds, holds)
        again = DQNFedClient(one._settings, 0, load_client(SETTINGS, 0), state).work(asked, start - step, step)
        assert again.probe == reply.probe
