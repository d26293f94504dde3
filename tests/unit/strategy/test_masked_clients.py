"""Whole runs in which the server sees no row; also where somebody is gone, lies or is a stranger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from dqnfed_flwr.client.app import app, forget_clients
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.engine.run import run, run_in_process
from dqnfed_flwr.engine.server_run import serve
from dqnfed_flwr.errors import ConfigError, DQNFedError, QuorumError
from dqnfed_flwr.masked.secrets import signing_public
from dqnfed_flwr.strategy.masked_clients import AGAIN
from dqnfed_flwr.strategy.strategy import GradientStrategy
from dqnfed_flwr.telemetry.events import Cost
from dqnfed_flwr.types import on_host
from dqnfed_flwr.wire import VECTORS, decode_task
from dqnfed_flwr.wire.codecs import Array, encode_lost
from dqnfed_flwr.wire.masked import ASK, NAMED, REFUSED, SUMMAND, decode_masked, encode_masked
from dqnfed_flwr.wire.task import read_task
from tests.helpers.masked import key_of
from tests.helpers.runs import TINY, WHOLE, Stop, StopAfter, changed

MASKED: dict[str, Any] = {
    **TINY,
    "clients": 5,
    "rounds": 4,
    "split.samples": 300,
    "privacy.mode": "masked",
    "privacy.min-samples": 100,
}
SHORT: dict[str, Any] = {"messages.row": 16, "messages.step": 8}
OPEN = {**MASKED, **WHOLE, "privacy.mode": "open", "dqn-fed.anchor": "momentum", "dqn-fed.anchor-work": "gradient"}
Meddle = Callable[[Message, Message, int], Message]
"""Makes a reply of an honest one, the question and the number of the client."""


class Meddled(ClientApp):
    """The ClientApp, with what `meddle` makes of its replies; it notes questions and replies."""

    def __init__(self, meddle: Meddle = lambda reply, question, client: reply) -> None:
        super().__init__()
        self._meddle = meddle
        self.said: list[tuple[Message, Message]] = []

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer."""
        client = int(str(context.node_config["partition-id"]))
        reply = self._meddle(app(message, context), message, client)
        self.said.append((message, reply))
        return reply


