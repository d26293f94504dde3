"""Checks of a folder: are all files there, private, fit for each other and in their time."""

from __future__ import annotations

import datetime as dt
import shlex
from collections.abc import Callable
from pathlib import Path

from dqnfed_flwr.data.sources import paths_in
from dqnfed_flwr.deploy import pki
from dqnfed_flwr.deploy.files import FOR_OTHERS, open_to_others
from dqnfed_flwr.deploy.findings import Finding, Findings, Level
from dqnfed_flwr.deploy.plan import Federation
from dqnfed_flwr.errors import ConfigError

WARN_DAYS = 30


def files(secret: list[Path], known: list[Path], mend: str) -> Findings:
    """Files that must be there; those with secrets must be private."""
    for path in (*secret, *known):
        if not path.is_file():
            yield Finding(Level.FAILURE, f"{path} is missing", mend)
    yield from private(secret, "file")


def kept(path: Path, what: str) -> Findings:
    """A secret that need not lie here."""
    if path.is_file():
        yield from private([path], "file")
    else:
        yield Finding(Level.OK, f"{what} is kept elsewhere")


def private(paths: list[Path], kind: str) -> Findings:
    """Files or directories that nobody else may read."""
    there = [path for path in paths if path.exists()]
    exposed = [path for path in there if open_to_others(path)]
    for path in exposed:
        mode = "700" if kind == "directory" else "600"
        mend = f"chmod {mode} {shlex.quote(str(path))}; if others use this machine, make a new one"
        yield Finding(Level.FAILURE, f"{path} is open to other users ({path.stat().st_mode & 0o777:o})", mend)
    if there and not exposed:
        yield Finding(Level.OK, f"{len(there)} private {'directories' if kind == 'directory' else 'files'} are private")


def owned(folder: Path, *, with_folders: bool = False) -> Findings:
    """Whether what lies in a folder is its owner's; what root put there may be closed to a service of that owner."""
    if not folder.is_dir():
        return
    mine = folder.stat()
    there = {path: path.lstat() for path in sorted(folder.iterdir()) if with_folders or not path.is_dir()}
    foreign = {path: entry for path, entry in there.items() if entry.st_uid != mine.st_uid}
    if foreign:
        closed = any(not entry.st_mode & FOR_OTHERS for entry in foreign.values())
        yield Finding(
            Level.FAILURE if closed else Level.WARNING,
            f"in {folder}, not its owner's: {', '.join(path.name for path in foreign)}",
            f"chown -R {mine.st_uid}:{mine.st_gid} {shlex.join(map(str, foreign))}",
        )


def node_files(place: Path, mend: str, *, at_home: bool = False) -> Findings:
    """Of a node's folder; at home, that is at the server, its key and its secret may have been deleted."""
    key, secret, known = place / "node.key", place / "superexec.secret", [place / "node.pub", place / "ca.crt"]
    if at_home:
        yield from kept(key, f"the key of {place.name}")
        yield from kept(secret, f"the secret of {place.name}")
        yield from files([], known, mend)
    else:
        yield from files([key], known, mend)
        yield from files([secret], [], "put any random text there, with mode 600, and restart SuperNode and SuperExec")
    yield from private([place], "directory")
    if (place / "node.key").is_file() and (place / "node.pub").is_file():
        together = pki.same_node_key((place / "node.key").read_bytes(), (place / "node.pub").read_bytes())
        if not together:
            yield Finding(Level.FAILURE, f"{place}: node.key and node.pub do not belong together", mend)


def guarded(findings: Callable[[], Findings], mend: str) -> list[Finding]:
    """Findings about keys, certificates or data; what cannot be read is a finding too."""
    try:
        return list(findings())
    except PermissionError as error:
        mend = "run this as the owner of the folder; if you are, `chown` the file as root"
        return [Finding(Level.FAILURE, f"{error.filename} cannot be read by this user", mend)]
    except (OSError, ConfigError) as error:
        return [Finding(Level.FAILURE, f"cannot be read: {error}", mend)]


def server_certificate(directory: Path, federation: Federation, now: dt.datetime) -> Findings:
    """Dates, authority, key and names of the server certificate."""
    place, server = shlex.quote(str(directory)), directory / "server"
    renew = f"`dqnfed deploy rotate {place}`, then restart {federation.doors}"
    certificate = pki.first_certificate((server / "server.crt").read_bytes())
    yield from _dates(
        "server certificate", certificate.not_valid_before_utc, certificate.not_valid_after_utc, now, renew
    )
    yield from authorities(server / "ca.crt", now, f"`dqnfed deploy rotate {place} --ca`, see docs/deploy.md")
    if not pki.signed_by(certificate, pki.certificates((server / "ca.crt").read_bytes())):
        yield Finding(Level.FAILURE, "the server certificate is not signed by server/ca.crt", renew)
    if (server / "server.key").is_file() and not pki.belongs_to(certificate, (server / "server.key").read_bytes()):
        yield Finding(Level.FAILURE, "server.key is not the key of server.crt", renew)
    wanted = {federation.host, *federation.others, "localhost", "127.0.0.1"}
    if missing := sorted(wanted - set(pki.names_of(certificate))):
        yield Finding(Level.FAILURE, f"the server certificate lacks {', '.join(missing)}", renew)


def authorities(path: Path, now: dt.datetime, mend: str = "") -> Findings:
    """Dates of the newest authority in a `ca.crt`."""
    newest = pki.first_certificate(path.read_bytes())
    mend = mend or "make a new authority with `dqnfed deploy rotate DIR --ca` at the server and copy ca.crt here"
    yield from _dates(f"authority in {path.name}", newest.not_valid_before_utc, newest.not_valid_after_utc, now, mend)


def _dates(what: str, begin: dt.datetime, end: dt.datetime, now: dt.datetime, mend: str) -> Findings:
    left = (end - now).days
    if now < begin:
        yield Finding(
            Level.FAILURE, f"the {what} is not valid before {begin:%Y-%m-%d %H:%M} UTC", "set this clock right"
        )
    elif now >= end:
        yield Finding(Level.FAILURE, f"the {what} expired on {end:%Y-%m-%d}", mend)
    elif left < WARN_DAYS:
        yield Finding(Level.WARNING, f"the {what} expires in {left} days, on {end:%Y-%m-%d}", mend)
    else:
        yield Finding(Level.OK, f"the {what} is valid until {end:%Y-%m-%d}")


def data_file(data: str) -> Findings:
    """A device's own data."""
    for path in paths_in(data):
        if not path.exists():
            mend = "put the file there, or change `data` in node.toml and commands"
            yield Finding(Level.FAILURE, f"no data at {path}", mend)
