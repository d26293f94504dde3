"""Operators: who may use the Control API. Each has a key and a client certificate of the federation's authority.

`server/operators/NAME.crt` is the list of those who are let in: the SuperLink's door reads it at every call, so a file
that is gone is an operator who is out. The operator's own folder holds what `flwr` needs to speak as that operator:
`operator/` for the first one, `operators/NAME/` for others, to be handed over.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import tomli_w
from cryptography import x509

from dqnfed_flwr.deploy import pki
from dqnfed_flwr.deploy.files import changing, demand, make_directory, write_private, write_public
from dqnfed_flwr.deploy.node_certificates import authority, trusted
from dqnfed_flwr.deploy.plan import Federation, check_name, read_plan
from dqnfed_flwr.engine.flwr_command import CONNECTION
from dqnfed_flwr.errors import ConfigError

FIRST = "operator"
"""Name of the operator that `deploy init` makes."""
FOLDER = "operators"
"""Below `server/`, the certificates that are let in; below the federation, the folders of further operators."""
KEY, CERTIFICATE = "operator.key", "operator.crt"


def home(directory: Path, name: str) -> Path:
    """An operator's own folder."""
    return directory / "operator" if name == FIRST else directory / FOLDER / name


def homes(directory: Path) -> list[Path]:
    """Folders of operators that are here; those of others were handed over and deleted."""
    names = allowed(directory / "server" / FOLDER)
    return [place for place in (home(directory, name) for name in names) if place.is_dir()]


def allowed(folder: Path) -> dict[str, x509.Certificate]:
    """Certificates of those who are let in, by name, as the folder has them now; unreadable ones let nobody in."""
    found = {}
    try:
        paths = sorted(folder.glob("*.crt"))
    except OSError:
        return {}
    for path in paths:
        try:
            found[path.stem] = pki.first_certificate(path.read_bytes())
        except (OSError, ConfigError):
            continue
    return found


def name_of(folder: Path, certificate: bytes | None) -> str | None:
    """Who is let in with a certificate (DER) that the authority signed; None for nobody.

    It is the key that counts, so that a certificate before and after its renewal serve alike.
    """
    if not certificate:
        return None
    shown = x509.load_der_x509_certificate(certificate)
    return next((name for name, known in allowed(folder).items() if pki.same_key(known, shown)), None)


def add(directory: Path, name: str) -> Path:
    """Let one more operator in; the folder to hand over.

    `ConfigError` if the name is unfit or taken, or the authority's key is kept elsewhere.
    """
    federation = read_plan(directory)
    check_name("--name", name)
    if (directory / "server" / FOLDER / f"{name}.crt").exists():
        raise ConfigError(f"there is an operator {name!r} already; give another --name, or remove that one first")
    with changing(directory):
        demand([directory, directory / "server"])
        signer = authority(directory)
        write(directory, directory, federation, pki.Identity(trusted(directory), signer.key), name)
    return home(directory, name)


def remove(directory: Path, name: str) -> None:
    """Let an operator in no longer, from the next call on; `ConfigError` if there is none of that name."""
    read_plan(directory)
    listed = directory / "server" / FOLDER
    with changing(directory):
        if not (listed / f"{name}.crt").exists():
            raise ConfigError(f"no operator {name!r}; there are {', '.join(allowed(listed)) or 'none'}")
        (listed / f"{name}.crt").unlink()
        place = home(directory, name)
        if name == FIRST:
            for file in (KEY, CERTIFICATE):
                (place / file).unlink(missing_ok=True)
        else:
            shutil.rmtree(place, ignore_errors=True)


def renew(directory: Path, signer: pki.Identity, days: int) -> None:
    """Sign the keys of all operators anew."""
    listed = directory / "server" / FOLDER
    for name in allowed(listed):
        certificate = pki.renew_operator(signer, name, (listed / f"{name}.crt").read_bytes(), days)
        write_public(listed / f"{name}.crt", certificate)
        if (home(directory, name) / CERTIFICATE).exists():
            write_public(home(directory, name) / CERTIFICATE, certificate)


def write(place: Path, final: Path, federation: Federation, signer: pki.Identity, name: str) -> None:
    """Make an operator's key, certificate and folder in `place`; texts name `final`, where it will lie."""
    made = pki.make_operator(signer, name, federation.days)
    mine = home(place, name)
    for folder in (place / "server" / FOLDER, mine.parent, mine):
        if folder != place:
            make_directory(folder)
    write_private(mine / KEY, made.key)
    write_public(mine / CERTIFICATE, made.certificate)
    write_public(mine / "ca.crt", signer.certificate)
    root = str(home(final, name) / "ca.crt")
    found = {"address": f"127.0.0.1:{federation.control_port}", "root-certificates": root}
    write_public(mine / "config.toml", tomli_w.dumps({"superlink": {"default": CONNECTION, CONNECTION: found}}))
    write_public(place / "server" / FOLDER / f"{name}.crt", made.certificate)
