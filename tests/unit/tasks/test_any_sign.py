"""Losses of any sign: what harm is then, which methods can do with them, and that no client is lost to them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from dqnfed_flwr.compare import compare
from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.config.methods import METHODS
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.errors import ConfigError, DataError
from dqnfed_flwr.guarantee.harm import ceiling
from dqnfed_flwr.methods._base import make_method
from dqnfed_flwr.strategy import hearing
from dqnfed_flwr.tasks import Task
from dqnfed_flwr.tasks.arrays import HuberRegression, Regression
from dqnfed_flwr.tasks.classification import Classification, CrossEntropy, NextToken, Segmentation
from dqnfed_flwr.telemetry.event_log import read_events
from tests.helpers.likelihoods import Counts, Floored, Normal, Shifted, TooHigh

SETTINGS: dict[str, str | int | float] = {"clients": 3, "rounds": 8, "local.threads": 1, "local.lr": 0.1}
WORDS = "the least value of the loss is not known"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The warnings about the floor."""
    found: list[str] = []

    def log(level: int, text: str, *values: object) -> None:
        del level
        if WORDS in text:
            found.append(text % values)

    monkeypatch.setattr(hearing, "log", log)
    return found


def left_out(result: RunResult) -> Iterable[object]:
    return [drop for event in result.events for drop in event.dropped]


@pytest.mark.parametrize(("task", "first"), [(Counts, 3), (Normal, 1)])
def test_without_a_floor_no_loss_may_rise_from_the_first_below_0_on(
    task: type[Task], first: int, told: list[str]
) -> None:
    result = run(SETTINGS, task=task())
    assert result.status == "finished"
    assert not left_out(result)
    assert sum(event.moved for event in result.events) >= 7
    assert min(result.events[-1].losses_after) < -0.4
    (words,) = told
    assert words.startswith(f"Round {first}: the loss of client ")
    assert "Give it as floor" in words
    assert [math.isinf(event.entitlement) for event in result.events] == [number >= first for number in range(1, 9)]
    for event in result.events:
        assert not event.harmed
        for before, after in zip(event.losses_before, event.losses_after, strict=True):
            assert after <= ceiling(before, event.entitlement)


@pytest.mark.parametrize("task", [Counts, Normal])
@pytest.mark.parametrize("method", ["fedavg", "afl", "term", "fedfv", "gifair", "vred", "propfair", "mgda"])
def test_methods_that_take_any_loss_train(method: str, task: type[Task], told: list[str]) -> None:
    result = run({**SETTINGS, "method": method, "rounds": 20}, task=task())
    assert result.status == "finished"
    assert not left_out(result)
    assert not told  # nobody is promised anything
    losses = np.array([[event.losses_before, event.losses_after] for event in result.events])
    assert losses[-1, 1].mean() < losses[0, 0].mean() - 0.2
    assert losses[-1, 1].min() < 0
    harmed = losses[:, 1] > losses[:, 0] + 1e-6 * abs(losses[:, 0]) + 1e-9  # whatever its sign
    assert [len(event.harmed) for event in result.events] == harmed.sum(axis=1).tolist()


@pytest.mark.parametrize("entitlement", ["50%", "0", "10%"])
def test_a_constant_added_to_loss_and_floor_changes_no_step(entitlement: str, told: list[str]) -> None:
    settings = {**SETTINGS, "dtype": "float64", "guarantee.entitlement": entitlement}
    low, high = (run(settings, task=task()) for task in (Floored, Shifted))
    assert not told
    assert [event.factor for event in low.events] == [event.factor for event in high.events]
    np.testing.assert_allclose(low.theta, high.theta, rtol=0, atol=1e-12)
    for one, other in zip(low.events, high.events, strict=True):
        np.testing.assert_allclose(one.losses_after, np.array(other.losses_after) - Shifted.constant, atol=1e-10)
        if entitlement != "0":
            assert one.entitlement == pytest.approx(other.entitlement - Shifted.constant)


def test_a_floor_of_0_is_what_losses_had_before() -> None:
    class Said(Shifted):
        floor = 0.0

    class Unsaid(Shifted):
        floor = None

    said, unsaid = (run(SETTINGS, task=task()) for task in (Said, Unsaid))
    assert said.theta.tobytes() == unsaid.theta.tobytes()
    assert [event.entitlement for event in said.events] == [event.entitlement for event in unsaid.events]


def test_an_entitlement_may_be_a_loss_below_0(told: list[str]) -> None:
    result = run({**SETTINGS, "guarantee.entitlement": -0.4}, task=Counts())
    assert {event.entitlement for event in result.events} == {-0.4}
    assert not told


def test_a_loss_below_its_floor_ends_the_run_in_words() -> None:
    with pytest.raises(DataError, match=r"client \d: .*loss is -0\.\d+, below -0\.1, the floor of the task; give the"):
        run(SETTINGS, task=TooHigh())


NEEDED = {
    "q-ffl": "takes powers of losses",
    "adafed": "takes powers of losses",
    "fedeba+": "takes the angle between the losses and equal ones",
    "fedmdfg": "takes the angle between the losses and equal ones",
    "fedlf": "takes the angle between the losses and equal ones",
    "aaggff": "takes losses over their mean",
}


