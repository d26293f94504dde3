"""What `dqnfed_flwr` gives by name."""

from __future__ import annotations

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
