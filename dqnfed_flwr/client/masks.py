"""What stands between a client's work and a server that is to see no gradient: `masked.member`, for the ClientApp.

Over real nodes a client is who its private key and the list of its peers say. They lie among the credentials that
systemd or a container gave it, or in its folder; node config may name other files (`identity`, `peers`). In a
simulation the seed of the run stands for all secrets, and protects nobody.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from logging import ERROR
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict, UserConfig
from flwr.common.logger import log
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

from dqnfed_flwr.config import Settings, protection_of, resolve
from dqnfed_flwr.errors import ClientDataError, ConfigError, DataError
from dqnfed_flwr.masked import ALONG, FLOOR, IDENTITY, PEERS_LIST
from dqnfed_flwr.masked.budget import Protection
from dqnfed_flwr.masked.given import Given
from dqnfed_flwr.masked.member import Identity, Member, RefusedError, model_digest
from dqnfed_flwr.masked.records import Ledger, Release, SpentError
from dqnfed_flwr.masked.secrets import KEY, derive, digest, from_system, signing_public
from dqnfed_flwr.types import ClientReply, on_host
from dqnfed_flwr.wire import Assignment
from dqnfed_flwr.wire.masked import ASK, NAMED, REFUSED, encode_masked

STATE = "masked/"
"""Begins the names of what a member remembers among a client's memory."""
RUN = "run"
"""The name of what says of which run it is."""
FAILED = "this client failed; its own log says at what: the words might tell of a record"
"""What a client says of a failure where records are protected."""


class Masks:
    """One client's side of the masks, and the ledger of what it gives of its records, where these are protected."""

    def __init__(self, identity: Identity, bits: int = 32, protection: Protection | None = None) -> None:
        self._member = Member(identity, bits)
        self._ledger = None if protection is None else Ledger(protection)

    def answer(self, asked: Mapping[str, Any], samples: int) -> RecordDict:
        """What the client, whose row is the mean of so many samples, says to a question that is no task; or why not."""
        member = self._member
        kinds: dict[str, Callable[[], RecordDict]] = {
            "hello": lambda: encode_masked(member.hello(samples)),
            "invite": lambda: encode_masked(member.invite(asked)),
            "deliver": lambda: encode_masked(member.deliver(asked)),
            "sum": lambda: encode_masked({}, member.summand(asked)),
        }
        try:
            return kinds.get(str(asked.get(ASK)), _unknown)()
        except RefusedError as error:
            return encode_masked({REFUSED: str(error), NAMED: list(error.peers)})

    @property
    def protects(self) -> bool:
        """Whether records are protected."""
        return self._ledger is not None

    def release(self, assignment: Assignment) -> Release | None:
        """The noise of an exchange, which the ledger is charged with; None where records are not protected.

        `RefusedError` if there is no agreement, `SpentError` if the budget does not hold it.
        """
        if self._ledger is None:
            return None
        task, step = assignment.task, assignment.step
        line = (on_host(assignment.theta), *(() if step is None else (on_host(step),)))
        asked = digest("question", repr(task), *map(model_digest, line), *_bytes_of(assignment.buffers))
        words = f"another question in exchange {task.exchange}, each of which is charged once"
        self._member.once("records", task.exchange, said=asked, words=words)
        return self._ledger.open(task.exchange, asked, self._member.root())

    def hidden(self, assignment: Assignment, reply: ClientReply) -> ClientReply:
        """A reply whose row is no row any more, but its turned sketch; with g_k . u_{t-1} where the step came along.

        `RefusedError` where the work made more vectors than the row: settings are the server's, and so is the method.
        """
        if more := sorted({*reply.vectors, *reply.packed, *reply.coded, *reply.buffers}):
            raise RefusedError(f"work that sends {more[:12]} besides the row, which nothing would hide")
        if self._ledger is not None and reply.figures:
            raise RefusedError(f"work that sends {sorted(reply.figures)[:12]}, which no budget is for")
        if reply.row is None:
            return reply
        task, theta = assignment.task, on_host(assignment.theta)
        sketch = self._member.hide(task.exchange, model_digest(theta), on_host(reply.row))
        along = 0.0 if assignment.step is None else self._member.along(on_host(assignment.step))
        return replace(reply, row=sketch, figures={**reply.figures, ALONG: along})

    def export(self) -> dict[str, NDArray[Any]]:
        """What the member remembers, under names of its own."""
        kept = self._member.export() | ({} if self._ledger is None else self._ledger.export())
        kept[RUN] = np.frombuffer(self._member.identity.run.encode(), np.uint8)
        return {STATE + name: values for name, values in kept.items()}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of `export`, without those names; what it remembers of another run is nothing here.

        `SpentError` if the run's budget is another one than before.
        """
        if RUN not in arrays or arrays[RUN].tobytes() != self._member.identity.run.encode():
            arrays = {}  # Flower hands the memory of a run to the next one of its series
        self._member.load(arrays)
        if self._ledger is not None:
            self._ledger.load(arrays)


@contextmanager
def discreet(masks: Masks | None) -> Iterator[None]:
    """Keep the words of a failure to the client's own log, where its records are protected."""
    try:
        yield
    except (RefusedError, SpentError, ConfigError, RecordsError):
        raise
    except Exception as error:
        if masks is None or not masks.protects:
            raise
        log(ERROR, "%s: %s", type(error).__name__, error)
        raise (ClientDataError if isinstance(error, DataError) else RefusedError)(FAILED) from None


