"""Nodes that speak gRPC: the door of their Fleet port, and what they show there themselves.

Nothing is read from who is not a node on the list. Flower reads a whole message, of up to 2 GB, before it looks at a
node's signature. Here the TLS handshake asks for a certificate of the federation's authority, so that a caller without
one costs a few kilobytes for some seconds. A caller with one is looked up on the list before its message is read, and
what a node may send at once is bounded.
"""

from __future__ import annotations

import datetime as dt
import logging
import math
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from dqnfed_flwr.deploy import check_network, pki
from dqnfed_flwr.deploy.audit_log import shortened
from dqnfed_flwr.deploy.check_network import AHEAD, BEHIND, SECONDS, skew
from dqnfed_flwr.deploy.findings import Finding, Findings, Level, failure, ok
from dqnfed_flwr.deploy.node_certificates import COPY_AGAIN, NO_TLS, REFUSAL, name_of
from dqnfed_flwr.deploy.orders import ELSEWHERE, App, Receive, Refused, Scope, Send
from dqnfed_flwr.deploy.plan import Transport
from dqnfed_flwr.errors import ConfigError, RunError

MODULE, MAKER = "flwr.superlink.cli.flower_superlink", "generic_create_grpc_server"
"""Where Flower 1.39 asks for the server of its Fleet."""
LARGEST_MESSAGE = 16 * 2**20
"""Bytes. Flower sends arrays in parts of 5 MiB; only a single value of a record could be larger."""
CALLS = 16
"""At once, of one node. Flower's has six at most: two parts each way, a heartbeat, a question for messages."""
WORKERS = 1000
"""Calls at once of all nodes, as Flower has it."""
CONNECTIONS, SPARE_FILES = 12_000, 256
"""Connections at most, above the largest federation; files that are kept for the SuperLink itself."""
OPTIONS = {
    "grpc.max_receive_message_length": LARGEST_MESSAGE,
    "grpc.max_send_message_length": -1,
    "grpc.max_concurrent_streams": CALLS,
    "grpc.server_handshake_timeout_ms": 20_000,
    "grpc.max_connection_idle_ms": 300_000,
    "grpc.keepalive_time_ms": 210_000,
    "grpc.http2.max_pings_without_data": 0,
    "grpc.so_reuseport": 0,
}
"""Of the server. A node asks for messages every 3 s, so a connection idle for five minutes is no node's. A slow link is
not cut: no limit is on the time that a message takes."""
CALL, STAMP_REFUSED = "/flwr.proto.Fleet/PullMessages", "timestamp"
STRIDE, FARTHEST, PRECISION = 300, 86_400, 0.25
"""Seconds between stamps that are tried, the largest, and how exactly a clock is measured."""
CONNECTION = ("flwr.client.grpc_rere_client.connection", "create_channel")
"""Where Flower 1.39 opens a node's connection to the Fleet, and that one alone."""

logger = logging.getLogger("dqnfed")


class FleetDoor:
    """An interceptor of gRPC's server, the outermost one, which Flower's own follow.

    `listed` is the folder of the list.
    """

    def __init__(self, listed: Path, refused: Refused = lambda *_: None) -> None:
        self.listed, self.refused = listed, refused
        self._calls: Counter[str] = Counter()
        self._lock = Lock()

    def intercept_service(self, continuation: Callable[[Any], Any], call: Any) -> Any:
        """The handler of a call, which looks at the caller before it reads the message.

        gRPC reads the one message of a unary call before it calls a handler, and those of a stream when they are asked
        for. On the wire a unary call is a stream of one, so it is handled as such.
        """
        handler = continuation(call)
        if handler is None or handler.unary_unary is None:
            return None  # unimplemented: all of Flower's calls to the Fleet have one message each way

        def behave(messages: Iterator[Any], context: Any) -> Any:
            name = self._caller(context)
            if name is None:
                self._refuse(call.method, context)
            with self._one_of_few(str(name), context):
                for message in messages:
                    return handler.unary_unary(message, context)
            return context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a call without a message")

        return grpc.stream_unary_rpc_method_handler(behave, handler.request_deserializer, handler.response_serializer)

    def _caller(self, context: Any) -> str | None:
        """The node on the list; TLS has verified what is shown here."""
        (shown,) = context.auth_context().get("x509_pem_cert") or [b""]
        return name_of(self.listed, x509.load_pem_x509_certificate(shown)) if shown else None

    def _refuse(self, method: str, context: Any) -> None:
        peer = str(context.peer()).rpartition(":")[0]
        shown = "a certificate that is not on the list"
        logger.warning("refused %r from %s, which showed %s", shortened(method), peer, shown)
        self.refused(method, peer, shown)
        # After PERMISSION_DENIED or UNAUTHENTICATED, Flower's node would not show the words.
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, REFUSAL)

    @contextmanager
    def _one_of_few(self, name: str, context: Any) -> Iterator[None]:
        """Count a call of a node, or put it off: Flower's node tries again what was unavailable."""
        with self._lock:
            self._calls[name] += 1
            many = self._calls[name] > CALLS
        try:
            if many:
                context.abort(grpc.StatusCode.UNAVAILABLE, f"{name} has {CALLS} calls under way already")
            yield
        finally:
            with self._lock:
                self._calls[name] -= 1


