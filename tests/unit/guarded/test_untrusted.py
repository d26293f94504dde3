"""Replies that are wrong, clients without the mod, nodes that stay away: each costs only itself, and is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Bulyan, FedAvg, FedMedian, FedTrimmedAvg, Krum, MultiKrum
from numpy.typing import DTypeLike
from torch import nn

from dqnfed_flwr import Guaranteed
from dqnfed_flwr.errors import ConfigError, RunError, StalledError
from dqnfed_flwr.run_files import EVENTS
from dqnfed_flwr.telemetry.event_log import read_events
from tests.helpers.grids import FIRST_NODE, Meddling, SilentGrid
from tests.helpers.guarded_app import CountingGrid, alike, app_on, bits, linear, trained

CLIENTS, BAD = 4, 3
NODE = BAD + FIRST_NODE
VECTORS, FIGURES, NAMES = "dqnfed.vectors", "dqnfed.figures", "dqnfed.parameters"
Change = Callable[[RecordDict], None]


def small() -> nn.Module:
    return linear(4, 2)


def row(values: object) -> Change:
    def change(content: RecordDict) -> None:
        content[VECTORS] = ArrayRecord({"gradient": Array(np.asarray(values, np.float32))})

    return change


def figure(key: str, value: float) -> Change:
    def change(content: RecordDict) -> None:
        content.metric_records[FIGURES][key] = value

    return change


def update(name: str, values: object, dtype: DTypeLike = np.float32) -> Change:
    def change(content: RecordDict) -> None:
        content.array_records["arrays"][name] = Array(np.asarray(values, dtype))

    return change


def without(key: str) -> Change:
    def change(content: RecordDict) -> None:
        del content[key]

    return change


def names(*given: str) -> Change:
    def change(content: RecordDict) -> None:
        content[NAMES] = ConfigRecord({"names": list(given)})

    return change


def metric(content: RecordDict) -> None:
    content["metrics"] = MetricRecord({"num-examples": float("nan")})


def metrics(**figures: Any) -> Change:
    def change(content: RecordDict) -> None:
        content.metric_records["metrics"].update(figures)

    return change


def two_models(content: RecordDict) -> None:
    content["again"] = content["arrays"]


def nothing_of_the_guard(content: RecordDict) -> None:
    for key in [key for key in content if key.startswith("dqnfed.")]:
        del content[key]


UNFIT: dict[str, tuple[Change, str]] = {
    "a row with NaN": (row([np.nan] * 10), "not-finite"),
    "a row that is too long": (row([1e30] * 10), "not-finite"),
    "a row of another size": (row([1.0] * 9), "bad-shape"),
    "no row": (without(VECTORS), "missing-key"),
    "no figures": (without(FIGURES), "missing-key"),
    "a loss that is too large": (figure("loss", -1e61), "bad-loss"),
    "no samples": (figure("num-examples", 0), "bad-count"),
    "names of what is no parameter": (names("weight", "sum"), "extra-key"),
    "other names than the others'": (names("bias", "weight"), "extra-key"),
    "no names": (without(NAMES), "missing-key"),
    "an update with NaN": (update("bias", [np.nan, 0.0]), "not-finite"),
    "an update that no float32 holds": (update("bias", [1e300, 0.0], np.float64), "not-finite"),
    "a complex update": (update("bias", [1j, 0.0], np.complex64), "bad-dtype"),
    "an update of long doubles": (update("bias", [1.0, 0.0], np.longdouble), "bad-dtype"),
    "an update of another shape": (update("bias", [0.0] * 3), "bad-shape"),
    "an update of more arrays": (update("more", [0.0]), "bad-shape"),
    "a metric that is NaN": (metric, "not-finite"),
    "no metrics": (without("metrics"), "missing-key"),
    "one metric more": (metrics(more=1.0), "extra-key"),
    "a weight below 0": (metrics(**{"num-examples": -30}), "bad-count"),
    "a list for a weight": (metrics(**{"num-examples": [30]}), "missing-key"),
    "two models": (two_models, "extra-key"),
    "no guard": (nothing_of_the_guard, "missing-key"),
}


def meddling(change: Change, since: int = 1) -> ClientApp:
    def meddle(reply: Message) -> Message:
        if "arrays" in reply.content:  # to train
            change(reply.content)
        return reply

    return Meddling(app_on(alike(CLIENTS), small, lr=0.1), BAD, meddle, since)


@pytest.mark.parametrize("name", UNFIT)
def test_what_is_unfit_costs_only_its_client_and_never_reaches_the_strategy(name: str) -> None:
    change, reason = UNFIT[name]
    guarded = Guaranteed(FedAvg(fraction_evaluate=0.0))
    found = trained(guarded, meddling(change), CLIENTS, 2, model=small)
    for event in guarded.events:
        assert [(drop.client, drop.reason) for drop in event.dropped if drop.client == NODE] == [(NODE, reason)]
        assert event.votes.heard == (2, 3, 4)
        assert event.factor == 1
    others = trained(guarded_of_three(), _three(), CLIENTS, 2, model=small)
    assert bits(found.arrays) == bits(others.arrays)


def guarded_of_three() -> Guaranteed:
    return Guaranteed(FedAvg(fraction_evaluate=0.0))


def _three() -> ClientApp:
    """The same clients, of which the last says that it failed when it is done: the others train as before."""

    def fail(reply: Message) -> Message:
        raise ValueError("out of order")

    return Meddling(app_on(alike(CLIENTS), small, lr=0.1), BAD, fail)


def test_a_reply_without_weight_is_taken_where_another_has_some() -> None:
    guarded = guarded_of_three()
    trained(guarded, Meddling(app_on(alike(2), small, lr=0.1), 1, of_no_weight), 2, 1, model=small)
    assert (guarded.events[0].votes.heard, guarded.events[0].dropped) == ((FIRST_NODE, FIRST_NODE + 1), [])


@pytest.mark.parametrize("weightless", range(CLIENTS))
@pytest.mark.parametrize("strategy", [Krum, MultiKrum, FedTrimmedAvg, FedMedian, Bulyan, FedAvg])
def test_a_reply_without_weight_ends_no_strategy_that_chooses_among_replies(
    strategy: type[FedAvg], weightless: int
) -> None:
    guarded = Guaranteed(strategy(fraction_evaluate=0.0))
    trained(guarded, Meddling(app_on(alike(CLIENTS), small, lr=0.1), weightless, of_no_weight), CLIENTS, 2, model=small)
    assert [(event.votes.heard, event.moved) for event in guarded.events] == [((2, 3, 4, 5), True)] * 2


def test_a_reply_without_weight_is_no_part_of_the_step_and_has_a_say_in_it() -> None:
    class Watching(FedAvg):
        given: tuple[int, ...] = ()

        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            replies = list(replies)
            self.given = tuple(sorted(reply.metadata.src_node_id for reply in replies))
            return super().aggregate_train(server_round, replies)

    watching = Watching(fraction_evaluate=0.0)
    guarded = Guaranteed(watching)
    trained(guarded, Meddling(app_on(alike(3), small, lr=0.1), 1, of_no_weight), 3, 1, model=small)
    assert (watching.given, guarded.events[0].votes.heard) == ((2, 4), (2, 3, 4))


def test_a_strategy_is_not_left_with_replies_of_no_weight_where_the_others_contradict_themselves() -> None:
    def lie(reply: Message) -> Message:
        if "arrays" in reply.content:
            figures = reply.content.metric_records[FIGURES]
            figures["num-examples"] = 31 if "probe-loss" in figures else 30
        return reply

    app = Meddling(Meddling(app_on(alike(2), small, lr=0.1), 0, lie), 1, of_no_weight)
    guarded = guarded_of_three()
    trained(guarded, app, 2, 3, model=small)
    assert [event.status for event in guarded.events[1:]] == ["no-step"] * 2


def test_replies_of_which_none_has_weight_are_refused_before_the_strategy_divides_by_it() -> None:
    app: ClientApp = app_on(alike(2), small)
    for client in range(2):
        app = Meddling(app, client, of_no_weight)
    with pytest.raises(RunError, match="bad-count"):
        trained(guarded_of_three(), app, 2, 1, model=small)


def of_no_weight(reply: Message) -> Message:
    if "metrics" in reply.content:
        metrics(**{"num-examples": 0})(reply.content)
    return reply


@pytest.mark.parametrize(
    ("figures", "reason"),
    [({"more": 1.0}, "extra-key"), ({"num-examples": -40}, "bad-count"), ({"loss": [1.0]}, "missing-key")],
)
def test_an_evaluation_unlike_the_others_costs_only_its_client(figures: dict[str, Any], reason: str) -> None:
    def unlike(reply: Message) -> Message:
        if set(reply.content) == {"metrics"} and "loss" in reply.content.metric_records["metrics"]:
            metrics(**figures)(reply.content)
        return reply

    guarded = Guaranteed(FedAvg(fraction_evaluate=1.0))
    found = trained(guarded, Meddling(app_on(alike(CLIENTS), small, lr=0.1), BAD, unlike), CLIENTS, 2, model=small)
    assert [len(found.evaluate_metrics_clientapp), len(guarded.events)] == [2, 2]
    assert all(np.isfinite(list(record.values())).all() for record in found.evaluate_metrics_clientapp.values())
    assert {(drop.client, drop.reason) for event in guarded.events for drop in event.dropped} == {(NODE, reason)}
    assert [event.votes.heard for event in guarded.events] == [(2, 3, 4, NODE)] * 2


def test_a_client_that_fails_is_counted_and_the_strategy_is_told() -> None:
    guarded = guarded_of_three()
    trained(guarded, _three(), CLIENTS, 2, model=small)
    drops = [drop for event in guarded.events for drop in event.dropped]
    assert {(drop.client, drop.reason) for drop in drops} == {(NODE, "client-error")}
    assert "out of order" in drops[0].detail


def test_a_client_that_contradicts_itself_has_no_vote() -> None:
    def refuse(content: RecordDict) -> None:
        figures = content[FIGURES]
        assert isinstance(figures, MetricRecord)
        if "probe-holds" in figures:
            figures["probe-holds"] = 0

    guarded = guarded_of_three()
    trained(guarded, meddling(refuse), CLIENTS, 3, model=small)
    assert all(event.factor == 1 for event in guarded.events)
    assert {drop.reason for event in guarded.events for drop in event.dropped} == {"contradiction"}


class Turns(FedAvg):
    """Has one node train in each round, from the last to the first; keeps whose updates it is given."""

    def __init__(self) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.given: list[list[int]] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = sorted(super().configure_train(server_round, arrays, config, grid), key=destination)
        return [messages[-server_round]]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        self.given.append(sorted(reply.metadata.src_node_id for reply in replies))
        return super().aggregate_train(server_round, replies)


class Everybody(Turns):
    """Has all of them train."""

    configure_train = FedAvg.configure_train


def destination(message: Message) -> int:
    return message.metadata.dst_node_id


def test_a_client_without_the_mod_costs_itself_where_it_is_alone_in_a_later_round() -> None:
    def bare(reply: Message) -> Message:
        nothing_of_the_guard(reply.content)
        return reply

    inner = Turns()
    guarded = Guaranteed(inner)
    trained(guarded, Meddling(app_on(alike(2), small, lr=0.1), 0, bare), 2, 2, model=small)
    assert [event.factor for event in guarded.events] == [1.0, 0.0]
    assert [[(d.client, d.reason) for d in event.dropped] for event in guarded.events] == [
        [],
        [(FIRST_NODE, "missing-key")],
    ]
    assert inner.given == [[FIRST_NODE + 1], []]


def test_updates_of_a_client_that_contradicts_itself_are_kept_from_the_strategy() -> None:
    inner = Everybody()
    guarded = Guaranteed(inner)
    trained(guarded, meddling(figure("num-examples", 31), since=2), CLIENTS, 3, model=small)
    assert inner.given == [[2, 3, 4, NODE], [2, 3, 4], [2, 3, 4]]
    assert [[(d.client, d.reason) for d in event.dropped] for event in guarded.events] == [
        [(NODE, "contradiction")]
    ] * 3
    assert "31 samples; the node said 30 first" in guarded.events[1].dropped[0].detail


def test_a_client_may_have_fewer_samples_than_at_first() -> None:
    guarded = guarded_of_three()
    trained(guarded, meddling(figure("num-examples", 29), since=2), CLIENTS, 2, model=small)
    assert [event.dropped for event in guarded.events] == [[], []]


def test_a_round_in_which_all_contradict_themselves_leaves_the_model_as_it_is() -> None:
    inner = Everybody()
    guarded = Guaranteed(inner)

    def more(reply: Message) -> Message:
        figure("num-examples", 31)(reply.content)
        return reply

    app: ClientApp = app_on(alike(2), small, lr=0.1)
    for client in range(2):
        app = Meddling(app, client, more, since=2)
    trained(guarded, app, 2, 2, model=small)
    assert inner.given == [[2, 3], []]
    assert [(event.factor, str(event.status)) for event in guarded.events] == [(1.0, "converged"), (0.0, "no-step")]


def test_who_fails_in_the_last_exchange_is_counted() -> None:
    def fail(reply: Message) -> Message:
        raise ValueError("out of order")

    guarded = guarded_of_three()
    trained(guarded, Meddling(app_on(alike(CLIENTS), small, lr=0.1), BAD, fail, 2), CLIENTS, 1, model=small)
    assert [(drop.client, drop.reason) for drop in guarded.events[0].dropped] == [(NODE, "client-error")]


def test_a_refusal_is_not_believed_for_a_held_out_part_that_nobody_asked_for() -> None:
    def refuse(content: RecordDict) -> None:
        refuse_all(content)
        if "probe-holds" in content.metric_records[FIGURES]:
            figure("probe-held-out", 0)(content)

    guarded = guarded_of_three()
    trained(guarded, meddling(refuse), CLIENTS, 2, model=small)
    first = guarded.events[0]
    assert (first.factor, first.votes.refused_held_out) == (1.0, ())
    assert NODE in [drop.client for drop in first.dropped]


def refuse_all(content: RecordDict) -> None:
    """Refuse every step, and say that the loss rises on both sides."""
    figures = content[FIGURES]
    assert isinstance(figures, MetricRecord)
    if "probe-holds" in figures:
        figures.update({"probe-holds": 0, "probe-loss": 5.0, "probe-behind-loss": 5.0, "loss": 5.0})
        for key in ("probe-grown-holds", "probe-back-factor", "probe-back-loss"):
            figures.pop(key, None)


def test_a_client_that_refuses_every_step_against_its_own_gradient_is_caught() -> None:
    guarded = guarded_of_three()
    trained(guarded, meddling(refuse_all), CLIENTS, 2, model=small)
    first = guarded.events[0]
    assert (first.factor, first.cost.misses > 0) == (1.0, True)
    assert (NODE, "contradiction") in [(drop.client, drop.reason) for drop in first.dropped]


def test_a_consistent_liar_stops_everybody_unless_one_is_tolerated() -> None:
    def lie(content: RecordDict) -> None:
        refuse_all(content)
        row([0.0] * 10)(content)

    moved = {}
    for tolerate in (0, 1):
        guarded = Guaranteed(FedAvg(fraction_evaluate=0.0), tolerate=tolerate, entitlement="0")
        trained(guarded, meddling(lie), CLIENTS, 2, model=small)
        moved[tolerate] = guarded.events[0].factor
    assert moved == {0: 0.0, 1: 1.0}
    assert guarded.events[0].votes.overruled == (NODE,)


def test_too_few_clients_for_those_tolerated_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("dqnfed_flwr.strategy.hearing.log", lambda level, text, *words: told.append(text % words))
    guarded = Guaranteed(FedAvg(fraction_evaluate=0.0), tolerate=CLIENTS)
    trained(guarded, app_on(alike(CLIENTS), small), CLIENTS, 2, model=small)
    most = f"{(CLIENTS - 1) // 2} of the {CLIENTS} clients asked in a round"
    cut = [line for line in told if line.startswith("guarantee.tolerate")]
    assert cut == [f"guarantee.tolerate: found {CLIENTS}; at most {most} can be overruled"]


def test_clients_without_the_mod_are_an_error_that_says_what_to_do() -> None:
    with pytest.raises(RunError, match=r"3 clients answered.*mods=\[guard\(local_loss\)\]"):
        trained(guarded_of_three(), app_on(alike(3), small, guarded=False), 3, 2, model=small)


def test_a_federation_in_which_all_fail_says_why() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(Error(2, "no such file: mine.csv"), reply_to=message)

    with pytest.raises(RunError, match=r"no client can take part.*no such file: mine\.csv"):
        trained(guarded_of_three(), app, 3, 2, model=small)


def test_participants_that_stay_away_have_no_say_and_a_step_without_enough_of_them_is_dropped() -> None:
    def run(silent: int) -> list[float]:
        app = app_on(alike(CLIENTS), small, lr=0.1)
        guarded = guarded_of_three()

        class Later(SilentGrid):
            """Nodes fall silent after the first exchange."""

            def push_messages(self, messages: Iterable[Message]) -> list[str]:
                if self._pushes == 1:
                    self.silent = {node + FIRST_NODE for node in range(silent)}
                return super().push_messages(messages)

        torch.manual_seed(0)
        with pytest.raises(StalledError, match=r"1\. absent: .*\n  2\. unjudged") if silent > 2 else nullcontext():
            guarded.start(Later(app, CLIENTS, []), ArrayRecord(small().state_dict()), num_rounds=1, timeout=1)
        (event,) = guarded.events
        assert event.cost.exchanges == (5 if silent > 2 else 2)
        return [event.factor, float(np.isnan(event.losses_after).sum())]

    assert run(1) == [1.0, 1.0]
    assert run(3)[0] == 0.0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"entitlement": "half"}, "entitlement"),
        ({"tolerate": -1}, "tolerate"),
        ({"tolerate": 1.5}, "whole number"),
        ({"demand": -0.1}, "demand"),
        ({"halvings": 0}, "halvings"),
        ({"voters": 0.0}, "voters"),
        ({"min_move": 0.0}, "min-move"),
    ],
)
def test_settings_are_checked(given: dict[str, float | str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Guaranteed(FedAvg(), **given)  # type: ignore[arg-type]


def test_it_wraps_strategies_once_and_is_the_outermost() -> None:
    with pytest.raises(ConfigError, match="give a flwr"):
        Guaranteed("fedavg")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="guarded already"):
        Guaranteed(Guaranteed(FedAvg()))
    with pytest.raises(ConfigError, match="put it outermost"):
        Guaranteed(FedAvg()).configure_train(1, ArrayRecord(), ConfigRecord(), CountingGrid(ClientApp(), 1))


def test_the_log_and_the_metrics_are_those_that_dqnfed_reads(tmp_path: Path) -> None:
    guarded = Guaranteed(FedAvg(fraction_evaluate=0.0), output=tmp_path / "run", metrics=tmp_path / "metrics")
    trained(guarded, app_on(alike(3), small, lr=0.1), 3, 2, model=small)
    assert [event.to_json() for event in read_events(tmp_path / "run" / EVENTS)] == [
        event.to_json() for event in guarded.events
    ]
    (file,) = (tmp_path / "metrics").glob("*.prom")
    text = file.read_text()
    assert 'method="Guaranteed(FedAvg)"' in text
    assert "dqnfed_moved_rounds 2.0" in text
    assert 'state="finished"} 1' in text
    with pytest.raises(ConfigError, match="holds a run"):
        trained(guarded, app_on(alike(3), small), 3, 1, model=small)
