"""Hostile clients in one process, for experiments: a ClientApp that tampers with the rows of honest replies.

The attacks on a row are those of Pan and others, "FedMDFG: Federated Learning with Multi-Gradient Descent and Fair
Guidance", AAAI 2023, Table 4; its published code says what its words mean. With g the honest row and theta the model
received:

| kind | what is sent |
|---|---|
| `enlarged` | c g, c = `attack.factor` |
| `zero` | 0 |
| `random` | theta - w, the way to a model w ~ N(0, I) of pure noise; where rows are gradients, cut to the length of g |

Loss, rate, sample count, buffers, test figures and the answer on a candidate stay honest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
from flwr.app import Context, Message, MessageType
from flwr.clientapp import ClientApp
from numpy.random import Generator

from dqnfed_flwr import wire
from dqnfed_flwr.config import AttackSettings, Settings, resolve
from dqnfed_flwr.types import FloatArray, on_host
from dqnfed_flwr.wire.codecs import MODEL, TASK

Attack = Callable[[Message, Message], Message]
"""Makes a hostile reply of the honest one and of the message it answers."""
NOTHING: FloatArray = np.empty(0, np.float32)
_WHO, _NOISE = 7, 3
"""Streams of the seed: others than those of the data, and than those of a client's turn."""


class Hostile(ClientApp):
    """`app`, of which the hostile `clients` answer every task with what `attack` makes of the honest reply."""

    def __init__(self, app: ClientApp, clients: Collection[int], attack: Attack) -> None:
        super().__init__()
        self._app, self._clients, self._attack = app, frozenset(clients), attack

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer, and tamper with the answer if the client is hostile."""
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
        plan = resolve(settings)
        self._bits = plan.row_bits
        self._displaced_in_the_end, self._fedavg_until = not plan.last.work.gradient_row, plan.before

    def __call__(self, reply: Message, question: Message) -> Message:
        number = wire.read_task(question.content.config_records[TASK]).round
        rng = noise_of(self._settings.seed, number, question.metadata.dst_node_id)
        displacement = self._displaced_in_the_end or number <= self._fedavg_until
        model = question.content.array_records[MODEL]
        theta = wire.decode_model(model)[0] if self._settings.attack.kind == "random" else NOTHING

        def change(row: FloatArray) -> FloatArray:
            return tampered(row, on_host(theta), self._settings.attack, rng, displacement=displacement)

        wire.change_row(reply.content, change, self._bits, rng)
        return reply


def hostile_clients(settings: Settings) -> frozenset[int]:
    """The hostile clients of a run: those that `attack.clients` names, else `attack.share` of all, at least one.

    A function of seed, number of clients and share alone, so that every method of a comparison meets the same.
    """
    attack, clients = settings.attack, settings.clients
    if attack.kind == "none":
        return frozenset()
    if attack.listed:
        return frozenset(attack.listed)
    order = np.random.default_rng((settings.seed, _WHO)).permutation(clients)
    return frozenset(order[: max(1, round(attack.share * clients))].tolist())


def noise_of(seed: int, round_number: int, node: int) -> Generator:
    """The noise of a hostile node in a round, the same at each question."""
    return np.random.default_rng((seed, round_number, node, _NOISE))


def tampered(
    row: FloatArray, theta: FloatArray, attack: AttackSettings, rng: Generator, *, displacement: bool
) -> FloatArray:
    """What is sent for the honest `row` [D], a new array of its dtype.

    `theta` [D] is the model received, which `random` alone reads.
    With `displacement`, rows are the way to a model of the client's own, else gradients.
    """
    if attack.kind == "enlarged":
        return (row * attack.factor).astype(row.dtype)
    if attack.kind == "zero":
        return np.zeros_like(row)
    if attack.kind == "random":
        away = theta - rng.standard_normal(theta.shape)
        length = 1.0 if displacement else np.linalg.norm(row) / np.linalg.norm(away)
        return (away * length).astype(row.dtype)
    return row
