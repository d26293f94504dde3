"""The small deep federation: what its files hold, and a round of it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks import deep
from dqnfed_flwr.engine.run import run


def test_an_image_is_halved_by_means_in_units_of_the_spread() -> None:
    images = np.zeros((1, 32, 32, 3), np.uint8)
    images[0, :2, 2:4, 1] = [[0, 255], [255, 0]]  # the second pixel of the first row, green
    found = deep.scaled(images, 2)
    assert found.shape == (1, 3, 16, 16)
    assert found[0, 1, 0, 1] == pytest.approx((0.5 - deep.MEAN[1]) / deep.SPREAD[1])
    assert found[0, 0, 0, 1] == pytest.approx(-deep.MEAN[0] / deep.SPREAD[0])


def test_files_for_a_card_have_images_as_they_are(tmp_path: Path) -> None:
    images, labels = np.full((30, 32, 32, 3), 255, np.uint8), np.arange(30) % 10
    np.savez(tmp_path / "cifar10.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    found = yaml.safe_load(deep.write(tmp_path / "cifar10.npz", 30, 2, tmp_path / "large", "resnet18-gn").read_text())
    assert (found["model"], found["local"]["batch-size"], found["rounds"]) == ("resnet18-gn", 64, 2)
    with np.load(tmp_path / "large" / "deep.npz") as written:
        assert written["x_train"].shape == (30, 3, 32, 32)
        assert written["x_train"][0, :, 0, 0] == pytest.approx((1 - np.array(deep.MEAN)) / deep.SPREAD)


@pytest.mark.parametrize(("model", "values"), [("resnet14", 175_258), ("vit", 138_826)])
def test_the_files_that_it_writes_are_trained(
    model: str, values: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draw, sets = np.random.default_rng(0), {}
    for part, count in (("train", 200), ("test", 40)):
        sets[f"x_{part}"] = draw.integers(0, 256, (count, 32, 32, 3), np.uint8)
        sets[f"y_{part}"] = np.arange(count) % 10
    np.savez(tmp_path / "cifar10.npz", **sets)  # type: ignore[arg-type]
    given = ["deep", "--data", str(tmp_path / "cifar10.npz"), "--images", "160", "--rounds", "1", "--model", model]
    monkeypatch.setattr(sys, "argv", [*given, "--output", str(tmp_path / "deep")])
    deep.main()
    assert f"dqnfed run {tmp_path / 'deep' / 'deep.yaml'}" in capsys.readouterr().out
    result = run(tmp_path / "deep" / "deep.yaml")
    assert (result.events[0].round, len(result.events[0].participants)) == (1, 10)
    assert result.theta.shape == (values,)
    with np.load(tmp_path / "deep" / "deep.npz") as written:
        assert written["x_train"].shape == (160, 3, 16, 16)
        assert written["x_test"].shape == (40, 3, 16, 16)
