"""Certificates and keys, read back by the cryptography package and by Python's own TLS."""

from __future__ import annotations

import datetime as dt
import ipaddress
import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from dqnfed_flwr.deploy import pki
from dqnfed_flwr.errors import ConfigError

NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
AUTHORITY = pki.make_authority(now=NOW)
SERVER = pki.make_server(AUTHORITY, "fl.example.org", ["192.0.2.7", "2001:db8::7", "fl"], 90, now=NOW)


def test_the_server_certificate_is_for_all_names_and_for_this_machine() -> None:
    names = pki.first_certificate(SERVER.certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == ["fl.example.org", "fl", "localhost"]
    assert names.value.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address(address) for address in ("192.0.2.7", "2001:db8::7", "127.0.0.1")
    ]


def test_a_name_given_twice_stands_once() -> None:
    server = pki.make_server(AUTHORITY, "localhost", ["127.0.0.1", "localhost"], 1)
    assert pki.names_of(pki.first_certificate(server.certificate)) == ["localhost", "127.0.0.1"]


def test_dates() -> None:
    certificate = pki.first_certificate(SERVER.certificate)
    assert certificate.not_valid_before_utc == NOW - pki.BACKDATED
    assert certificate.not_valid_after_utc == NOW + dt.timedelta(days=90)


def test_the_authority_may_sign_and_the_server_may_not() -> None:
    authority, server = pki.first_certificate(AUTHORITY.certificate), pki.first_certificate(SERVER.certificate)
    basic = [one.extensions.get_extension_for_class(x509.BasicConstraints) for one in (authority, server)]
    assert [(one.value.ca, one.critical) for one in basic] == [(True, True), (False, True)]
    assert basic[0].value.path_length == 0
    usage = [one.extensions.get_extension_for_class(x509.KeyUsage).value for one in (authority, server)]
    assert [one.key_cert_sign for one in usage] == [True, False]
    purposes = server.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(purposes) == [ExtendedKeyUsageOID.SERVER_AUTH]


def test_who_signed_what() -> None:
    other = pki.make_authority()
    certificate = pki.first_certificate(SERVER.certificate)
    assert pki.signed_by(certificate, pki.certificates(AUTHORITY.certificate))
    assert pki.signed_by(certificate, pki.certificates(other.certificate + AUTHORITY.certificate))
    assert not pki.signed_by(certificate, pki.certificates(other.certificate))
    assert pki.belongs_to(certificate, SERVER.key)
    assert not pki.belongs_to(certificate, AUTHORITY.key)
    assert not pki.belongs_to(certificate, b"nonsense")


LOCKED = b"""-----BEGIN OPENSSH PRIVATE KEY-----
b3BlbnNzaC1rZXktdjEAAAAACmFlczI1Ni1jdHIAAAAGYmNyeXB0AAAAGAAAABD5/s6/Gj
WtkhCX8wSZixmyAAAAEAAAAAEAAACIAAAAE2VjZHNhLXNoYTItbmlzdHAzODQAAAAIbmlz
dHAzODQAAABhBE6IpbBXrzTf8bB8KuHSpQzamn8WwDqYgIiyYJbvKZ87e8BJRl3P4urhBa
Wq/NjFBasEVMingvf3WtyFQQ9MEXRhRzGzKDHzsn3xDlReqrZmu0QffS0U1PrAP+WJWE80
/AAAAND8RrIBqRFy6KKnD14JPBb/FrE1WbAr34ecmjpkTwkG6GljATfCZFcLlTFvsv2u+H
IbGX/I9cmRba6BIZZhc341Q+e5DmFhhziVEzDhvHfO1UiuoXHFjs9PO51/8TrVbrNKz0ED
p0XH9qDpGzcdeUreMJJD0NRW7MENJ+JPXk2Ze4axTkOZGR/Eqi9m2RuIPYnbH7b9fAyqAe
qMQts4A5zJu1m4n7Faihgk5+ciqjCK780IM5IOJn1/cL4QlZv4x0IIsjw2eBBFiZ2TzkN3
NeME
-----END OPENSSH PRIVATE KEY-----
"""
"""A key of ssh-keygen with a password: to make one here would take a module that reading it does not need."""
LOCKED_PUBLIC = (
    b"ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQAAAAIbmlzdHAzODQAAABhBE6IpbBXrzTf8bB8KuHSpQzamn8W"
    b"wDqYgIiyYJbvKZ87e8BJRl3P4urhBaWq/NjFBasEVMingvf3WtyFQQ9MEXRhRzGzKDHzsn3xDlReqrZmu0QffS0U1PrAP+WJWE80/A== node-0"
)


