from __future__ import annotations

import numpy as np
import pytest
import torch

from dqnfed_flwr.methods.fedcorr.labels import Outputs, correct_confident, correct_suspects, noise_level

LABELS = np.array([0, 1, 2, 0])
SEEN = np.array([[0.1, 0.8, 0.1], [0.4, 0.3, 0.3], [0.9, 0.05, 0.05], [0.2, 0.2, 0.6]])


def test_losses_are_those_of_the_outputs_and_not_of_their_softmax(rng: np.random.Generator) -> None:
    logits = 30 * rng.standard_normal((7, 4))
    labels = rng.integers(0, 4, 7)
    outputs = Outputs.of(logits, labels)
    expected = torch.nn.functional.cross_entropy(torch.tensor(logits), torch.tensor(labels), reduction="none")
    np.testing.assert_allclose(outputs.losses, expected, rtol=1e-12)
    np.testing.assert_allclose(outputs.probabilities, torch.tensor(logits).softmax(1), rtol=1e-12)
    assert outputs.losses.max() > np.log(np.e + 3)  # the largest loss that a softmax in place of outputs could have


def test_the_noise_level_is_the_share_of_large_losses() -> None:
    assert noise_level(np.array([0.1, 0.12, 5.0, 0.09, 0.11, 4.8, 0.1, 0.13]), seed=0) == (0.25, "converged")
    assert noise_level(np.full(5, 0.3), seed=0) == (0.0, "degenerate")
    assert noise_level(np.zeros(0), seed=0) == (0.0, "degenerate")


@pytest.mark.parametrize(
    ("count", "confidence", "expected"),
    [
        (0, 0.5, [0, 1, 2, 0]),
        (1, 0.5, [0, 1, 0, 0]),  # sample 2 is the most suspect
        (2, 0.5, [0, 1, 0, 0]),  # sample 1 comes next, of which the model is not sure
        (3, 0.5, [1, 1, 0, 0]),
        (2, 0.4, [0, 0, 0, 0]),
        (4, 0.85, [0, 1, 0, 0]),
    ],
)
def test_only_the_most_suspect_change_and_only_where_the_model_is_sure(
    count: int, confidence: float, expected: list[int]
) -> None:
    suspicion = np.array([2.0, 3.0, 4.0, 1.0])
    found = correct_suspects(LABELS, suspicion, SEEN, count=count, confidence=confidence)
    assert found.tolist() == expected
    assert LABELS.tolist() == [0, 1, 2, 0]


def test_every_sample_changes_of_which_the_model_is_sure() -> None:
    assert correct_confident(LABELS, SEEN, confidence=0.6).tolist() == [1, 1, 0, 2]
    assert correct_confident(LABELS, SEEN, confidence=0.9).tolist() == [0, 1, 0, 0]
