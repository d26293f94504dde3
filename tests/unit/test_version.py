"""The package knows its version, installed or not."""

from __future__ import annotations

from importlib import metadata

import pytest

from dqnfed_flwr import version


def test_installed_it_is_that_of_the_distribution() -> None:
    assert version.package_version() == metadata.version("dqnfed-flwr")


def test_from_a_folder_on_the_path_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "DISTRIBUTION", "no-such-distribution")
    assert version.package_version.__wrapped__() == version.UNKNOWN
