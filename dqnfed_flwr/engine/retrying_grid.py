"""A grid that repeats calls to which the SuperLink answers with an error of its own.

Flower repeats a call when the SuperLink is not there. One that is there and overloaded, so that its database is locked
for longer than it waits, answers with a status of 500 or more instead, which would end the run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import NoReturn, TypeVar

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from dqnfed_flwr.errors import RunError
from dqnfed_flwr.strategy.exchange import Withdraws

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0
PATIENCE_SECONDS = 120.0
"""How long a call is repeated before its error ends the run."""

Answer = TypeVar("Answer")
logger = logging.getLogger("flwr")


def retrying(grid: Grid) -> Grid:
    """`grid` with its calls repeated; one that can take messages back has no SuperLink, and stays as it is."""
    return grid if isinstance(grid, Withdraws) else RetryingGrid(grid)


class RetryingGrid(Grid):
    """The grid of a ServerApp that repeats what the SuperLink could not do."""

    def __init__(self, grid: Grid) -> None:
        self._grid, self._repeats = grid, 0

    @property
    def run(self) -> Run:
        """The run that messages belong to."""
        return self._grid.run

    def set_run(self, run: Run) -> None:
        """Set the run that messages belong to."""
        self._grid.set_run(run)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> NoReturn:
        """Flower has deprecated this method; messages are built by `flwr.app.Message`."""
        raise RunError("create_message is deprecated; build a flwr.app.Message")

    def get_node_ids(self) -> list[int]:
        """Nodes that are online."""
        return self._repeated(lambda: list(self._grid.get_node_ids()))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages; their numbers, in order, None for one that could not be sent.

        Repeated, they are new messages: one of which the SuperLink has only a part cannot be completed. Its node then
        answers twice, and the answer whose number is not known here is never taken.
        """
        given = list(messages)
        sent: list[str] = self._repeated(lambda: list(self._grid.push_messages([_anew(message) for message in given])))
        return sent

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies that have come to these messages."""
        numbers = list(message_ids)
        return self._repeated(lambda: list(self._grid.pull_messages(numbers)))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Flower's own exchange, as it is: half of it cannot be repeated."""
        return list(self._grid.send_and_receive(messages, timeout=timeout))

    def take_repeats(self) -> int:
        """How many calls were repeated since this was asked last."""
        repeats, self._repeats = self._repeats, 0
        return repeats

    def _repeated(self, call: Callable[[], Answer]) -> Answer:
        """The answer of `call`, repeated with growing pauses while the SuperLink fails over it.

        What it answered is raised, if it was an error of the caller, or one of its own for `PATIENCE_SECONDS`.
        """
        end, pause = time.monotonic() + PATIENCE_SECONDS, FIRST_PAUSE
        while True:
            try:
                return call()
            except httpx.HTTPStatusError as error:
                if not error.response.is_server_error or time.monotonic() + pause > end:
                    raise
                what, status = error.request.url.path, error.response.status_code
                logger.warning("The SuperLink answered %s with status %d; repeated in %.1f s", what, status, pause)
                time.sleep(pause)
                self._repeats += 1
                pause = min(2 * pause, LONGEST_PAUSE)


def _anew(message: Message) -> Message:
    about = message.metadata
    return Message(message.content, about.dst_node_id, about.message_type, ttl=about.ttl, group_id=about.group_id)
