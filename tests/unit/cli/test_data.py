from __future__ import annotations

import csv
import io
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import cast

import numpy as np
import pytest
from click.testing import Result
from rich.console import Console
from typer.testing import CliRunner

from dqnfed_flwr.cli.app import app
from dqnfed_flwr.config import Settings
from dqnfed_flwr.config.loading import load_config
from dqnfed_flwr.data.clients import ClientSummary, summarise
from dqnfed_flwr.data.torchvision_sets import Size
from dqnfed_flwr.errors import RunError
from dqnfed_flwr.report.class_table import LONGEST, class_table, notes, print_classes, write_csv
from dqnfed_flwr.report.run_plots import plot_classes
from tests.helpers.small_sets import shrink


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DQNFED_DATA", str(tmp_path / "root"))
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path / "root"


def dqnfed(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def many_classes(tmp_path: Path, clients: int, classes: int) -> str:
    """A file in which client k has 3 samples of class k, 1 of the next, in a group of its own."""
    labels = np.array([label % classes for k in range(clients) for label in (k, k, k, k + 1)])
    groups = np.repeat(np.arange(clients), 4)
    np.savez(
        tmp_path / "many.npz",
        x_train=np.zeros((len(labels), 2), np.float32),
        y_train=labels,
        x_test=np.zeros((len(labels), 2), np.float32),
        y_test=labels,
        groups_train=groups,
        groups_test=groups,
        group_names=np.array([f"writer {k}" for k in range(clients)]),
    )
    return str(tmp_path / "many.npz")


def test_describe_counts_what_clients_are_given(tmp_path: Path) -> None:
    result = dqnfed("data", "describe", "digits", "--output", str(tmp_path / "out"))

    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader((tmp_path / "out" / "classes.csv").read_text().splitlines()))
    clients = summarise(Settings.from_mapping({"split.alpha": 0.5, "local.threads": 1}))
    assert [int(row["train"]) for row in rows] == [client.samples for client in clients]
    assert sum(int(row["train"]) + int(row["test"]) for row in rows) == 1797
    for row, client in zip(rows, clients, strict=True):
        assert [int(row[f"train {label}"]) for label in range(10)] == client.train.tolist()
        assert [int(row[f"test {label}"]) for label in range(10)] == client.test.tolist()
        assert (int(row["classes lacking"]), row["groups"]) == (int((client.train == 0).sum()), "")
    assert (tmp_path / "out" / "classes.png").read_bytes().startswith(b"\x89PNG")
    words = result.output.split()
    assert {"all", "1438", *(str(client.samples) for client in clients)} <= set(words)
    assert "raise split.alpha" in " ".join(words)


def test_describe_shows_noise() -> None:
    result = dqnfed("data", "describe", "digits-noise")

    assert result.exit_code == 0, result.output
    noisy = [client for client in summarise_shipped("digits-noise") if client.wrong]
    assert 0 < len(noisy) < 6
    assert f"{len(noisy)} clients have wrong labels" in result.output
    assert f"{100 * noisy[0].wrong / noisy[0].samples:.0f} %" in result.output


def test_describe_names_a_function_as_what_deals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(settings: Mapping[str, object], partition: int, clients: int) -> Mapping[str, object]:
        return {"x_train": [[0.5], [1.5]], "y_train": [0, 1], "x_test": [[2.5]], "y_test": [1], "num_classes": 3}

    module = ModuleType("my_own_sets")
    vars(module).update(load=load)
    monkeypatch.setitem(sys.modules, "my_own_sets", module)
    result = dqnfed("data", "describe", "digits", "--set", "data=my_own_sets:load")
    assert result.exit_code == 0, result.output
    assert "my_own_sets:load, own function, seed" in result.output
    assert "dirichlet" not in result.output
    assert "split.alpha" not in result.output


def summarise_shipped(name: str) -> list[ClientSummary]:

    return summarise(Settings.from_mapping(load_config(name)))


def test_many_classes_and_clients_stay_readable(tmp_path: Path) -> None:
    settings = Settings.from_mapping({"data": many_classes(tmp_path, 60, 30), "partition": "groups", "clients": 60})
    clients = summarise(settings)

    table = class_table(clients, "title", by_class=False)

    assert table.row_count == LONGEST + 1
    assert [column.header for column in table.columns] == ["k", "train", "test", "largest classes", "lacks", "groups"]
    assert list(table.columns[3].cells)[2] == "2: 75 %, 3: 25 %"
    assert list(table.columns[5].cells)[2] == "writer 2"
    assert list(table.columns[1].cells)[-1] == "240"
    assert "the table shows the first 40 clients" in notes(clients, "groups")[-1]
    assert not any("split.alpha" in note for note in notes(clients, "groups"))


