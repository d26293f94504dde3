"""Whole masked runs under differential privacy: what leaves the clients, and that each of it is accounted for."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord
from rich.console import Console
from scipy.stats import chi2

from dqnfed_flwr.audit.weights import read_run
from dqnfed_flwr.cli.command import EndedEarly
from dqnfed_flwr.cli.run import _conclude
from dqnfed_flwr.client import app as client_app
from dqnfed_flwr.client.app import forget_clients
from dqnfed_flwr.client.records import cut_sum
from dqnfed_flwr.config import Settings, protection_of
from dqnfed_flwr.engine.export import card_of
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.notices import MARK, early_end
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.engine.server_run import serve
from dqnfed_flwr.errors import CheckpointError, ConfigError, DQNFedError
from dqnfed_flwr.masked.sums import opened
from dqnfed_flwr.params import Line
from dqnfed_flwr.report.table import summary_table
from dqnfed_flwr.run_files import ASKED
from dqnfed_flwr.strategy import checkpointer, masked_clients
from dqnfed_flwr.telemetry.events import Cost, Listener, RoundEvent
from dqnfed_flwr.types import Figure
from dqnfed_flwr.wire import VECTORS, decode_task
from dqnfed_flwr.wire.masked import SUMMAND, decode_masked
from tests.helpers.runs import Stop, StopAfter
from tests.unit.strategy.test_masked_clients import MASKED, Meddled, asks, served

pytest.importorskip("dp_accounting")
PRIVATE: dict[str, Any] = {
    **MASKED,
    "local.lr": 0.5,
    "privacy.epsilon": 300.0,
    "privacy.min-records": 1,
    "split.validation-fraction": 0.2,
    "evaluate-every": 1,
}
NOISED, DERIVED, PUBLIC, SECRET = "with noise", "made of what has noise", "no function of a record", "random, or masked"
CLASSES = {
    "gradient": NOISED,  # turned and sketched
    "loss": NOISED,
    "probe-loss": NOISED,
    "test-correct": NOISED,
    "test-loss": NOISED,
    "validation-correct": NOISED,
    "validation-loss": NOISED,
    "rate": DERIVED,
    "extra.along": DERIVED,
    "probe-holds": DERIVED,
    "probe-grown-holds": DERIVED,
    SUMMAND: DERIVED,
    "pairs-kept": PUBLIC,  # 0
    "pairs-rejected": PUBLIC,
    "seconds": PUBLIC,
    "num-examples": PUBLIC,
    "test-examples": PUBLIC,
    "validation-examples": PUBLIC,
    "partition": PUBLIC,
    "input-shape": PUBLIC,
    "input-kind": PUBLIC,
    "num-classes": PUBLIC,
    "feature-scale": PUBLIC,  # 0
    "dim": PUBLIC,
    "frozen": PUBLIC,
    "version": PUBLIC,
    "public": SECRET,
    "signature": SECRET,
    "to": PUBLIC,
    "boxes": SECRET,
    "tag": SECRET,
    "members": PUBLIC,
}
"""Every number and word that a client sends, and why it may."""


class Told(Listener):
    """Keeps the epsilon of each round."""

    def __init__(self) -> None:
        self.epsilons: list[float] = []

    def on_round(self, event: RoundEvent) -> None:
        """Keep it."""
        self.epsilons += [] if event.privacy is None else [event.privacy.epsilon]


def said_by(message: Message) -> dict[str, Any]:
    """All that a reply says, by name."""
    found: dict[str, Any] = {}
    for record in message.content.values():
        assert isinstance(record, ConfigRecord | MetricRecord) or record in message.content.array_records.values()
        found |= dict(record.items())
    return found


def noted(changes: dict[str, Any] | None = None) -> tuple[RunResult, Meddled]:
    clients = Meddled()
    return served({**PRIVATE, **(changes or {})}, clients), clients


def test_everything_that_leaves_a_client_is_accounted_for() -> None:
    found, clients = noted()
    names: set[str] = set()
    for question, reply in clients.said:
        said = said_by(reply)
        names |= said.keys()
        assert said.get("seconds", 0.0) == said.get("feature-scale", 0.0) == 0.0
        assert said.get("pairs-kept", 0) == said.get("pairs-rejected", 0) == 0
        if "rate" in said:
            row = np.asarray(said["gradient"].numpy(), np.float64)
            assert said["rate"] == pytest.approx(0.5 * row @ row, rel=1e-4)
        if "probe-loss" in said and "loss" in said:
            assert said["loss"] == said["probe-loss"]
        if "probe-holds" in said:
            task = decode_task(question.content).task
            assert said["probe-holds"] == (said["probe-loss"] <= max(task.reference_loss, task.entitlement) + 1e-5) or (
                task.slope > 0
            )
    assert names == CLASSES.keys()
    assert [event.moved for event in found.events] == [True] * 4


@pytest.mark.parametrize("task", ["regression", "huber-regression", "multi-label"])
def test_other_tasks_give_no_more(task: str, tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    x = draws.normal(size=(300, 4)).astype(np.float32)
    y = x @ draws.normal(size=(4, 2)) + 0.1 * draws.normal(size=(300, 2))
    np.savez(tmp_path / "data.npz", x_train=x, y_train=(y > 0).astype(np.uint8) if task == "multi-label" else y)
    mine = {"task": task, "data": str(tmp_path / "data.npz"), "partition": "iid", "split.samples": 0, "local.lr": 0.1}
    found, clients = noted(mine)
    names = set().union(*(said_by(reply).keys() for _, reply in clients.said))
    assert names - CLASSES.keys() == {"test-figure", "validation-figure"}  # which are the losses
    for _, reply in clients.said:
        said = said_by(reply)
        if "test-figure" in said:
            assert (said["test-figure"], said["validation-figure"]) == (said["test-loss"], said["validation-loss"])
            assert said["test-correct"] == said["validation-correct"] == 0
    assert found.figure == Figure("loss", higher=False)
    assert [event.moved for event in found.events] == [True] * 4
    assert found.totals.privacy is not None
    assert np.mean(found.events[-1].losses_after) < np.mean(found.events[0].losses_before)


def first_rows(clients: Meddled) -> list[tuple[Message, np.ndarray[Any, Any]]]:
    rows = [(question, reply) for question, reply in clients.said if VECTORS in reply.content.array_records]
    return [(q, r.content.array_records[VECTORS]["gradient"].numpy()) for q, r in rows if "gradient" in said_by(r)][:5]


def exact_means(clients: Meddled) -> tuple[list[np.ndarray[Any, Any]], list[int]]:
    """The means of cut gradients at the first model, which nobody is told, and the numbers of records."""
    sessions = [session for session, _ in client_app._SESSIONS._values.values()]
    means, counts = [], []
    question, _ = first_rows(clients)[0]
    for session in sorted(sessions, key=lambda each: each.client._partition):
        worker: Any = session.client._worker
        with worker._borrowed() as model:
            model.place(worker._vector(decode_task(question.content).theta))
            counts.append(worker._loss.num_examples)
            means.append((cut_sum(worker._loss, 1.0) / counts[-1]).numpy())
    return means, counts


def test_noise_of_every_client_is_in_its_sketch_and_in_the_sum() -> None:
    """The model has 650 parameters, so that a sketch has all values, turned; noise is far above the gradient."""
    _, clients = noted({"privacy.epsilon": 0.5})
    protection = protection_of(Settings.from_mapping({**PRIVATE, "privacy.epsilon": 0.5}))
    assert protection is not None
    means, counts = exact_means(clients)
    deviations, dim = [protection.of_gradient(count) for count in counts], len(means[0])
    lows, highs = (float(chi2.ppf(share, dim)) for share in (1e-5, 1 - 1e-5))
    for (_, row), mean, deviation in zip(first_rows(clients), means, deviations, strict=True):
        square = float(row @ row) / deviation**2
        assert lows < square - float(mean @ mean) / deviation**2 < highs
    sums = [(question, reply) for question, reply in clients.said if asks(question) == "sum"][:5]
    asked = decode_masked(sums[0][0].content)
    assert asked is not None
    weights = np.array(asked["weights"])
    total = opened([reply.content.array_records[VECTORS][SUMMAND].numpy() for _, reply in sums], asked["unit"])
    shares = (weights * deviations) ** 2
    noise = float(np.sum((total - weights @ np.array(means)) ** 2)) / shares.sum()
    lows, highs = (float(chi2.ppf(share, dim)) for share in (1e-3, 1 - 1e-3))
    assert lows < noise < highs
    assert lows > dim * (1 - shares.min() / shares.sum())  # without the least share it would be below that


def test_events_say_what_is_spent_and_what_is_promised() -> None:
    found, _ = noted()
    protection = protection_of(found.settings)
    assert protection is not None
    spent = [event.privacy for event in found.events]
    assert all(each is not None for each in spent)
    exchanges = [2, 3, 4, 5]
    assert [each.epsilon for each in spent if each] == [protection.budget.spent(count) for count in exchanges]
    last = found.events[-1]
    assert last == RoundEvent.from_json(last.to_json())
    assert "ε" in found.totals.moved_words
    assert "with probability 0.95 no client that judged was harmed by more than τ" in found.totals.moved_words
    for event in found.events:
        above = np.array(event.limits) - event.losses_before
        assert (above > 0).all()  # by what noise alone may do
    assert found.to_json()["privacy"] == found.totals.privacy.words if found.totals.privacy else False


def test_nothing_is_promised_of_losses_where_nobody_judges_the_steps() -> None:
    found = run({**PRIVATE, "method": "fedsgd"})
    assert [event.privacy.rise for event in found.events if event.privacy] == [None] * len(found.events)
    assert found.events[-1].privacy == RoundEvent.from_json(found.events[-1].to_json()).privacy
    assert "no client judged the steps" in found.totals.moved_words
    assert "τ" not in found.totals.moved_words


def test_what_is_spent_stands_in_tables_cards_and_audits(tmp_path: Path) -> None:
    found = run({**PRIVATE, "output": str(tmp_path / "run")})
    assert found.totals.privacy is not None
    words = found.totals.privacy.words
    stream = StringIO()
    Console(file=stream, width=300, color_system=None).print(summary_table({"private": found}))
    assert words in stream.getvalue()
    assert f"| differential privacy of a record | {words} |" in card_of(found, 650)
    end = read_run(tmp_path / "run").end
    assert end.words.endswith(f"; {words}.")
    assert end.to_json()["privacy"] == words


def test_same_seed_has_the_same_noise_and_another_seed_another() -> None:
    one, again, other = (noted(changes)[0] for changes in ({}, {}, {"seed": 5}))
    np.testing.assert_array_equal(one.theta, again.theta)
    assert not np.array_equal(one.theta, other.theta)


def test_stopped_and_resumed_run_has_the_same_bits_and_the_same_ledger(tmp_path: Path) -> None:
    whole = run({**PRIVATE, "output": str(tmp_path / "whole")})
    part = {**PRIVATE, "output": str(tmp_path / "part")}
    with pytest.raises(Stop):
        run(part, listeners=[StopAfter(2)])
    with pytest.raises(CheckpointError, match="rounds: 4 then, 9 now"):
        run({**part, "rounds": 9}, resume=True)
    found = run(part, resume=True)
    one, other = ([replace(event, cost=Cost()).to_json() for event in each.events] for each in (whole, found))
    assert one == other


def test_what_is_spent_over_nodes_counts_exchanges_that_no_checkpoint_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes make other noise after a resume, so that an exchange that is asked again is one more."""
    for module in (checkpointer, masked_clients):
        monkeypatch.setattr(module, "KeepsClientState", Stop)  # as Flower's grids keep none
    mapping = {**MASKED, **PRIVATE, "output": str(tmp_path), "rounds": 8, "checkpoint-every": 3}
    protection = protection_of(Settings.from_mapping(mapping))
    assert protection is not None

    def go_on(stop: int = 0, *, resume: bool = True) -> list[float]:
        """Epsilon as told after each round from then on, until the run is stopped after one."""
        settings = Settings.from_mapping({**mapping, "resume": resume})
        forget_clients()
        told = Told()
        with pytest.raises(Stop) if stop else nullcontext():
            grid = InProcessGrid(client_app.app, settings.clients, settings.flat())
            serve(grid, settings, listeners=[told, *([StopAfter(stop)] if stop else [])])
        return told.epsilons

    legs = [go_on(5, resume=False), go_on(5), go_on()]
    spent = protection.budget.spent
    # round 1 takes two exchanges; the checkpoint is that after round 3, with 4 of them
    assert legs[0] == [spent(count) for count in (2, 3, 4, 5, 6)]
    assert legs[1] == [spent(count) for count in (7, 8)]
    assert legs[2] == [spent(count) for count in (9, 10, 11)]
    assert (tmp_path / ASKED).read_text() == "11"
    (tmp_path / ASKED).write_text("eleven")
    with pytest.raises(CheckpointError, match=r"asked: damaged .*; start anew"):
        go_on()
    assert protection.budget.exchanges == 12  # one more is kept for the end: round 8 is not begun


