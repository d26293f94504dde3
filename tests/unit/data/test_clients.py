from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import ClientData, dealing, load_client
from dqnfed_flwr.data.dataset import TargetForm
from dqnfed_flwr.data.sources import Source
from dqnfed_flwr.errors import DataError

PARTITIONS = ["iid", "shards", "dirichlet", "pathological", "one-class"]
Arrays = dict[str, NDArray[Any]]


def numbered(samples: int, tested: int, classes: int = 4) -> Arrays:
    """A set whose samples are their own numbers, as tokens [N, 1], with every class equally frequent."""
    arrays: Arrays = {"x_train": np.arange(samples)[:, None], "y_train": np.arange(samples) % classes}
    if tested:
        arrays |= {"x_test": np.arange(tested)[:, None], "y_test": np.arange(tested) % classes}
    return arrays


def saved(tmp_path: Path, arrays: Arrays, name: str = "set.npz") -> str:
    np.savez(tmp_path / name, allow_pickle=False, **arrays)
    return str(tmp_path / name)


def configured(data: str, **changes: Any) -> Settings:
    return Settings.from_mapping({"data": data, "clients": 4, "seed": 1, **changes})


def load_all(settings: Settings) -> list[ClientData]:
    return [load_client(settings, partition) for partition in range(settings.clients)]


def pooled(parts: list[NDArray[Any]]) -> list[int]:
    return sorted(int(number) for part in parts for number in part.ravel())


@pytest.mark.parametrize("partition", PARTITIONS)
def test_clients_of_a_set_with_a_test_part_share_both_parts(tmp_path: Path, partition: str) -> None:
    settings = configured(saved(tmp_path, numbered(400, 200)), partition=partition)

    clients = load_all(settings)

    assert pooled([client.x_train for client in clients]) == list(range(400))
    assert pooled([client.x_test for client in clients]) == list(range(200))
    for client in clients:
        np.testing.assert_array_equal(client.y_train, client.x_train[:, 0] % 4)
        np.testing.assert_array_equal(client.y_test, client.x_test[:, 0] % 4)
        trained, tested = (np.bincount(y, minlength=4) for y in (client.y_train, client.y_test))
        assert (np.abs(tested - trained / 2) < 1).all()
        assert len(client.x_validation) == len(client.y_validation) == 0
        assert (client.num_classes, client.input_shape) == (4, (1,))


@pytest.mark.parametrize("partition", PARTITIONS)
def test_clients_of_a_set_without_a_test_part_split_their_own(tmp_path: Path, partition: str) -> None:
    settings = configured(
        saved(tmp_path, numbered(400, 0)),
        partition=partition,
        split={"test-fraction": 0.25, "validation-fraction": 0.2},
    )

    clients = load_all(settings)

    assert pooled([part for c in clients for part in (c.x_train, c.x_validation, c.x_test)]) == list(range(400))
    for client in clients:
        kept, apart, tested = (
            np.bincount(y, minlength=4) for y in (client.y_train, client.y_validation, client.y_test)
        )
        own = kept + apart + tested
        assert (np.abs(tested - own * 0.25) < 1).all()
        assert (np.abs(apart - (own - tested) * 0.2) < 1).all()


def test_equal_settings_give_equal_clients_and_another_seed_others(tmp_path: Path) -> None:
    path = saved(tmp_path, numbered(300, 0))
    split = {"validation-fraction": 0.3}

    first = load_client(configured(path, split=split), 2)
    dealing._deal_out.cache_clear()
    again = load_client(configured(path, split=split), 2)
    other = load_client(configured(path, split=split, seed=2), 2)

    for part in ("x_train", "x_validation", "x_test", "y_train", "y_validation", "y_test"):
        np.testing.assert_array_equal(getattr(first, part), getattr(again, part))
    assert first.x_train.tolist() != other.x_train.tolist()


def test_a_subsample_is_drawn_before_dealing(tmp_path: Path) -> None:
    settings = configured(saved(tmp_path, numbered(400, 100)), partition="iid", split={"samples": 60})

    clients = load_all(settings)

    numbers = pooled([client.x_train for client in clients])
    assert len(set(numbers)) == len(numbers) == 60
    assert numbers != list(range(60))
    assert pooled([client.x_test for client in clients]) == list(range(100))


def test_the_set_is_dealt_out_once_for_all_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []
    load = Source.load

    def counted(source: Source, num_classes: int, targets: TargetForm) -> object:
        loads.append(source.name)
        return load(source, num_classes, targets)

    monkeypatch.setattr(Source, "load", counted)
    path = saved(tmp_path, numbered(400, 0))

    load_all(configured(path))
    load_all(configured(path, rounds=3, model="logistic"))

    assert loads == [path]


