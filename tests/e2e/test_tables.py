"""A table of a hospital's kind, from a CSV file to a trained model."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from sklearn.datasets import load_breast_cancer
from typer.testing import CliRunner

from dqnfed_flwr import run
from dqnfed_flwr.cli.app import app
from dqnfed_flwr.engine.export import CARD, export_run


@pytest.fixture
def cancer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Settings of a short run on scikit-learn's breast cancer, written to a CSV file."""
    monkeypatch.setenv("DQNFED_DATA", str(tmp_path / "root"))
    found = load_breast_cancer()
    with (tmp_path / "cancer.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*found.feature_names, "diagnosis"])
        for features, label in zip(found.data.tolist(), found.target, strict=True):
            writer.writerow([*features, found.target_names[label]])
    return {
        "data": f"csv:{tmp_path / 'cancer.csv'},label=diagnosis",
        "clients": 3,
        "partition": "iid",
        "model": "logistic",
        "rounds": 6,
        "local.threads": 1,
        "output": str(tmp_path / "run"),
    }


def test_a_csv_file_is_trained_on_to_a_card_with_its_class_names(cancer: dict[str, Any], tmp_path: Path) -> None:
    result = run({**cancer, "data-scale": "standardise"})

    assert (result.form.input_shape, result.form.num_classes) == ((30,), 2)
    assert result.final["worst"] > 0.9
    assert all(event.improved_ratio == 1 for event in result.events)
    export_run(Path(cancer["output"]), tmp_path / "model")
    card = (tmp_path / "model" / CARD).read_text("utf-8")
    assert "Classes:\n\n- 0: benign\n- 1: malignant" in card
    assert "Features are standardised, by each client's mean and deviation" in card
    (tmp_path / "cancer.csv").unlink()
    export_run(Path(cancer["output"]), tmp_path / "model")
    assert "Classes:" not in (tmp_path / "model" / CARD).read_text("utf-8")


def test_describe_names_the_classes(cancer: dict[str, Any]) -> None:
    given = [word for key, value in cancer.items() if key != "output" for word in ("--set", f"{key}={value}")]

    shown = CliRunner().invoke(app, ["data", "describe", "digits", *given])

    assert shown.exit_code == 0, shown.output
    lines = [line.split() for line in shown.output.splitlines()]
    assert ["class", "name", "train", "test"] in lines
    counts = {line[1]: int(line[2]) + int(line[3]) for line in lines if len(line) == 4 and line[0] in ("0", "1")}
    assert counts == {"benign": 357, "malignant": 212}