def test_run_ends_when_its_budget_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dqnfed_flwr.masked.budget.SPARE", -0.5)
    found, _ = noted()
    assert (found.status, len(found.events)) == ("budget-spent", 2)
    assert found.totals.privacy is not None
    assert found.totals.privacy.epsilon <= 300
    words = early_end(found)
    assert words.startswith(f"{MARK}, as budget-spent, after round 2 of 4: its budget holds no further exchange; ε ")
    assert "of 300 spent (δ 1e-05" in words
    assert "a smaller local.lr" in words
    assert "guarantee.tolerate" not in words
    assert f"- {words}\n" in card_of(found, 650)
    with pytest.raises(EndedEarly, match=re.escape(words)):
        _conclude(found, strict=False)


def test_client_refuses_what_its_budget_does_not_hold_whatever_the_server_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dqnfed_flwr.strategy.masked_clients.MaskedClients.ready", _never_over)
    monkeypatch.setattr("dqnfed_flwr.masked.budget.SPARE", -0.75)  # three exchanges
    clients = Meddled()
    with pytest.raises(DQNFedError, match=r"exchange \d would spend more than epsilon 300"):
        served(PRIVATE, clients)
    tasks = [question for question, reply in clients.said if {"loss", "probe-loss"} & said_by(reply).keys()]
    assert {decode_task(question.content).task.exchange for question in tasks} == {1, 2, 3}


