"""The authority of a federation's folder: the one that signs, and those that are trusted."""

from __future__ import annotations

from pathlib import Path

from dqnfed_flwr.deploy import pki
from dqnfed_flwr.errors import ConfigError


def authority(directory: Path) -> pki.Identity:
    """The federation's authority, with its key; `ConfigError` if that is kept elsewhere."""
    try:
        return pki.Identity((directory / "ca" / "ca.crt").read_bytes(), (directory / "ca" / "ca.key").read_bytes())
    except FileNotFoundError as error:
        raise ConfigError(
            f"{directory / 'ca'}: {error.strerror}; put the authority's key back for this, or make a new authority "
            "with --ca"
        ) from None


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
