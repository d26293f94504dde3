"""What the documents say is tried: every command and every block of code, every link, every list of names."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from dqnfed_flwr import run
from dqnfed_flwr.config import PartitionName, Settings
from dqnfed_flwr.config.methods import METHODS
from dqnfed_flwr.guarantee.overrule import CONTRADICTION, OVERRULED, SET_ASIDE
from dqnfed_flwr.methods._base import BAD_RATE, ZERO_GRADIENT
from dqnfed_flwr.models import MODELS
from dqnfed_flwr.steps import RULES
from dqnfed_flwr.strategy import compatibility
from dqnfed_flwr.strategy.exchange import LATE, OWING
from dqnfed_flwr.wire import BELOW_FLOOR
from dqnfed_flwr.wire.codecs import LOST_MODEL
from tests.helpers.markdown import Block, anchors, blocks, links, names, section
from tests.helpers.runs import Stop, StopAfter
from tests.helpers.tables import MADE, made_anew

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
RUN_TO_THE_LETTER = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))]
BLOCKS = [(document, block) for document in RUN_TO_THE_LETTER for block in blocks(ROOT / document)]
DOCUMENTS = [*RUN_TO_THE_LETTER, "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
CHECKOUT = (
    "README.md",
    "LICENSE",
    "Makefile",
    "pyproject.toml",
    "constraints.txt",
    "docs",
    "tests",
    "dqnfed_flwr",
    "deploy",
)
APPS = ("server_app", "client_app")
CODE = ("python", "pycon", "sh", "file")
SPECIAL = {"make ": "make", "pip install": "install", "flwr run": "flower", "--engine flower": "slow"}
DRY = {
    "python3 -m venv .venv": "python3 -m venv --without-pip .venv-made",
    "pip install": "pip --disable-pip-version-check install --quiet --dry-run --no-index --no-build-isolation",
}
"""What an installation is tried as: everything but the download."""


def kind(block: Block) -> str:
    if block.file_name:
        return "file"
    special = [name for words, name in SPECIAL.items() if words in block.text]
    return special[0] if block.language == "sh" and special else block.language


def of_kind(wanted: str) -> list[Block]:
    found = [block for _, block in BLOCKS if kind(block) == wanted]
    assert found, f"no document has a block of kind {wanted}"
    return found


def line(block: Block) -> str:
    return f"line-{block.line}"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what a reader has, with this environment as its .venv."""
    assert (BIN / "dqnfed").exists(), "the package is not installed in this environment; run `make install`"
    copy = tmp_path / "checkout"
    copy.mkdir()
    for name in (*CHECKOUT, *APPS):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, copy / name)
    (copy / ".venv").symlink_to(sys.prefix)
    return copy


def environment(**more: str) -> dict[str, str]:
    unwanted = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTHONPATH", "COLUMNS")
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1"}
    return {**kept, **quiet, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **more}


def shell(script: str, directory: Path, **more: str) -> str:
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script],
        cwd=directory,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def carry_out(block: Block, directory: Path, **more: str) -> None:
    if block.file_name:
        (directory / block.file_name).write_text(block.text)
    elif block.language == "sh":
        shell(block.text, directory, **more)
    else:
        file = directory / f"block_{block.line}.{'py' if block.language == 'python' else 'txt'}"
        file.write_text(block.text)
        shell(f"python {'' if block.language == 'python' else '-m doctest '}{file.name}", directory, **more)


@pytest.mark.parametrize("document", dict.fromkeys(document for document, block in BLOCKS if kind(block) in CODE))
def test_code_and_commands_run_in_their_order(document: str, checkout: Path, warm: str) -> None:
    for block in blocks(ROOT / document):
        if kind(block) in CODE:
            carry_out(block, checkout, PATH=warm)


def test_no_block_is_of_a_kind_that_nobody_runs() -> None:
    known = {*CODE, *SPECIAL.values(), "text", "diff"}  # test_guarded_app applies the diff
    assert [(document, block.line) for document, block in BLOCKS if kind(block) not in known] == []


@pytest.mark.parametrize("block", of_kind("make"), ids=line)
def test_make_commands_are_targets(block: Block, checkout: Path) -> None:
    for command in block.text.splitlines():
        shell(command.replace("make ", "make --dry-run ", 1), checkout)