@pytest.mark.parametrize(("width", "terminal", "whole"), [(96, True, True), (95, True, False), (60, False, True)])
def test_counts_are_never_cut_off(width: int, terminal: bool, whole: bool) -> None:
    clients = summarise(Settings.from_mapping({"partition": "iid", "clients": 2}))
    clients = [replace(client, train=100 * client.train) for client in clients]
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)

    print_classes(console, clients, "title")

    words = cast(io.StringIO, console.file).getvalue().split()
    counts = [str(count) for client in clients for count in client.train if count]
    assert ("largest" in words) is not whole
    assert not any("…" in word for word in words)
    assert set(counts) <= set(words) or not whole


def test_a_class_that_nobody_holds_is_named(tmp_path: Path) -> None:
    settings = Settings.from_mapping({"data": many_classes(tmp_path, 4, 9), "partition": "iid", "clients": 2})

    assert notes(summarise(settings.model_copy(update={"num_classes": 9})), "iid")[-1] == (
        "nobody trains on the classes 5, 6, 7, 8"
    )


@pytest.mark.parametrize(("clients", "classes"), [(3, 3), (100, 10), (20, 80)])
def test_pictures_of_any_size_are_drawn(tmp_path: Path, clients: int, classes: int) -> None:
    data = many_classes(tmp_path, max(clients, classes), classes)
    settings = Settings.from_mapping({"data": data, "partition": "groups", "clients": clients, "num-classes": classes})

    file = plot_classes(summarise(settings), "title", tmp_path / "classes.png")

    assert file.stat().st_size > 5_000


def test_faults_are_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for words, status, message in (
        (("describe", "no-such"), 2, "no shipped experiment"),
        (("describe", "digits", "--set", "partition=one-class", "--set", "clients=11"), 1, "11 clients and 10 classes"),
        (("describe", "digits", "--output", str(tmp_path / "file" / "x")), 2, "name another folder"),
        (("fetch", "femnist"), 1, "put LEAF's folders"),
    ):
        result = dqnfed("data", *words)
        assert result.exit_code == status, result.output
        assert message in " ".join(result.output.split())
    (tmp_path / "out" / "classes.png").mkdir(parents=True)
    result = dqnfed("data", "describe", "digits", "--output", str(tmp_path / "out"))
    assert result.exit_code == 1
    assert "classes.png: the plot cannot be written" in " ".join(result.output.split())
    assert (tmp_path / "out" / "classes.csv").exists()


@pytest.mark.parametrize("part", ["train", "test"])
def test_describe_refuses_what_a_run_refuses(tmp_path: Path, part: str) -> None:
    good, labels = np.zeros((40, 2), np.float32), np.arange(40) % 2
    bad = good.copy()
    bad[7, 1] = np.nan
    train, test = (bad, good) if part == "train" else (good, bad)
    np.savez(tmp_path / "nan.npz", x_train=train, y_train=labels, x_test=test, y_test=labels)
    given = [f"data={tmp_path / 'nan.npz'}", "partition=iid", "clients=2"]
    result = dqnfed("data", "describe", "digits", *(word for item in given for word in ("--set", item)))
    assert result.exit_code == 1
    assert "samples hold NaN or infinite features, first number 7" in result.output


def test_a_csv_that_cannot_be_written_says_so(tmp_path: Path) -> None:

    with pytest.raises(RunError, match="cannot be written"):
        write_csv(summarise(Settings()), tmp_path / "no" / "classes.csv")


def test_list_and_fetch_say_where_sets_lie(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.mkdir()
    images, labels = np.zeros((2, 3, 3), np.uint8), np.arange(2)
    np.savez(root / "mnist.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    shrink(monkeypatch, "mnist", Size(2, 2, (3, 3), 2))

    listed, fetched = dqnfed("data", "list"), dqnfed("data", "fetch", "mnist")

    assert listed.exit_code == fetched.exit_code == 0
    assert fetched.output == f"mnist: {root / 'mnist.npz'}\n"
    assert "tiny-imagenet" in listed.output
