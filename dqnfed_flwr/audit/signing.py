"""Lines signed with node keys, and what verification finds.

A line names its key by fingerprint and carries an ECDSA signature over the canonical text of all the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from dqnfed_flwr.audit.records import KEY, SIGNATURE, AuditLine, canonical, faults_of
from dqnfed_flwr.audit.weights import AuditedRun
from dqnfed_flwr.deploy import identities, pki
from dqnfed_flwr.errors import ConfigError

PUBLIC = "*.pub"


@dataclass(frozen=True, slots=True)
class KnownKey:
    """A public key and the file that it is from."""

    name: str
    key: EllipticCurvePublicKey


def signed(record: Mapping[str, Any], private: Path) -> dict[str, Any]:
    """The record with the fingerprint of a node's key and its signature; `ConfigError` if the key cannot be used."""
    try:
        key = pki.load_node_key(private.read_bytes())
    except OSError as error:
        raise ConfigError(f"--sign: {private}: cannot be read ({error.strerror}); give a node's node.key") from None
    except ConfigError as error:
        raise ConfigError(f"--sign: {private}: {error}") from None
    named = {**record, KEY: pki.fingerprint_of(key.public_key())}
    return {**named, SIGNATURE: pki.sign(key, canonical(named).encode()).hex()}


def read_keys(paths: Iterable[Path]) -> dict[str, KnownKey]:
    """Public keys of files, and of all .pub files below folders, by fingerprint; `ConfigError` if one is unfit.

    Identity keys, which lie beside those of nodes, sign no lines.
    """
    given = list(paths)
    below = {path: sorted(path.rglob(PUBLIC)) if path.is_dir() else [path] for path in given}
    files = [file for path in given for file in below[path] if file == path or file.name != identities.PUBLIC]
    found: dict[str, KnownKey] = {}
    for file in files:
        try:
            key = pki.load_node_public_key(file.read_bytes())
        except OSError as error:
            raise ConfigError(f"--keys: {file}: cannot be read ({error.strerror}); give nodes' node.pub") from None
        except ConfigError as error:
            raise ConfigError(f"--keys: {file}: {error}") from None
        found.setdefault(pki.fingerprint_of(key), KnownKey(str(file), key))
    if not found:
        raise ConfigError(f"--keys: no public key in {', '.join(map(str, given))}; give nodes' node.pub")
    return found


def verify(lines: Sequence[AuditLine], keys: Mapping[str, KnownKey], run: AuditedRun | None) -> list[str]:
    """What is wrong with lines, each by its place, and which keys or clients have none; empty where all is well.

    With `run`, lines must be of its model, and every client of its settings must have one.
    """
    faults = {line.place: why for line in lines if (why := _signature_fault(line, keys))}
    sound = [line for line in lines if line.place not in faults]
    faults |= faults_of(sound, run) | _keys_used_twice(sound)
    found = [f"{place}: {why}" for place, why in sorted(faults.items())]
    used = {line.record.get(KEY) for line in sound}
    found += [f"{known.name}: no line is signed with this key" for name, known in keys.items() if name not in used]
    if run is not None:
        have = {line.audit.partition for line in sound if line.audit}
        found += [f"client {client}: no line" for client in run.clients if client not in have]
    return found


def _signature_fault(line: AuditLine, keys: Mapping[str, KnownKey]) -> str:
    """Why a line is not believed by itself; empty where it is."""
    if line.audit is None:
        return line.fault
    if SIGNATURE not in line.record:
        return "not signed"
    name, signature = line.record[KEY], line.record[SIGNATURE]
    if name not in keys:
        return f"of the unknown key {name!s:.80}"
    text = canonical({key: value for key, value in line.record.items() if key != SIGNATURE})
    raw = _from_hex(signature)
    if raw is None or not pki.is_signature(keys[name].key, raw, text.encode()):
        return f"client {line.audit.partition}: changed after it was signed with {keys[name].name}"
    return ""


def _from_hex(text: Any) -> bytes | None:
    """The bytes of a signature; None where it is not written as `signed` writes it."""
    try:
        raw = bytes.fromhex(text)
    except (TypeError, ValueError):
        return None
    return raw if raw.hex() == text else None


def _keys_used_twice(lines: Sequence[AuditLine]) -> dict[str, str]:
    """Lines of a key that signs for several clients: a node is one client."""
    clients = {(line.record[KEY], line.audit.partition) for line in lines if line.audit}
    count = Counter(key for key, _ in clients)
    return {
        line.place: f"client {line.audit.partition}: its key signs for {count[line.record[KEY]]} clients"
        for line in lines
        if line.audit and count[line.record[KEY]] > 1
    }
