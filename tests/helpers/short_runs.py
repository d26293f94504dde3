"""Runs of which every message is looked at: what was sent, at which model clients computed, and who answered what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from flwr.app import Context, Message, MessageType
from flwr.clientapp import ClientApp

from client_app.app import app
from dqnfed_flwr import wire
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.adversary import with_hostile
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.engine.server_run import serve
from dqnfed_flwr.strategy.beside import BesideRounds
from dqnfed_flwr.strategy.confirmation import KnownModel
from dqnfed_flwr.strategy.own_clients import OwnClients
from dqnfed_flwr.types import ClientReply, ClientTask, FloatArray
from dqnfed_flwr.wire.codecs import MODEL, TASK, size
from tests.helpers.runs import TINY

Answers = Callable[[int, ClientTask, Message, Context], Message]


@dataclass
class Watched:
    """What a run said and did.

    `sent` are the bytes of arrays by exchange and client and their key, `computed` whether each client's model had the
    bits of the server's candidate, by exchange, `shown` whether it had those of the proposal, where clients were asked
    to confirm one; `up`, `down` are bytes of the messages.
    """

    result: RunResult
    sent: dict[int, dict[int, dict[str, int]]] = field(default_factory=dict)
    computed: dict[int, list[bool]] = field(default_factory=dict)
    shown: list[bool] = field(default_factory=list)
    paths: list[tuple[float, ...]] = field(default_factory=list)
    up: int = 0
    down: int = 0


def honest(client: int, task: ClientTask, message: Message, context: Context) -> Message:
    """The app's own answer."""
    return app(message, context)


def watched(
    monkeypatch: pytest.MonkeyPatch,
    more: Mapping[str, Any],
    answers: Answers = honest,
    grid: Callable[[ClientApp, Settings], InProcessGrid] | None = None,
) -> Watched:
    """Run `TINY` with `more` settings, where clients answer as `answers` says; a `grid` of its own may carry it."""
    settings = Settings.from_mapping({**TINY, **more})
    found = Watched(cast(RunResult, None))
    candidate, proposal = list[FloatArray](), list[FloatArray]()
    contents, send, work = OwnClients._contents, BesideRounds._send, DQNFedClient.work

    def noted(side: OwnClients, schedule: Any) -> Any:
        candidate[:] = [side._state.candidate.numpy().copy()]
        return contents(side, schedule)

    def beside(beside: BesideRounds, known: Any, shown: KnownModel, *rest: Any, **named: Any) -> None:
        proposal.append(shown.theta.numpy())
        send(beside, known, shown, *rest, **named)
        proposal.clear()

    def at(client: DQNFedClient, task: ClientTask, theta: FloatArray, *rest: Any, **named: Any) -> ClientReply:
        if proposal:
            found.shown.append(theta.tobytes() == proposal[0].tobytes())
        else:
            found.computed.setdefault(task.exchange, []).append(theta.tobytes() == candidate[0].tobytes())
        return work(client, task, theta, *rest, **named)

    def answer(message: Message, context: Context) -> Message:
        if message.metadata.message_type == MessageType.QUERY:
            return app(message, context)
        task = wire.read_task(message.content.config_records[TASK])
        arrays, client = message.content.array_records[MODEL], int(context.node_config["partition-id"])
        found.sent.setdefault(task.exchange, {})[client] = {key: size(array) for key, array in arrays.items()}
        found.paths += [tuple(arrays[key].numpy()) for key in arrays if key.startswith("path.")]
        found.down += wire.payload(message.content)
        reply = answers(client, task, message, context)
        found.up += 0 if reply.has_error() else wire.payload(reply.content)
        return reply

    monkeypatch.setattr(OwnClients, "_contents", noted)
    monkeypatch.setattr(BesideRounds, "_send", beside)
    monkeypatch.setattr(DQNFedClient, "work", at)
    make = grid or (lambda app, settings: InProcessGrid(app, settings.clients, settings.flat()))
    found.result = serve(make(with_hostile(cast(ClientApp, answer), settings), settings), settings)
    return found


def reasons(result: RunResult) -> dict[str, list[int]]:
    """Clients left out by reason, once for each round."""
    found: dict[str, list[int]] = {}
    for event in result.events:
        for drop in event.dropped:
            found.setdefault(drop.reason, []).append(drop.client)
    return found
