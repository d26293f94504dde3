"""A ClientApp over clients that a test made itself."""

from __future__ import annotations

from collections.abc import Sequence

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from dqnfed_flwr import wire
from dqnfed_flwr.client.numpy_client import DQNFedClient


def app_over(clients: Sequence[DQNFedClient]) -> ClientApp:
    """Node k answers with `clients[k]`; their memory stays with them."""
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        given = wire.decode_task(message.content)
        client = clients[int(context.node_config["partition-id"])]
        return Message(
            wire.encode_reply(client.work(given.task, given.theta, given.step, given.buffers, given.vectors)),
            reply_to=message,
        )

    def describe(message: Message, context: Context) -> Message:
        partition = int(context.node_config["partition-id"])
        properties = {**clients[partition].get_properties({}), "partition": partition}
        return Message(wire.encode_properties(properties), reply_to=message)

    app.train()(answer)
    app.evaluate()(answer)
    app.query()(describe)
    return app
