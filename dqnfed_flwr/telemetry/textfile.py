"""Files of the metrics directory: written whole under a hidden name, then renamed."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

HEADER = "# dqnfed-flwr metrics of run "
"""First words of a metrics file; the exporter removes no file that does not begin so."""
TRAILER = "# EOF\n"
"""Last line of a whole metrics file."""
METRICS_SUFFIX, ROUNDS_SUFFIX = ".prom", ".rounds.jsonl"


def run_name(output: Path | None, fallback: str) -> str:
    """Name of a run, good for a file and a label.

    The last part of the output directory's path with six characters of a hash of all of it: equal for a run and its
    resumption, different for two runs. `fallback` stands where a run has no output directory.
    """
    if output is None:
        return _plain(fallback)
    path = output.expanduser().resolve()
    return f"{_plain(path.name)}-{hashlib.sha256(str(path).encode()).hexdigest()[:6]}"


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one.

    Raises
    ------
    OSError
        If it cannot be written; the old one stays.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip(".-")[:60] or "run"
