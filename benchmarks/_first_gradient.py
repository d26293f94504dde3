"""Run as a script: a client of the CNN computes its first gradient, and says what that took. Linux only.

`python -m benchmarks._first_gradient cold CHUNK` imports for itself what Flower's client process imports, and counts
from the start of the process. `... warm CHUNK` loads the libraries as the fork server of `dqnfed deploy warm` does,
forks, and counts from the fork: app, data, model, gradient. Prints seconds, processor seconds and the memory's peak in
bytes. Messages, 34 MB and more for this model, are not in it.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

PREFORK = Path(__file__).parents[1] / "dqnfed_flwr" / "deploy" / "prefork"


def first_gradient(chunk: int) -> None:
    """What a client process does for its first message: load the app, build data and model, compute."""
    import numpy as np

    import client_app.app  # noqa: F401  # what Flower loads
    from dqnfed_flwr.client.numpy_client import DQNFedClient
    from dqnfed_flwr.config import Settings
    from dqnfed_flwr.data import ClientData
    from dqnfed_flwr.types import ClientTask

    random = np.random.default_rng(0)
    x, y = random.random((500, 3, 32, 32), dtype=np.float32), np.arange(500) % 10
    data = ClientData(x, y, x[:0], y[:0], x[:100], y[:100], 10)
    client = DQNFedClient(Settings.from_mapping({"model": "cnn", "local.threads": 1, "local.chunk": chunk}), 0, data)
    dim = int(client.get_properties({})["dim"])
    task = ClientTask(exchange=1, round=1, train=True, probe=False, evaluate=False, num_classes=10)
    client.work(task, np.zeros(dim, np.float32))


def say(seconds: float) -> None:
    """One line of figures."""
    used = os.times()
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(seconds, used.user + used.system, int(peak.split()[1]) * 1024, flush=True)


def cold(chunk: int) -> None:
    """Everything in this process."""
    from flwr.supernode.runtime import run_clientapp  # noqa: F401  # what Flower's client process loads

    first_gradient(chunk)
    begun = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
    say(float(Path("/proc/uptime").read_text().split()[0]) - begun)


def warm(chunk: int) -> None:
    """The gradient in a fork of a process that has the libraries."""
    sys.path.insert(0, str(PREFORK))
    from fork_server import load  # type: ignore[import-not-found]  # a script, not a module of the package

    load()
    since = time.monotonic()
    if os.fork():
        sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
    first_gradient(chunk)
    say(time.monotonic() - since)


if __name__ == "__main__":
    {"cold": cold, "warm": warm}[sys.argv[1]](int(sys.argv[2]))
