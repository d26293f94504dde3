from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from dqnfed_flwr.config import NoiseSettings, Settings
from dqnfed_flwr.data import load_client
from dqnfed_flwr.data.client_part import find_part, noise_level, with_noise
from dqnfed_flwr.strategy.schedule import sample

CLASSES = 10
LABELS = np.arange(4000) % CLASSES


def streams(count: int) -> list[np.random.Generator]:
    return [np.random.default_rng((5, number)) for number in range(count)]


def test_levels_follow_the_papers_distribution() -> None:
    settings = NoiseSettings(kind="symmetric", clients=0.6, level=0.3)

    levels = np.array([noise_level(settings, rng) for rng in streams(2000)])

    noisy = levels[levels > 0]
    assert stats.binomtest(len(noisy), 2000, 0.6).pvalue > 0.01
    assert stats.kstest(noisy, "uniform", (0.3, 0.7)).pvalue > 0.01


def test_pair_noise_goes_to_the_next_class() -> None:
    noisy = with_noise(LABELS, NoiseSettings(kind="pair", clients=1.0, level=1.0), CLASSES, streams(1)[0])

    np.testing.assert_array_equal(noisy, (LABELS + 1) % CLASSES)


def test_symmetric_noise_draws_from_all_classes() -> None:
    noisy = with_noise(LABELS, NoiseSettings(kind="symmetric", clients=1.0, level=1.0), CLASSES, streams(1)[0])

    assert stats.binomtest(int((noisy != LABELS).sum()), len(LABELS), 0.9).pvalue > 0.01
    assert stats.chisquare(np.bincount(noisy, minlength=CLASSES)).pvalue > 0.01


@pytest.mark.parametrize("kind", ["symmetric", "pair"])
def test_the_share_of_a_clients_labels_is_its_level(kind: Any) -> None:
    settings = NoiseSettings(kind=kind, clients=1.0, level=0.2)
    level = noise_level(settings, streams(1)[0])

    noisy = with_noise(LABELS, settings, CLASSES, streams(1)[0])

    wrong = float((noisy != LABELS).mean())
    assert 0.2 < level < 1
    assert wrong == pytest.approx(level, abs=1e-3) if kind == "pair" else wrong < level


@pytest.mark.parametrize("settings", [NoiseSettings(), NoiseSettings(kind="pair", clients=0.0)])
def test_without_noise_labels_stay(settings: NoiseSettings) -> None:
    np.testing.assert_array_equal(with_noise(LABELS, settings, CLASSES, streams(1)[0]), LABELS)


def test_only_training_labels_change_and_by_seed_and_client() -> None:
    plain = {"clients": 4, "partition": "iid", "split.validation-fraction": 0.2}
    clean, noisy, again, other = (
        [load_client(Settings.from_mapping({**plain, **more}), client) for client in range(4)]
        for more in (
            {},
            {"noise.kind": "symmetric", "noise.clients": 1.0},
            {"noise.kind": "symmetric", "noise.clients": 1.0, "rounds": 3},
            {"noise.kind": "symmetric", "noise.clients": 1.0, "seed": 1},
        )
    )

    for before, after, same, seeded in zip(clean, noisy, again, other, strict=True):
        np.testing.assert_array_equal(before.x_train, after.x_train)
        np.testing.assert_array_equal(before.y_validation, after.y_validation)
        np.testing.assert_array_equal(before.y_test, after.y_test)
        assert (before.y_train != after.y_train).mean() > 0.3
        np.testing.assert_array_equal(after.y_train, same.y_train)
        assert (after.y_train[:200] != seeded.y_train[:200]).any()
    wrong = {(before.y_train != after.y_train).tobytes() for before, after in zip(clean, noisy, strict=True)}
    assert len(wrong) == 4


def test_the_truth_stays_at_hand() -> None:
    settings = Settings.from_mapping({"noise.kind": "pair", "noise.clients": 1.0, "noise.level": 1.0})

    part = find_part(settings, 0)

    np.testing.assert_array_equal(part.given, (part.data.y_train[part.train] + 1) % 10)
    np.testing.assert_array_equal(part.given, load_client(settings, 0).y_train)


def test_who_is_noisy_says_nothing_of_who_is_sampled() -> None:
    noise = {"noise.kind": "pair", "noise.clients": 0.5, "noise.level": 0.9, "partition": "iid"}
    asked, noisy = [], []
    for seed in range(400):
        part = find_part(Settings.from_mapping({**noise, "seed": seed}), 0)
        noisy.append((part.given != part.data.y_train[part.train]).any())
        asked.append(0 in sample(list(range(10)), 2, seed=seed, round_number=6))
    assert 0.4 < np.mean(noisy) < 0.6
    assert abs(np.corrcoef(noisy, asked)[0, 1]) < 0.12  # (seed, 6, 0) is (seed, 6), and would give 0.2