def test_a_file_written_anew_is_read_anew(tmp_path: Path) -> None:
    settings = configured(saved(tmp_path, numbered(400, 0)), partition="iid")
    before = load_client(settings, 0)

    saved(tmp_path, numbered(80, 0))

    assert (len(before.x_train), len(load_client(settings, 0).x_train)) == (80, 16)


def test_images_keep_their_bytes_and_only_this_client_is_in_memory(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 5, 6, 3), dtype=np.uint8)
    arrays: Arrays = {"x_train": images, "y_train": np.arange(40) % 2}

    client = load_client(configured(saved(tmp_path, arrays), partition="iid", clients=2), 1)

    assert client.x_train.dtype == np.uint8
    assert client.input_shape == (3, 5, 6)
    assert type(client.x_train) is np.ndarray
    assert client.x_train.flags.owndata
    assert {image.tobytes() for image in client.x_train} <= {image.tobytes() for image in images}


def test_natural_groups_stay_whole(tmp_path: Path) -> None:
    arrays = numbered(60, 30)
    arrays |= {"groups_train": np.arange(60) // 10, "groups_test": np.arange(30) // 5}

    clients = load_all(configured(saved(tmp_path, arrays), partition="groups", clients=3))

    for number, client in enumerate(clients):
        np.testing.assert_array_equal(client.x_train[:, 0], np.arange(20 * number, 20 * number + 20))
        np.testing.assert_array_equal(client.x_test[:, 0], np.arange(10 * number, 10 * number + 10))


def test_only_large_groups_are_used_and_so_many_of_them(tmp_path: Path) -> None:
    groups = np.repeat(np.arange(6), [4, 12, 8, 12, 16, 8])  # with the tested ones: 6, 14, 18, 14, 18, 10
    tested = np.repeat(np.arange(6), [2, 2, 10, 2, 2, 2])
    arrays = numbered(60, 20) | {"groups_train": groups, "groups_test": tested}
    path, split = saved(tmp_path, arrays), {"min-group-samples": 14, "groups": 3}

    clients = load_all(configured(path, partition="groups", clients=3, split=split))
    again = load_all(configured(path, partition="groups", clients=3, split=split))

    held = [set(groups[client.x_train.ravel()].tolist()) for client in clients]
    assert [len(each) for each in held] == [1, 1, 1]
    assert set.union(*held) < {1, 2, 3, 4}
    assert [set(tested[client.x_test.ravel()].tolist()) for client in clients] == held
    assert [client.x_train.tolist() for client in again] == [client.x_train.tolist() for client in clients]
    with pytest.raises(DataError, match=r"4 of 6 groups .*14, the largest has 18; .*split\.groups, which asks for 5"):
        load_client(configured(path, partition="groups", clients=3, split={**split, "groups": 5}), 0)


@pytest.mark.parametrize("split", [{}, {"min-group-samples": 12, "groups": 3}])
def test_groups_may_have_any_numbers(tmp_path: Path, split: dict[str, int]) -> None:
    found = []
    for groups in (np.arange(60) % 5, 10**12 * (1 + np.arange(60) % 5)):
        path = saved(tmp_path, numbered(60, 0) | {"groups_train": groups})
        clients = load_all(configured(path, partition="groups", clients=3, split=split))
        found.append([client.x_train.tolist() for client in clients])

    assert found[0] == found[1]


def test_chosen_classes_may_leave_gaps_behind(tmp_path: Path) -> None:
    arrays = numbered(60, 0, classes=3)
    path = saved(tmp_path, {**arrays, "y_train": 2 * arrays["y_train"]})  # 0, 2 and 4

    client = load_client(configured(path, partition="iid", clients=2, split={"only-classes": "0,4"}), 0)

    assert (client.num_classes, set(client.y_train.tolist())) == (2, {0, 1})


def test_merged_classes_make_unbalanced_clients(tmp_path: Path) -> None:
    settings = configured(
        saved(tmp_path, numbered(100, 50, classes=10)), partition="one-class", clients=5, split={"merge": "1,2,2,2,3"}
    )

    assert [len(set(client.y_train.tolist())) for client in load_all(settings)] == [1, 2, 2, 2, 3]
    assert [len(client.y_test) for client in load_all(settings)] == [5, 10, 10, 10, 15]


def test_natural_groups_without_a_test_part_are_split(tmp_path: Path) -> None:
    arrays = numbered(60, 0) | {"groups_train": np.arange(60) % 3}

    clients = load_all(configured(saved(tmp_path, arrays), partition="groups", clients=3))

    for number, client in enumerate(clients):
        assert set(client.x_train[:, 0] % 3) == set(client.x_test[:, 0] % 3) == {number}
        assert len(client.x_test) == 4


def test_a_device_file_is_wholly_its_clients(tmp_path: Path) -> None:
    arrays: Arrays = {"x_train": np.arange(10)[:, None], "y_train": np.full(10, 3), "num_classes": np.array(8)}
    path = saved(tmp_path, arrays, "device.npz")

    client = load_client(configured("digits", partition="file", clients=2), 5, path)

    assert pooled([client.x_train, client.x_test]) == list(range(10))
    assert len(client.x_test) == 2
    assert client.num_classes == 8


@pytest.mark.parametrize("source", ["libsvm:/data/site.svm", "folder:/data/site"])
def test_a_device_cannot_number_the_classes_by_its_own_samples(source: str) -> None:
    with pytest.raises(DataError, match="numbers the classes that a file holds"):
        load_client(configured("digits", partition="file"), 0, source)


def test_a_device_file_with_a_test_part_keeps_it(tmp_path: Path) -> None:
    path = saved(tmp_path, numbered(20, 8), "device.npz")

    client = load_client(configured("digits", partition="file"), 0, path)

    np.testing.assert_array_equal(client.x_train[:, 0], np.arange(20))
    np.testing.assert_array_equal(client.x_test[:, 0], np.arange(8))


def test_a_device_path_replaces_the_set_that_is_dealt_out(tmp_path: Path) -> None:
    path = saved(tmp_path, numbered(400, 200))

    here = load_client(configured(path), 1)
    there = load_client(configured("/elsewhere/set.npz"), 1, path)

    np.testing.assert_array_equal(here.x_train, there.x_train)


def test_a_function_gives_a_clients_own_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def load(settings: Mapping[str, object], partition: int, clients: int) -> Mapping[str, object]:
        asked.append((settings["seed"], settings["split.alpha"], partition, clients))
        return {"x_train": [[0.5], [1.5]], "y_train": [0, 1], "x_test": [[2.5]], "y_test": [1], "num_classes": 2}

    module = ModuleType("my_own_sets")
    vars(module).update(load=load, wrong=lambda *_: [1, 2])
    monkeypatch.setitem(sys.modules, "my_own_sets", module)

    client = load_client(configured("my_own_sets:load"), 3)

    assert asked == [(1, 0.5, 3, 4)]
    assert (client.x_train.tolist(), client.y_train.tolist()) == ([[0.5], [1.5]], [0, 1])
    assert (client.x_test.tolist(), client.num_classes) == ([[2.5]], 2)
    with pytest.raises(DataError, match="returned list; it must return a mapping of arrays"):
        load_client(configured("my_own_sets:wrong"), 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_features_that_are_not_finite_are_refused(tmp_path: Path, bad: float) -> None:
    x = np.zeros((20, 3))
    x[7, 2] = bad
    path = saved(tmp_path, {"x_train": x, "y_train": np.arange(20) % 2})

    with pytest.raises(DataError, match=r"1 of (16|4) samples hold NaN or infinite features, first number 7"):
        load_client(configured(path, partition="file"), 0)


@pytest.mark.parametrize(
    ("value", "dtype", "scale"), [(-1680.0, "f4", 1000.0), (99.0, "f4", 10.0), (0.0, "f4", 0.0), (1680, "i8", 0.0)]
)
def test_the_scale_of_features(tmp_path: Path, value: float, dtype: str, scale: float) -> None:
    x = np.full((40, 3), value, dtype)
    client, *_ = load_all(configured(saved(tmp_path, {"x_train": x, "y_train": np.arange(40) % 2}), partition="iid"))
    assert client.feature_scale == scale


@pytest.mark.parametrize(
    ("changes", "partition", "message"),
    [
        ({}, 4, "partition-id: found 4; clients = 4 allows 0..3"),
        ({}, -1, "partition-id: found -1; clients are numbered from 0"),
        ({"partition": "groups"}, 0, "needs the array groups_train"),
        ({"partition": "shards", "clients": 50, "split": {"shards": 9}}, 0, "need 450 samples, found 400"),
        ({"partition": "one-class", "split": {"merge": "1;1"}}, 0, "split.merge: found '1;1'; give numbers"),
        ({"split": {"samples": 401}}, 0, "split.samples: found 401, but the set has 400"),
        ({"num-classes": 3}, 0, "labels go up to 3, but 3 classes are stated"),
        ({"partition": "one-class", "clients": 5, "num-classes": 5}, 0, "one-class: classes [4] have no sample"),
        (
            {"partition": "file", "split": {"samples": 50, "only-classes": "0,1"}},
            0,
            "file takes a client's whole file, and split.only-classes, split.samples cannot choose from it",
        ),
    ],
)
def test_what_cannot_be_dealt_out_is_refused(
    tmp_path: Path, changes: dict[str, Any], partition: int, message: str
) -> None:
    settings = configured(saved(tmp_path, numbered(400, 200)), **changes)

    with pytest.raises(DataError) as caught:
        load_client(settings, partition)

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("groups", "message"),
    [(None, "a test part without groups_test"), (np.full(30, 9), "all 3 clients have no test sample of their groups")],
)
def test_groups_that_cannot_be_tested_are_refused(
    tmp_path: Path, groups: NDArray[np.int64] | None, message: str
) -> None:
    arrays = numbered(60, 30) | {"groups_train": np.arange(60) // 20}
    if groups is not None:
        arrays["groups_test"] = groups

    with pytest.raises(DataError, match=message):
        load_client(configured(saved(tmp_path, arrays), partition="groups", clients=3), 0)


def test_a_group_that_is_not_tested_trains_and_is_named_once(tmp_path: Path, said: list[str]) -> None:
    arrays = numbered(60, 30) | {"groups_train": np.arange(60) // 20, "groups_test": np.zeros(30, np.int64)}
    settings = configured(saved(tmp_path, arrays), partition="groups", clients=3)

    clients = [load_client(settings, client) for client in range(3)]

    assert [(client.count("train"), client.count("test")) for client in clients] == [(20, 30), (20, 0), (20, 0)]
    (line,) = said
    assert "2 of 3 clients have no test sample of their groups" in line
    assert "client 1 (1; 20 to train on), 2 (2; 20 to train on); where that is not meant, lower clients" in line


def test_a_group_of_one_sample_trains_on_it_and_is_named_once(tmp_path: Path, said: list[str]) -> None:
    groups = np.repeat([0, 1, 2, 3], [13, 1, 11, 15])
    arrays = numbered(40, 0) | {"groups_train": groups, "group_names": np.array(["north", "tiny", "south", "east"])}
    path = saved(tmp_path, arrays)
    settings = configured(path, partition="groups", clients=4)

    clients = [load_client(settings, client) for client in range(4)]

    assert [client.count("train") + client.count("test") for client in clients] == [13, 1, 11, 15]
    assert (clients[1].count("train"), clients[1].count("test")) == (1, 0)
    assert all(clients[client].count("test") for client in (0, 2, 3))
    (line,) = said
    assert "1 of 4 clients have a single sample, which cannot be split" in line
    assert "client 1 (tiny; 1 to train on)" in line
    assert "set split.min-group-samples=2 and clients=3" in line
    advised = configured(path, partition="groups", clients=3, split={"min-group-samples": 2})
    assert all(load_client(advised, client).count("test") for client in range(3))


def test_where_every_client_has_one_sample_nothing_can_be_tested(tmp_path: Path) -> None:
    path = saved(tmp_path, numbered(4, 0))

    with pytest.raises(DataError, match=r"iid: all 4 clients have a single sample, .* lower clients"):
        load_client(configured(path, partition="iid"), 0)


def test_a_client_too_small_for_a_validation_part_has_none_and_is_named(tmp_path: Path, said: list[str]) -> None:
    arrays = numbered(42, 0) | {"groups_train": np.repeat([0, 1], [2, 40])}
    split = {"validation-fraction": 0.25}
    settings = configured(saved(tmp_path, arrays), partition="groups", clients=2, split=split)

    small, large = (load_client(settings, client) for client in range(2))

    assert [small.count(part) for part in ("train", "validation", "test")] == [1, 0, 1]
    assert large.count("validation") == 8
    assert "client 0 has 1 training sample(s): none is kept apart for split.validation-fraction" in "\n".join(said)


def test_more_clients_than_test_samples_leave_some_untested(tmp_path: Path, said: list[str]) -> None:
    settings = configured(saved(tmp_path, numbered(400, 200)), partition="iid", clients=300)

    tested = [load_client(settings, client).count("test") for client in range(300)]

    assert sum(tested) == 200
    assert tested.count(0) >= 100
    assert f"{tested.count(0)} of 300 clients have no test sample of their classes" in "\n".join(said)


def test_digits_reach_every_client_by_default() -> None:
    pytest.importorskip("sklearn")

    clients = load_all(Settings())

    assert sum(len(client.y_train) + len(client.y_test) for client in clients) == 1797
    assert {client.input_shape for client in clients} == {(1, 8, 8)}
    assert min(len(client.y_test) for client in clients) >= 2
