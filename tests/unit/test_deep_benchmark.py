"""The small deep federation: what its files hold, and a round of it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import deep
from dqnfed_flwr.engine.run import run


def test_an_image_is_halved_by_means_in_units_of_the_spread() -> None:
    images = np.zeros((1, 32, 32, 3), np.uint8)
    images[0, :2, 2:4, 1] = [[0, 255], [255, 0]]  # the second pixel of the first row, green
    found = deep.halved(images)
    assert found.shape == (1, 3, 16, 16)
    assert found[0, 1, 0, 1] == pytest.approx((0.5 - deep.MEAN[1]) / deep.SPREAD[1])
    assert found[0, 0, 0, 1] == pytest.approx(-deep.MEAN[0] / deep.SPREAD[0])


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