def test_make_demo_is_dqnfed_demo_and_make_test_is_what_ci_runs(checkout: Path) -> None:
    assert ".venv/bin/dqnfed demo" in shell("make --dry-run demo", checkout).splitlines()
    planned = shell("make --dry-run test", checkout)
    assert re.search(r'^\.venv/bin/pytest .*-m "not slow and not deploy"$', planned, re.MULTILINE)
    assert re.search(r"^\.venv/bin/ruff check .*\n\.venv/bin/ruff format --check .*\n\.venv/bin/mypy", planned, re.M)
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-2:] == ["make test", "make test-federation"]


@pytest.mark.parametrize("block", of_kind("install"), ids=line)
def test_installation_without_make_resolves(block: Block, checkout: Path) -> None:
    script = block.text
    for written, tried in DRY.items():
        assert written in script
        script = script.replace(written, tried)
    shell(f"{script}\ncommand -v dqnfed", checkout)


@pytest.mark.slow
def test_demo_prints_what_the_readme_shows(checkout: Path) -> None:
    shown = next(block.text for block in blocks(ROOT / "README.md") if block.language == "text")
    printed = shell("dqnfed demo", checkout)
    labels = [line.split("│")[1].strip() for line in shown.splitlines() if line.startswith("│")]
    assert len(labels) > 5
    assert [label for label in labels if label not in printed] == []
    (harmed,) = (line for line in shown.splitlines() if line.startswith("│ not harmed, mean"))
    assert harmed.split("│")[2].strip() == "1.000"
    for words in ("the training loss of some client rose in", "The worst client is right on"):
        assert words in " ".join(printed.split())
        assert words in " ".join(shown.split())


@pytest.mark.slow
@pytest.mark.parametrize("block", of_kind("slow"), ids=line)
def test_slow_commands_run(block: Block, checkout: Path) -> None:
    carry_out(block, checkout)
    assert list(checkout.glob("runs/*/run.json"))


