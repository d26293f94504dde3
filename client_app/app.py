"""ClientApp: messages in, NumPyClient out. No algorithm here."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from dqnfed_flwr.client.handlers import answer_properties, answer_task

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Loss, gradient and rate at the candidate model; probes and accuracies where asked for."""
    return answer_task(message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Probes and accuracies at the candidate model."""
    return answer_task(message, context)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Partition, sample counts and form of this node's data."""
    return answer_properties(message, context)