def _never_over(side: Any, pending: Any) -> str:
    return str(super(type(side), side).ready(pending))


def test_clients_with_few_records_are_refused_before_round_1() -> None:
    clients = Meddled()
    with pytest.raises(DQNFedError, match=r"client \d has \d\d training records, and 10000 are asked for: noise"):
        served({**PRIVATE, "privacy.min-records": 10_000}, clients)
    assert not [question for question, _ in clients.said if question.metadata.message_type != "query"]
    with pytest.raises(DQNFedError, match=r"privacy\.delta: found 0\.5, which lets one of the \d\d records of client"):
        served({**PRIVATE, "privacy.delta": 0.5})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"privacy.mode": "open"}, "privacy.mode: found 'open' with privacy.epsilon 300"),
        ({"method": "fedavg"}, "local.work: found 'sgd'"),
        ({"local.gradient-batch": 9}, "local.gradient-batch: found 9"),
        ({"local.together": 2}, "local.together: found 2"),
        ({"local.autocast": "bf16"}, "local.autocast: found 'bf16'"),
        ({"curvature.kind": "secant"}, "curvature.kind: found 'secant'"),
        ({"task": "next-token"}, "task: found 'next-token' with privacy.epsilon 300, where each record has one loss"),
        ({"task": "mine:Task"}, "use one of classification, regression, huber-regression, multi-label"),
        ({"data-scale": "standardise"}, "data-scale: found 'standardise'"),
        ({"start.epochs": 1}, "start.epochs: found 1"),
        ({"step.judge": "both"}, "step.judge: found 'both'"),
        ({"step.diagnose-every": 1}, "step.diagnose-every: found 1"),
        ({"step.probe-first": True}, "step.probe-first: found True"),
        ({"method": "fedmdfg", "local.work": "gradient"}, "step-rule: found 'search'"),
        ({"guarantee.window": 2}, "guarantee.window: found 2"),
    ],
)
def test_what_would_give_more_of_a_record_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as found:
        Settings.from_mapping({**PRIVATE, **changes})
    assert words in str(found.value)


