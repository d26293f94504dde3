"""The files of `dqnfed export` give what the model gave, without the code of the training."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from typer.testing import CliRunner

from dqnfed_flwr.cli.app import app
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.export import CARD, PROGRAM, WEIGHTS, export_run, trained_module
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.errors import RunError
from dqnfed_flwr.models import build_model
from dqnfed_flwr.run_files import MODEL, RUN
from tests.helpers.runs import TINY

WITHOUT_THIS_PACKAGE = """
import sys
import numpy as np, torch
x = torch.from_numpy(np.load(sys.argv[2]))
np.save(sys.argv[3], torch.export.load(sys.argv[1]).module()(x).detach().numpy())
assert not any(name.startswith("dqnfed") for name in sys.modules)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunResult, Path]:
    folder = tmp_path_factory.mktemp("run")
    return run(Settings.from_mapping({**TINY, "output": str(folder), "seed": 3})), folder


@pytest.fixture(scope="module")
def exported(trained: tuple[RunResult, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("model") / "deep"
    assert [path.name for path in export_run(trained[1], target)] == [WEIGHTS, PROGRAM, CARD]
    return target


def outputs(result: RunResult, x: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = trained_module(result)(x).detach()
    return output


def test_the_weights_make_the_same_model(trained: tuple[RunResult, Path], exported: Path) -> None:
    result, _ = trained
    module = build_model(result.settings.model, result.form.input_shape, result.form.num_classes, seed=0)
    module.load_state_dict(load_file(exported / WEIGHTS))
    x = torch.rand(5, *result.form.input_shape)
    assert torch.equal(module.eval()(x), outputs(result, x))
    with safe_open(exported / WEIGHTS, "pt") as file:
        assert file.metadata()["model"] == result.settings.model


def test_the_program_runs_where_this_package_is_not_imported(
    trained: tuple[RunResult, Path], exported: Path, tmp_path: Path
) -> None:
    result, _ = trained
    x = torch.rand(7, *result.form.input_shape)
    np.save(tmp_path / "x.npy", x.numpy())
    files = [str(exported / PROGRAM), str(tmp_path / "x.npy"), str(tmp_path / "y.npy")]
    subprocess.run([sys.executable, "-W", "ignore", "-c", WITHOUT_THIS_PACKAGE, *files], check=True)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), outputs(result, x).numpy(), rtol=1e-6, atol=1e-6)


def test_all_files_have_one_mode(exported: Path) -> None:
    assert len({(exported / name).stat().st_mode & 0o777 for name in (WEIGHTS, PROGRAM, CARD)}) == 1


def test_the_card_says_where_the_model_comes_from(trained: tuple[RunResult, Path], exported: Path) -> None:
    result, _ = trained
    card = (exported / CARD).read_text()
    for words in (
        "seed 3",
        f"`{result.settings.data}`",
        f"{len(result.events)} rounds, of which {len(result.events)} moved the model",
        f"| rounds that moved the model | {len(result.events)} of {len(result.events)} |",
        "| clients heard of those asked, mean | 3.0 of 3.0 |",
        "| votes overruled | 0 |",
        f"| mean over clients | {result.final['mean']:.4f} |",
        "nobody was left out",
        f"- torch {torch.__version__}",
        "## Licence",
    ):
        assert words in card
    assert str(trained[1]) not in card


def test_the_command_writes_beside_the_run_and_says_so(trained: tuple[RunResult, Path]) -> None:
    done = CliRunner().invoke(app, ["export", str(trained[1])])
    assert done.exit_code == 0, done.output
    assert done.output.split() == [str(trained[1] / name) for name in (WEIGHTS, PROGRAM, CARD)]


def test_a_model_that_cannot_be_traced_is_told_before_anything_is_written(tmp_path: Path) -> None:
    run({**TINY, "model": "tests.helpers.models:branching", "rounds": 1, "output": str(tmp_path / "run")})
    with pytest.raises(RunError, match=r"model.pt2: torch cannot trace Branching .*model.npz$") as raised:
        export_run(tmp_path / "run", tmp_path / "model")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "model").exists()


def test_what_cannot_be_exported_is_told(trained: tuple[RunResult, Path], tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no result of a finished run"):
        export_run(tmp_path, tmp_path)
    for name in (MODEL, "events.jsonl"):
        (tmp_path / name).write_bytes((trained[1] / name).read_bytes())
    less = {key: value for key, value in json.loads((trained[1] / RUN).read_text()).items() if key != "form"}
    (tmp_path / RUN).write_text(json.dumps(less))
    with pytest.raises(RunError, match=r"or a damaged one \(KeyError: 'form'\)"):
        export_run(tmp_path, tmp_path)