class Fleet:
    """Flower's server of the Fleet, behind the door. `asked` says whether Flower has asked for it."""

    def __init__(self, door: FleetDoor, authorities: Path) -> None:
        self.door, self.authorities = door, authorities
        self.asked = False

    def before(self, app: App, refused: Refused) -> App:
        """`app`, which does not begin to serve when Flower serves nodes without having asked for this server."""
        self.door.refused = refused

        async def begin(scope: Scope, receive: Receive, send: Send) -> None:
            async def watched(message: MutableMapping[str, Any]) -> None:
                if message["type"] == "lifespan.startup.complete" and not self.asked:
                    message = {"type": "lifespan.startup.failed", "message": ELSEWHERE}
                await send(message)

            await app(scope, receive, watched if scope["type"] == "lifespan" else send)

        return begin

    def serve(
        self,
        servicer_and_add_fn: tuple[Any, Callable[[Any, Any], None]],
        server_address: str,
        max_message_length: int,
        certificates: tuple[bytes, bytes, bytes] | None,
        interceptors: Sequence[Any] = (),
    ) -> Any:
        """A server that is not started yet, in place of the one that Flower would make; ours has its own limits."""
        if certificates is None:
            raise RunError("the Fleet port has no TLS in this release of Flower; see docs/transport.md")
        servicer, add = servicer_and_add_fn
        server = grpc.server(
            ThreadPoolExecutor(max_workers=WORKERS),
            maximum_concurrent_rpcs=WORKERS,
            options=[*OPTIONS.items(), ("grpc.max_allowed_incoming_connections", connections())],
            interceptors=[self.door, *interceptors],
        )
        add(servicer, server)
        port = server.add_secure_port(server_address, self._credentials(*certificates))
        server.bound_address = f"{server_address.rpartition(':')[0]}:{port}"
        self.asked = True
        return server

    def _credentials(self, authorities: bytes, certificate: bytes, key: bytes) -> Any:
        """With a client's certificate demanded. The file of authorities is read anew: `rotate --ca` adds one."""
        known = authorities

        def configuration() -> Any:
            return grpc.ssl_server_certificate_configuration(((key, certificate),), known)

        def renewed() -> Any:
            nonlocal known
            try:
                found = self.authorities.read_bytes()
                if found == known:
                    return None
                pki.certificates(found)
            except (OSError, ConfigError):
                return None
            known = found
            return configuration()

        return grpc.dynamic_ssl_server_credentials(configuration(), renewed, require_client_authentication=True)


