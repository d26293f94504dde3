"""A SuperNode that shows the node's certificate, which Flower's own has no option for."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc

from dqnfed_flwr.deploy import flower_program, pki
from dqnfed_flwr.deploy.plan import HTTP_SINCE, minor
from dqnfed_flwr.errors import ConfigError, RunError

PROGRAM = "flower-supernode"
MODULE, MAKER = "flwr.client.grpc_rere_client.connection", "create_channel"
"""Where Flower 1.39 opens the connection to the Fleet, and that one alone."""

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
    identity = identity_of(certificate, Path(key).expanduser())
    if minor(version("flwr")) < HTTP_SINCE:
        show(identity)
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
    module = import_module(MODULE)
    if not hasattr(module, MAKER):
        raise RunError(f"flwr {version('flwr')} opens its connections elsewhere; see docs/transport.md")

    def channel(
        server_address: str,
        insecure: bool,
        root_certificates: bytes | None,
        max_message_length: int,
        interceptors: Sequence[Any],
    ) -> Any:
        if insecure:
            raise RunError("a node's connection needs TLS; give --root-certificates, and no --insecure")
        credentials = grpc.ssl_channel_credentials(root_certificates, identity.key, identity.certificate)
        limits = [(f"grpc.max_{way}_message_length", max_message_length) for way in ("send", "receive")]
        return grpc.intercept_channel(grpc.secure_channel(server_address, credentials, limits), *interceptors)

    setattr(module, MAKER, channel)
