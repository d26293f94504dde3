"""Certificates and keys: one authority for the federation, its server and client certificates, one EC key a node.

Nodes trust the authority and nothing else; the server knows nodes by their registered keys, for which they also have
client certificates. Node keys are P-384 in OpenSSH's format, which `flower-supernode` and `flwr supernode register`
read.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dqnfed_flwr.errors import ConfigError

CURVE, DIGEST = ec.SECP384R1, hashes.SHA384
CA_DAYS = 3650
BACKDATED = dt.timedelta(minutes=10)
"""Certificates begin so long ago, for devices whose clock is a little behind."""


@dataclass(frozen=True, slots=True, repr=False)
class Identity:
    """A certificate and its private key, both as PEM; has no `repr`, so that no log shows the key."""

    certificate: bytes
    key: bytes


def make_authority(days: int = CA_DAYS, *, now: dt.datetime | None = None) -> Identity:
    """A new certificate authority, which may sign server certificates and no further authorities.

    It is valid for ten years, or a day longer than `days`, those of its first certificate.
    """
    key = ec.generate_private_key(CURVE())
    name = _common_name(f"dqnfed authority {x509.random_serial_number():x}"[:40])
    begin = now or dt.datetime.now(dt.UTC)
    builder = (
        _builder(name, name, key.public_key(), begin, begin + dt.timedelta(days=max(CA_DAYS, days + 1)))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
    )
    return Identity(builder.sign(key, DIGEST()).public_bytes(Encoding.PEM), private_pem(key))


def make_server(
    authority: Identity, host: str, others: Iterable[str], days: int, *, now: dt.datetime | None = None
) -> Identity:
    """A server certificate, signed by `authority`, for `host`, `others`, localhost and 127.0.0.1.

    It is valid for `days`, though no longer than the authority. `ConfigError` if the authority's key is no EC key, or
    its time is over.
    """
    key = ec.generate_private_key(CURVE())
    names = dict.fromkeys([host, *others, "localhost", "127.0.0.1"])
    alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
    certificate = _signed(
        authority, host, key.public_key(), days, now, ExtendedKeyUsageOID.SERVER_AUTH, alternatives=alternatives
    )
    return Identity(certificate, private_pem(key))


def make_operator(authority: Identity, name: str, days: int, *, now: dt.datetime | None = None) -> Identity:
    """A key and a client certificate, signed by `authority`, for an operator; as long as that of `make_server`."""
    key = ec.generate_private_key(CURVE())
    return Identity(client_certificate(authority, name, key.public_key(), days, now=now), private_pem(key))


def renew_operator(authority: Identity, name: str, certificate: bytes, days: int) -> bytes:
    """A new certificate (PEM) for the key of an operator's old one; `ConfigError` if that is no certificate."""
    key = first_certificate(certificate).public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError(f"operator {name}: a {type(key).__name__}; remove that operator and add it again")
    return client_certificate(authority, name, key, days)


def client_certificate(
    authority: Identity, name: str, key: ec.EllipticCurvePublicKey, days: int, *, now: dt.datetime | None = None
) -> bytes:
    """A client certificate (PEM), signed by `authority`, for the holder of `key`: an operator, or a node."""
    return _signed(authority, name, key, days, now, ExtendedKeyUsageOID.CLIENT_AUTH)


def make_node_key(comment: str) -> tuple[bytes, bytes]:
    """A node's private and public key, in OpenSSH's format."""
    key = ec.generate_private_key(CURVE())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return private, public + f" {comment}\n".encode()


def same_node_key(private: bytes, public: bytes) -> bool:
    """Whether the two files of a node belong together."""
    try:
        return load_node_key(private).public_key() == load_node_public_key(public)
    except ConfigError:  # one with a password, say
        return False


def load_node_key(private: bytes) -> ec.EllipticCurvePrivateKey:
    """A node's private key, in OpenSSH's format or as PEM; `ConfigError` if it is no EC key, or needs a password."""
    load = load_ssh_private_key if b"OPENSSH PRIVATE KEY" in private else load_pem_private_key
    try:
        key = load(private, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"no private key, or one with a password ({error}); give a node's node.key") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"a {type(key).__name__}; give an EC key, such as a node's node.key")
    return key


def load_node_public_key(public: bytes) -> ec.EllipticCurvePublicKey:
    """A node's public key, in OpenSSH's format or as PEM; `ConfigError` if it is no EC key."""
    load = load_pem_public_key if b"BEGIN PUBLIC KEY" in public else load_ssh_public_key
    try:
        key = load(public)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"no public key ({error}); give a node's node.pub") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError(f"a {type(key).__name__}; give an EC key, such as a node's node.pub")
    return key


