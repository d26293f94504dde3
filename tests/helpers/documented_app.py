"""The app of docs/guarded.md, with the diff of the page applied: written to a folder as a Flower app."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import tomli_w

from dqnfed_flwr.run_files import EVENTS
from dqnfed_flwr.telemetry.event_log import read_events
from dqnfed_flwr.telemetry.events import RoundEvent
from tests.helpers.markdown import blocks

PAGE = Path(__file__).parents[2] / "docs" / "guarded.md"
ROUNDS = 3
PACKAGE = "myapp"


def the_diff() -> str:
    """The one on the page."""
    (found,) = (block.text for block in blocks(PAGE) if block.language == "diff")
    return found


def changed_lines() -> list[str]:
    """Its lines that add or remove."""
    return [line for line in the_diff().splitlines() if re.match(r"[+-](?!--|\+\+)", line)]


def write_documented_app(folder: Path, *, guarded: bool = True) -> Path:
    """The app's files and a pyproject.toml, in a new folder; results go to its neighbour `results`."""
    (folder / PACKAGE).mkdir(parents=True)
    (folder / PACKAGE / "__init__.py").touch()
    (folder.parent / "results").mkdir()
    for block in blocks(PAGE):
        if block.file_name:
            (folder / PACKAGE / block.file_name).write_text(block.text)
    if guarded:
        subprocess.run(
            ["patch", "-p0", "--fuzz=0"], cwd=folder, input=the_diff(), text=True, check=True, capture_output=True
        )
    config = {"rounds": ROUNDS, "output": str(folder.parent / "results")}
    components = {"serverapp": f"{PACKAGE}.server_app:app", "clientapp": f"{PACKAGE}.client_app:app"}
    flower = {"publisher": "me", "fab-include": [f"{PACKAGE}/**/*.py"], "components": components, "config": config}
    project = {"name": "my-digits", "version": "1.0.0", "description": "An app of mine", "license": "Apache-2.0"}
    (folder / "pyproject.toml").write_text(tomli_w.dumps({"project": project, "tool": {"flwr": {"app": flower}}}))
    return folder


def guarded_rounds(app: Path) -> list[RoundEvent]:
    """The rounds that the app logged, in which the model moved and nobody was harmed."""
    results = app.parent / "results"
    events = read_events(results / EVENTS)
    assert (results / "model.pt").stat().st_size > 0
    assert [event.round for event in events] == list(range(1, ROUNDS + 1))
    assert all(event.moved and event.unharmed_ratio == 1 for event in events), events
    return events
