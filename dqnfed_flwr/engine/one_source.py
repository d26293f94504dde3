"""The grid of `run`: all clients come from the same settings, so that one which cannot take part ends the run."""

from __future__ import annotations

import logging

from flwr.app import Message, MessageType

from dqnfed_flwr.config import Settings
from dqnfed_flwr.data.sets import is_function
from dqnfed_flwr.engine.grid import InProcessGrid

logger = logging.getLogger("flwr")


def warn_of_copies(settings: Settings) -> None:
    """Say so where all clients of one machine would be the same client, each with the whole file."""
    if settings.partition == "file" and settings.clients > 1 and not is_function(settings.data):
        logger.warning(
            "partition: file gives each of the %d clients the whole of %s, since nodes with files of their own are a "
            "matter of deployment; choose another partition (iid, dirichlet, ...) to deal it out",
            settings.clients,
            settings.data,
        )


class OneSourceGrid(InProcessGrid):
    """An `InProcessGrid` on which what a client raises over the first query is raised by `pull_messages`.

    On real nodes the data of a client are its own, and the others go on without it. Here they come from one file or
    one function: what is wrong with a client's part is wrong with the run.
    """

    def _answer(self, message: Message) -> Message:
        if message.metadata.message_type == MessageType.QUERY:
            return self._app(message, self._contexts[message.metadata.dst_node_id])
        return super()._answer(message)