def test_site_takes_part_in_runs_within_its_own_limit_alone() -> None:
    assert served(PRIVATE, nodes={0: {"epsilon": "300"}}).status == "finished"
    for epsilon, least in ((300.0, "3"), (0.0, "3"), (300.0, "a little")):
        with pytest.raises(DQNFedError, match=rf"takes part in runs with at most {least} alone"):
            served({**PRIVATE, "privacy.epsilon": epsilon}, nodes={client: {"epsilon": least} for client in range(5)})


def test_site_has_a_limit_on_delta_too() -> None:
    both = {"epsilon": "300", "delta": "1e-5"}
    assert served(PRIVATE, nodes={0: both}).status == "finished"
    for changes, found, most in (
        ({"privacy.delta": 1e-4}, "0.0001", "1e-5"),
        ({"privacy.epsilon": 0.0}, "1e-05 without privacy.epsilon", "1e-5"),
        ({}, "1e-05", "a little"),
    ):
        words = rf"privacy\.delta: found {found}, but this site takes part in runs with at most {most} alone \(delta"
        with pytest.raises(DQNFedError, match=words):
            served({**PRIVATE, **changes}, nodes={client: {"delta": most} for client in range(5)})


def test_words_of_a_failure_stay_at_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Line, "at", _failing)
    monkeypatch.setattr("dqnfed_flwr.client.worker.Worker._perform", _failing)
    clients = Meddled()
    with pytest.raises(DQNFedError) as found:
        served(PRIVATE, clients)
    assert "its own log says at what" in str(found.value)
    assert "of a record" not in str(found.value).replace("tell of a record", "")


def _failing(*given: Any, **named: Any) -> Any:
    raise ValueError("7.25, the value of a record")
