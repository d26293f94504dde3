"""What the in-process engine costs: messages a second, and overhead over the bare local computation.

Messages: DQN-Fed with full participation on clients that answer at once (a linear loss of four parameters, without
torch), so that all the time is the engine's and the strategy's. `grid_messages_per_second` is the grid by itself.

Overhead: clients as in the first CIFAR-10 setup (MLP 3072-200-200-10, 500 samples each, 10 of them a round, full
gradients, probed steps) on images of noise. A first run fills the clients' caches and writes down every local pass:
gradients, losses along the step, evaluations. Then runs and repetitions of just these passes take turns;
`overhead` is the ratio of their medians by the clock, `overhead_cpu` in processor time. Server arithmetic is what the
method itself costs: rows into the held, solve, step.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from benchmarks._common import WHOLE, Bar, Json, arguments, median, quiet, report, settings_of, timed
from benchmarks._passes import clocked, written_down
from dqnfed_flwr import wire
from dqnfed_flwr.client.worker import probe
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.engine.run import run_in_process
from dqnfed_flwr.linalg.rows import RowSet
from dqnfed_flwr.strategy.strategy import DQNFed
from dqnfed_flwr.types import ClientReply, Evaluation, on_host

BARS = (Bar("messages_per_second", ">=", 1000), Bar("overhead", "<=", 1.10))
DIM, CLASSES = 4, 10
FAR = 1e3
"""Keeps the losses, which fall along a line, above 0."""

app = ClientApp()


@app.query()
def answer_query(message: Message, context: Context) -> Message:
    """Tell the partition."""
    properties = {"partition": int(context.node_config["partition-id"]), "num-examples": 1, "num-classes": 2}
    return Message(wire.encode_properties({**properties, "input-shape": "2"}), reply_to=message)


@app.train()
def answer_training(message: Message, context: Context) -> Message:
    """Gradient and probe of the client's linear loss."""
    return Message(wire.encode_reply(_work(message, int(context.node_config["partition-id"]))), reply_to=message)


@app.evaluate()
def answer_evaluation(message: Message, context: Context) -> Message:
    """Probe, and an evaluation of one sample."""
    return Message(wire.encode_reply(_work(message, int(context.node_config["partition-id"]))), reply_to=message)


def _work(message: Message, client: int) -> ClientReply:
    sent = wire.decode_task(message.content)
    task, theta, step = sent.task, on_host(sent.theta), None if sent.step is None else on_host(sent.step)
    gradient = 1 + np.sin(np.arange(1, DIM + 1, dtype=np.float32) * (client + 1)) / 10

    def loss_at(factor: float) -> float:
        if step is None or factor == task.factor:
            return FAR + float(gradient @ theta)
        return FAR + float(gradient @ (theta + np.float32(task.factor - factor) * step))

    return ClientReply(
        num_examples=1,
        row=gradient if task.train else None,
        loss=loss_at(task.factor),
        rate=float(gradient @ gradient),
        probe=probe(loss_at, task, 1e-4) if task.probe else None,
        test=Evaluation(correct=1, examples=1, loss=0.0) if task.evaluate else None,
    )


def message_rate(clients: int, rounds: int) -> dict[str, Json]:
    """Messages a second of the whole loop and of the grid alone."""
    settings = Settings.from_mapping({"clients": clients, "rounds": rounds, **WHOLE})
    grid = InProcessGrid(app, clients, settings.flat())
    strategy = DQNFed(settings)
    strategy.registry.wait(grid)
    initial = wire.encode_model(np.zeros(DIM, np.float32), {})
    seconds, cpu = timed(lambda: strategy.start(grid, initial))
    events = [] if strategy.outcome is None else strategy.outcome.events
    messages = clients * sum(event.cost.exchanges for event in events)
    content = wire.encode_properties({"ask": "properties"})
    nodes = grid.get_node_ids()
    asking, _ = timed(
        lambda: [grid.send_and_receive([Message(content, node, "query") for node in nodes]) for _ in range(rounds)]
    )
    return {
        "messages": messages,
        "messages_per_second": messages / seconds,
        "messages_per_cpu_second": messages / cpu,
        "grid_messages_per_second": clients * rounds / asking,
    }


def overhead(settings: Settings, repeats: int) -> dict[str, Json]:
    """Seconds of runs against those of their local passes alone."""
    with written_down() as passes:
        run_in_process(settings)
    bare: list[tuple[float, float]] = []
    runs: list[tuple[float, float]] = []
    server: list[float] = []
    results: list[RunResult] = []
    for _ in range(repeats):
        bare.append(timed(passes.repeat))
        with clocked(RowSet, "put") as puts:
            runs.append(timed(lambda: results.append(run_in_process(settings))))
        booked = (event.cost.seconds.get(phase, 0.0) for event in results[-1].events for phase in ("solve", "step"))
        server.append(sum(puts) + sum(booked))
    (run_seconds, run_cpu), (bare_seconds, bare_cpu) = zip(*runs, strict=True), zip(*bare, strict=True)
    rest = [run - arithmetic for run, arithmetic in zip(run_seconds, server, strict=True)]
    return {
        "overhead": median(run_seconds) / median(bare_seconds),
        "overhead_fastest": min(run_seconds) / min(bare_seconds),
        "overhead_cpu": median(run_cpu) / median(bare_cpu),
        "overhead_without_server_arithmetic": median(rest) / median(bare_seconds),
        "seconds_per_round": median(run_seconds) / settings.rounds,
        "bare_seconds_per_round": median(bare_seconds) / settings.rounds,
        "server_arithmetic_seconds_per_round": median(server) / settings.rounds,
        **{f"{name}_passes": passes.count(name) for name in ("gradient", "loss", "evaluation")},
    }


def write_images(path: Path, samples: int) -> None:
    """Images of noise in the form of CIFAR-10, with a test part a tenth as large."""
    rng = np.random.default_rng(0)
    arrays: dict[str, NDArray[np.generic]] = {}
    for part, count in (("train", samples), ("test", max(samples // 10, 2 * CLASSES))):
        arrays[f"x_{part}"] = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        arrays[f"y_{part}"] = np.arange(count) % CLASSES
    np.savez(path, allow_pickle=False, **arrays)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, report."""
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, default=100, metavar="K")
    parser.add_argument("--samples", type=int, default=500, metavar="N", help="training samples of a client")
    parser.add_argument("--participation", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="turns of which the median counts")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of a client, 0 for all cores")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further settings of the runs")
    options = parser.parse_args(argv)
    with quiet(), tempfile.TemporaryDirectory() as place:
        data = Path(place) / "noise.npz"
        write_images(data, options.clients * options.samples)
        settings = Settings.from_mapping(
            {
                "data": str(data),
                "partition": "iid",
                "clients": options.clients,
                "participation": options.participation,
                "rounds": options.rounds,
                "evaluate-every": 0,
                "local.threads": options.threads,
                "dqn-fed.anchor": "momentum",
                **settings_of(options.set),
            }
        )
        figures = {**message_rate(options.clients, options.rounds), **overhead(settings, options.repeats)}
    report("engine", figures, BARS, options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
