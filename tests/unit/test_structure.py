"""The shape of the package: no circle among imports, and a room imports only those that stand above it in the table."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from flwr.serverapp.strategy import FedAvg

from benchmarks.round_files import files_by_room
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.run import run_in_process
from dqnfed_flwr.guarded.strategy import Guaranteed
from dqnfed_flwr.telemetry.events import Listener
from tests.helpers.guarded_app import app_on, skewed_digits, trained
from tests.helpers.markdown import rows, section

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dqnfed_flwr"
LINES, MODULES, SMALL = 57_185, 312, 18
"""Bounds of the package: lines, files, and those of them below 60 lines. They only go down, or a commit says why."""
LONGER = {"types", "schema.groups"}
LONGER |= {"client.worker", "client.gradients"}
"""Modules of more than 350 lines."""


WITHOUT_FLOWER = (
    *("guarantee", "linalg", "methods", "data", "models", "steps", "schema", "config", "tasks", "telemetry"),
    *(f"{name}.py" for name in ("errors", "fairness", "params", "randomness", "run_files", "types", "version")),
    *(f"client/{name}" for name in ("work", "worker.py", "gradients.py", "joint_gradients.py", "curvature.py")),
    *(f"client/{name}" for name in ("memory.py", "flat_model.py", "samples.py", "reading.py")),
)


def name_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {
    name_of(file): file for top in ("dqnfed_flwr", "server_app", "client_app") for file in (ROOT / top).rglob("*.py")
}


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


@cache
def imports(file: Path) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in ast.walk(parsed(file)) if isinstance(node, ast.Import | ast.ImportFrom)]


def tops(file: Path) -> set[str]:
    """Packages that a file names in an import."""
    names = (
        node.module or "" if isinstance(node, ast.ImportFrom) else alias.name
        for node in imports(file)
        for alias in node.names
    )
    return {name.split(".")[0] for name in names}


def targets(node: ast.AST) -> Iterator[str]:
    """Modules of ours that an import names; a name out of a package counts as its module where it is one."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in FILES)
    if isinstance(node, ast.ImportFrom) and node.module in FILES:
        found = {f"{node.module}.{alias.name}" for alias in node.names}
        yield from (found & FILES.keys()) or {node.module}


def on_loading(file: Path) -> set[str]:
    """What a module imports when it is loaded or looked at by a type checker; not what a function imports later."""
    found: set[str] = set()
    waiting: list[ast.AST] = [parsed(file)]
    while waiting:
        node = waiting.pop()
        found.update(targets(node))
        waiting += [] if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else ast.iter_child_nodes(node)
    return found


@cache
def anywhere(file: Path) -> set[str]:
    return {name for node in imports(file) for name in targets(node)}


def test_imports_go_round_in_no_circle_not_even_those_of_the_type_checker() -> None:
    assert circles({name: on_loading(file) - {name} for name, file in FILES.items()}) == []


def test_folders_go_round_in_no_circle_whatever_is_imported_later() -> None:
    graph: dict[str, set[str]] = {}
    for name, file in FILES.items():
        if name != "dqnfed_flwr":
            graph.setdefault(room_of(name), set()).update(map(room_of, anywhere(file)))
    assert circles({room: others - {room, "dqnfed_flwr"} for room, others in graph.items()}) == []


def circles(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def room_of(name: str) -> str:
    """The room of a module: its folder, or itself."""
    return name.split(".")[1] if name.startswith("dqnfed_flwr.") else name.split(".")[0]


def test_no_room_imports_one_below_it_in_the_table() -> None:
    order = rows(section(ROOT / "docs" / "architecture.md", "Who imports whom"))
    rank = {room: place for place, (rooms, *_) in enumerate(order) for room in re.findall(r"`(\w+)`", rooms)}
    upward = [
        f"{name} imports {target}"
        for name, file in FILES.items()
        if name.startswith("dqnfed_flwr.")
        for target in anywhere(file)
        if target.startswith("dqnfed_flwr.") and rank[room_of(target)] > rank[room_of(name)]
    ]
    assert upward == []


def test_the_package_imports_no_tests_benchmarks_or_apps_and_benchmarks_no_tests() -> None:
    def imported(top: str) -> set[str]:
        return {name for file in (ROOT / top).rglob("*.py") for name in tops(file)}

    for top in ("dqnfed_flwr", "server_app", "client_app", "benchmarks"):
        assert imported(top) & {"tests", "benchmarks"} <= {top}
    assert "server_app" not in imported("dqnfed_flwr")
    public = [name for name, file in FILES.items() if "dqnfed_flwr" in anywhere(file) - {name}]
    assert public == ["client_app.app"] or public == []  # names come from the module that defines them
    assert "client_app" not in imported("dqnfed_flwr")


def test_imports_are_those_of_the_architecture() -> None:
    allowed: dict[str, set[str]] = {}
    for rooms, _, others in rows(section(ROOT / "docs" / "architecture.md", "Who imports whom")):
        named = set(re.findall(r"`(\w+)`", others)) or {room_of(name) for name in FILES}
        allowed |= {room: named if "nothing" not in others else set() for room in re.findall(r"`(\w+)`", rooms)}
    wrong = [
        f"{name} imports {target}"
        for name, file in FILES.items()
        if name.startswith("dqnfed_flwr.")
        for target in anywhere(file)
        if target.startswith("dqnfed_flwr.") and room_of(target) not in allowed[room_of(name)] | {room_of(name)}
    ]
    assert wrong == []


def test_mathematics_imports_no_flower() -> None:
    places = [PACKAGE / name for name in WITHOUT_FLOWER]
    files = [file for place in places for file in ([place] if place.is_file() else place.rglob("*.py"))]
    assert all(place.exists() for place in places)
    assert len(files) > 80
    assert [file.name for file in files if "flwr" in tops(file)] == []


def test_importing_settings_imports_no_torch() -> None:
    script = "import sys, dqnfed_flwr.config; sys.exit('torch' in sys.modules or 'scipy' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_package_grows_only_where_somebody_raises_its_bounds() -> None:
    lines = {file: len(file.read_text("utf-8").splitlines()) for file in PACKAGE.rglob("*.py")}
    small = [file for file, count in lines.items() if count < 60 and file.name != "__init__.py"]
    assert sum(lines.values()) <= LINES
    assert len(lines) <= MODULES
    assert len(small) <= SMALL
    assert {name_of(file).removeprefix("dqnfed_flwr.") for file, count in lines.items() if count > 350} <= LONGER


@pytest.mark.parametrize(("method", "most"), [("dqn-fed", 59), ("fedavg", 50)])
def test_a_round_passes_no_more_files_than_it_did(method: str, most: int) -> None:
    """What somebody must read who follows a round from end to end."""
    settings = {"data": "digits", "clients": 4, "rounds": 3, "local.threads": 1, "method": method}
    rooms = files_by_room(lambda listener: run_in_process(Settings.from_mapping(settings), listeners=[listener]))
    assert sum(map(len, rooms.values())) <= most


def test_a_guarded_round_passes_no_more_files_than_it_did() -> None:
    parts = skewed_digits(3)

    def run(listener: Listener) -> None:
        trained(Guaranteed(FedAvg(), listeners=[listener]), app_on(parts), len(parts), 3)

    assert sum(map(len, files_by_room(run).values())) <= 45
