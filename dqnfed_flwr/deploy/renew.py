"""Renew the server certificate and the authority, so that every node trusts the server all along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dqnfed_flwr.deploy import pki
from dqnfed_flwr.deploy.build import trusted
from dqnfed_flwr.deploy.files import changing, demand, make_directory, write_private, write_public
from dqnfed_flwr.deploy.plan import Federation
from dqnfed_flwr.deploy.plan_files import read_plan, write_plan
from dqnfed_flwr.errors import ConfigError


def rotate(directory: Path, *, authority: bool = False, days: int = 0, others: Sequence[str] = ()) -> Federation:
    """Make a new server certificate and key, signed by the same authority, or by a new one.

    With a new authority, the `ca.crt` of every folder holds the new and the old one, so that nodes which have the new
    file trust the server before and after it changes over.

    Parameters
    ----------
    directory : Path
        Of the federation.
    authority : bool
        Whether the authority is new too.
    days : int
        How long the certificate is valid, though no longer than the authority; 0 for as long as the one before.
    others : Sequence[str]
        Names and addresses of the server that the certificate gets beside those it has; kept in the plan.

    Raises
    ------
    ConfigError
        If a name is unfit, the authority's key or a folder is missing, or the folder is another user's; nothing was
        changed.
    RunError
        If the machine fails half way.
    """
    federation = read_plan(directory)
    names = tuple(name for name in dict.fromkeys((*federation.others, *others)) if name != federation.host)
    federation = replace(federation, days=days or federation.days, others=names)
    federation.check()
    with changing(directory):
        demand([directory, *(_trusting(directory, federation) if authority else [directory / "server"])])
        signer = _new_authority(directory, federation.days) if authority else _authority(directory)
        server = pki.make_server(signer, federation.host, federation.others, federation.days)
        if authority:
            _hand_out(signer, directory, federation)
        write_private(directory / "server" / "server.key", server.key)
        write_public(directory / "server" / "server.crt", server.certificate)
        write_plan(directory, federation)
    return federation


def _new_authority(directory: Path, days: int) -> pki.Identity:
    """A new authority; its certificate is followed by those before it that nodes still need."""
    fresh = pki.make_authority(days)
    try:
        serving = pki.first_certificate((directory / "server" / "server.crt").read_bytes())
    except (FileNotFoundError, ConfigError):
        serving = None
    return pki.Identity(pki.bundle(fresh.certificate, trusted(directory), serving), fresh.key)


def _hand_out(authority: pki.Identity, directory: Path, federation: Federation) -> None:
    """Keep a new authority, and have every folder trust it."""
    make_directory(directory / "ca")
    write_private(directory / "ca" / "ca.key", authority.key)
    for place in (directory / "ca", *_trusting(directory, federation)):
        write_public(place / "ca.crt", authority.certificate)


def _authority(directory: Path) -> pki.Identity:
    try:
        return pki.Identity((directory / "ca" / "ca.crt").read_bytes(), (directory / "ca" / "ca.key").read_bytes())
    except FileNotFoundError as error:
        raise ConfigError(
            f"{directory / 'ca'}: {error.strerror}; put the authority's key back for this, or make a new authority "
            "with --ca"
        ) from None


def _trusting(directory: Path, federation: Federation) -> Sequence[Path]:
    nodes = [directory / "nodes" / node.name for node in federation.nodes]
    return [directory / "server", directory / "operator", *nodes]