def connections() -> int:
    """How many connections the Fleet may have, so that files are left for the SuperLink itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + SPARE_FILES
    if soft < wanted and soft != resource.RLIM_INFINITY:
        more = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(ValueError, OSError):  # a system may have a limit below the one that it names
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
            soft = more
    if soft == resource.RLIM_INFINITY:
        return CONNECTIONS
    return max(min(CONNECTIONS, soft - SPARE_FILES), SPARE_FILES)


def _channel_maker(identity: pki.Identity) -> Callable[..., Any]:
    def channel(
        server_address: str,
        insecure: bool,
        root_certificates: bytes | None,
        max_message_length: int,
        interceptors: Sequence[Any],
    ) -> Any:
        if insecure:
            raise RunError(NO_TLS)
        credentials = grpc.ssl_channel_credentials(root_certificates, identity.key, identity.certificate)
        limits = [(f"grpc.max_{way}_message_length", max_message_length) for way in ("send", "receive")]
        return grpc.intercept_channel(grpc.secure_channel(server_address, credentials, limits), *interceptors)

    return channel


class Grpc(Transport):
    """Nodes have a port of their own, where the SuperLink itself ends TLS."""

    listener = "SuperLink"
    endpoints = "the SuperLink"
    options = MappingProxyType({"proxy_headers": False})  # there is no gate that would name the caller

    def superlink_arguments(self, fleet_port: int) -> Sequence[str]:
        """The Fleet port, on all interfaces."""
        return "--fleet-api-address", f"0.0.0.0:{fleet_port}"

    def fleet(self, listed: Path, authorities: Path) -> Callable[[App, Refused], App]:
        """Have Flower make the server of its Fleet behind the door."""
        module = import_module(MODULE)
        if not hasattr(module, MAKER):
            raise RunError(f"flwr {version('flwr')} makes the server of its Fleet elsewhere; see docs/transport.md")
        fleet = Fleet(FleetDoor(listed), authorities)
        setattr(module, MAKER, fleet.serve)
        return fleet.before

    def show(self, identity: pki.Identity) -> bool:
        """In place of what Flower opens a channel by."""
        place, name = CONNECTION
        try:
            module: Any = import_module(place)
        except ImportError:
            return False
        if getattr(module, name, None) is None:
            return False
        setattr(module, name, _channel_maker(identity))
        return True

    def closed(self, port: int, ca: Path, place: str) -> Finding:
        """Whoever shows no certificate is turned away in the handshake."""
        context = ssl.create_default_context(cafile=str(ca))
        context.set_alpn_protocols(["h2"])
        spoke = b""
        try:
            with (
                socket.create_connection(("127.0.0.1", port), SECONDS) as plain,
                context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
            ):
                spoke = secure.recv(1)  # in TLS 1.3 a client learns here that it was refused; HTTP/2 greets at once
        except TimeoutError:
            return failure(f"Fleet port {port} does not answer", "look at the SuperLink's log")
        except OSError:  # an alert, or the end
            pass
        if not spoke:
            return ok(f"Fleet port {port} takes connections from nodes with a certificate alone")
        return failure(
            f"Fleet port {port} takes connections from anybody, and reads up to 2 GB from each",
            f"`dqnfed deploy refresh {place}`, then start the SuperLink with commands/superlink.txt or the unit",
        )

    def admitted(self, host: str, port: int, ca: Path, identity: pki.Identity) -> Findings:
        """Over a channel as a node has it."""
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        credentials = grpc.ssl_channel_credentials(ca.read_bytes(), identity.key, identity.certificate)
        with grpc.secure_channel(target, credentials) as channel:
            yield (found := _admitted(channel, f"{host}:{port}"))
            if found.level is Level.OK:
                yield from skew(ahead_by_stamps(channel))


def _admitted(channel: Any, where: str) -> Finding:
    try:
        channel.unary_unary(CALL)(b"", timeout=SECONDS)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return failure(f"{where} does not take this node's certificate: its authority does not know it", COPY_AGAIN)
        if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
            return failure(f"{where} turns this node away: {error.details()}", COPY_AGAIN)
    return ok(f"{where} takes this node's certificate")


def ahead_by_stamps(channel: Any) -> float | None:
    """Seconds by which this clock is ahead of that behind a Fleet port of gRPC; None where that cannot be learnt.

    Infinite where it is more than a day off. The server does not tell its time, but looks at a stamp before it asks
    whose the key is: stamps signed with a key made for the purpose tell its bounds, and change nothing there.
    """
    call, key = channel.unary_unary(CALL), ec.generate_private_key(ec.SECP384R1())

    def accepts(ahead: float) -> bool | None:
        try:
            call(b"", timeout=SECONDS, metadata=_signed(key, ahead))
        except grpc.RpcError as error:
            known = error.code() is grpc.StatusCode.UNAUTHENTICATED
            return STAMP_REFUSED not in str(error.details()) if known else None
        return None

    return measured(accepts)


def measured(accepts: Callable[[float], bool | None]) -> float | None:
    """Seconds by which a clock is ahead of another's, by bisection of what the other accepts.

    `accepts` says whether the other takes a stamp so many seconds ahead of this clock; None where it does not say.
    """
    for stamp in sorted(range(-FARTHEST, FARTHEST + 1, STRIDE), key=abs):
        if (found := accepts(stamp)) is None:
            return None
        if found:
            low, high = float(stamp), stamp + AHEAD + BEHIND
            while high - low > PRECISION:
                middle = (low + high) / 2
                low, high = (middle, high) if accepts(middle) else (low, middle)
            return AHEAD - low
    return math.inf


def _signed(key: ec.EllipticCurvePrivateKey, ahead: float) -> tuple[tuple[str, Any], ...]:
    from flwr.common.constant import PUBLIC_KEY_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

    stamp = (check_network.now() + dt.timedelta(seconds=ahead)).isoformat()
    return (
        (PUBLIC_KEY_HEADER, public_key_to_bytes(key.public_key())),
        (TIMESTAMP_HEADER, stamp),
        (SIGNATURE_HEADER, sign_message(key, stamp.encode("ascii"))),
    )
