"""Rebuilding samples from what the server received: the algebra, what is listened to, and a whole small report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks import inversion
from benchmarks._inversion import LARGEST, correlations, gradients, unmixed
from benchmarks._words import found
from dqnfed_flwr.masked.sketch import sketched
from dqnfed_flwr.models import build_model
from dqnfed_flwr.params import ParamSpec
from dqnfed_flwr.types import Float64Array

DATA = inversion.images(None)
CLIENTS = DATA[0][:8].view(4, 2, 1, 8, 8), DATA[1][:8].view(4, 2)
OTHERS = DATA[0][8:40], DATA[1][8:40]


def layer_of(samples: int, weights: list[float]) -> tuple[torch.Tensor, Float64Array, Float64Array]:
    """Samples of clients [K, n, d], and the first layer's gradient of a sum by `weights`, weight and bias."""
    draws = torch.Generator().manual_seed(samples)
    x = torch.rand(len(weights), samples, 12, generator=draws, dtype=torch.float64) * 2 - 1
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 100), nn.ReLU(), nn.Linear(100, 10)).double()
    labels = torch.randint(0, 10, (len(weights), samples), generator=draws)
    total = torch.tensor(weights, dtype=torch.float64) @ gradients(model, x, labels)[0]
    return x, total[:1200].view(100, 12).detach().numpy(), total[1200:1300].detach().numpy()


@pytest.mark.parametrize(("samples", "weights"), [(2, [1.0]), (6, [1.0]), (2, [0.1, 0.7, 0.2])])
def test_a_first_layer_with_relu_gives_its_samples_away_and_so_does_a_weighted_sum(
    samples: int, weights: list[float]
) -> None:
    x, weight, bias = layer_of(samples, weights)
    found = unmixed(weight, bias, samples * len(weights))
    assert found is not None
    for each in x.flatten(0, 1).numpy():
        assert np.abs(found - each).max(1).min() < 1e-4


def test_there_is_no_algebra_for_more_samples_than_inputs_or_too_many() -> None:
    _, weight, bias = layer_of(13, [1.0])
    assert unmixed(weight, bias, 13) is None
    assert unmixed(np.eye(LARGEST + 1), np.ones(LARGEST + 1), LARGEST + 1) is None


def test_what_is_listened_to_is_all_rows_or_the_sum_and_the_sketches() -> None:
    seen = {mode: inversion.received(mode, "mlp", CLIENTS, OTHERS, 0) for mode in inversion.MODES}
    model = build_model("mlp", (1, 8, 8), 10, seed=1)
    ParamSpec.of(model).unflatten(seen["open"].theta, model)
    rows, losses = (each.detach() for each in gradients(model, *CLIENTS))
    torch.testing.assert_close(seen["open"].rows, rows)
    torch.testing.assert_close(seen["open"].losses, losses)
    assert seen["open"].total is None
    masked = seen["masked"]
    assert torch.equal(masked.theta, seen["open"].theta)
    assert masked.weights is not None
    assert masked.total is not None
    torch.testing.assert_close(masked.total, masked.weights @ rows, rtol=1e-4, atol=1e-7)
    plain = np.stack([sketched(row, masked.exchange) for row in rows.numpy()])
    sketch = inversion.sketch_of(rows.shape[1], masked.exchange)
    torch.testing.assert_close(sketch(rows), torch.from_numpy(plain).float())
    torch.testing.assert_close(masked.rows @ masked.rows.T, sketch(rows) @ sketch(rows).T, rtol=1e-4, atol=1e-6)
    assert np.abs(correlations(masked.rows.double().numpy(), plain)).max() < 0.1  # turned: they say nothing


def test_a_small_report_tells_open_rows_and_the_sum_of_few_samples_from_what_is_turned(tmp_path: Path) -> None:
    target, picture = tmp_path / "figures.json", tmp_path / "inversion.png"
    inversion.main(["--small", "--json", str(target), "--plot", str(picture)])
    record = json.loads(target.read_text())
    found = {line["attack"]: line for line in record["attacks"]}
    for name in ("open, algebra", "masked, algebra"):
        assert found[name]["rebuilt"] == 1
        assert found[name]["own"] > 0.99
    assert found["open, search"]["own"] > 0.5
    assert found["masked, a client colludes"]["own"] > 0.5
    assert abs(found["masked, as if not turned"]["own"]) < 0.3
    assert found["mean of the class"]["own"] == 0
    assert record["masked_over_guess"] > 0
    read = {line["attack"]: (line["words"], line["once"]) for line in record["texts"]}
    assert read["open"] == read["masked"] == (1, 1)
    assert read["the most frequent words"][1] < 0.5
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_words_that_are_guessed_are_counted_once_each_and_as_many_as_there_are() -> None:
    scores = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0])
    group = torch.tensor([[0, 0], [4, 1]])  # guessed are 0, 1, 2
    assert found([scores], [group]) == pytest.approx((2 / 3, 0.5))
    assert found([scores, -scores], [torch.tensor([0]), torch.tensor([0])]) == (0.5, 0.5)


def test_images_of_a_file_are_halved_and_scaled(tmp_path: Path) -> None:
    whole = np.zeros((2, 32, 32, 3), np.uint8)
    whole[0, :2, :2, 1] = 255
    np.savez(tmp_path / "images.npz", x_train=whole, y_train=np.array([0, 1]))
    found, labels = inversion.images(tmp_path / "images.npz")
    assert found.shape == (2, 3, 16, 16)
    assert labels.tolist() == [0, 1]
    assert (found[0, 1, 0, 0].item(), found[0, 1, 0, 1].item()) == (1, -1)