def fingerprint_of(key: ec.EllipticCurvePublicKey) -> str:
    """As `fingerprint`, of a key that was read."""
    return fingerprint(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))


def sign(key: ec.EllipticCurvePrivateKey, message: bytes) -> bytes:
    """ECDSA with SHA-384, as DER."""
    return key.sign(message, ec.ECDSA(DIGEST()))


def is_signature(key: ec.EllipticCurvePublicKey, signature: bytes, message: bytes) -> bool:
    """Whether the holder of `key` made `signature` for these very bytes."""
    try:
        key.verify(signature, message, ec.ECDSA(DIGEST()))
    except InvalidSignature:
        return False
    return True


def fingerprint(public: bytes) -> str:
    """Short form of a node's public key, the one that `ssh-keygen -l` shows; empty if it is no key."""
    try:
        return "SHA256:" + b64encode(hashlib.sha256(b64decode(public.split()[1])).digest()).decode().rstrip("=")
    except (IndexError, ValueError):
        return ""


def certificates(pem: bytes) -> list[x509.Certificate]:
    """All certificates of a PEM file; `ConfigError` if there is none."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise ConfigError(f"no certificate in PEM format ({error})") from None


def first_certificate(pem: bytes) -> x509.Certificate:
    """The first certificate of a PEM file."""
    return certificates(pem)[0]


def signed_by(certificate: x509.Certificate, authorities: Sequence[x509.Certificate]) -> bool:
    """Whether one of `authorities` signed `certificate`."""
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(authority)
        except (InvalidSignature, ValueError, TypeError):
            continue
        return True
    return False


def same_key(one: x509.Certificate, other: x509.Certificate) -> bool:
    """Whether two certificates are for one key."""
    try:
        return one.public_key() == other.public_key()
    except (ValueError, UnsupportedAlgorithm):
        return False


def belongs_to(certificate: x509.Certificate, key: bytes) -> bool:
    """Whether `key` (PEM) is that of `certificate`."""
    try:
        return load_pem_private_key(key, None).public_key() == certificate.public_key()
    except (ValueError, TypeError):
        return False


def common_name(certificate: x509.Certificate) -> str:
    """Name of whom a client certificate is for; empty if it has none."""
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def names_of(certificate: x509.Certificate) -> list[str]:
    """Names and addresses that a server certificate is for; none if it does not say."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]


def bundle(
    first: bytes, earlier: bytes, serving: x509.Certificate | None = None, *, now: dt.datetime | None = None
) -> bytes:
    """PEM of a new authority (`first`) and of the `earlier` ones, the newest first, that are valid and still needed.

    Nodes need the newest, and that of the server certificate in use (`serving`): a renewal may have ended half way.
    """
    at, newest = now or dt.datetime.now(dt.UTC), certificates(earlier)
    needed = newest[:1] + [one for one in newest[1:] if serving is not None and signed_by(serving, [one])]
    return first + b"".join(one.public_bytes(Encoding.PEM) for one in needed if one.not_valid_after_utc > at)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, begin: dt.datetime, end: dt.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - BACKDATED)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _signed(
    authority: Identity,
    name: str,
    key: ec.EllipticCurvePublicKey,
    days: int,
    now: dt.datetime | None,
    use: x509.ObjectIdentifier,
    *,
    alternatives: x509.SubjectAlternativeName | None = None,
) -> bytes:
    """A certificate (PEM) for `key`, which is no authority's."""
    signer = load_pem_private_key(authority.key, None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ConfigError("the authority's key is no EC key; make a new one with `dqnfed deploy rotate DIR --ca`")
    issuer = first_certificate(authority.certificate)
    begin = now or dt.datetime.now(dt.UTC)
    end = min(begin + dt.timedelta(days=days), issuer.not_valid_after_utc)
    if end <= begin:
        raise ConfigError(
            f"the authority expired on {end:%Y-%m-%d}; make a new one with `dqnfed deploy rotate DIR --ca`"
        )
    builder = (
        _builder(_common_name(name), issuer.subject, key, begin, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if alternatives is not None:
        builder = builder.add_extension(alternatives, critical=False)
    return builder.sign(signer, DIGEST()).public_bytes(Encoding.PEM)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key as PEM, which TLS libraries read."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _usage(*granted: str) -> x509.KeyUsage:
    rights = ["digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"]
    rights += ["key_cert_sign", "crl_sign", "encipher_only", "decipher_only"]
    return x509.KeyUsage(**{right: right in granted for right in rights})


def _common_name(host: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
