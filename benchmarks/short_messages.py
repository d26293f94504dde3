"""What a run sends whose rows and steps go in fewer bits, beside FedAvg's float32, and what that costs in accuracy.

Skewed digits, 8 clients, 25 rounds, as many exchanges as it takes. Bytes are those of all messages, up and down, over
those of a run of FedAvg. Means over the seeds. Beside it, seconds for coding and decoding a vector, over one read of it
from memory (its maximum): of the processor, all three in turn, medians.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks._common import Bar, Json, arguments, median, quiet, report, settings_of, timed
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.engine.run import run_in_process
from dqnfed_flwr.fairness import fairness_report
from dqnfed_flwr.schema.groups import SHORT_ROW
from dqnfed_flwr.wire.codecs import KINDS

BARS = (
    Bar("default_over_fedavg", "<=", 0.25),
    Bar("4/2_over_fedavg", "<=", 0.14),
    Bar("default_coding_over_read", "<=", 4),
)
BITS: Mapping[str, tuple[int | str, int | str]] = {
    "default": ("auto", "auto"),
    **{f"{row}/{step}": (row, step) for row, step in ((32, 32), (16, 16), (8, 8), (8, 4), (4, 4), (4, 2))},
    "6/low-rank": (6, "low-rank"),
}
"""Of rows and of steps."""
REPEATS = 7


def coding(dim: int, bits: int) -> dict[str, Json]:
    """Seconds to round a vector [D], to make it of its parts again, and to read it."""
    vector = np.random.default_rng(0).standard_normal(dim).astype(np.float32)
    codec, draws = KINDS["row"].codecs[bits], np.random.default_rng(1)
    parts = codec.pack(vector, draws)
    works = (lambda: codec.pack(vector, draws), lambda: codec.unpack(parts, vector.shape), vector.max)
    turns = [[timed(work)[1] for work in works] for _ in range(REPEATS)]
    pack, unpack, read = (median(seconds) for seconds in zip(*turns, strict=True))
    over = (pack + unpack) / read
    return {"bits": bits, "code_seconds": pack, "decode_seconds": unpack, "read_seconds": read, "over_read": over}


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, run, report."""
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, default=8, metavar="K")
    parser.add_argument("--rounds", type=int, default=25, metavar="T")
    parser.add_argument("--seeds", type=int, default=5, metavar="N")
    parser.add_argument("--parameters", type=int, default=10_000_000, metavar="D", help="of the vector that is coded")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further settings of the runs")
    options = parser.parse_args(argv)
    keys = {"data": "digits", "clients": options.clients, "rounds": options.rounds, "local.threads": 1}
    keys |= settings_of(options.set)

    def runs(**more: str | int) -> list[RunResult]:
        return [run_in_process(Settings.from_mapping({**keys, **more, "seed": seed})) for seed in range(options.seeds)]

    with quiet():
        fedavg = runs(method="fedavg")
        found = {name: runs(**{"messages.row": row, "messages.step": step}) for name, (row, step) in BITS.items()}
    up, down = (sum(getattr(result, name) for result in fedavg) for name in ("bytes_up", "bytes_down"))
    table: list[Json] = []
    figures: dict[str, Json] = {}
    for name, results in {"FedAvg": fedavg, **found}.items():
        sent = [sum(getattr(result, way) for result in results) for way in ("bytes_up", "bytes_down")]
        fair = [fairness_report(result.accuracies) for result in results]
        table.append(
            {
                "messages": name,
                "exchanges": float(np.mean([result.exchanges for result in results])),
                "up": sent[0] / up,
                "down": sent[1] / down,
                "both": sum(sent) / (up + down),
                "mean_accuracy": float(np.mean([each["mean"] for each in fair])),
                "worst_10": float(np.mean([each["worst10"] for each in fair])),
            }
        )
        figures[f"{name}_over_fedavg"] = sum(sent) / (up + down)
    coded = {bits: coding(options.parameters, bits) for bits in (16, 8, SHORT_ROW, 4)}
    over_read = coded[SHORT_ROW]["over_read"]
    figures |= {"default_coding_over_read": over_read, "runs": table, "coding": list(coded.values())}
    report("short_messages", figures, BARS, options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
