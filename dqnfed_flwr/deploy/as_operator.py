"""Flower's `flwr` command with the identity of an operator: `python as_operator.py ARGUMENTS`.

Run as a script. Flower's command line knows no client certificates; here every connection with TLS shows the one that
lies in Flower's own directory, FLWR_HOME. Without one there, it is the plain command.
"""

from __future__ import annotations

import os
import ssl
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

CERTIFICATE, KEY = "operator.crt", "operator.key"


def main() -> None:
    """Be `flwr`."""
    home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    if (home / CERTIFICATE).is_file():
        try:
            show(home / CERTIFICATE, home / KEY)
        except OSError as error:
            sys.exit(f"{home}: the operator's identity cannot be used ({error})")
    sys.argv[0] = "flwr"
    (found,) = distribution("flwr").entry_points.select(group="console_scripts", name="flwr")
    sys.exit(found.load()())


def show(certificate: Path, key: Path) -> None:
    """Have Flower's client show a certificate; `OSError` if the files cannot be used."""
    from flwr.supercore.protobuf.client import ProtobufClient

    ssl.create_default_context().load_cert_chain(certificate, key)
    kind: Any = ProtobufClient
    begin = kind.__init__

    def begin_with_certificate(client: Any, *given: Any, **options: Any) -> None:
        verify = options.get("verify", True)
        if verify is True:
            verify = ssl.create_default_context()
        if isinstance(verify, ssl.SSLContext):
            verify.load_cert_chain(certificate, key)
            options["verify"] = verify
        begin(client, *given, **options)

    kind.__init__ = begin_with_certificate


if __name__ == "__main__":
    main()
