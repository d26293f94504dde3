from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import load_client
from dqnfed_flwr.errors import DataError


@pytest.fixture
def five_classes(tmp_path: Path) -> str:
    """Samples whose feature is their class: 60 to train on, 20 to test on."""
    y_train, y_test = np.arange(60) % 5, np.arange(20) % 5
    path = tmp_path / "five.npz"
    np.savez(
        path,
        x_train=y_train[:, None].astype(float),
        y_train=y_train,
        x_test=y_test[:, None].astype(float),
        y_test=y_test,
    )
    return str(path)


def settings(data: str, **mapping: Any) -> Settings:
    return Settings.from_mapping({"data": data, "clients": 3, "partition": "one-class", **mapping})


def test_three_classes_of_five_numbered_in_the_order_given(five_classes: str) -> None:
    wanted = settings(five_classes, **{"split.only-classes": "4,0,2"})
    clients = [load_client(wanted, number) for number in range(3)]
    assert [client.num_classes for client in clients] == [3, 3, 3]
    for number, (client, feature) in enumerate(zip(clients, (4, 0, 2), strict=True)):
        assert client.x_train.ravel().tolist() == [feature] * 12
        assert client.y_train.tolist() == [number] * 12
        assert client.x_test.ravel().tolist() == [feature] * 4
        assert client.y_test.tolist() == [number] * 4


def test_a_part_of_the_samples_is_drawn_from_the_classes_used(five_classes: str) -> None:
    wanted = settings(
        five_classes, **{"split.only-classes": "1,3", "split.samples": 10, "partition": "iid", "clients": 2}
    )
    features = [value for number in range(2) for value in load_client(wanted, number).x_train.ravel()]
    assert len(features) == 10
    assert set(features) <= {1.0, 3.0}


def test_outputs_may_be_more_than_the_classes_used_but_not_fewer(five_classes: str) -> None:
    chosen = {"split.only-classes": "4,0,2", "partition": "iid"}
    assert load_client(settings(five_classes, **chosen, **{"num-classes": 7}), 0).num_classes == 7
    with pytest.raises(DataError, match=r"num-classes: found 2, but split\.only-classes keeps 3"):
        load_client(settings(five_classes, **chosen, **{"num-classes": 2}), 0)


@pytest.mark.parametrize("text", ["0,5", "1,1", "2", "a,b", "-1,2"])
def test_classes_that_cannot_be_used_are_named_with_those_that_can(five_classes: str, text: str) -> None:
    with pytest.raises(DataError, match=r"split\.only-classes: found '" + text):
        load_client(settings(five_classes, **{"split.only-classes": text}), 0)