def test_what_cannot_be_read_is_no_key_and_has_no_names() -> None:
    assert not pki.same_node_key(LOCKED, LOCKED_PUBLIC)
    assert pki.names_of(pki.first_certificate(pki.make_authority().certificate)) == []


def test_authorities_have_names_of_their_own() -> None:
    assert (
        pki.first_certificate(AUTHORITY.certificate).subject
        != pki.first_certificate(pki.make_authority().certificate).subject
    )


def test_node_keys_are_what_flower_reads() -> None:
    private, public = pki.make_node_key("node-0")
    key, known = load_ssh_private_key(private, None), load_ssh_public_key(public)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert isinstance(known, ec.EllipticCurvePublicKey)
    assert isinstance(known.curve, ec.SECP384R1)
    assert key.public_key().public_numbers() == known.public_numbers()
    assert public.startswith(b"ecdsa-sha2-nistp384 ")
    assert public.endswith(b" node-0\n")


def test_keys_that_do_not_belong_together() -> None:
    private, public = pki.make_node_key("a")
    assert pki.same_node_key(private, public)
    assert not pki.same_node_key(private, pki.make_node_key("b")[1])
    assert not pki.same_node_key(b"nonsense", public)


def test_a_bundle_holds_the_new_authority_and_the_one_before() -> None:
    second, third = pki.make_authority(now=NOW), pki.make_authority(now=NOW)
    both = pki.bundle(second.certificate, AUTHORITY.certificate, now=NOW)
    assert pki.certificates(both) == [pki.first_certificate(one.certificate) for one in (second, AUTHORITY)]
    assert len(pki.certificates(pki.bundle(third.certificate, both, now=NOW))) == 2
    later = NOW + dt.timedelta(days=pki.CA_DAYS + 1)
    assert len(pki.certificates(pki.bundle(third.certificate, both, now=later))) == 1


def test_a_bundle_keeps_the_authority_of_the_certificate_in_use() -> None:
    lost, fresh = pki.make_authority(now=NOW), pki.make_authority(now=NOW)
    earlier = lost.certificate + AUTHORITY.certificate
    serving = pki.first_certificate(SERVER.certificate)
    kept = pki.certificates(pki.bundle(fresh.certificate, earlier, serving, now=NOW))
    assert kept == [pki.first_certificate(one.certificate) for one in (fresh, lost, AUTHORITY)]
    again = pki.certificates(pki.bundle(fresh.certificate, AUTHORITY.certificate, serving, now=NOW))
    assert again == [pki.first_certificate(one.certificate) for one in (fresh, AUTHORITY)]


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_fingerprints_are_those_of_ssh_keygen(tmp_path: Path) -> None:
    public = pki.make_node_key("node-0")[1]
    (tmp_path / "node.pub").write_bytes(public)
    done = subprocess.run(["ssh-keygen", "-lf", tmp_path / "node.pub"], capture_output=True, text=True, check=True)
    assert done.stdout.split()[1] == pki.fingerprint(public)


def test_fingerprints_tell_keys_and_not_comments_apart() -> None:
    public = pki.make_node_key("node-0")[1]
    assert pki.fingerprint(public) == pki.fingerprint(public.replace(b"node-0", b"other"))
    assert pki.fingerprint(public) != pki.fingerprint(pki.make_node_key("node-0")[1])
    assert [pki.fingerprint(nonsense) for nonsense in (b"", b"ecdsa", b"ecdsa x")] == ["", "", ""]


def test_an_identity_does_not_show_its_key() -> None:
    assert "PRIVATE" not in repr(SERVER) + str(SERVER)


def test_no_certificate() -> None:
    with pytest.raises(ConfigError, match="no certificate in PEM format"):
        pki.certificates(b"")


@pytest.mark.parametrize(("name", "trusted"), [("localhost", True), ("127.0.0.1", True), ("elsewhere.org", False)])
def test_tls_takes_the_certificate_for_its_names_only(tmp_path: Path, name: str, trusted: bool) -> None:
    authority = pki.make_authority()
    server = pki.make_server(authority, "fl.example.org", [], 1)
    (tmp_path / "both.pem").write_bytes(server.certificate + server.key)
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(tmp_path / "both.pem")
    here = ssl.create_default_context(cadata=authority.certificate.decode())
    left, right = socket.socketpair()
    thread = threading.Thread(target=_answer, args=(there, right))
    thread.start()
    with left:
        if trusted:
            here.wrap_socket(left, server_hostname=name).close()
        else:
            with pytest.raises(ssl.SSLCertVerificationError):
                here.wrap_socket(left, server_hostname=name)
    thread.join(10)


def _answer(context: ssl.SSLContext, end: socket.socket) -> None:
    try:
        with context.wrap_socket(end, server_side=True) as secure:
            secure.recv(1)
    except OSError:
        end.close()
