"""Messages as a real transport leaves them: taken apart into bytes by Flower and put together again; task configs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from flwr.app import Message, RecordDict
from flwr.common import Scalar
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.types import ClientTask


def through_flower(content: RecordDict) -> RecordDict:
    """`content` after Flower serialised it, object by object, and read it back.

    Between ServerApp, SuperLink, SuperNode and ClientApp, Flower sends every message as a tree of such objects.
    """
    objects = get_all_nested_objects(content)
    contents = {number: entry.deflate() for number, entry in objects.items()}
    received = inflate_object_from_contents(content.object_id, contents)
    if not isinstance(received, RecordDict):
        raise TypeError(f"Flower gave back a {type(received).__name__}")
    return received


class TransportGrid(InProcessGrid):
    """An in-process grid whose messages travel as bytes, both ways."""

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send what arrives at the other end."""
        return super().push_messages([_received(message) for message in messages])

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Replies as they arrive."""
        return [_received(message) for message in super().pull_messages(message_ids)]


def _received(message: Message) -> Message:
    if message.has_content():
        message.content = through_flower(message.content)
    return message


def task_config(task: ClientTask, *, has_step: bool) -> dict[str, Scalar]:
    """`task` as the config of Flower's list protocol, and whether a step comes with the model."""
    values = asdict(task)
    directives = {f"directive.{name}": value for name, value in values.pop("directives").items()}
    return {name.replace("_", "-"): value for name, value in values.items()} | directives | {"has-step": has_step}
