"""What the host says: free space, and when certificates end."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509

from dqnfed_flwr.telemetry.samples import Samples


def measure_disks(samples: Samples, paths: Sequence[Path]) -> None:
    """Free space and size of the file systems of `paths`; one that is gone has no series."""
    samples.forget("dqnfed_disk_free_bytes")
    samples.forget("dqnfed_disk_size_bytes")
    for path in paths:
        try:
            usage = shutil.disk_usage(path)
        except OSError:
            continue
        samples.set("dqnfed_disk_free_bytes", usage.free, str(path))
        samples.set("dqnfed_disk_size_bytes", usage.total, str(path))


def measure_certificates(samples: Samples, files: Sequence[Path]) -> None:
    """When each certificate ends: of a chain the one that ends first."""
    for file in files:
        samples.set("dqnfed_certificate_expiry_timestamp_seconds", _end(file), str(file))


def _end(file: Path) -> float:
    try:
        chain = x509.load_pem_x509_certificates(file.read_bytes())
    except (OSError, ValueError):
        return math.nan
    return min(certificate.not_valid_after_utc.timestamp() for certificate in chain)