class LastFirst(InProcessGrid):
    """Replies come in the other order."""

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The last that waits."""
        return super().pull_messages(list(message_ids)[::-1])


def served(
    changes: Mapping[str, Any] | None = None,
    clients: ClientApp = app,
    grid: type[InProcessGrid] = InProcessGrid,
    nodes: Mapping[int, Mapping[str, str]] | None = None,
) -> RunResult:
    """A masked run of these clients; `nodes` adds to their node configs."""
    settings = Settings.from_mapping({**MASKED, **(changes or {})})
    forget_clients()
    made = grid(clients, settings.clients, settings.flat())
    for client, config in (nodes or {}).items():
        made._contexts[client + 2].node_config.update(config)
    return serve(made, settings)


def figures(result: RunResult) -> list[str]:
    return [changed(event, seconds={}).to_json() for event in result.events]


def vectors_of(clients: Meddled) -> list[dict[str, Any]]:
    """The arrays of each reply, by key."""
    records = (reply.content.array_records for _, reply in clients.said)
    return [{key: array.numpy() for key, array in each[VECTORS].items()} for each in records if VECTORS in each]


def asks(message: Message) -> str:
    return str((decode_masked(message.content) or {}).get(ASK, ""))


def test_rounds_are_those_of_open_rows_to_rounding() -> None:
    masked, opened = (run_in_process(Settings.from_mapping(each)) for each in (MASKED, OPEN))
    np.testing.assert_allclose(masked.theta, opened.theta, rtol=1e-3, atol=1e-5)
    assert [event.cost.exchanges for event in masked.events] == [1 + 3 + 2, 2, 2, 2]
    assert masked.events[-1].losses_after < masked.events[0].losses_before


@pytest.mark.parametrize("more", [{}, SHORT], ids=["whole", "short"])
def test_bits_depend_neither_on_the_order_of_replies_nor_on_threads(more: dict[str, Any]) -> None:
    first = served(more)
    for other in (served(more, grid=LastFirst), run_in_process(Settings.from_mapping({**MASKED, **more}), jobs=3)):
        np.testing.assert_array_equal(first.theta, other.theta)
        assert figures(first) == figures(other)


def test_server_is_sent_turned_sketches_and_masked_words_alone() -> None:
    clients, opened = Meddled(), Meddled()
    served(clients=clients)
    served({"privacy.mode": "open", **WHOLE}, opened)
    sent, plain = vectors_of(clients), vectors_of(opened)
    assert {key for vectors in sent for key in vectors} == {"gradient", SUMMAND}
    rows, grads = (np.array([each["gradient"] for each in found if "gradient" in each][:5]) for found in (sent, plain))
    cosines = np.sum(rows * grads, axis=1) / np.linalg.norm(rows, axis=1) / np.linalg.norm(grads, axis=1)
    assert np.abs(cosines).max() < 5 / np.sqrt(rows.shape[1])
    np.testing.assert_allclose(rows @ rows.T, grads @ grads.T, rtol=1e-4, atol=1e-6)
    words = np.concatenate([each[SUMMAND] for each in sent if SUMMAND in each])
    assert abs(words.astype(np.float64).mean() / 2**32 - 0.5) < 0.01


def test_client_that_misses_a_question_once_is_asked_for_the_same_sum_again() -> None:
    missed: list[Message] = []

    def miss(reply: Message, question: Message, client: int) -> Message:
        if asks(question) == "sum" and client == 2 and not missed:
            missed.append(question)
            return Message(Error(1, "gone"), reply_to=question)
        return reply

    clients = Meddled(miss)
    found = served(clients=clients)
    np.testing.assert_array_equal(found.theta, served().theta)
    asked = [decode_masked(question.content) for question, _ in clients.said if asks(question) == "sum"]
    assert asked.count(decode_masked(missed[0].content)) == 6  # of five clients, and of one again
    assert found.events[0].cost.exchanges == 1 + 3 + 3


def test_client_gone_in_a_sum_costs_a_sum_and_no_run(said: list[str]) -> None:
    exchanges: set[int] = set()

    def gone(reply: Message, question: Message, client: int) -> Message:
        """Client 2 answers the second exchange, and then nothing any more."""
        if "task" in question.content:
            exchanges.add(decode_task(question.content).task.exchange)
        out = client == 2 and (max(exchanges, default=0) > 2 or (asks(question) == "sum" and len(exchanges) == 2))
        return Message(Error(1, "gone"), reply_to=question) if out else reply

    found = served({"retries": 1, "rounds": 6}, Meddled(gone))
    assert "Round 2: clients [2] gave no part of the sum" in "".join(said)
    second = found.events[1]
    assert second.status in (AGAIN, "no-step")
    assert all(event.losses_after <= event.losses_before for event in found.events if event.status == "no-step")


@pytest.mark.parametrize(
    ("ask", "lie"),
    [
        ("hello", {"public": 5, "signature": [6]}),
        ("hello", {"public": b"short", "signature": b"too"}),
        ("hello", {"tag": b"t" * 32}),
        ("hello", {"tag": [1, 2]}),
        ("invite", {"boxes": [1, 2, 3, 4]}),
        ("invite", {"boxes": [b"short"] * 4}),
        ("invite", {REFUSED: 7, NAMED: 3}),
        ("invite", {REFUSED: "no", NAMED: ["x"]}),
    ],
)
def test_nonsense_of_one_client_costs_the_others_no_agreement(ask: str, lie: dict[str, Any]) -> None:
    def lies(reply: Message, question: Message, client: int) -> Message:
        return Message(encode_masked(lie), reply_to=question) if client == 2 and asks(question) == ask else reply

    found = served({"rounds": 2}, Meddled(lies))
    assert [event.votes.heard for event in found.events] == [(0, 1, 3, 4)] * 2


def test_federation_of_few_samples_is_refused_before_round_1() -> None:
    clients = Meddled()
    with pytest.raises(
        QuorumError, match=r"could give at best a sum that is one of \d+ samples; 2000 are needed"
    ) as no:
        served({"privacy.min-samples": 2000}, clients)
    assert "let clients with more samples, or more clients, take part" in str(no.value)
    assert not [question for question, _ in clients.said if "task" in question.content]


@pytest.mark.parametrize("changes", [{"clients": 4, "split.samples": 20}, {"local.gradient-batch": 4}])
def test_digits_of_four_clients_with_four_samples_are_refused_by_default(changes: dict[str, Any]) -> None:
    few = {"step-rule": "fixed", "method": "fedsgd", "partition": "iid", "privacy.min-samples": 256, **changes}
    with pytest.raises(QuorumError, match=r"one of (16|20) samples; 256 are needed"):
        served(few)


def test_client_whose_site_asks_for_more_samples_than_the_run_gives_no_sum(said: list[str], tmp_path: Path) -> None:
    nodes = keys(tmp_path, 5)
    nodes[3]["min-samples"] = "5000"
    found = served({"rounds": 2}, nodes=nodes)
    assert "clients [3] gave no part of the sum: a sum that is one of" in "".join(said)
    assert "samples; 5000 are needed (privacy.min-samples, or min-samples in a node's config)" in "".join(said)
    assert {event.status for event in found.events} == {"no-step"}


@pytest.mark.parametrize("bits", [32, 16])
def test_wrong_summand_makes_no_step(bits: int, said: list[str]) -> None:
    def lie(reply: Message, question: Message, client: int) -> Message:
        if asks(question) == "sum" and client == 1:
            vectors = reply.content.array_records[VECTORS]
            words = vectors[SUMMAND].numpy()
            vectors[SUMMAND] = Array(words + words.dtype.type(1 << (bits - 4)))
        return reply

    found = served({"rounds": 3, "messages.row": bits}, Meddled(lie))
    assert "what one of the clients gave is not its row" in "".join(said)
    assert [event.factor for event in found.events] == [0.0] * 3
    assert {event.status for event in found.events} == {"no-step"}


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where nodes keep what they have given."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))


def keys(folder: Path, clients: int, wrong: int | None = None) -> dict[int, dict[str, str]]:
    """Folders of nodes: the private key of each, and the public ones of all; client `wrong` has another key."""
    peers = "".join(
        f'[peers.node-{client}]\npartition = {client}\nkey = "{signing_public(key_of(client)).hex()}"\n'
        for client in range(clients)
    )
    (folder / "peers.toml").write_text(peers)
    found = {}
    for client in range(clients):
        (folder / f"{client}.key").write_text(key_of(client, salt="quiet" if client == wrong else "").hex())
        found[client] = {
            "identity": str(folder / f"{client}.key"),
            "peers": str(folder / "peers.toml"),
            "min-samples": "100",
        }
    return found


def test_nodes_with_keys_of_their_own_draw_other_secrets_and_get_the_same_model_to_rounding(tmp_path: Path) -> None:
    found = served(nodes=keys(tmp_path, 5))
    np.testing.assert_allclose(found.theta, served().theta, rtol=1e-3, atol=1e-5)


def test_node_with_a_key_that_is_not_pinned_is_refused_by_the_others(tmp_path: Path, said: list[str]) -> None:
    found = served(nodes=keys(tmp_path, 5, wrong=3))
    assert "clients [3] do not show the keys that client 0 has for them" in "".join(said)
    assert all(3 not in event.votes.heard for event in found.events)
    assert found.events[-1].losses_after < found.events[0].losses_before


def test_too_few_that_know_each_other_end_the_run_in_words(tmp_path: Path) -> None:
    with pytest.raises(QuorumError, match=r"3 clients know each other, and a sum needs 4"):
        served({"clients": 4}, nodes=keys(tmp_path, 4, wrong=3))


def test_real_node_without_keys_refuses(tmp_path: Path) -> None:
    class Real(InProcessGrid):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            for context in self._contexts.values():
                del context.node_config["num-partitions"]

    with pytest.raises(DQNFedError, match=r"privacy\.mode masked needs it"):
        served({"deadline": 1.0, "retries": 0}, grid=Real)
    (tmp_path / "0.key").write_text(key_of(0).hex())
    lost = {"identity": str(tmp_path / "0.key"), "peers": str(tmp_path / "none")}
    with pytest.raises(DQNFedError, match=r"peers.*cannot be read"):
        served({"deadline": 1.0, "retries": 0}, nodes=dict.fromkeys(range(5), lost))


def test_site_that_asks_for_masks_gives_an_open_run_nothing() -> None:
    clients, asking = Meddled(), {client: {"privacy": "masked"} for client in range(5)}
    with pytest.raises(DQNFedError, match="this site takes part in runs that are masked alone"):
        served({"privacy.mode": "open", "deadline": 1.0, "retries": 0}, clients, nodes=asking)
    assert not clients.said
    served({"rounds": 1}, nodes=asking)


METHODS = {
    "median": "values of single rows",
    "trimmed-mean": "values of single rows",
    "fedlf": "values of single rows",
    "fedheal": "values of single rows",
    "fedadam": "sums of its own",
    "fedavgm": "sums of its own",
    "momentum": "sums of its own",
    "server-lbfgs": "sums of its own",
    "krum": "the row of one client",
    "fedmuon": "more vectors of each client: momentum",
    "local": "its models stay with the clients",
    "fedcorr": "method of stages",
}


@pytest.mark.parametrize("method", METHODS)
def test_method_that_needs_more_is_refused_by_name_before_anything_is_sent(method: str) -> None:
    clients = Meddled()
    with pytest.raises(ConfigError, match=METHODS[method]) as caught:
        served({"method": method}, clients)
    assert method in str(caught.value)
    assert "privacy.mode open" in str(caught.value)
    assert not [question for question, _ in clients.said if "task" in question.content or asks(question)]


@pytest.mark.parametrize("method", ["mgda", "fedmgda+", "q-ffl", "term", "fedavg", "fedsgd", "adafed", "fedmdfg"])
def test_method_of_products_goes_on_as_with_open_rows(method: str) -> None:
    masked, opened = (served({"method": method, "rounds": 3, "privacy.mode": mode}) for mode in ("masked", "open"))
    np.testing.assert_allclose(masked.theta, opened.theta, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clients": 3}, "privacy.mode masked needs 4"),
        ({"participation": 0.4}, "privacy.mode masked needs 4"),
        ({"guarantee.tolerate": 1}, "guarantee.tolerate: found 1"),
        ({"step.on-stationary": "relax"}, "step.on-stationary: found 'relax'"),
        ({"attack.kind": "zero"}, "attack.kind: found 'zero'"),
        ({"messages.row": 8}, "messages.row: found 8 .* to more than a few levels; use 16 or 32"),
        ({"messages.row": 16, "clients": 5000}, "clients: found 5000 .* of 4096 clients; use messages.row 32"),
        ({"messages.step": 8, "method": "fednew"}, "messages.step: found 8 with method 'fednew'"),
        ({"dqn-fed.anchor": "server-lbfgs"}, "needs more than the one sum"),
        ({"dqn-fed.anchor-work": "sgd", "dqn-fed.anchor": "momentum"}, "needs more than the one sum"),
    ],
)
def test_settings_that_masks_do_not_go_with_are_refused_with_the_remedy(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        GradientStrategy(Settings.from_mapping({**MASKED, **changes}))


@pytest.mark.parametrize("more", [{}, SHORT], ids=["whole", "short"])
def test_run_that_is_resumed_ends_with_the_same_bits(more: dict[str, Any], tmp_path: Path) -> None:
    whole = run({**MASKED, **more, "output": str(tmp_path / "whole")})
    part = {**MASKED, **more, "output": str(tmp_path / "part")}
    for number in (2, 4):
        with pytest.raises(Stop):
            run(part, listeners=[StopAfter(number)], resume=number > 2)
    found = run(part, resume=True)
    np.testing.assert_array_equal(whole.theta, found.theta)
    one, other = ([replace(event, cost=Cost()).to_json() for event in each.events] for each in (whole, found))
    assert one == other


def test_short_messages_bring_the_model_once_and_sums_in_short_words() -> None:
    whole, clients = Meddled(), Meddled()
    long, short = served(clients=whole), served(SHORT, clients)
    assert 0.9 < short.events[-1].losses_after[0] / long.events[-1].losses_after[0] < 1.1
    tasks = [question.content.array_records["model"] for question, _ in clients.said if "task" in question.content]
    assert sum("theta" in record for record in tasks) == 5  # the first exchange, by client
    for bits, found in ((32, whole), (16, clients)):
        words = [each[SUMMAND] for each in vectors_of(found) if SUMMAND in each]
        assert {each.dtype for each in words} == {np.dtype(f"uint{bits}")}
        assert abs(np.concatenate(words).astype(np.float64).mean() / 2**bits - 0.5) < 0.01
    sketches = [
        {(each["gradient"].shape, each["gradient"].dtype) for each in vectors_of(found) if "gradient" in each}
        for found in (whole, clients)
    ]
    assert sketches[0] == sketches[1]


def test_short_words_change_a_step_by_their_rounding() -> None:
    """One round from the same model: the weights are the same, as sketches go whole."""
    clients = Meddled()
    long, short = served({"rounds": 1}, clients), served({"rounds": 1, "messages.row": 16})
    assert long.events[0].weights == short.events[0].weights
    start = next(decode_task(question.content).theta for question, _ in clients.said if "task" in question.content)
    assert 0 < np.linalg.norm(short.theta - long.theta) < 5e-3 * np.linalg.norm(long.theta - on_host(start))


def test_client_that_lost_its_model_is_sent_it_and_gives_its_one_sum_at_each_model(said: list[str]) -> None:
    """By steps or as a whole, it is the same model: the client counts it once, and the server's name for it fits."""
    lost: list[int] = []

    def forget(reply: Message, question: Message, client: int) -> Message:
        if client == 2 and "task" in question.content and decode_task_exchange(question) == 3 and not lost:
            lost.append(client)
            return Message(encode_lost(), reply_to=question)
        return reply

    clients = Meddled(forget)
    found = served({**SHORT, "rounds": 6}, clients)
    assert lost
    assert "second sum" not in "".join(said)
    again = [question for question, _ in clients.said if "theta" in question.content.array_records.get("model", {})]
    assert len(again) == 6
    assert all(event.moved for event in found.events)
    assert found.events[3].votes.heard == (0, 1, 2, 3, 4)


def test_too_few_replies_after_a_step_cost_an_exchange_and_the_last_step_of_momentum() -> None:
    """Nobody is told of that step again; least of all who is sent the whole model, with no step to it."""
    lost: list[int] = []

    def forget(reply: Message, question: Message, client: int) -> Message:
        if client in (3, 4) and "task" in question.content and decode_task_exchange(question) == 3 and len(lost) < 2:
            lost.append(client)
            return Message(encode_lost(), reply_to=question)
        return reply

    found = served({**SHORT, "rounds": 6}, Meddled(forget))
    assert lost == [3, 4]
    assert [event.round for event in found.events] == [1, 2, 3, 4, 5, 6]
    assert found.events[2].cost.exchanges == 3
    assert found.events[2].votes.heard == (0, 1, 2, 3, 4)
    assert found.events[-1].losses_after < found.events[0].losses_before


def decode_task_exchange(question: Message) -> int:
    return read_task(question.content.config_records["task"]).exchange
