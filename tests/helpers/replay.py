"""A run in one process in which every round has the participants of another run, for comparison bit by bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import cast

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from client_app.app import app
from dqnfed_flwr import wire
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.engine.server_run import serve
from dqnfed_flwr.errors import DQNFedError
from dqnfed_flwr.strategy.step_search import UNJUDGED
from dqnfed_flwr.telemetry.events import RoundEvent


def replayed(settings: Settings, events: Sequence[RoundEvent]) -> RunResult:
    """Run `settings`; whoever is no participant of a round in `events` fails in it, as all do over a step not judged.

    Of a candidate that was turned down, the log does not say who did so: here everybody judges it, and who is no
    participant of the next round is lost after that.
    """
    participants = {event.round: event.participants for event in events}
    misses = {event.round: event.cost.misses for event in events}
    unjudged = {event.round for event in events if event.status == UNJUDGED}
    asked: Counter[tuple[object, int]] = Counter()

    def answer(message: Message, context: Context) -> Message:
        if "task" in message.content.config_records:
            task, client = wire.read_task(message.content.config_records["task"]), context.node_config["partition-id"]
            asked[client, task.round] += 1
            judged = asked[client, task.round] > misses.get(task.round - 1, 0)
            if task.train and judged and client not in participants[task.round]:
                raise DQNFedError(f"was not there{'!' * task.round}")  # the same fault each time would leave it out
            if task.probe and task.round - 1 in unjudged:
                raise DQNFedError(f"did not come back{'!' * task.round}")
        return app(message, context)

    grid = InProcessGrid(cast(ClientApp, answer), settings.clients, settings.flat())
    return serve(grid, settings)
