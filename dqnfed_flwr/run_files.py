"""Names of the files in a run's output folder that others look for, and how a file is replaced at once.

The module imports nothing but the standard library, because programs that only look at a folder need not load torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

RUN = "run.json"
"""Settings, final figures and history; written last, so it stands for a run that is at its end."""
MODEL = "model.npz"
"""Theta and buffers of the final model."""
EVENTS = "events.jsonl"
"""A line a round."""
CHECKPOINT = "checkpoint.npz"
"""What a run that was cut off goes on from; its long vectors lie next to it."""
ASKED = "asked"
"""How many exchanges the nodes' records were asked in, where these are protected; written before each of them."""
PLOT = "plot.png"
"""Curves of the run, as `dqnfed run` draws them."""
UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError)
"""What reading a JSON file raises that is missing, cut short, or has other content than expected."""
PRIVATE = 0o700
"""Mode of a folder of results: what a run knows of its clients is not for other users of the machine."""


def private_folder(path: Path) -> None:
    """Make `path`, and those above it that are missing, closed to other users whatever the umask; one there stays."""
    for missing in reversed([folder for folder in (path, *path.parents) if not folder.exists()]):
        with suppress(FileExistsError):  # somebody else made it meanwhile
            missing.mkdir(mode=PRIVATE)
            missing.chmod(PRIVATE)  # a umask may have taken from it
    path.mkdir(exist_ok=True)  # raises where a file is in its place


@contextmanager
def replacing(path: Path, *, sync: bool = False) -> Iterator[BinaryIO]:
    """A new file next to `path`, which takes its place at the end: a reader sees the old file or the new one.

    With `sync` it is on the disk before it does. Where anything is raised, the old file stays and the new one goes.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
