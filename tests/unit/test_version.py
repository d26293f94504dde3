"""The package knows its version, installed or not, and its commit in a checkout."""

from __future__ import annotations

import re
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from dqnfed_flwr import version


def test_installed_it_is_that_of_the_distribution(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert version.package_version() == metadata.version("dqnfed-flwr")
    monkeypatch.setattr(version, "ROOT", tmp_path)
    assert version.package_version.__wrapped__() == metadata.version("dqnfed-flwr")


def test_from_a_folder_on_the_path_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "DISTRIBUTION", "no-such-distribution")
    assert version.package_version.__wrapped__() == version.UNKNOWN


@pytest.mark.parametrize(
    ("text", "here"),
    [
        ('project = {name = "dqnfed-flwr", version = "0.9.7"}', "0.9.7"),
        ('project = {name = "other", version = "0.9.7"}', ""),
        ('project = {name = "dqnfed-flwr"}', ""),
        ("project = 1", ""),
        ("not TOML", ""),
    ],
)
def test_the_app_of_a_run_brings_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, here: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    monkeypatch.setattr(version, "ROOT", tmp_path)
    assert version.package_version.__wrapped__() == (here or metadata.version("dqnfed-flwr"))


def git(root: Path, *words: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(root), *identity, *words], check=True, capture_output=True)


def test_the_commit_of_a_checkout_has_a_mark_for_changes(tmp_path: Path) -> None:
    look = version.package_commit.__wrapped__
    assert look(tmp_path) is None
    git(tmp_path, "init")
    assert look(tmp_path) is None  # no commit yet
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-m", "first")
    found = look(tmp_path)
    assert found is not None
    assert re.fullmatch("[0-9a-f]{12}", found)
    (tmp_path / "file").write_text("2")
    assert look(tmp_path) == f"{found}+"


def test_git_is_asked_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    first = version.package_commit()
    monkeypatch.setattr(version, "_git", lambda *_: "other")
    assert version.package_commit() == first