class RecordsError(ClientDataError):
    """A client has so few records that noise would be above what it hides, or so many that delta is no promise."""


def check_records(settings: Settings, partition: int, records: int) -> None:
    """Refuse (`RecordsError`) to take part with fewer records than the run's differential privacy asks for."""
    least, delta = settings.privacy.min_records, settings.privacy.delta
    if settings.privacy.epsilon and delta * records >= 1:
        raise RecordsError(
            f"privacy.delta: found {delta:g}, which lets one of the {records} records of client {partition} be told; "
            "give one well below 1 over the number of records"
        )
    if settings.privacy.epsilon and records < least:
        raise RecordsError(
            f"privacy.min-records: client {partition} has {records} training records, and {least} are asked for: noise "
            f"goes down as one over their number, and at epsilon {settings.privacy.epsilon:g} would drown what they say"
        )


def masks_of(settings: Settings, partition: int, context: Context) -> Masks | None:
    """The masks of a client; None where the server may see its row.

    Raises
    ------
    ConfigError
        If its site asks for masks where the run has none, or for an epsilon or delta that the run is above, or a real
        node has no key of its own or none of its peers.
    """
    node, protection = context.node_config, protection_of(settings)
    if protection is not None:
        _ = protection.budget.multiplier  # a node without the library says so before it reads its data
    _check_limits(settings, node)
    if settings.privacy.mode != "masked":
        if "privacy" in node and node["privacy"] != settings.privacy.mode:
            raise ConfigError(
                f"privacy.mode: found {settings.privacy.mode!r}, but this site takes part in runs that are "
                f"{node['privacy']} alone (privacy, in its node config); submit the run so"
            )
        return None
    if "num-partitions" not in node or "identity" in node or _in_supernode(context):  # simulations set the first
        private = read_identity(Path(str(node.get("identity", _place_of(IDENTITY)))))
        pins = read_peers(Path(str(node.get("peers", _place_of(PEERS_LIST)))))
        floor = max(_floor(node.get("min-samples", FLOOR)), settings.privacy.min_samples)
        given = _given(context.run_id, partition)
        identity = Identity(partition, private, pins.get, str(context.run_id), from_system, floor, given)
    else:
        draw, floor = partial(_simulated, settings.seed, partition), settings.privacy.min_samples
        identity = Identity(partition, draw("identity"), _pins(settings.seed), "simulation", draw, floor)
    return Masks(identity, resolve(settings).sum_bits, protection)


def read_identity(path: Path) -> bytes:
    """The private key of a node, `KEY` raw bytes in hexadecimal; `ConfigError` if there is none."""
    try:
        key = bytes.fromhex(path.read_text("ascii").strip())
    except (OSError, ValueError) as error:
        raise ConfigError(_lacks("identity", path, error)) from None
    if len(key) != KEY:
        raise ConfigError(f"identity: {path}: {len(key)} bytes; need {KEY}")
    return key


