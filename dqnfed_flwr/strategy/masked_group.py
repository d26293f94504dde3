"""What the server asks of masked clients besides tasks: that they agree on secrets, once a run, and sums."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from dqnfed_flwr import wire
from dqnfed_flwr.errors import QuorumError, RunError, SumError, WireError
from dqnfed_flwr.masked import MOST, PEERS, SHORT
from dqnfed_flwr.masked.member import spread_of
from dqnfed_flwr.masked.secrets import BOX, KEY, SIGNATURE
from dqnfed_flwr.masked.sums import most, opened, too_few, unit_for
from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.schema.run import RunSettings
from dqnfed_flwr.strategy.client_registry import ClientRegistry
from dqnfed_flwr.strategy.exchange import send_and_receive
from dqnfed_flwr.telemetry.events import Cost
from dqnfed_flwr.types import Float64Array
from dqnfed_flwr.wire.masked import ASK, NAMED, REFUSED, decode_masked, decode_summand, encode_masked

Said = Mapping[str, Any]
LENGTHS = {"public": KEY, "signature": SIGNATURE, "tag": KEY}
"""Bytes of what clients say; what is otherwise counts as not said."""
LONGEST_WORDS = 500


class MaskedGroup:
    """The members in `registry` as those who share secrets, reached over `grid` within a deadline a question.

    A sum is asked for again as often as the settings of the `run` say, in words of as many bits as they say.
    """

    def __init__(self, registry: ClientRegistry, grid: Grid, run: RunPlan) -> None:
        self._registry, self._grid, self._settings = registry, grid, run.settings
        self._bits = run.sum_bits

    def agree(self, cost: Cost) -> None:
        """Have the members agree with each other, unless they have; what it takes is added to `cost`.

        Raises
        ------
        QuorumError
            If too few of them do.
        RunError
            If they come to different secrets: one of them did not tell all of them the same.
        """
        said = self._said({client: {ASK: "hello"} for client in self._registry.members}, cost)
        known = {client: each for client, each in said.items() if "tag" in each}
        if len(known) > PEERS:
            _check_tags(known)
            return
        group = [client for client, each in said.items() if {"public", "signature"} <= each.keys()]
        boxes = self._invite(group, said, cost)
        while refused := {client: each for client, each in boxes.items() if "boxes" not in each}:
            for client, each in refused.items():
                log(WARNING, "Client %d does not agree with clients %s: %s", client, group, _why(each))
            group = _without(group, refused)
            if len(group) <= PEERS:
                client, each = next(iter(refused.items()))
                what = f"{len(group)} clients know each other, and a sum needs {PEERS + 1}"
                raise QuorumError(f"privacy.mode: {what}. Client {client}: {_why(each)}")
            boxes = self._invite(group, said, cost)
        others = {client: [other for other in group if other != client] for client in group}
        delivered = {
            client: {
                ASK: "deliver",
                "clients": rest,
                "boxes": [boxes[other]["boxes"][others[other].index(client)] for other in rest],
            }
            for client, rest in others.items()
        }
        answers = self._said(delivered, cost)
        _check_tags({client: answers.get(client, {}) for client in group})
        log(INFO, "%d clients agreed on secrets that this server does not know", len(group))

    def _invite(self, group: Sequence[int], said: Mapping[int, Said], cost: Cost) -> dict[int, Said]:
        """What each of a group answers when it is invited to it: boxes for the others, in their order, if it agrees."""
        if len(group) <= PEERS:
            raise QuorumError(f"privacy.mode: {len(group)} clients can take part in sums; {PEERS + 1} are needed")
        check_samples(
            [each.num_examples for client, each in self._registry.members.items() if client in group], self._settings
        )
        publics, signatures = ([said[client][key] for client in group] for key in ("public", "signature"))
        asked = {ASK: "invite", "clients": list(group), "publics": publics, "signatures": signatures}
        answers = self._said(dict.fromkeys(group, asked), cost)
        for client, each in answers.items():
            if "boxes" in each and len(each["boxes"]) != len(group) - 1:
                answers[client] = {REFUSED: "it sent boxes for other clients"}
        return {client: answers.get(client, {}) for client in group}

    def sum(
        self, exchange: int, model: bytes, weights: Mapping[int, float], longest: float, dim: int, cost: Cost
    ) -> Float64Array:
        """The sum [D] of the rows that clients sent in an exchange at a model, by `weights`, which are by client.

        `longest` is sum |c_k| |g_k|. Who does not answer is asked for the same sum again. `SumError` where it cannot be
        had.
        """
        clients, sizes = sorted(weights), [abs(weights[client]) for client in sorted(weights)]
        if len(clients) <= PEERS or max(sizes) > MOST * sum(sizes):
            first, share = clients[sizes.index(max(sizes))], max(sizes) / sum(sizes)
            raise SumError(f"of {len(clients)} clients, client {first} would have {share:.0%} of the weights")
        spread = spread_of(dim, clients, exchange, model) if self._bits == SHORT else None
        unit = unit_for(longest, len(clients), spread)
        asked = {ASK: "sum", "exchange": exchange, "model": model, "unit": unit, "clients": clients}
        asked["weights"] = [weights[client] for client in clients]
        total, missing, words = np.zeros(dim, f"uint{self._bits}"), {*clients}, ""
        for _ in range(self._settings.retries + 1):
            for client, content in self._ask(dict.fromkeys(sorted(missing), asked), cost).items():
                try:
                    total += decode_summand(content, dim, self._bits)
                    missing.discard(client)
                except WireError as error:
                    words = str((decode_masked(content) or {}).get(REFUSED, error))[:LONGEST_WORDS]
            if not missing or words:
                break
        if missing:
            raise SumError(f"clients {sorted(missing)[:12]} gave no part of the sum: {words or 'no answer'}")
        return opened([total], unit, spread)

    def _said(self, values: Mapping[int, Said], cost: Cost) -> dict[int, Said]:
        return {client: _read(content) for client, content in self._ask(values, cost).items()}

    def _ask(self, values: Mapping[int, Said], cost: Cost) -> dict[int, RecordDict]:
        """Ask clients, each something, and take what comes within the deadline: an exchange of its own; rising."""
        since, members = time.perf_counter(), self._registry.members
        contents = {client: encode_masked(each) for client, each in values.items() if client in members}
        nodes = {members[client].node_id: client for client in contents}
        messages = [
            Message(contents[client], node, MessageType.EVALUATE, group_id="masked") for node, client in nodes.items()
        ]
        found: dict[int, RecordDict] = {}
        for answer in send_and_receive(self._grid, messages, deadline=self._settings.deadline):
            try:
                found[nodes[answer.node]] = answer.content()
            except WireError as error:
                log(WARNING, "Client %d: %s", nodes[answer.node], error)
        cost.exchanges += 1
        cost.bytes_down += sum(map(wire.payload, contents.values()))
        cost.bytes_up += sum(map(wire.payload, found.values()))
        cost.add_time("exchange", since)
        return dict(sorted(found.items()))


def check_samples(counts: Sequence[int], settings: RunSettings) -> None:
    """Refuse (`QuorumError`) clients with so many samples, where no sum of those of a round can be one of enough."""
    samples = sorted(map(settings.local.averaged, counts))[-settings.sampled :]
    if words := too_few(most(samples), settings.privacy.min_samples):
        raise QuorumError(f"privacy.mode: {len(counts)} clients, {len(samples)} a round, could give at best {words}")


def _read(content: RecordDict) -> Said:
    """What a client says, without what has another form than it should."""
    found = decode_masked(content) or {}
    said = {key: found[key] for key, size in LENGTHS.items() if _is_bytes(found.get(key), size)}
    boxes, named, why = (found.get(key) for key in ("boxes", NAMED, REFUSED))
    if isinstance(boxes, list) and all(_is_bytes(box, BOX) for box in boxes):
        said["boxes"] = boxes
    if isinstance(named, list) and all(type(peer) is int for peer in named):
        said[NAMED] = named
    return said | {REFUSED: why} if isinstance(why, str) else said


def _is_bytes(value: object, size: int) -> bool:
    return isinstance(value, bytes) and len(value) == size


def _without(group: Collection[int], refused: Mapping[int, Said]) -> list[int]:
    """The group without those whom most of the others refuse; or, where there are none, without those who refuse."""
    named = Counter(peer for each in refused.values() for peer in {*each.get(NAMED, ())})
    out = {client for client, count in named.items() if 2 * count > len(group) - 1} or refused.keys()
    return [client for client in group if client not in out]


def _check_tags(said: Mapping[int, Said]) -> None:
    tags = {each.get("tag") for each in said.values()}
    if len(tags) == 1 and None not in tags and len(said) > PEERS:
        return
    why = next((_why(each) for each in said.values() if REFUSED in each), "their secrets differ")
    raise RunError(f"privacy.mode: clients {sorted(said)[:12]} came to no agreement: {why}; start the run anew")


def _why(said: Said) -> str:
    return str(said.get(REFUSED, "no answer"))[:LONGEST_WORDS]
