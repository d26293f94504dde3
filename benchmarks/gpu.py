"""One card, meant for six minutes: bits, tests, seconds of a round beside a plain torch loop, server work, memory.

A round takes a full gradient of every client: of ResNet-18 with GroupNorm on images of noise of CIFAR's size, by a
step with a fixed rate, by FedAvg with one step of all samples, and by the defaults; and of adapters in a transformer on
random characters, by the first; each in float32 and with bf16 autocast. The loop does the same passes, holds everything
on the card, and keeps its rows and its step there. `shared` has four clients of this engine at work at the same time,
as Flower's engine has (`--flower`). Medians leave out the first round, which opens the clients, and the last, which
asks for losses alone. `same_bits` says whether runs, and rows put in two orders, end at the same bits. `server_seconds`
are those from K rows on the card to the step; `peak_over_room` is memory over rows, six models and two chunks.

    python -m benchmarks.gpu --json card.json       # one card, no network
    python -m benchmarks.gpu --device cpu --small   # the whole of it in a minute, with small models
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks._card import peak, room, server_work, tests
from benchmarks._common import WHOLE, Bar, Json, arguments, median, quiet, report
from benchmarks._transformer import CharTransformer, adapted
from benchmarks.engine import write_images
from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.parts import DeviceParts, open_client
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.flower import GPU_SHARE, run_flower
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.engine.run import run_in_process
from dqnfed_flwr.tasks import task_of
from dqnfed_flwr.tasks._base import Datasets
from dqnfed_flwr.tasks.classification import NextTokenLosses

SIZE = "DQNFED_GPU_BENCHMARK"
"""The environment variable that tells the task, in every process, which of `SIZES` it has."""
SIZES: Mapping[str, Mapping[str, int]] = {
    "large": {"width": 512, "layers": 8, "heads": 8, "length": 256, "samples": 256, "images": 500},
    "medium": {"width": 256, "layers": 2, "heads": 4, "length": 256, "samples": 32, "images": 50},  # of the tests
    "small": {"width": 16, "layers": 1, "heads": 2, "length": 16, "samples": 8, "images": 10},
}
VOCABULARY, RANK, RATE = 80, 8, 0.01
BARS = (
    *(Bar(f"resnet_{name}_over_loop", "<=", limit) for name, limit in (("default", 1.1), ("fedavg", 1.05))),
    *(Bar(f"resnet_{name}_bf16_over_loop", "<=", limit) for name, limit in (("default", 1.25), ("fedavg", 1.15))),
    Bar("lora_over_loop", "<=", 1.1),
    Bar("lora_bf16_over_loop", "<=", 1.1),
    Bar("server_seconds_10", "<=", 0.003),
    Bar("server_seconds_100", "<=", 0.015),
    Bar("peak_over_room", "<=", 1),
)
"""Of a card alone."""
SOUND = (Bar("same_bits", ">=", 1), Bar("tests_failed", "<=", 0))
SHORT: Mapping[str, Any] = {"rows.device": "auto", "messages.row": 6, "messages.step": 2}
FIXED: Mapping[str, Any] = {"dqn-fed.form": "one-sided", "step-rule": "fixed", "step.lr": RATE}
FEDAVG: Mapping[str, Any] = {"method": "fedavg", "local.batch-size": 0, "local.epochs": 1}
MILLIONS = 11_000_000


class Characters(NextTokenLosses):
    """Adapters in a transformer, on random characters."""

    def model(self) -> nn.Module:
        """A transformer with adapters; nothing is pretrained."""
        size = sizes()
        return adapted(CharTransformer(VOCABULARY, size["length"], size["width"], size["layers"], size["heads"]), RANK)

    def datasets(self, partition: int, clients: int, seed: int) -> Datasets:
        """Random characters of the client."""
        size, draw = sizes(), torch.Generator().manual_seed(partition)
        rows = torch.randint(VOCABULARY, (size["samples"], size["length"] + 1), generator=draw)
        pairs = [(row[:-1], row[1:]) for row in rows]
        return Datasets(train=pairs, test=pairs[:2])


def sizes() -> Mapping[str, int]:
    """The size that was asked for."""
    return SIZES[os.environ.get(SIZE, "large")]


def round_seconds(result: RunResult) -> float:
    """Median seconds of a round, without the first and the last."""
    rounds = result.events[1:-1]
    return median([sum(event.cost.seconds[phase] for phase in ("exchange", "solve", "step")) for event in rounds])


class PlainLoop:
    """The same round in plain torch: losses of each client in chunks, gradients, their mean, a step."""

    def __init__(self, settings: Settings, device: torch.device) -> None:
        self._task, self._device = task_of(settings), device
        self._bf16 = settings.local.autocast == "bf16"
        parts = [open_client(settings, client) for client in range(settings.clients)]
        source, outputs = parts[0], settings.num_classes or parts[0].num_classes
        build = (source.input_shape, outputs)
        self._model = self._task.build(*build, seed=settings.seed, dtype=torch.float32).to(device).eval()
        self._trained = [p for p in self._model.parameters() if p.requires_grad]
        held = [DeviceParts(settings, self._task, part, k, outputs, device) for k, part in enumerate(parts)]
        self._samples = [one.part("train") for one in held]
        flat = FlatModel(self._task.build(*build, seed=settings.seed, dtype=torch.float32), device, bf16=self._bf16)
        self.loss = LocalLoss(flat, self._samples[0], task=self._task)  # that of a client
        self._chunk = self.loss.chunk  # as the engine chooses it

    def round(self) -> None:
        """A step."""
        rows = torch.stack([torch.cat([part.reshape(-1) for part in self._gradient(k)]) for k in range(self._clients)])
        step = torch.split(rows.mean(0), [p.numel() for p in self._trained])
        with torch.no_grad():
            for parameter, part in zip(self._trained, step, strict=True):
                parameter.sub_(part.view(parameter.shape), alpha=RATE)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    @property
    def _clients(self) -> int:
        return len(self._samples)

    def _gradient(self, client: int) -> list[Tensor]:
        total = [torch.zeros_like(p) for p in self._trained]
        for batch, count in self._samples[client].chunks(self._chunk):
            with self._casting():
                loss = self._task.summed(self._model, batch, count).loss
            for place, part in zip(total, torch.autograd.grad(loss, self._trained), strict=True):
                place.add_(part)
        return total

    def _casting(self) -> AbstractContextManager[Any]:
        return torch.autocast(self._device.type, torch.bfloat16) if self._bf16 else nullcontext()


def loop_seconds(loop: PlainLoop, rounds: int) -> float:
    """Median seconds of a round of the loop, without the first."""
    seconds = []
    for _ in range(rounds + 1):
        since = time.perf_counter()
        loop.round()
        seconds.append(time.perf_counter() - since)
    return median(seconds[1:])


def measured(name: str, settings: Settings, device: torch.device, *, flower: bool) -> dict[str, Json]:
    """The figures of one model, their keys beginning with `name`."""
    runs: dict[str, Callable[[], RunResult]] = {
        "_shared": lambda: run_in_process(settings, jobs=round(1 / GPU_SHARE)),
        **({"_flower": lambda: run_flower(settings)} if flower else {}),
    }
    results = dict[str, RunResult]()
    used = peak(device, lambda: results.update({"": run_in_process(settings, jobs=1)}))
    results |= {key: work() for key, work in runs.items()}
    seconds = {key: round_seconds(result) for key, result in results.items()}
    plain, parameters = PlainLoop(settings, device), int(results[""].theta.size)
    loop = loop_seconds(plain, settings.rounds - 2)
    return {
        f"{name}_parameters": parameters,
        f"{name}_loop_seconds": loop,
        **{f"{name}{key}_seconds": value for key, value in seconds.items()},
        f"{name}_over_loop": seconds[""] / loop,
        **({f"{name}_flower_over_shared": seconds["_flower"] / seconds["_shared"]} if flower else {}),
        f"{name}_peak_bytes": used,
        f"{name}_peak_over_room": used / room(settings, parameters, plain.loss),
        f"{name}_same_bits": int(np.array_equal(results[""].theta, results["_shared"].theta)),
    }


def workloads(folder: Path, clients: int, shared: Mapping[str, Any]) -> Iterator[tuple[str, Settings]]:
    """The runs to measure, by name."""
    data, small = folder / "noise.npz", sizes() is SIZES["small"]
    write_images(data, clients * sizes()["images"])
    images = {**shared, "data": str(data), "partition": "iid", "model": "cnn" if small else "resnet18-gn"}
    characters = {**shared, "task": "benchmarks.gpu:Characters", **FIXED}
    resnet = {"resnet": FIXED, "resnet_fedavg": FEDAVG, "resnet_default": {}, "resnet_short": SHORT}
    for name, settings in (*((name, {**images, **more}) for name, more in resnet.items()), ("lora", characters)):
        for suffix, autocast in (("", "none"), ("_bf16", "bf16")):
            yield name + suffix, Settings.from_mapping({**settings, "local.autocast": autocast})


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, report."""
    parser = arguments(__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="small models, few samples")
    parser.add_argument("--clients", type=int, default=0, metavar="K", help="0: ten, or two small ones")
    parser.add_argument("--rounds", type=int, default=0, help="measured rounds; 0: five, or one small one")
    parser.add_argument("--flower", action="store_true", help="also Flower's engine, with small models too")
    given = parser.parse_args(argv)
    os.environ[SIZE] = "small" if given.small else "large"
    device = torch.device(given.device)
    clients, rounds = given.clients or (2 if given.small else 10), given.rounds or (1 if given.small else 5)
    shared: dict[str, Any] = {
        **{"device": given.device, "clients": clients, "rounds": rounds + 2, "evaluate-every": 0},
        **{"checkpoint-every": 0, "local.threads": 1, "rows.device": "device", **WHOLE},
    }
    with_flower = find_spec("ray") is not None and given.flower
    on_card = device.type == "cuda"
    figures: dict[str, Json] = {"card": torch.cuda.get_device_name(device) if on_card else "none"}
    for count in (3, 5) if given.small else (10, 100):
        figures |= server_work(device, count, 1000 if given.small else MILLIONS)
    print(f"{figures}\ntests ...", file=sys.stderr, flush=True)
    figures |= tests(Path(__file__).parents[1])
    with quiet(), tempfile.TemporaryDirectory() as place:
        for name, settings in workloads(Path(place), clients, shared):
            print(f"{name} ...", file=sys.stderr, flush=True)
            found = measured(name, settings, device, flower=with_flower)
            print(found, file=sys.stderr, flush=True)  # all that there is, should the time run out
            figures |= found
    peaks = [value for key, value in figures.items() if key.endswith("_over_room") and isinstance(value, float)]
    figures["peak_over_room"] = max(peaks)
    figures["same_bits"] = int(all(value for key, value in figures.items() if key.endswith("_same_bits")))
    report("one card", figures, (*BARS, *SOUND) if on_card else SOUND, given.json)


if __name__ == "__main__":
    main(sys.argv[1:])