def read_peers(path: Path) -> dict[int, bytes]:
    """Public keys by partition, from a `peers.toml`; `ConfigError` if it cannot be read."""
    try:
        peers = tomllib.loads(path.read_text("utf-8"))["peers"]
        found = {int(peer["partition"]): bytes.fromhex(peer["key"]) for peer in peers.values()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(_lacks("peers", path, error)) from None
    if wrong := [partition for partition, key in found.items() if len(key) != KEY] or len(found) < len(peers):
        raise ConfigError(f"peers: {path}: keys need {KEY} bytes and partitions of their own, found {wrong}")
    return found


def _check_limits(settings: Settings, node: UserConfig) -> None:
    """Refuse (`ConfigError`) a run that is above the epsilon or delta of a site, which a run without any is, too."""
    epsilon, delta = settings.privacy.epsilon, settings.privacy.delta
    for key, found, without in (("epsilon", epsilon, ""), ("delta", delta, " without privacy.epsilon")):
        if key in node and not (epsilon and found <= _number(node[key])):
            raise ConfigError(
                f"privacy.{key}: found {found:g}{'' if epsilon else without}, but this site takes part in runs with at "
                f"most {node[key]} alone ({key}, in its node config); submit the run so"
            )


def _floor(given: object) -> int:
    """What a site says a sum must be of, whatever the server has set."""
    if not str(given).isdecimal() or int(str(given)) < 1:
        raise ConfigError(f"min-samples, in the node config: found {given!r}; give a whole number from 1")
    return int(str(given))


def _given(run: int, partition: int) -> Given:
    """What a node has given in a run, in what is Flower's own; `ConfigError` if it cannot be kept."""
    home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    path = home / "dqnfed" / f"given-{run}-{partition}"
    try:
        return Given(path)
    except OSError as error:
        raise ConfigError(
            f"privacy.mode: {path}: cannot be written ({error}), and what a masked run has been given is kept there; "
            "let FLWR_HOME be a folder of this client's own"
        ) from None


def _number(given: object) -> float:
    """What a node config says; 0, which no run is below, where it is no number."""
    with suppress(ValueError):
        return float(str(given))
    return 0.0


def _bytes_of(buffers: Mapping[str, NDArray[Any]] | None) -> Iterator[str | bytes]:
    for name, values in sorted((buffers or {}).items()):
        yield from (name, values.dtype.str, repr(values.shape), values.tobytes())


def _in_supernode(context: Context) -> bool:
    """Whether Flower runs this process for one node: `num-partitions` in a node config is not believed there."""
    with suppress(RuntimeError):  # Flower sets no identity in a simulation's workers, and there the server's elsewhere
        return TaskIdentity.node_id == context.node_id
    return False


def _place_of(name: str) -> Path:
    """A file of a node: among its credentials; else beside the folder of what is Flower's own, or where it runs."""
    given, home = os.environ.get("CREDENTIALS_DIRECTORY"), os.environ.get("FLWR_HOME")
    if given and Path(given, name).exists():
        return Path(given, name)
    return (Path(home).absolute().parent if home else Path.cwd()) / name


def _lacks(key: str, path: Path, error: Exception) -> str:
    return (
        f"{key}: {path}: cannot be read ({error}), and privacy.mode masked needs it; `dqnfed deploy init`, `refresh` "
        f"and `identity` make it in the node's folder: copy it, and name it as {key} in the node config if it lies "
        "elsewhere"
    )


def _unknown() -> RecordDict:
    raise RefusedError("a question that no client answers; one of hello, invite, deliver, sum")


def _simulated(seed: int, partition: int, purpose: str) -> bytes:
    return derive(digest("simulation", seed), partition, purpose)


def _pins(seed: int) -> Callable[[int], bytes | None]:
    """The public keys of all clients of a simulation."""
    return cache(lambda client: signing_public(_simulated(seed, client, "identity")))
