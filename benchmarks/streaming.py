"""Data that do not fit into memory: a client's speed beside a plain torch loop, and its peak memory.

Images of noise are written to a temporary folder, once as an .npz file that is memory-mapped and once as a folder of
.npy files, and read by a client in a process that may ask for `--limit` bytes (RLIMIT_DATA: all memory that is no
mapped file). Gradient passes over all training images and a plain loop over the same `DataLoader` take turns.
The peak is that of the anonymous resident memory of a client that trains and tests, over what the libraries hold.
Linux only.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from benchmarks._common import Bar, Json, arguments, report
from benchmarks._streaming import ARRAYS, CLASSES, IMAGE_BYTES, SIDE

BARS = (
    *(Bar(f"{kind}_plain_over_ours", ">=", 0.9) for kind in ("arrays", "images")),
    *(Bar(f"{kind}_memory_over_allowed", "<=", 1.0) for kind in ("arrays", "images")),
)
KINDS = ("arrays", "images")
_AT_A_TIME = 64


def write(kind: str, folder: Path, count: int) -> None:
    """So many images of noise, with classes in turn."""
    draw, labels = np.random.default_rng(0), np.arange(count) % CLASSES
    blocks = (draw.integers(0, 256, (min(_AT_A_TIME, count - at), SIDE, SIDE, 3), np.uint8) for at in _starts(count))
    if kind == "images":
        for at, block in zip(_starts(count), blocks, strict=True):
            for number, image in enumerate(block, at):
                np.save(folder / f"{number:07}-{labels[number]}.npy", image)
        return
    with zipfile.ZipFile(folder / ARRAYS, "w") as archive:
        with archive.open("x_train.npy", "w", force_zip64=True) as member:
            header = {"descr": "|u1", "fortran_order": False, "shape": (count, SIDE, SIDE, 3)}
            npy.write_array_header_1_0(member, header)
            for block in blocks:
                member.write(block.tobytes())
        with archive.open("y_train.npy", "w") as member:
            npy.write_array(member, labels)


def _starts(count: int) -> range:
    return range(0, count, _AT_A_TIME)


def measure(kind: str, count: int, workers: int, repeats: int, limit: int) -> dict[str, Json]:
    """Figures of one kind, from a process of its own."""
    with tempfile.TemporaryDirectory(prefix="streaming-") as name:
        write(kind, Path(name), count)
        words = [kind, name, str(workers), str(repeats), str(limit)]
        command = [sys.executable, "-m", "benchmarks._streaming", *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Json] = json.loads(done.stdout.splitlines()[-1])
    return {f"{kind}_{key}": value for key, value in found.items()}


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, report."""
    parser = arguments(__doc__)
    parser.add_argument("--size", type=float, default=8e9, metavar="BYTES", help="of the images on disk")
    parser.add_argument("--limit", type=float, default=2e9, metavar="BYTES", help="that the client may ask for")
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="processes that read ahead")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="turns of which the median counts")
    parser.add_argument("--only", choices=KINDS, default="", help="one way to store the images")
    options = parser.parse_args(argv)
    count = max(2, round(options.size / IMAGE_BYTES))
    figures: dict[str, Json] = {"bytes_on_disk": count * IMAGE_BYTES, "limit": options.limit}
    for kind in [options.only] if options.only else KINDS:
        figures |= measure(kind, count, options.workers, options.repeats, int(options.limit))
    report("streaming", figures, [bar for bar in BARS if bar.figure in figures], options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
