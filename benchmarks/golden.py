"""Same bits as before? Makes golden runs with the code at hand, and compares two folders of them byte by byte.

    python benchmarks/golden.py make before          with the code as it was
    python benchmarks/golden.py make after --resume before
    python benchmarks/golden.py compare before after

`make` runs every method, and DQN-Fed in its forms, with sampling, noise, attacks and buffers. It also stops one run in
the middle; `--resume` goes on from the checkpoints of another folder, which shows that they are still read. Bits depend
on the machine and on the versions of the libraries, so both folders must come from the same environment.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.progress import track

from dqnfed_flwr import run
from dqnfed_flwr.config.methods import METHODS
from dqnfed_flwr.errors import DQNFedError

SMALL: Mapping[str, Any] = {"data": "digits", "clients": 5, "rounds": 4, "local.threads": 1}
STAGES = {"fedcorr.preprocessing": 1, "fedcorr.finetuning": 1, "rounds": 9}
SAMPLED = {"clients": 10, "participation": 0.4, "rounds": 8, "evaluate-every": 1}
FORMS: Mapping[str, Mapping[str, Any]] = {
    "full": {"clients": 10, "rounds": 20},
    "sampled": SAMPLED,
    "strict": {"guarantee.entitlement": "0", "rounds": 8},
    "liars": {"clients": 10, "guarantee.tolerate": 3, "attack.kind": "enlarged", "attack.share": 0.3, "rounds": 8},
    "two-sided": {"dqn-fed.form": "two-sided", "curvature.kind": "secant"},
    "one-sided": {"dqn-fed.form": "one-sided", "curvature.kind": "hvp"},
    "update": {"dqn-fed.anchor": "fedavg"},
    "passes": {"dqn-fed.form": "one-sided", "step-rule": "newton", "local.work": "lbfgs", "local.epochs": 3},
    "after-miss": {"step.ladder": "after-miss", "rounds": 8},
    "noise": {"noise.kind": "symmetric", "split.validation-fraction": 0.2, "early-stopping": 2},
    "together": {"local.together": 5},
    "buffers": {
        "model": "tests.helpers.models:norm_mlp",
        "method": "fedavg",
        "local.work": "sgd",
        "local.batch-size": 16,
    },
    "proximal": {"method": "fedavg", "local.proximal": 0.1, "local.epochs": 2},
    "fedfv-sampled": {"method": "fedfv", **SAMPLED},
    "fednl-exact": {"method": "fednl", "fednl.form": "exact", "model": "logistic"},
    "fednl-diagonal": {"method": "fednl", "fednl.form": "diagonal"},
    "fednew-exact": {"method": "fednew", "fednew.form": "exact", "model": "logistic", "fednew.bits": 4},
    "start": {"start.epochs": 2, "partition": "shards"},
}
STOPPED = ("dqn-fed", "sampled", "fedavgm", "fedmdfg", "fedcorr", "fednl", "liars")
"""Runs of which a checkpoint in the middle is kept."""
EQUAL = ("exchanges", "misses")
"""What of the cost of a round does not depend on the clock or on the lengths of messages."""


def cases(engine: str) -> dict[str, dict[str, Any]]:
    """Settings of each golden run by its name."""
    methods = {
        name: {**SMALL, "method": name, **(STAGES if name == "fedcorr" else {})}
        for name in (*METHODS, "torchjd:UPGrad")
    }
    if engine == "flower":
        return methods | {"sampled": {**SMALL, **SAMPLED}}
    return methods | {name: {**SMALL, **more} for name, more in FORMS.items()}


def make(directory: Path, engine: str, resumed: Path | None) -> None:
    """Run all cases into `directory`, and go on from the checkpoints below `resumed`."""
    for name, settings in track(cases(engine).items(), description=engine):
        _run({**settings, "output": str(directory / engine / name)}, engine)
        if engine == "in-process" and name in STOPPED:
            half = directory / "stopped" / name
            _run({**settings, "rounds": settings["rounds"] - 2, "output": str(half)}, engine)
            source, on = (resumed or directory) / "stopped" / name, directory / "resumed" / name
            shutil.copytree(source, on, dirs_exist_ok=True)
            _run({**settings, "output": str(on), "resume": True}, engine)


def _run(settings: dict[str, Any], engine: Any) -> None:
    try:
        run(settings, engine=engine, overwrite=True)
    except DQNFedError as error:
        Path(settings["output"]).mkdir(parents=True, exist_ok=True)
        (Path(settings["output"]) / "failed.txt").write_text(f"{type(error).__name__}: {error}\n")


def prints(directory: Path) -> dict[str, str]:
    """A hash by file: of the model's bytes, and of the events without what the clock decides."""
    found = {}
    for path in sorted(directory.glob("*/*/*")):
        key = str(path.relative_to(directory))
        if path.name == "events.jsonl":
            events = [json.loads(line) for line in path.read_text().splitlines()]
            kept = [{**event, "cost": [event["cost"][key] for key in EQUAL]} for event in events]
            found[key] = hashlib.sha256(json.dumps(kept).encode()).hexdigest()
        elif path.name in ("model.npz", "failed.txt"):
            found[key] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def compare(before: Path, after: Path) -> int:
    """Print every file that differs or is there once; the number of them."""
    one, other = prints(before), prints(after)
    unlike = [key for key in sorted(one.keys() | other.keys()) if one.get(key) != other.get(key)]
    for key in unlike:
        print(f"{key}: {'differs' if key in one and key in other else 'is there once'}")
    print(f"{len(one.keys() & other.keys())} files in both, {len(unlike)} unlike")
    return len(unlike)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make", help="run all cases")
    making.add_argument("directory", type=Path)
    making.add_argument("--engine", choices=("in-process", "flower"), default="in-process")
    making.add_argument("--resume", type=Path, metavar="FOLDER", help="go on from the checkpoints of this folder")
    comparing = commands.add_parser("compare", help="compare two folders")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    options = parser.parse_args()
    if options.command == "make":
        make(options.directory, options.engine, options.resume)
    else:
        sys.exit(bool(compare(options.before, options.after)))


if __name__ == "__main__":
    main()
