"""Two runs at the same time on one machine, each with torch threads on all cores, over one run alone.

Both are `digits`, 20 rounds of ten clients, in processes of their own: the wall time of a run next to another one over
that of a run alone. With fair sharing it is 2 on any number of cores; `--spin` lets OpenMP's threads spin as they do by
default.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from benchmarks._common import Bar, arguments, median, report

BARS = (Bar("beside_over_alone", "<=", 2.5),)
RUN = """\
import time
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.run import run_in_process
settings = Settings.from_mapping({"data": "digits", "partition": "dirichlet", "clients": 10, "rounds": 20})
run_in_process(settings.model_copy(update={"rounds": 1}))
since = time.perf_counter()
run_in_process(settings)
print(time.perf_counter() - since)
"""
REPEATS = 3


def seconds(together: int, *, spin: bool) -> float:
    """Mean wall time of so many runs that go on at the same time."""
    without = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_"))}
    environment = {**without, "GOMP_SPINCOUNT": "300000"} if spin else without
    command = [sys.executable, "-c", RUN]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(together)]
    return sum(float(run.communicate()[0].split()[-1]) for run in runs) / together


def main(arguments_given: Sequence[str]) -> None:
    """Take turns, and report the ratio of medians."""
    parser = arguments(__doc__)
    parser.add_argument("--spin", action="store_true", help="with libgomp's own 300,000 turns of spinning")
    options = parser.parse_args(arguments_given)
    found = [(seconds(1, spin=options.spin), seconds(2, spin=options.spin)) for _ in range(REPEATS)]
    alone, beside = (median([pair[place] for pair in found]) for place in (0, 1))
    figures = {"alone_seconds": alone, "beside_seconds": beside, "beside_over_alone": beside / alone}
    report("side_by_side", figures, BARS, options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