@pytest.mark.parametrize("method", NEEDED)
def test_a_method_that_needs_losses_from_0_says_so_before_round_1(method: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run({**SETTINGS, "method": method}, task=Floored())
    assert f"but {method} {NEEDED[method]}, which takes losses from 0" in str(caught.value)
    assert "losses down to -185.661" in str(caught.value)


@pytest.mark.parametrize("method", [*NEEDED, "famo"])
def test_where_no_floor_is_known_it_ends_the_run_at_the_first_loss_below_0(method: str) -> None:
    with pytest.raises(DataError, match=rf"task: the loss of client \d is -.*, but {re_escaped(method)} takes .* from"):
        run({**SETTINGS, "method": method}, task=Normal())


def re_escaped(method: str) -> str:
    return method.replace("+", r"\+")


def test_an_anchor_is_asked_too() -> None:
    with pytest.raises(ConfigError, match="but q-ffl takes powers of losses"):
        run({**SETTINGS, "dqn-fed.anchor": "q-ffl"}, task=Floored())
    with pytest.raises(DataError, match="but q-ffl takes powers of losses"):
        run({**SETTINGS, "dqn-fed.anchor": "q-ffl"}, task=Normal())


def test_settings_under_which_the_sign_does_not_matter_are_taken() -> None:
    for more in ({"method": "q-ffl", "q-ffl.q": 0}, {"method": "fedeba+", "fedeba.alpha": 0}):
        assert run({**SETTINGS, **more}, task=Floored()).status == "finished"


def test_famo_counts_from_the_floor() -> None:
    low, high = (run({**SETTINGS, "method": "famo", "dtype": "float64"}, task=task()) for task in (Floored, Shifted))
    np.testing.assert_allclose(low.theta, high.theta, rtol=0, atol=1e-9)


def test_a_comparison_says_it_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="but q-ffl takes powers of losses"):
        compare({**SETTINGS}, "fedavg,q-ffl", seeds=[0], output=tmp_path / "both", task=Floored())
    assert not list(tmp_path.rglob("events.jsonl"))


def test_a_run_in_the_strict_form_is_resumed_without_another_word(tmp_path: Path, told: list[str]) -> None:
    task, settings = Counts(), {**SETTINGS, "output": str(tmp_path / "run"), "metrics": str(tmp_path / "metrics")}
    run({**settings, "rounds": 4}, task=task)
    assert len(told) == 1
    resumed = run(settings, task=task, resume=True)
    assert len(told) == 1
    assert resumed.theta.tobytes() == run(SETTINGS, task=task).theta.tobytes()
    events = read_events(tmp_path / "run" / "events.jsonl")
    assert [math.isinf(event.entitlement) for event in events] == [False] * 2 + [True] * 6
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "finished"


@pytest.mark.parametrize("task", [Floored, Counts])
def test_with_sampling_a_share_of_the_loss_holds_no_step_back_for_its_sign(task: type[Task]) -> None:
    more = {"clients": 6, "participation": 0.5, "rounds": 20}
    result = run({**SETTINGS, **more}, task=task())
    assert float(np.mean(result.events[-1].losses_after)) < -0.5
    assert all(event.moved for event in result.events)


def test_a_loss_of_ones_own_has_a_floor_of_its_own() -> None:
    class Poisson(Regression):
        def losses_of(self, outputs, targets):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
            return (outputs.exp() - targets * outputs).mean(dim=1)

    class Named(Poisson):
        floor = -1.0

    class OtherFigure(Classification):
        def metrics(self):  # type: ignore[no-untyped-def] # noqa: ANN202
            return {}

    class Mixin:
        losses_of = Poisson.losses_of

    class Mixed(Mixin, Regression):
        pass

    assert [kind.floor for kind in (Poisson, Named, OtherFigure, Mixed)] == [None, -1.0, 0.0, None]
    assert {kind.floor for kind in (CrossEntropy, Regression, HuberRegression, NextToken, Segmentation)} == {0.0}


@pytest.mark.parametrize("floor", [math.nan, -math.inf, "0", True])
def test_a_floor_is_a_finite_number(floor: object) -> None:
    task = Counts()
    task.floor = floor  # type: ignore[assignment]
    with pytest.raises(
        ConfigError, match=r"floor: found .*; give the least value of the loss, a finite number, or None"
    ):
        run(SETTINGS, task=task)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_says_whether_the_sign_matters(method: str) -> None:
    """Where a constant added to all losses changes the weights, the method has said so."""
    from tests.helpers.rounds import decide

    plan = resolve(Settings.from_mapping({"method": method, "clients": 3, "rounds": 40}))
    rows = np.random.default_rng(3).normal(size=(3, 24))
    try:
        found = [
            decide(make_method(plan), rows, losses=[1.0 + shift, 2.0 + shift, 2.5 + shift]).step.numpy()
            for shift in (0.0, 4.0)
        ]
    except (ConfigError, KeyError, TypeError, ValueError):
        pytest.skip("its clients send more than this helper knows")
    if not plan.method.nonnegative(plan, floor=False):
        np.testing.assert_allclose(found[0], found[1], rtol=1e-9, atol=1e-12)
