"""Prometheus' web configuration file: TLS and basic authentication with bcrypt hashes.

Of the format that Prometheus' own exporters read, these keys are known; any other is an error, so that nothing is
silently less protected than the file says: `tls_server_config` with `cert_file`, `key_file`, `client_auth_type`,
`client_ca_file` and `min_version`, and `basic_auth_users`. Paths are relative to the file.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.exporter.passwords import load_bcrypt
from dqnfed_flwr.yaml_nodes import BoundedLoader

TLS_KEYS = ("cert_file", "key_file", "client_auth_type", "client_ca_file", "min_version")
VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_HASH = re.compile(r"\$2[aby]\$\d\d\$[./A-Za-z0-9]{53}")


@dataclass(frozen=True, slots=True)
class Tls:
    """Files and demands of a TLS server."""

    certificate: Path
    key: Path
    authority: Path | None = None
    client_auth: ssl.VerifyMode = ssl.CERT_NONE
    minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2

    def context(self) -> ssl.SSLContext:
        """A server context over the files as they are now.

        OSError or ssl.SSLError if they cannot be read, or do not belong together.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = self.minimum
        context.load_cert_chain(self.certificate, self.key)
        if self.authority:
            context.load_verify_locations(self.authority)
        context.verify_mode = self.client_auth
        return context


@dataclass(frozen=True, slots=True)
class WebConfig:
    """Who may ask, and how."""

    tls: Tls | None = None
    users: Mapping[str, str] = field(default_factory=dict)


def read_web_config(path: Path) -> WebConfig:
    """Read a web configuration file and try its certificate.

    Raises
    ------
    ConfigError
        If it cannot be read, holds an unknown key or an impossible value, or needs bcrypt where that is missing.
    """
    try:
        found = yaml.load(path.read_text("utf-8"), BoundedLoader)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"--web-config: cannot read {path}: {error}") from None
    found = {} if found is None else found
    _only(found, ("tls_server_config", "basic_auth_users"), path)
    if empty := [key for key, value in found.items() if not value]:
        raise ConfigError(f"{path}: {empty[0]} is empty, which protects nothing; fill it, or leave it out")
    tls = _tls(found["tls_server_config"], path) if "tls_server_config" in found else None
    users = found.get("basic_auth_users", {})
    if not isinstance(users, dict):
        raise ConfigError(f"{path}: basic_auth_users: write name: bcrypt hash, one a line")
    for name, hashed in users.items():
        if not isinstance(name, str) or ":" in name or not _HASH.fullmatch(str(hashed)):
            raise ConfigError(f"{path}: basic_auth_users: {name}: not a bcrypt hash; htpasswd -nBC 10 NAME makes one")
    if users:
        load_bcrypt()
    return WebConfig(tls, users)


def _tls(found: Any, path: Path) -> Tls:
    _only(found, TLS_KEYS, path, "tls_server_config.")
    files = {key: path.parent / str(found[key]) for key in ("cert_file", "key_file", "client_ca_file") if key in found}
    if not {"cert_file", "key_file"} <= files.keys():
        raise ConfigError(f"{path}: tls_server_config: give both cert_file and key_file")
    auth = _choice(found, "client_auth_type", CLIENT_AUTH, "NoClientCert", path)
    if auth != ssl.CERT_NONE and "client_ca_file" not in files:
        raise ConfigError(f"{path}: tls_server_config: client_auth_type needs client_ca_file")
    if auth == ssl.CERT_NONE and "client_ca_file" in files:
        raise ConfigError(
            f"{path}: tls_server_config: client_ca_file without a client_auth_type that asks for a certificate; set it "
            "to RequireAndVerifyClientCert, or leave client_ca_file out"
        )
    minimum = _choice(found, "min_version", VERSIONS, "TLS12", path)
    tls = Tls(files["cert_file"], files["key_file"], files.get("client_ca_file"), auth, minimum)
    try:
        tls.context()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{path}: tls_server_config: {tls.certificate} and {tls.key} cannot be used: {error}"
        ) from None
    return tls


def _choice(found: Mapping[str, Any], key: str, choices: Mapping[str, Any], default: str, path: Path) -> Any:
    given = found.get(key, default)
    if not isinstance(given, str) or given not in choices:
        raise ConfigError(f"{path}: {key}: found {given!r}, allowed: {', '.join(choices)}")
    return choices[given]


def _only(found: Any, allowed: tuple[str, ...], path: Path, prefix: str = "") -> None:
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: {prefix or 'the file'} holds no keys; allowed: {', '.join(allowed)}")
    if unknown := sorted(str(key) for key in found if key not in allowed):
        raise ConfigError(f"{path}: unknown key {prefix}{unknown[0]}; allowed: {', '.join(allowed)}")
