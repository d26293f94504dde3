"""What `dqnfed_flwr` gives by name."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import dqnfed_flwr


@pytest.mark.parametrize("name", dqnfed_flwr.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert callable(getattr(dqnfed_flwr, name))


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'unknown'"):
        _ = dqnfed_flwr.unknown


def test_importing_the_package_imports_neither_torch_nor_flower() -> None:
    look = "import sys, dqnfed_flwr; dqnfed_flwr.DQNFedError; print({'torch', 'flwr'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
    ids=["nothing", "a number", "a policy"],
)
def test_threads_of_two_processes_do_not_spin_against_each_other(given: dict[str, str], expected: str) -> None:
    look = "import dqnfed_flwr, os; print(os.environ.get('GOMP_SPINCOUNT'))"
    kept = {key: value for key, value in os.environ.items() if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    found = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True, env={**kept, **given}
    )
    assert found.stdout.strip() == expected
