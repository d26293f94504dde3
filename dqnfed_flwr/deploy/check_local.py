"""Checks of what lies on this machine: files, certificates, programs, space, its clock."""

from __future__ import annotations

import datetime as dt
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from cryptography import x509

from dqnfed_flwr.data.sources import source_of
from dqnfed_flwr.deploy import apps, node_certificates, operators, pki
from dqnfed_flwr.deploy.files import FOR_OTHERS
from dqnfed_flwr.deploy.findings import Finding, Findings, failure, ok, warning
from dqnfed_flwr.deploy.plan import Federation, minor, transport_of
from dqnfed_flwr.engine.flwr_command import program
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.masked import IDENTITY, PEERS_LIST

WARN_DAYS = 30
DISK_WARN, DISK_LIMIT = 5e9, 5e8
SECONDS = 5.0
PROGRAMS = {
    "server": ("flower-superlink", "flower-superexec", "flwr-serverapp", "flwr"),
    "node": ("flower-supernode", "flower-superexec", "flwr-clientapp"),
}


def files(secret: Sequence[Path], known: Sequence[Path], fix: str) -> Findings:
    """Files that must be there; those with secrets must be private."""
    for path in (*secret, *known):
        if not path.is_file():
            yield failure(f"{path} is missing", fix)
    yield from private(secret, "file")


def kept(path: Path, what: str) -> Findings:
    """A secret that need not lie here."""
    if path.is_file():
        yield from private([path], "file")
    else:
        yield ok(f"{what} is kept elsewhere")


def private(paths: Sequence[Path], kind: str) -> Findings:
    """Files or directories that must be closed to other users."""
    mode = "700" if kind == "directory" else "600"
    there = [path for path in paths if path.exists()]
    exposed = [path for path in there if path.stat().st_mode & FOR_OTHERS]
    for path in exposed:
        yield failure(
            f"{path} is open to other users ({path.stat().st_mode & 0o777:o})",
            f"chmod {mode} {shlex.quote(str(path))}; if others use this machine, make a new one",
        )
    if there and not exposed:
        yield ok(f"closed to other users: {', '.join('/'.join(path.parts[-2:]) for path in there)}")


def owned(folder: Path, *, with_folders: bool = False) -> Findings:
    """Whether what lies in a folder is its owner's; what root put there may be closed to a service of that owner."""
    if not folder.is_dir():
        return
    mine = folder.stat()
    there = {path: path.lstat() for path in sorted(folder.iterdir()) if with_folders or not path.is_dir()}
    if foreign := {path: entry for path, entry in there.items() if entry.st_uid != mine.st_uid}:
        closed = any(not entry.st_mode & FOR_OTHERS for entry in foreign.values())
        yield (failure if closed else warning)(
            f"in {folder}, not its owner's: {', '.join(path.name for path in foreign)}",
            f"chown -R {mine.st_uid}:{mine.st_gid} {shlex.join(map(str, foreign))}",
        )


def node_files(place: Path, fix: str, *, at_home: bool = False) -> Findings:
    """Of a node's folder; at home, that is at the server, its key and its secret may have been deleted."""
    key, public, secret, ca = (place / name for name in ("node.key", "node.pub", "superexec.secret", "ca.crt"))
    if at_home:
        yield from kept(key, f"the key of {place.name}")
        yield from kept(secret, f"the secret of {place.name}")
        yield from files([], [public, ca], fix)
    else:
        yield from files([key], [public, ca], fix)
        yield from files([secret], [], "put any random text there, with mode 600, and restart SuperNode and SuperExec")
    yield from private([place], "directory")
    if lacking := [name for name in (IDENTITY, PEERS_LIST) if not at_home and not (place / name).is_file()]:
        words = f"{place.name} has no {' and no '.join(lacking)}: its clients can take part in no masked run"
        yield warning(f"{words}, and the systemd unit does not start", "`dqnfed deploy refresh`, and copy both here")
    if listed := apps.allowed(place):
        yield ok(f"{place.name} runs {len(listed)} listed app{'s' if len(listed) > 1 else ''}")
    else:
        yield failure(f"{place.name} runs no app at all", f"`dqnfed deploy allow {shlex.quote(str(place))}`")
    if key.is_file() and public.is_file() and not pki.same_node_key(key.read_bytes(), public.read_bytes()):
        yield failure(f"{place}: node.key and node.pub do not belong together", fix)


def server_certificate(directory: Path, federation: Federation, now: dt.datetime) -> Findings:
    """Dates, authority, key and names of the server certificate."""
    place, server = shlex.quote(str(directory)), directory / "server"
    renew = f"`dqnfed deploy rotate {place}`, then restart {federation.transport.endpoints}"
    certificate = pki.first_certificate((server / "server.crt").read_bytes())
    yield _dates("server certificate", certificate, now, renew)
    yield from authorities(server / "ca.crt", now, f"`dqnfed deploy rotate {place} --ca`, see docs/deploy.md")
    if not pki.signed_by(certificate, pki.certificates((server / "ca.crt").read_bytes())):
        yield failure("the server certificate is not signed by server/ca.crt", renew)
    if (server / "server.key").is_file() and not pki.belongs_to(certificate, (server / "server.key").read_bytes()):
        yield failure("server.key is not the key of server.crt", renew)
    wanted = {federation.host, *federation.others, "localhost", "127.0.0.1"}
    if missing := sorted(wanted - set(pki.names_of(certificate))):
        yield failure(f"the server certificate lacks {', '.join(missing)}", renew)


