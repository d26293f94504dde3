"""A SuperNode that shows the node's certificate, which Flower's own has no option for.

From 1.40 on Flower's nodes speak HTTP, before that gRPC; what is said of either stands in a file of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from dqnfed_flwr.deploy import grpc_transport, http_transport, pki
from dqnfed_flwr.deploy.plan import HTTP_SINCE, minor
from dqnfed_flwr.engine import flwr_command
from dqnfed_flwr.errors import ConfigError, RunError

PROGRAM = "flower-supernode"

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
    _, key = flwr_command.given(command, PROGRAM, "--root-certificates", "--auth-supernode-private-key")
    show(identity_of(certificate, Path(key).expanduser()))
    flwr_command.start(command, logger)


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
    release = version("flwr")
    if not (http_transport if minor(release) >= HTTP_SINCE else grpc_transport).show(identity):
        raise RunError(f"flwr {release} opens its connections elsewhere; see docs/transport.md")
