"""Signed lines: whatever is changed, missing or given twice is found and named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from dqnfed_flwr.audit.records import KEY, SIGNATURE, canonical, read_lines, record_of
from dqnfed_flwr.audit.signing import KnownKey, read_keys, signed, verify
from dqnfed_flwr.audit.weights import FEDERATED
from dqnfed_flwr.deploy import pki
from dqnfed_flwr.errors import ConfigError
from tests.helpers.audits import make_audit, make_pair, pretended_run

AUDITS = [make_audit(k, start=make_pair(3, 1, 0.01, 0.99), FedAvg=make_pair(0, 0)) for k in range(3)]
PEM = (Encoding.PEM, PrivateFormat.PKCS8)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three nodes with their keys, as `dqnfed deploy init` lays them out."""
    folder = tmp_path_factory.mktemp("nodes")
    for k in range(3):
        place = folder / f"node-{k}"
        place.mkdir()
        private, public = pki.make_node_key(place.name)
        (place / "node.key").write_bytes(private)
        (place / "node.pub").write_bytes(public)
    return folder


@pytest.fixture(scope="module")
def keys(nodes: Path) -> dict[str, KnownKey]:
    return read_keys([nodes])


@pytest.fixture(scope="module")
def texts(nodes: Path) -> list[str]:
    return [canonical(signed(record_of(audit), nodes / f"node-{k}" / "node.key")) for k, audit in enumerate(AUDITS)]


def faults(folder: Path, keys: dict[str, KnownKey], *texts: str) -> list[str]:
    file = folder / "lines"
    file.write_bytes("".join(f"{text}\n" for text in texts).encode())
    return verify(read_lines([file]), keys, pretended_run())


def test_sound_lines_have_no_fault(tmp_path: Path, keys: dict[str, KnownKey], texts: list[str]) -> None:
    assert faults(tmp_path, keys, *texts) == []
    assert faults(tmp_path, keys, *reversed(texts)) == []


