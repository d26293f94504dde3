"""What the guarantee is worth: clients unlike the others, ordinary federations, and clients that lie.

Three parts, each a CSV of runs; `--page` turns the three into a page for docs/results. Runs that a CSV holds already
are not made again, so that a part can be stopped and taken up.

    OMP_NUM_THREADS=1 python benchmarks/guarantee.py unlike ordinary lies --output runs/guarantee --jobs 2
    python benchmarks/guarantee.py --output runs/guarantee --page docs/results/guarantee.md
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from rich.progress import track

from benchmarks._guarantee_page import page
from benchmarks._guarantee_runs import ABSENT, NONE, PLAIN, RIVALS, SETUPS, SGD, Values, measured, unlike, with_liars
from benchmarks._lies import LIES
from benchmarks._unlike import UNLIKE
from dqnfed_flwr.data.torchvision_sets import TORCHVISION_SETS

Job = tuple[dict[str, Any], Callable[[], Any]]
"""What a run is called in its CSV, and the call that makes it."""
SEEDS = (0, 1, 2)
DIGITS: Values = {"data": "digits", "clients": 10, "rounds": 60, "evaluate-every": 1}
FASHION: Values = {"data": "fashion-mnist", "split.samples": 6000, "rounds": 120, "evaluate-every": 3}
SHARDS: Values = {**FASHION, "partition": "shards", "split.shards": 2, "clients": 100}
ORDINARY: dict[str, Values] = {
    "digits, Dirichlet 0.1": {**DIGITS, "partition": "dirichlet", "split.alpha": 0.1, "split.min-samples": 10},
    "digits, Dirichlet 0.5": {**DIGITS, "partition": "dirichlet", "split.alpha": 0.5},
    "digits, Dirichlet 1": {**DIGITS, "partition": "dirichlet", "split.alpha": 1.0},
    "digits, Dirichlet 5": {**DIGITS, "partition": "dirichlet", "split.alpha": 5.0},
    "digits, IID": {**DIGITS, "partition": "iid"},
    "digits, 2 shards": {**DIGITS, "partition": "shards", "split.shards": 2},
    "digits, 4 shards": {**DIGITS, "partition": "shards", "split.shards": 4},
    "digits, 3 classes": {**DIGITS, "partition": "pathological", "split.classes": 3},
    "digits, 1 class": {**DIGITS, "partition": "one-class"},
    "digits, Dirichlet 0.5, 4 clients": {**DIGITS, "partition": "dirichlet", "split.alpha": 0.5, "clients": 4},
    "digits, Dirichlet 0.5, 30 clients": {**DIGITS, "partition": "dirichlet", "split.alpha": 0.5, "clients": 30},
    "digits, 2 shards, 20 clients": {**DIGITS, "partition": "shards", "split.shards": 2, "clients": 20},
    "Fashion-MNIST, 1 class, 10 of 10": {**FASHION, "partition": "one-class", "clients": 10},
    "Fashion-MNIST, 1 class, 5 of 10": {**FASHION, "partition": "one-class", "clients": 10, "participation": 0.5},
    "Fashion-MNIST, 2 shards, 1 of 100": {**SHARDS, "participation": 0.01},
    "Fashion-MNIST, 2 shards, 10 of 100": {**SHARDS, "participation": 0.1},
    "Fashion-MNIST, 2 shards, 50 of 100": {**SHARDS, "participation": 0.5},
}
SIDES: dict[str, Values] = {
    "default": {},
    "strict": {"guarantee.entitlement": "0"},
    "FedAvg": {"method": "fedavg", **SGD},
}


def main(words: Sequence[str] | None = None) -> None:
    """Make the runs of the parts that are asked for, or the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--output", type=Path, default=Path("runs/guarantee"), help="folder of the CSVs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time (default: %(default)s)")
    parser.add_argument("--before", type=Path, help="ordinary.csv of an earlier version, for comparison on the page")
    parser.add_argument("--page", type=Path, help="write the page from the CSVs of --output")
    options = parser.parse_args(words)
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"unknown part {unknown[0]!r}; known: {', '.join(PARTS)}")
    options.output.mkdir(parents=True, exist_ok=True)
    for part in options.parts:
        make(options.output / f"{part}.csv", PARTS[part](), options.jobs)
    if options.page:
        options.page.write_text(page(options.output, options.before))


def unlike_jobs() -> Iterable[Job]:
    """One client unlike the others."""
    for case in UNLIKE:
        for side, settings in SIDES.items():
            for seed in SEEDS:
                yield {"case": case, "side": side, "seed": seed}, partial(unlike, case, seed, settings)


def ordinary_jobs() -> Iterable[Job]:
    """Federations as they usually are."""
    for case, settings in ORDINARY.items():
        if settings["data"] in TORCHVISION_SETS and not os.environ.get("DQNFED_DATA"):
            continue  # to be had by name only where it is kept
        for seed in SEEDS:
            yield {"case": case, "seed": seed}, partial(measured, {**settings, **PLAIN, "seed": seed})


def lies_jobs() -> Iterable[Job]:
    """Every lie in every setup, where so many may lie; with one seed where nobody may, and under the rivals."""
    for setup, (bad, _) in SETUPS.items():
        sides: dict[str, Values] = {"tolerated": {"guarantee.tolerate": bad}, "none tolerated": {}, **RIVALS}
        for lie in (NONE, ABSENT, *LIES):
            for side, settings in sides.items():
                for seed in SEEDS if side == "tolerated" else SEEDS[:1]:
                    names = {"setup": setup, "lie": lie, "side": side, "seed": seed}
                    yield names, partial(with_liars, setup, lie, seed, settings)


PARTS: dict[str, Callable[[], Iterable[Job]]] = {
    "unlike": unlike_jobs,
    "ordinary": ordinary_jobs,
    "lies": lies_jobs,
}


def make(path: Path, jobs: Iterable[Job], at_a_time: int) -> None:
    """Make the runs that the CSV at `path` does not hold yet, and add a line for each."""
    done = {_name(row) for row in csv.DictReader(path.read_text().splitlines())} if path.exists() else set()
    left = [(names, call) for names, call in jobs if _name(names) not in done]
    context = multiprocessing.get_context("spawn")
    with path.open("a", newline="") as file, ProcessPoolExecutor(at_a_time, mp_context=context) as pool:
        found = pool.map(_called, [call for _, call in left])
        writer: csv.DictWriter[str] | None = None
        for (names, _), figures in track(zip(left, found, strict=True), path.stem, total=len(left)):
            row = {**names, **figures}
            if writer is None:
                writer = csv.DictWriter(file, [*row])
                if not done:
                    writer.writeheader()
            writer.writerow(row)
            file.flush()


def _called(call: Callable[[], Any]) -> dict[str, Any]:
    row: dict[str, Any] = call().row()
    return row


def _name(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(row[key]) for key in ("case", "setup", "lie", "side", "seed") if key in row)


if __name__ == "__main__":
    main()
