"""ClientApp: messages in, NumPyClient out. No algorithm here."""

from __future__ import annotations

from collections.abc import Sequence

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from dqnfed_flwr.client.handlers import answer_properties, answer_task, foresee_gradients

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Loss, gradient and rate at the candidate model; probes and accuracies where asked for."""
    return answer_task(message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Probes and accuracies at the candidate model."""
    return answer_task(message, context)


def together(asked: Sequence[tuple[Message, Context]]) -> None:
    """What clients of one process do together before each answers its message: for a grid without a network."""
    foresee_gradients(asked)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Partition, sample counts and form of this node's data."""
    return answer_properties(message, context)
