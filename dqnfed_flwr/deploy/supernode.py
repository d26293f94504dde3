"""A SuperNode that shows the node's certificate, which Flower's own has no option for."""

from __future__ import annotations

import logging
import re
import ssl
import tempfile
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc

from dqnfed_flwr.deploy import flower_program, pki
from dqnfed_flwr.deploy.plan import HTTP_SINCE, minor
from dqnfed_flwr.errors import ConfigError, RunError

PROGRAM = "flower-supernode"
GRPC = ("flwr.client.grpc_rere_client.connection", "create_channel")
"""Where Flower 1.39 opens the connection to the Fleet, and that one alone."""
HTTP = ("flwr.supernode.fleet_http_connection", "FleetHttpClient")
"""The client of the Fleet from 1.40 on, of which a SuperNode makes one, by `from_server_address`."""
RETRIES = "make_simple_http_retry_invoker"
"""There, what tells when a SuperNode gives a call up."""
CUT = re.compile("UNEXPECTED_EOF|handshake operation timed out")
"""How the ssl module says that a handshake ended before it came to certificates."""
NO_TLS = "a node's connection needs TLS; give --root-certificates, and no --insecure"

logger = logging.getLogger("dqnfed")


def run_supernode(command: Sequence[str], certificate: Path) -> None:
    """Run Flower's SuperNode in this process, with a certificate on its connection to the SuperLink.

    Parameters
    ----------
    command : Sequence[str]
        `flower-supernode` with its options; the certificate is for the key of `--auth-supernode-private-key`.
    certificate : Path
        Of the node, `node.crt`.

    Raises
    ------
    ConfigError
        If it is another program, without TLS or key, or the certificate is missing or of another key.
    RunError
        If this release of Flower opens its connections elsewhere.
    """
    _, key = flower_program.given(command, PROGRAM, "--root-certificates", "--auth-supernode-private-key")
    show(identity_of(certificate, Path(key).expanduser()))
    flower_program.start(command, logger)


def identity_of(certificate: Path, key: Path) -> pki.Identity:
    """A node's certificate, and its key as PEM; `ConfigError` if they are missing or do not belong together."""
    again = "copy node.crt from the federation's nodes/NAME; `dqnfed deploy refresh` at the server makes it"
    try:
        chain, private = certificate.read_bytes(), pki.load_node_key(key.read_bytes())
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}; {again}") from None
    found = pki.Identity(chain, pki.private_pem(private))
    if not pki.belongs_to(pki.first_certificate(chain), found.key):
        raise ConfigError(f"{certificate} is of another key than {key}; {again}")
    return found


def show(identity: pki.Identity) -> None:
    """Have Flower's SuperNode show `identity` when it opens its connection; `RunError` if it opens it elsewhere."""
    over_http = minor(version("flwr")) >= HTTP_SINCE
    place, name = HTTP if over_http else GRPC
    try:
        module: Any = import_module(place)
    except ImportError:
        module = None
    maker = getattr(module, name, None)
    retries: Any = getattr(module, RETRIES, None)
    if maker is None or (over_http and (retries is None or not hasattr(maker, "from_server_address"))):
        raise RunError(f"flwr {version('flwr')} opens its connections elsewhere; see docs/transport.md")
    if over_http:
        maker.from_server_address = classmethod(_client_maker(identity))
        setattr(module, RETRIES, _patient(retries))
    else:
        setattr(module, name, _channel_maker(identity))


def _patient(retries: Callable[[], Any]) -> Callable[[], Any]:
    """`retries`, which makes Flower's `RetryInvoker`, but for a cut handshake, after which Flower would hang for good.

    A gate that has no connection left cuts a node like this.
    """

    def made() -> Any:
        invoker = retries()
        given_up = invoker.should_giveup
        invoker.should_giveup = lambda error: CUT.search(str(error)) is None and given_up(error)
        return invoker

    return made


def tls(authorities: bytes, identity: pki.Identity) -> ssl.SSLContext:
    """Of a client that trusts `authorities` (PEM) alone, and shows `identity`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authorities.decode("ascii"))
    with tempfile.NamedTemporaryFile() as pair:  # for its owner alone; `ssl` reads keys from files only
        pair.write(identity.certificate + identity.key)
        pair.flush()
        context.load_cert_chain(pair.name)
    return context


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


def _client_maker(identity: pki.Identity) -> Callable[..., Any]:
    def client(
        kind: Callable[..., Any],
        server_address: str,
        insecure: bool,
        root_certificates: bytes | str | None,
        interceptors: Sequence[Any],
        **options: Any,
    ) -> Any:
        if insecure or root_certificates is None:
            raise RunError(NO_TLS)
        trusted = root_certificates if isinstance(root_certificates, bytes) else Path(root_certificates).read_bytes()
        return kind(f"https://{server_address}", interceptors=interceptors, verify=tls(trusted, identity), **options)

    return client