@pytest.fixture
def flower(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Settings that give `flwr run` a home and ports of its own; what it leaves running is ended."""
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        ports = first.getsockname()[1], second.getsockname()[1]
    home = tmp_path / "flower"
    home.mkdir()
    yield {
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(ports[0]),
        "FLWR_LOCAL_CONTROL_API_PORT": str(ports[1]),
    }
    end = time.monotonic() + 30
    while left := processes_with(f"FLWR_HOME={home}"):
        for number in left:
            os.kill(number, signal.SIGTERM if time.monotonic() < end else signal.SIGKILL)
        time.sleep(1)


def processes_with(setting: str) -> list[int]:
    """Processes whose environment was given `setting`."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if setting.encode() in file.read_bytes().split(b"\0"):
                found.append(int(file.parent.name))
        except OSError:  # ended meanwhile, or another user's
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize("block", of_kind("flower"), ids=line)
def test_flwr_run(block: Block, checkout: Path, flower: dict[str, str]) -> None:
    shell(block.text, checkout, **flower)
    figures = json.loads((checkout / "runs" / "flwr" / "run.json").read_text())
    assert (figures["status"], figures["rounds"], len(figures["accuracies"])) == ("finished", 2, 10)


def test_links_lead_somewhere() -> None:
    dead = []
    for document in DOCUMENTS:
        for link in links(ROOT / document):
            place, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", place):
                continue
            target = (ROOT / document).parent / place if place else ROOT / document
            if not target.exists() or (anchor and anchor not in anchors(target)):
                dead.append((document, link))
    assert dead == []


@pytest.mark.parametrize("file", MADE)
def test_what_is_made_from_the_code_is_up_to_date(file: str) -> None:
    assert made_anew(file) == (ROOT / file).read_text("utf-8")  # else: python -m tests.helpers.tables


def test_every_choice_by_name_is_in_the_documents() -> None:
    assert RULES.keys() <= set(names(section(ROOT / "docs" / "methods.md", "Step rules")))
    data = ROOT / "docs" / "data.md"
    assert set(MODELS) <= set(re.findall(r"`([^`]+)`", section(data, "Your own data")))
    assert set(names(section(data, "Partitions"))) == set(get_args(PartitionName))


def test_every_method_has_a_row_and_a_page() -> None:
    text = (ROOT / "docs" / "methods.md").read_text("utf-8")
    pages = dict(re.findall(r"\[`([^`]+)`\]\((methods/[\w-]+\.md)\)", text))
    assert set(pages) == {*METHODS, "torchjd:<name>"}
    written = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs" / "methods").glob("*.md")}
    assert set(pages.values()) == written


def test_a_method_and_a_rule_are_added_as_contributing_says(checkout: Path) -> None:
    python = [block for block in blocks(ROOT / "CONTRIBUTING.md") if block.language == "python"]
    for file, block in zip(("methods/worst.py", "steps/shrinking.py"), python, strict=False):
        (checkout / "dqnfed_flwr" / file).write_text(block.text)
    pairs = ("method=worst", "step-rule=shrinking", "step.first=0.5", "rounds=2", "clients=3")
    words = ["dqnfed", "run", "digits", *(f"--set={pair}" for pair in pairs)]
    (checkout / "here.py").write_text(f"import sys\nfrom dqnfed_flwr.cli import main\nsys.argv = {words!r}\nmain()\n")
    assert "Worst client" in shell("python here.py", checkout)


def stop_in_round_two(output: Path) -> None:
    """Leave the checkpoint of a run that was stopped on its way."""

    settings = {
        "clients": 3,
        "rounds": 4,
        "output": str(output),
        "early-stopping": 3,
        "split.validation-fraction": 0.2,
        "curvature.kind": "secant",
        "step.on-stationary": "relax",
        "local.threads": 1,
    }
    with pytest.raises(Stop):
        run(settings, listeners=[StopAfter(2)])


def test_files_hold_what_their_page_says(tmp_path: Path) -> None:
    page = ROOT / "docs" / "events.md"
    result = run({"clients": 3, "rounds": 1, "output": str(tmp_path), "local.threads": 1})
    figures = json.loads((tmp_path / "run.json").read_text())
    line = json.loads((tmp_path / "events.jsonl").read_text())
    inner = {f"{record}.{key}" for record in ("votes", "cost", "evaluated", "certificate") for key in line.pop(record)}
    assert set(names(section(page, "events.jsonl"))) == {*line, *inner}
    of_others = {"figure", "without_figure", "confirmed"}  # where accuracy is not it, somebody has none, some confirm
    assert set(names(section(page, "run.json"))) == {*figures, *of_others}
    assert set(names(section(page, "final"))) == set(figures["final"]) == set(result.final)
    with np.load(tmp_path / "model.npz") as model:
        assert names(section(page, "model.npz")) == [*model.files, "buffer.*"]


def test_a_checkpoint_holds_what_the_next_exchange_needs(tmp_path: Path) -> None:
    """This model has no buffers, and its clients hold the model."""
    stop_in_round_two(tmp_path)
    with np.load(tmp_path / "checkpoint.npz") as archive:
        record = json.loads(archive["record"].tobytes())
        found = {re.sub(r"/.*", "/*", name) for name in [*archive.files, *record["vectors"]]}
    assert found == {"record", "theta", "candidate", "pending/*", "method/*", "messages/*", "clients/*", "best/*"}
    assert set(record) == {
        *("format", "version", "settings", "fingerprint", "frozen", "commits", "arrays", "vectors"),
        *("round", "exchange", "status", "moves", "unmoved", "changed", "resting", "failures", "unusable", "dropped"),
        *(
            "rule",
            "pending",
            "search",
            "standing",
            "earlier",
            "best",
            "confirmation",
            "last",
            "theta",
            "candidate",
            "buffers",
            "settled",
        ),
    }
    assert set(record["settings"]) == set(Settings().flat())


def test_every_reason_for_leaving_a_client_out_is_explained() -> None:
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "dqnfed_flwr").rglob("*.py"))
    raised = set(re.findall(r'WireError\(\s*"([a-z-]+)"', sources)) - {"bad-properties"}  # of a node, not of a client
    raised |= {BELOW_FLOOR, LOST_MODEL}
    explained = names(section(ROOT / "docs" / "events.md", "Reasons"))
    assert set(explained) == raised | {
        ZERO_GRADIENT,
        BAD_RATE,
        CONTRADICTION,
        OVERRULED,
        SET_ASIDE,
        OWING,
        LATE,
        *compatibility.REASONS,
    }
