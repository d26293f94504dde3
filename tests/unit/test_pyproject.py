from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.common.config import flatten_dict, validate_config
from packaging.requirements import Requirement
from packaging.version import Version

from dqnfed_flwr.config import Settings

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ("constraints.txt", "constraints-http.txt")


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def pins(name: str) -> dict[str, Version]:
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#")]
    assert all(line.count("==") == 1 for line in lines)
    return {key.lower().replace("_", "-"): Version(value) for key, value in (line.split("==") for line in lines)}


def test_run_config_equals_the_defaults(pyproject: dict[str, Any]) -> None:
    config = pyproject["tool"]["flwr"]["app"]["config"]
    found, wanted = flatten_dict(config), {**Settings().flat(), "evaluate-every": "auto"}
    assert json.dumps(found, sort_keys=True) == json.dumps(wanted, sort_keys=True)  # 1 and 1.0 differ here
    assert Settings.from_mapping(config) == Settings()


def test_flower_takes_the_app(pyproject: dict[str, Any]) -> None:
    valid, errors, warnings = validate_config(pyproject, check_module=True, project_dir=ROOT)
    assert (valid, errors, warnings) == (True, [], [])
    assert "federations" not in pyproject["tool"]["flwr"]


def test_bundle_holds_the_experiments_and_is_small() -> None:
    bundle = build_fab_from_disk(ROOT)
    assert len(bundle) < 3_000_000  # Flower allows 10 MB
    assert b"dqnfed_flwr/experiments/digits.yaml" in bundle
    assert b"client_app/app.py" in bundle


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_every_requirement_is_pinned_within_its_bounds(pyproject: dict[str, Any], name: str) -> None:
    project, pinned = pyproject["project"], pins(name)
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    for requirement in (Requirement(line) for group in groups for line in group):
        assert pinned[requirement.name.lower()] in requirement.specifier, requirement
        assert any(bound.operator == ">=" for bound in requirement.specifier), requirement


def test_the_two_constraint_sets_differ_in_flower_and_what_it_needs() -> None:
    grpc, http = (pins(name) for name in CONSTRAINTS)
    assert grpc.keys() == http.keys()
    assert (str(grpc["flwr"]), str(http["flwr"])) == ("1.39.0", "1.42.0")
    assert {name for name in grpc if grpc[name] != http[name]} == {"flwr", "certifi", "cryptography", "uv"}


@pytest.mark.parametrize("lane", ["", "-http"])
def test_files_with_hashes_are_of_the_pinned_versions(pyproject: dict[str, Any], lane: str) -> None:
    text = (ROOT / f"requirements-hashed{lane}.txt").read_text("utf-8")
    entries = re.findall(r"^([\w.-]+)==(\S+)[^\n]*((?:\n    --hash=sha256:[0-9a-f]{64}(?: \\)?)+)$", text, re.MULTILINE)
    assert len(entries) == sum("==" in line for line in text.splitlines() if not line.startswith((" ", "#")))
    hashed = {name.lower().replace("_", "-"): Version(version) for name, version, _ in entries}
    pinned = pins(f"constraints{lane}.txt")
    others = {name for name in hashed if name not in pinned}
    assert {name: pinned[name] for name in hashed.keys() - others} == {
        name: hashed[name] for name in hashed.keys() - others
    }
    assert all(name.startswith(("nvidia-", "cuda-", "triton", "colorama", "tzdata", "win")) for name in others), others
    needed = {Requirement(line).name.lower() for line in pyproject["project"]["dependencies"]}
    assert needed | {"hatchling"} <= hashed.keys()


def test_every_lower_bound_says_why() -> None:
    lines = (ROOT / "pyproject.toml").read_text("utf-8").splitlines()
    bounds = [line for line in lines if line.strip().startswith('"') and ">=" in line]
    bare = [line for line in bounds if "  # " not in line]
    assert len(bounds) > 10
    assert bare == []


def test_pre_commit_and_ci_run_the_same_commands() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text("utf-8")
    assert "entry: make lint" in hooks
    assert "entry: make test" in hooks
    assert (ROOT / ".ci" / "run").read_text("utf-8").splitlines()[-2:] == ["make test", "make test-federation"]
