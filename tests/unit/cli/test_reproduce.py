from __future__ import annotations

import pytest
from typer.testing import CliRunner

from dqnfed_flwr.cli.app import app


@pytest.mark.parametrize(("environment", "width"), [({"COLUMNS": None}, 100), ({"COLUMNS": "120"}, 120)])
def test_manifests_in_a_pipe_fit_a_page(environment: dict[str, str | None], width: int) -> None:
    result = CliRunner(env=environment).invoke(app, ["reproduce", "--list"])
    assert max(map(len, result.output.splitlines())) <= width
