"""What `gpu.py` asks of a card besides the seconds of a round: the server's work, bits in any order, memory, tests."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks._common import Json, median
from benchmarks._server import LastReply
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.samples import bytes_of_one
from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.linalg.row_store import RowMemory
from dqnfed_flwr.methods._base import make_method

TURNS = 7
MODELS, CHUNKS = 6, 2
"""Vectors of the model's size, and chunks, that a run may hold on a card besides its rows."""
TESTS_SECONDS = 240
_COUNTS = re.compile(r"(\d+) (passed|failed|skipped|error)")


def synchronized(device: torch.device) -> float:
    """The time when the device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def server_work(device: torch.device, clients: int, parameters: int) -> dict[str, Json]:
    """Seconds from K rows [D] on the device to the step of the two-sided form, and its bits in two orders.

    Medians of `TURNS` without the first.
    """
    draw = torch.Generator(device=device).manual_seed(0)
    rows = [torch.randn(parameters, generator=draw, device=device) for _ in range(clients)]
    server = LastReply(clients, parameters, RowMemory(device=device))
    forwards, backwards = range(clients), range(clients - 1, -1, -1)
    seconds, steps = [], list[Tensor]()
    for turn in range(TURNS):
        since = synchronized(device)
        steps.append(_step(server, rows, backwards if turn % 2 else forwards))
        seconds.append(synchronized(device) - since)
    return {
        f"server_seconds_{clients}": median(seconds[1:]),
        f"rows_{clients}_same_bits": int(all(torch.equal(steps[0], step) for step in steps)),
    }


def _step(server: LastReply, rows: Sequence[Tensor], order: Sequence[int]) -> Tensor:
    server.begin()
    for client in order:
        server.take(client, rows[client])
    return server.solve().step


def peak(device: torch.device, work: Callable[[], None]) -> int:
    """Most bytes of a card that tensors had meanwhile; 0 where there is no card."""
    if device.type != "cuda":
        work()
        return 0
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    return torch.cuda.max_memory_allocated(device) - before


def room(settings: Settings, parameters: int, loss: LocalLoss) -> int:
    """Bytes of the rows, of `MODELS` models and of `CHUNKS` chunks of a client with this `loss`."""
    slots = settings.sampled + make_method(resolve(settings)).reference_rows
    chunk = min(loss.chunk, loss.num_examples) * bytes_of_one(loss.model, loss.samples, loss.task)
    return (slots + MODELS) * parameters * np.dtype(settings.dtype).itemsize + CHUNKS * chunk


def tests(root: Path) -> dict[str, Json]:
    """How many of the tests of a card passed, failed and were skipped, as `make test-gpu` runs them."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "tests/gpu"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=TESTS_SECONDS, check=False)
    counts = {word: int(count) for count, word in _COUNTS.findall(done.stdout[-500:])}
    if done.returncode not in (0, 5):
        print(done.stdout[-4000:], file=sys.stderr)
    return {
        "tests_passed": counts.get("passed", 0),
        "tests_skipped": counts.get("skipped", 0),
        "tests_failed": counts.get("failed", 0) + counts.get("error", 0) + (done.returncode not in (0, 1, 5)),
    }
