"""What a SuperLink's audit log is told: orders and who gave them, keys, operators, nodes, and what becomes of runs.

The witness sits between the door and Flower's app. An order is written down before it is handed on, and once more with
what became of it; without a place to write, no order is handed on. A thread looks at what happens without a call:
operators on the list, nodes that come and go, runs that end. What a run says of its clients is taken from its log, and
is the word of the app that was submitted.
"""

from __future__ import annotations

import json
import logging
import math
import re
import threading
import time
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from dqnfed_flwr.deploy import operators, orders
from dqnfed_flwr.deploy.audit_log import AuditLog, shortened
from dqnfed_flwr.deploy.orders import Receive, Scope, Send

LOGS = "/v1/runtime/push-logs"
Kind = tuple[str, str, str]
"""Of a refusal: the call, who called, and what was shown."""
LARGEST_LOGS = 1_000_000
"""Bytes of a run's lines at once that are read for words about clients."""
WORDS = re.compile(r"Audit: (\{.*\})")
PAUSE_SECONDS = 2.0
REFUSAL_SECONDS = 60.0
"""Refusals of one kind within that time share a line."""
KINDS = 100
"""Kinds of refusals that are told apart at a time: who is refused chooses paths, and must not cost memory by them."""
OTHERS = ("of other kinds", "several", f"more than {KINDS} kinds at a time")
ACTIVE = ["pending", "starting", "running"]

logger = logging.getLogger("dqnfed")


class Witness:
    """An ASGI app before the SuperLink's, and the thread beside it."""

    def __init__(self, app: Any, log: AuditLog, folder: Path) -> None:
        self.app, self.log, self.folder = app, log, folder
        self.runs: set[str] = set()
        self._refused: dict[Kind, tuple[float, int]] = {}
        self._operators, self._nodes = remembered(log.lines, self.runs)
        self._over, self._lock = threading.Event(), threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, self._while_serving(send))
        elif scope["type"] == "http" and scope["path"] == LOGS:
            await self._hear(scope, receive, send)
        elif scope["type"] == "http" and orders.is_order(scope["path"]):
            await orders.pass_on(self.app, self.log, scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def refused(self, path: str, client: str, shown: str) -> None:
        """Write down that somebody was turned away at the door."""
        with self._lock:  # the doors of both ports call
            now = time.monotonic()
            kind = self._kind((shortened(path), client, shown), now)
            since, count = self._refused.get(kind, (-math.inf, 0))
            if now - since < REFUSAL_SECONDS:
                self._refused[kind] = since, count + 1
                return
            self._refused[kind] = now, 0
        call, client, shown = kind
        self._say("caller refused", call=call, client=client, shown=shown, unsaid=count)

    def _kind(self, kind: Kind, now: float) -> Kind:
        """A refusal's kind, or `OTHERS` where no more can be told apart; they also take what old kinds have unsaid."""
        if kind not in self._refused and len(self._refused) >= KINDS:
            since, unsaid = self._refused.pop(OTHERS, (-math.inf, 0))
            old = {one for one, (at, _) in self._refused.items() if now - at >= REFUSAL_SECONDS}
            unsaid += sum(self._refused.pop(one)[1] for one in old)
            self._refused[OTHERS] = since, unsaid
        return kind if kind in self._refused or len(self._refused) < KINDS else OTHERS

    async def _hear(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take what a run says of its clients, if Flower takes it."""
        heard, taken = bytearray(), False

        async def listening() -> Any:
            message = await receive()
            if len(heard) <= LARGEST_LOGS:
                heard.extend(message.get("body", b""))
            return message

        async def watching(message: Any) -> None:
            nonlocal taken
            taken = taken or (message["type"] == "http.response.start" and message["status"] == 200)
            await send(message)

        await self.app(scope, listening, watching)
        if taken and len(heard) <= LARGEST_LOGS:
            request = import_module("flwr.proto.log_pb2").PushLogsRequest.FromString(bytes(heard))
            for said in WORDS.findall("".join(request.logs)):
                self._say("said by run", run=str(request.run_id), words=_parsed(said))

    def _while_serving(self, send: Send) -> Send:
        """`send` of the SuperLink's life, which begins and ends the look at what happens without a call."""

        async def watched(message: Any) -> None:
            if message["type"] == "lifespan.startup.complete":
                self.log.append("SuperLink started")
                threading.Thread(target=self._look_on, daemon=True).start()
            elif message["type"].startswith("lifespan.shutdown"):
                self._over.set()
                self._say("SuperLink ended")
            await send(message)

        return watched

    def _look_on(self) -> None:
        complaint = ""
        factory = self.app.state.linkstate_factory
        while not self._over.wait(PAUSE_SECONDS):
            try:
                self._look_at_operators()
                self._look_at_nodes(factory.state())
                self._look_at_runs(factory.state())
            except Exception as error:  # of whatever make: the log must not end with it
                if (words := f"{type(error).__name__}: {error}") != complaint:
                    complaint = words
                    logger.error("the audit log sees no nodes and runs: %s", words)
                    self._say("cannot see", why=shortened(words))

    def _look_at_operators(self) -> None:
        found = {}
        for name, certificate in operators.allowed(self.folder).items():
            public = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
            found[name] = orders.digest(public)
        for name, key in found.items():
            if self._operators.get(name) != key:
                self._say("operator added", operator=name, key=key)
        for name in sorted(self._operators.keys() - found.keys()):
            self._say("operator removed", operator=name)
        self._operators = found

    def _look_at_nodes(self, state: Any) -> None:
        for node in state.get_node_info():
            number, status = str(node.node_id), str(node.status)
            if self._nodes.get(number) != status:
                self._nodes[number] = status
                key = orders.node_key(bytes(node.public_key))
                self._say("node", node=number, name=str(node.name), key=key, state=status)

    def _look_at_runs(self, state: Any) -> None:
        active = {str(run.run_id) for run in state.get_run_info(statuses=ACTIVE)}
        self.runs |= active
        if over := self.runs - active:
            for run in state.get_run_info(run_ids=[int(number) for number in over]):
                how = f"{run.status.status}:{run.status.sub_status}"
                self._say("run ended", run=str(run.run_id), how=how, why=shortened(str(run.status.details)))
            self.runs -= over

    def _say(self, what: str, **about: Any) -> None:
        """Write a line about what has happened already, and cannot be held up."""
        try:
            self.log.append(what, **about)
        except OSError as error:
            logger.error("the audit log cannot be written (%s): %s %s", error, what, about)


def remembered(lines: Iterable[Mapping[str, Any]], runs: set[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Keys of operators and states of nodes as a log has them at its end; `runs` gets those that had not ended."""
    known: dict[str, str] = {}
    nodes: dict[str, str] = {}
    for line in lines:
        what = line.get("what")
        if what == "operator added":
            known[str(line.get("operator"))] = str(line.get("key"))
        elif what == "operator removed":
            known.pop(str(line.get("operator")), None)
        elif what == "node":
            nodes[str(line.get("node"))] = str(line.get("state"))
        elif what == "order done" and str(line.get("run", "")).isdigit():
            runs.add(str(line["run"]))
        elif what == "run ended":
            runs.discard(str(line.get("run")))
    return known, nodes


def _parsed(said: str) -> Any:
    try:
        return json.loads(shortened(said))
    except ValueError:
        return shortened(said)
