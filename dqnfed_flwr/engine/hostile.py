"""Hostile clients in one process: a ClientApp around the honest one that tampers with replies, as an attacker would."""

from __future__ import annotations

from collections.abc import Callable, Collection

from flwr.app import Context, Message, MessageType
from flwr.clientapp import ClientApp

from dqnfed_flwr import wire
from dqnfed_flwr.attacks import hostile_clients, noise_of, tampered
from dqnfed_flwr.config import Settings
from dqnfed_flwr.types import FloatArray

Attack = Callable[[Message, Message], Message]
"""Makes a hostile reply of the honest one and of the message it answers."""


class Hostile(ClientApp):
    """A ClientApp of which some clients tamper with every reply to a task.

    Parameters
    ----------
    app : ClientApp
        What honest clients run.
    clients : Collection[int]
        The hostile ones.
    attack : Attack
        Makes their reply from the honest one.
    """

    def __init__(self, app: ClientApp, clients: Collection[int], attack: Attack) -> None:
        super().__init__()
        self._app, self._clients, self._attack = app, frozenset(clients), attack

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer, or meddle."""
        reply = self._app(message, context)
        if context.node_config["partition-id"] not in self._clients:
            return reply
        return reply if message.metadata.message_type == MessageType.QUERY else self._attack(reply, message)


def with_hostile(app: ClientApp, settings: Settings) -> ClientApp:
    """`app` with the hostile clients that `settings.attack` asks for; `app` itself where it asks for none."""
    clients = hostile_clients(settings)
    return Hostile(app, clients, _RowAttack(settings)) if clients else app


class _RowAttack:
    """The attack of `settings.attack` on the row of a reply."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._displaced_in_the_end = not settings.stage_settings.work.gradient_row
        self._fedavg_until = settings.profile.rounds_before_last(settings)

    def __call__(self, reply: Message, question: Message) -> Message:
        assignment = wire.decode_task(question.content)
        number = assignment.task.round
        rng = noise_of(self._settings.seed, number, question.metadata.dst_node_id)
        displacement = self._displaced_in_the_end or number <= self._fedavg_until

        def change(row: FloatArray) -> FloatArray:
            return tampered(row, assignment.theta, self._settings.attack, rng, displacement=displacement)

        wire.change_row(reply.content, change)
        return reply
