"""Operators of a federation's folder: added, removed, renewed."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from dqnfed_flwr.deploy import operators, pki
from dqnfed_flwr.deploy.build import rotate
from dqnfed_flwr.errors import ConfigError


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_init_makes_the_first(place: Path) -> None:
    mine = certificate(place / "operator" / "operator.crt")
    assert list(operators.allowed(place / "server" / "operators")) == ["operator"]
    assert pki.belongs_to(mine, (place / "operator" / "operator.key").read_bytes())
    assert (place / "operator" / "operator.key").stat().st_mode & 0o777 == 0o600
    use = mine.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(use) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert pki.signed_by(mine, [certificate(place / "ca" / "ca.crt")])


def test_names_are_checked_and_taken_once(place: Path) -> None:
    for name, words in (("operator", "already"), ("../x", "lower-case"), ("", "lower-case")):
        with pytest.raises(ConfigError, match=words):
            operators.add(place, name)
    with pytest.raises(ConfigError, match="there are operator"):
        operators.remove(place, "nobody")


def test_without_the_authoritys_key_none_is_added(place: Path) -> None:
    (place / "ca" / "ca.key").unlink()
    with pytest.raises(ConfigError, match="put the authority's key back"):
        operators.add(place, "alice")
    assert list(operators.allowed(place / "server" / "operators")) == ["operator"]


@pytest.mark.parametrize("authority", [False, True])
def test_rotate_renews_certificates_and_old_ones_serve_meanwhile(place: Path, authority: bool) -> None:
    operators.add(place, "alice")
    old = certificate(place / "operators" / "alice" / "operator.crt")
    rotate(place, authority=authority, days=90)
    new = certificate(place / "operators" / "alice" / "operator.crt")
    assert new.serial_number != old.serial_number
    assert new.not_valid_after_utc - dt.datetime.now(dt.UTC) < dt.timedelta(days=91)
    for one in (old, new):
        assert operators.name_of(place / "server" / "operators", one.public_bytes(Encoding.DER)) == "alice"
        assert pki.signed_by(one, pki.certificates((place / "server" / "ca.crt").read_bytes()))
    assert (place / "operators" / "alice" / "ca.crt").read_bytes() == (place / "server" / "ca.crt").read_bytes()
