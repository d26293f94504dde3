"""The certificates in a federation's folder, the authority's and those of nodes, and a SuperNode that shows its own.

Without a certificate, and a place on the list, nothing that a node sends is read. A node's certificate is for the key
that it has, so it is no secret, and is made from `node.pub` alone. It says who the node is, as long as the authority
lives. Whether that node may call says `server/nodes/NAME.crt`: the SuperLink looks there at every call, so a file that
is gone is a node that is out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from dqnfed_flwr.deploy import pki
from dqnfed_flwr.deploy.files import make_directory, write_public
from dqnfed_flwr.deploy.plan import MOST_DAYS, Federation, Node, check_name, transport_of
from dqnfed_flwr.engine import flwr_command
from dqnfed_flwr.errors import ConfigError, RunError

FOLDER = "nodes"
"""Below `server/`, the list."""
REFUSAL = (
    "this SuperLink does not have this node on its list, server/nodes: it was removed, or its node.crt is of another "
    "key; at the server `dqnfed deploy add-node`, or `refresh` where its file was lost"
)
NO_TLS = "a node's connection needs TLS; give --root-certificates, and no --insecure"
CERTIFICATE = "node.crt"
COPY_AGAIN = (
    "at the server `dqnfed deploy check DIR`; copy node.crt and ca.crt from its nodes/NAME, and restart the node"
)
PROGRAM = "flower-supernode"

logger = logging.getLogger("dqnfed")


def authority(directory: Path) -> pki.Identity:
    """The federation's authority, with its key.

    `ConfigError` if the key is kept elsewhere, or is that of another authority than the one that is trusted.
    """
    place = directory / "ca"
    try:
        found = pki.Identity((place / "ca.crt").read_bytes(), (place / "ca.key").read_bytes())
    except FileNotFoundError as error:
        raise ConfigError(
            f"{place}: {error.strerror}; put the authority's key back for this, or make a new authority with --ca"
        ) from None
    certificate = pki.first_certificate(found.certificate)
    if not pki.belongs_to(certificate, found.key):
        raise ConfigError(
            f"{place / 'ca.key'} is not the key of {place / 'ca.crt'}, or has a password; nothing was changed. Put the "
            "key of the present authority back, or make a new authority: dqnfed deploy rotate DIR --ca"
        )
    if not any(pki.same_key(certificate, one) for one in pki.certificates(trusted(directory))):
        raise ConfigError(
            f"{place / 'ca.crt'} is not among the authorities in {directory / 'server' / 'ca.crt'}; nothing was "
            "changed. Put the present authority back, or make a new one: dqnfed deploy rotate DIR --ca"
        )
    return found


def new_authority(directory: Path, days: int) -> pki.Identity:
    """A new authority; its certificate is followed by those before it that nodes still need."""
    fresh = pki.make_authority(days)
    try:
        serving = pki.first_certificate((directory / "server" / "server.crt").read_bytes())
    except (FileNotFoundError, ConfigError):
        serving = None
    return pki.Identity(pki.bundle(fresh.certificate, trusted(directory), serving), fresh.key)


def trusted(directory: Path) -> bytes:
    """The authorities that the server's folder trusts, as PEM."""
    path, same = directory / "server" / "ca.crt", directory / "operator" / "ca.crt"
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing; nothing was changed. Copy {same} there") from None


def certify(directory: Path, signer: pki.Identity, nodes: Iterable[Node]) -> list[Path]:
    """Sign the keys of nodes, and put them on the list; the files that were written.

    `ConfigError` if a key cannot be read.
    """
    listed = make_directory(directory / "server" / FOLDER)
    written = []
    for node in nodes:
        place = directory / "nodes" / node.name
        try:
            key = pki.load_node_public_key((place / "node.pub").read_bytes())
        except FileNotFoundError as error:
            raise ConfigError(
                f"{error.filename} is missing; restore it from your backup, or remove that node"
            ) from None
        certificate = pki.client_certificate(signer, node.name, key, MOST_DAYS)
        for path in (place / CERTIFICATE, listed / f"{node.name}.crt"):
            write_public(path, certificate)
            written.append(path)
    return written


def without(directory: Path, federation: Federation) -> list[Node]:
    """Nodes that have no certificate, or are not on the list: a file was lost or deleted."""
    listed = directory / "server" / FOLDER
    return [
        node
        for node in federation.nodes
        if not ((directory / "nodes" / node.name / CERTIFICATE).is_file() and (listed / f"{node.name}.crt").is_file())
    ]


def strike(directory: Path, name: str) -> None:
    """Take a node off the list; from its next call on it is turned away."""
    (directory / "server" / FOLDER / f"{name}.crt").unlink(missing_ok=True)


def name_of(folder: Path, certificate: x509.Certificate) -> str | None:
    """Which node on the list a certificate that the authority signed is for; None for nobody, and what nobody reads."""
    try:
        name = pki.common_name(certificate)
        check_name("node", name)
        known = pki.first_certificate((folder / f"{name}.crt").read_bytes())
        return name if pki.same_key(known, certificate) else None
    except (OSError, ConfigError, ValueError, UnsupportedAlgorithm):
        return None


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
    if not transport_of(release).show(identity):
        raise RunError(f"flwr {release} opens its connections elsewhere; see docs/transport.md")
