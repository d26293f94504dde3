"""The authority of a federation's folder: the one that signs, and those that are trusted."""

from __future__ import annotations

from pathlib import Path

from dqnfed_flwr.deploy import pki
from dqnfed_flwr.errors import ConfigError


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