def operator_certificates(directory: Path, now: dt.datetime) -> Findings:
    """Who is let in, until when; keys that lie here must be private."""
    place, listed = shlex.quote(str(directory)), operators.allowed(directory / "server" / operators.FOLDER)
    keys = [operators.home(directory, name) / operators.KEY for name in listed]
    yield from private([key for key in keys if key.is_file()], "file")
    fix, signers = f"`dqnfed deploy rotate {place}`", _authorities(directory / "server" / "ca.crt")
    for name, certificate in listed.items():
        if signers and not pki.signed_by(certificate, signers):
            yield failure(f"the certificate of operator {name} is not signed by server/ca.crt", fix)
        else:
            yield _dates(f"certificate of operator {name}", certificate, now, fix)
    if not listed:
        yield failure("nobody is let in to the Control port", f"`dqnfed deploy add-operator {place} --name operator`")


def _authorities(path: Path) -> list[x509.Certificate]:
    """Those of a file; none where it cannot be read, which is told elsewhere."""
    try:
        return pki.certificates(path.read_bytes())
    except (OSError, ConfigError):
        return []


def node_certificates_at_server(directory: Path, federation: Federation, now: dt.datetime) -> Findings:
    """Whether the SuperLink will know every node by its certificate, and nobody else."""
    place, listed = shlex.quote(str(directory)), directory / "server" / node_certificates.FOLDER
    fix = f"`dqnfed deploy refresh {place}`, restart the SuperLink, and copy node.crt from nodes/NAME to the device"
    for node in federation.nodes:
        path = listed / f"{node.name}.crt"
        if not path.is_file():
            yield failure(f"{node.name} is not on the list {listed}, so that it is turned away", fix)
            continue
        remove = f"delete {shlex.quote(str(path))}, then {fix}"
        yield from node_certificate(path, directory / "nodes" / node.name, directory / "server" / "ca.crt", now, remove)
    names = {node.name for node in federation.nodes}
    if strange := sorted(path.stem for path in listed.glob("*.crt") if path.stem not in names):
        yield warning(f"on the list {listed}, but no nodes of this folder: {', '.join(strange)}", "delete their files")


def node_certificate(path: Path, place: Path, ca: Path, now: dt.datetime, fix: str) -> Findings:
    """Dates, authority and key of a node's certificate; `place` is the node's folder."""
    if not path.is_file():
        yield failure(f"{path} is missing, so that the SuperLink turns this node away", fix)
        return
    certificate = pki.first_certificate(path.read_bytes())
    yield _dates(f"certificate of {place.name}", certificate, now, fix)
    if not pki.signed_by(certificate, pki.certificates(ca.read_bytes())):
        yield failure(f"{path} is not signed by the authority in ca.crt", fix)
    public = place / "node.pub"
    if public.is_file() and certificate.public_key() != pki.load_node_public_key(public.read_bytes()):
        yield failure(f"{path} is of another key than node.pub", fix)


def authorities(path: Path, now: dt.datetime, fix: str) -> Findings:
    """Dates of the newest authority in a `ca.crt`."""
    yield _dates(f"authority in {path.name}", pki.first_certificate(path.read_bytes()), now, fix)


def _dates(what: str, certificate: x509.Certificate, now: dt.datetime, fix: str) -> Finding:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    left = (end - now).days
    if now < begin:
        return failure(f"the {what} is not valid before {begin:%Y-%m-%d %H:%M} UTC", "set this clock right")
    if now >= end:
        return failure(f"the {what} expired on {end:%Y-%m-%d}", fix)
    if left < WARN_DAYS:
        return warning(f"the {what} expires in {left} days, on {end:%Y-%m-%d}", fix)
    return ok(f"the {what} is valid until {end:%Y-%m-%d}")


def data_file(data: str) -> Findings:
    """A device's own data."""
    for path in source_of(data).paths:
        if not path.exists():
            yield failure(f"no data at {path}", "put the file there, or change `data` in node.toml and commands")


def programs(role: str) -> Findings:
    """Programs of Flower that a role starts."""
    if missing := [name for name in PROGRAMS[role] if shutil.which(program(name)) is None]:
        yield failure(
            f"no program {', '.join(missing)} in this environment",
            "install dqnfed-flwr here, and have the environment's bin folder in PATH where the commands run",
        )


def flower(wanted: str) -> Findings:
    """The installed release of Flower, and whether it is the one that the folder was made for."""
    found = version("flwr")
    if advice := transport_of(found).advice:
        speaks, fix = advice
        yield warning(f"flwr {found} speaks {speaks}", fix)
    if minor(found) == minor(wanted):
        yield ok(f"flwr is {found}")
    else:
        yield failure(
            f"flwr is {found} here; this folder was made for {wanted}",
            f"pip install 'flwr=={wanted}' here; or upgrade all machines, then `dqnfed deploy refresh`: docs/deploy.md",
        )


def disk(path: Path, fix: str) -> Findings:
    """Space left where `path` lies; `fix` says how to make room."""
    if not path.is_dir():
        yield failure(f"{path} is missing", "restore it from your backup, or make it anew with mode 700")
    elif (free := shutil.disk_usage(path).free) >= DISK_WARN:
        yield ok(f"{free / 1e9:.0f} GB are free in {path}")
    else:
        yield (failure if free < DISK_LIMIT else warning)(f"{free / 1e9:.1f} GB are free in {path}", fix)


def clock() -> Findings:
    """Whether the system keeps its clock right by itself."""
    if clock_synchronised() is False:
        yield warning(
            "this machine's clock is not kept by the network",
            "start a time service (timedatectl set-ntp true): Flower refuses nodes 5 s ahead or 5 minutes behind",
        )


def clock_synchronised() -> bool | None:
    """Whether the system keeps its clock by the network; None where it does not say."""
    command = ["timedatectl", "show", "--property=NTPSynchronized", "--value"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return {"yes": True, "no": False}.get(done.stdout.strip())