def leaves(record: dict[str, Any], at: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Paths to all that is no mapping."""
    found: list[tuple[str, ...]] = []
    for key, value in record.items():
        found += leaves(value, (*at, key)) if isinstance(value, dict) else [(*at, key)]
    return found


FIELDS = [*leaves(record_of(AUDITS[0])), (KEY,), (SIGNATURE,)]


@pytest.mark.parametrize("field", FIELDS, ids=".".join)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_changed_digit_of_any_field_is_found(
    field: tuple[str, ...],
    tmp_path_factory: pytest.TempPathFactory,
    keys: dict[str, KnownKey],
    texts: list[str],
    data: st.DataObject,
) -> None:
    record = json.loads(texts[0])
    holder = record
    for key in field[:-1]:
        holder = holder[key]
    old = str(holder[field[-1]])
    place = data.draw(st.integers(0, len(old) - 1))
    digit = data.draw(st.sampled_from([c for c in "0123456789abcdef" if c != old[place]]))
    new = old[:place] + digit + old[place + 1 :]
    holder[field[-1]] = int(new) if isinstance(holder[field[-1]], int) and new.isdecimal() else new
    found = faults(tmp_path_factory.mktemp("changed"), keys, canonical(record), *texts[1:])
    assert any(fault.startswith("lines:1:") for fault in found)
    assert not any(fault.startswith(("lines:2:", "lines:3:")) for fault in found)


@settings(max_examples=150, deadline=None)
@given(place=st.integers(0, 10**6), byte=st.integers(0, 255))
def test_a_changed_byte_anywhere_is_found(
    tmp_path_factory: pytest.TempPathFactory, keys: dict[str, KnownKey], texts: list[str], place: int, byte: int
) -> None:
    raw = bytearray(texts[0].encode())
    place %= len(raw)
    changed = bytes(raw[:place]) + bytes([byte]) + bytes(raw[place + 1 :])
    file = tmp_path_factory.mktemp("bytes") / "lines"
    file.write_bytes(changed + b"\n" + "\n".join(texts[1:]).encode())
    found = verify(read_lines([file]), keys, pretended_run())
    assert bool(found) == (changed != bytes(raw))


def test_a_line_of_an_unknown_key_is_named(tmp_path: Path, nodes: Path, texts: list[str]) -> None:
    known = read_keys([nodes / "node-0", nodes / "node-1" / "node.pub"])
    found = faults(tmp_path, known, *texts)
    assert found[0].startswith("lines:3: of the unknown key SHA256:")
    assert found[1:] == ["client 2: no line"]


@pytest.mark.parametrize("name", [KEY, SIGNATURE])
def test_a_key_that_is_no_text_costs_its_line_alone(
    tmp_path: Path, keys: dict[str, KnownKey], texts: list[str], name: str
) -> None:
    changed = canonical({**json.loads(texts[0]), name: []})
    found = faults(tmp_path, keys, changed, *texts[1:])
    assert [line for line in found if line.startswith("lines:")] == [
        "lines:1: changed, or no line of a client: key and signature are texts"
    ]


def test_a_line_signed_with_the_wrong_key_is_named(
    tmp_path: Path, keys: dict[str, KnownKey], nodes: Path, texts: list[str]
) -> None:
    """Node 1 signs for client 0 under the name of node 0."""
    record = signed(record_of(AUDITS[0]), nodes / "node-1" / "node.key")
    record[KEY] = json.loads(texts[0])[KEY]
    found = faults(tmp_path, keys, canonical(record), *texts[1:])
    assert found[0] == f"lines:1: client 0: changed after it was signed with {nodes / 'node-0' / 'node.pub'}"


def test_a_node_that_signs_for_two_clients_is_named(
    tmp_path: Path, keys: dict[str, KnownKey], nodes: Path, texts: list[str]
) -> None:
    record = signed(record_of(AUDITS[0]), nodes / "node-1" / "node.key")
    found = faults(tmp_path, keys, canonical(record), *texts[1:])
    assert found[:2] == [f"lines:{k + 1}: client {k}: its key signs for 2 clients" for k in (0, 1)]
    assert found[2] == f"{nodes / 'node-0' / 'node.pub'}: no line is signed with this key"


def test_a_missing_line_is_named(tmp_path: Path, keys: dict[str, KnownKey], nodes: Path, texts: list[str]) -> None:
    found = faults(tmp_path, keys, texts[0], texts[2])
    assert found == [f"{nodes / 'node-1' / 'node.pub'}: no line is signed with this key", "client 1: no line"]


def test_a_line_given_twice_is_named(tmp_path: Path, keys: dict[str, KnownKey], texts: list[str]) -> None:
    found = faults(tmp_path, keys, *texts, texts[1])
    assert found == [f"lines:{k}: client 1: 2 lines are of this client" for k in (2, 4)]


def test_a_line_of_another_model_or_run_is_named(
    tmp_path: Path, keys: dict[str, KnownKey], nodes: Path, texts: list[str]
) -> None:
    model = replace(AUDITS[0].models[FEDERATED], digest="e" * 64)
    other = replace(AUDITS[0], models={**AUDITS[0].models, FEDERATED: model})
    record = signed(record_of(other), nodes / "node-0" / "node.key")
    (fault,) = faults(tmp_path, keys, canonical(record), *texts[1:])
    assert fault == "lines:1: client 0: another model than the others' or the run's: federated"


def test_an_unsigned_line_is_named(tmp_path: Path, keys: dict[str, KnownKey], texts: list[str]) -> None:
    found = faults(tmp_path, keys, canonical(record_of(AUDITS[0])), *texts[1:])
    assert found[0] == "lines:1: not signed"


def test_keys_as_pem_serve_as_well(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    (tmp_path / "key.pem").write_bytes(key.private_bytes(*PEM, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "public.pem").write_bytes(public)
    text = canonical(signed(record_of(AUDITS[0]), tmp_path / "key.pem"))
    (tmp_path / "line").write_text(text)
    assert verify(read_lines([tmp_path / "line"]), read_keys([tmp_path / "public.pem"]), None) == []


def test_keys_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    record = record_of(AUDITS[0])
    locked = ec.generate_private_key(ec.SECP384R1()).private_bytes(*PEM, BestAvailableEncryption(b"secret"))
    other = rsa.generate_private_key(65537, 2048)
    for name, content, said in (
        ("empty", b"", "no private key"),
        ("locked", locked, "with a password"),
        ("rsa", other.private_bytes(*PEM, NoEncryption()), "give an EC key"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match=said):
            signed(record, tmp_path / name)
    with pytest.raises(ConfigError, match="cannot be read"):
        signed(record, tmp_path / "absent")
    (tmp_path / "bad.pub").write_bytes(b"ssh-rsa nothing")
    with pytest.raises(ConfigError, match=r"bad.pub: no public key"):
        read_keys([tmp_path])
    (tmp_path / "bad.pub").write_bytes(other.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    with pytest.raises(ConfigError, match="give an EC key"):
        read_keys([tmp_path])
    (tmp_path / "bad.pub").unlink()
    with pytest.raises(ConfigError, match="no public key in"):
        read_keys([tmp_path])
    with pytest.raises(ConfigError, match="absent: cannot be read"):
        read_keys([tmp_path / "absent"])
