"""The server's side of a run: what it checks before it trains, what it leaves behind, and what it notes of itself."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ConfigRecordValues, Context, Message, MessageType
from flwr.clientapp import ClientApp
from rich.console import Console

from client_app.app import app as client
from dqnfed_flwr import wire
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data.sources import source_of
from dqnfed_flwr.engine import server_run
from dqnfed_flwr.engine.export import card_of
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.result import read_result
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.engine.run_folder import LOCK, prepare_output
from dqnfed_flwr.engine.server_run import serve
from dqnfed_flwr.engine.start import initial_model
from dqnfed_flwr.errors import CheckpointError, ConfigError, DataError, RunError
from dqnfed_flwr.models import build_model
from dqnfed_flwr.params import NOTHING_FROZEN, ParamSpec
from dqnfed_flwr.report.run_plots import plot_runs
from dqnfed_flwr.report.table import summary_table
from dqnfed_flwr.run_files import CHECKPOINT, EVENTS, MODEL, RUN
from dqnfed_flwr.strategy.checkpoint import CheckpointStore, Provenance, read_record
from dqnfed_flwr.strategy.client_registry import ClientRegistry
from tests.helpers.runs import TINY, Stop, StopAfter


def settings(**mapping: Any) -> Settings:
    return Settings.from_mapping({**TINY, **mapping})


def test_a_run_leaves_model_figures_log_and_checkpoint(tmp_path: Path) -> None:
    result = run(settings(output=str(tmp_path / "deep" / "down")))
    found = tmp_path / "deep" / "down"
    assert {path.name for path in found.iterdir()} == {RUN, MODEL, EVENTS, CHECKPOINT, LOCK}
    assert np.array_equal(read_result(found).theta, result.theta)
    assert read_result(found).events == result.events


def test_a_run_whose_last_model_nobody_evaluates_leaves_it_all_the_same(tmp_path: Path) -> None:
    given = settings(output=str(tmp_path), **{"evaluate-every": 0})

    def deaf(message: Message, context: Context) -> Message:
        if message.metadata.message_type == MessageType.EVALUATE:
            raise RuntimeError("no")
        return client(message, context)

    grid = InProcessGrid(cast(ClientApp, deaf), given.clients, given.flat())
    assert serve(grid, given).status == "finished"
    result = read_result(tmp_path)
    assert (result.final, result.accuracies) == ({}, {})
    assert len(result.events) == given.rounds
    assert summary_table({"run": result}).row_count > 10
    assert plot_runs({"run": result}, tmp_path / "plot.png").exists()


def test_a_run_that_fails_is_not_read_as_the_one_before(tmp_path: Path) -> None:
    run(settings(output=str(tmp_path)))
    with pytest.raises(Stop):
        run(settings(output=str(tmp_path), method="fedavg"), overwrite=True, listeners=[StopAfter(1)])
    with pytest.raises(RunError, match="no result of a finished run"):
        read_result(tmp_path)


def test_the_home_directory_may_be_named_by_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    run(settings(output="~/runs"))
    run(settings(output="~/runs", rounds=3), resume=True)
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {RUN, MODEL, EVENTS, CHECKPOINT, LOCK}


def test_a_run_without_output_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(settings())
    assert list(tmp_path.iterdir()) == []


class Untouched(InProcessGrid):
    """Nothing may be sent before the settings are sound."""

    def push_messages(self, messages: object) -> list[str]:
        raise AssertionError("a message was sent")


@pytest.mark.parametrize("path", ["file", "file/below", "file/further/below"])
def test_an_output_that_cannot_be_written_is_found_before_training(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=r"output: cannot write to .* name another directory"):
        serve(Untouched(ClientApp(), 2, {}), settings(output=str(tmp_path / path)))


def test_a_resume_without_a_place_to_resume_from_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="resume: needs output"):
        prepare_output(settings(resume=True))
    with pytest.raises(CheckpointError, match="no checkpoint there"):
        run(settings(output=str(tmp_path)), resume=True)


def test_trying_the_output_leaves_no_trace(tmp_path: Path) -> None:
    assert prepare_output(settings(output=str(tmp_path))) == tmp_path
    assert list(tmp_path.iterdir()) == []
    assert prepare_output(settings()) is None


def met(shapes: list[str], classes: list[int], given: int = 0) -> ClientRegistry:
    """A registry of clients whose data look like this."""
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        properties: dict[str, ConfigRecordValues] = {
            "partition": client,
            "num-examples": 5,
            "num-classes": classes[client],
            "input-shape": shapes[client],
        }
        return Message(wire.encode_properties(properties), reply_to=message)

    registry = ClientRegistry(len(shapes), 1, 5, given)
    registry.wait(InProcessGrid(app, len(shapes), {}))
    return registry


@pytest.mark.parametrize(("given", "classes"), [(0, 7), (9, 9)])
def test_the_first_model_is_that_of_the_seed_and_the_data(given: int, classes: int) -> None:
    chosen = settings(**{"model": "logistic", "seed": 3, "num-classes": given})
    theta, step, buffers = wire.decode_model(initial_model(chosen, met(["1,4,4"] * 3, [3, 7, 7], given)))
    module = build_model("logistic", (1, 4, 4), classes, seed=3)
    assert np.array_equal(theta, ParamSpec.of(module).flatten(module))
    assert (step, buffers) == (None, {})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_first_model_has_the_dtype_of_the_settings(dtype: str) -> None:
    theta, _, _ = wire.decode_model(initial_model(settings(dtype=dtype), met(["64"], [10])))
    assert theta.dtype == dtype


def test_clients_that_cannot_share_a_model_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"disagree on the shape of a sample: .*\(1, 8, 8\).*\(3, 8, 8\)"):
        initial_model(settings(), met(["1,8,8", "3,8,8"], [10, 10]))


def test_a_new_run_does_not_leave_another_ones_checkpoint_lying_about(tmp_path: Path) -> None:
    run(settings(output=str(tmp_path)))
    assert (tmp_path / CHECKPOINT).exists()
    run(settings(output=str(tmp_path), **{"checkpoint-every": 0}), overwrite=True)
    assert not (tmp_path / CHECKPOINT).exists()


@pytest.mark.parametrize(("every", "kept"), [(1, [1, 2, 3]), (2, [2, 3]), (0, [])])
def test_checkpoints_are_written_as_often_as_asked_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int, kept: list[int]
) -> None:

    rounds: list[int] = []
    monkeypatch.setattr(CheckpointStore, "write", lambda self, record, arrays: rounds.append(record["round"]))
    run(settings(output=str(tmp_path), rounds=3, **{"checkpoint-every": every}))
    assert rounds == kept


def test_seconds_of_a_resumed_run_count_all_its_rounds(tmp_path: Path) -> None:
    run(settings(output=str(tmp_path)))
    log = tmp_path / EVENTS
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line, seconds in zip(lines, (1000.0, 500.0), strict=True):
        line["cost"]["seconds"]["total"] = seconds
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = run(settings(output=str(tmp_path), rounds=3), resume=True)
    assert 1500 < result.seconds < 1600


class Picky(ClientApp):
    """The client of one partition cannot take part; the others can."""

    def __call__(self, message: Message, context: Context) -> Message:
        if message.metadata.message_type == MessageType.QUERY and context.node_config["partition-id"] == 1:
            raise DataError("labels are missing")
        return client(message, context)


def test_nodes_that_cannot_take_part_stand_in_the_figures(tmp_path: Path) -> None:
    given = settings(output=str(tmp_path))
    result = serve(InProcessGrid(Picky(), given.clients, given.flat()), given)
    assert result.joined == [0, 2]
    assert result.left_out == {"node 3": "client-error: code 2: DataError: labels are missing"}
    assert json.loads((tmp_path / RUN).read_text())["left_out"] == result.left_out
    assert read_result(tmp_path).left_out == result.left_out
    text = card_of(result, 650)
    assert "gave neither a gradient nor an accuracy: 1 of 3" in text
    assert "left out at the end, node 3: client-error: code 2: DataError: labels are missing" in text
    assert "nobody was left out" not in text
    out = io.StringIO()
    Console(file=out, width=200).print(summary_table({"run": result}))
    assert "2 of 3; left out: node 3 (client-error: code 2: DataError: labels are missing)" in out.getvalue()


def test_a_card_says_that_nobody_was_left_out_only_where_all_joined() -> None:
    all_there = run(settings())
    assert all_there.left_out == {}
    assert "nobody was left out of a round" in card_of(all_there, 650)
    assert "nobody was left out" not in card_of(replace(all_there, settings=settings(clients=4)), 650)


def test_what_is_worth_knowing_of_an_own_model_is_logged_once_before_round_1(tmp_path: Path, said: list[str]) -> None:
    given = {"model": "tests.helpers.models:norm_mlp", "output": str(tmp_path)}
    run(settings(**given))
    (note,) = said
    assert note.startswith("model: tests.helpers.models:norm_mlp has BatchNorm (BatchNorm1d): gradients take")
    run(settings(**given, rounds=3), resume=True)
    run(settings(model="tests.helpers.models:zeros"))
    assert said == [note]


COMMITS = ("a1b2c3", "d4e5f6+")


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The commit that the package is at; the last one counts."""
    found: list[str | None] = [COMMITS[0]]
    monkeypatch.setattr(server_run, "package_commit", lambda: found[-1])
    return found


def write_data(path: Path, shift: int = 0) -> None:
    """Two classes that a line parts, their labels rotated by `shift`."""
    x = np.random.default_rng(0).standard_normal((90, 3)).astype(np.float32)
    np.savez(path, x_train=x, y_train=((x[:, 0] > 0) + shift) % 2)


def in_folder(folder: Path, **more: Any) -> Settings:
    mapping = {**TINY, "split.samples": 0, "data": str(folder / "d.npz"), "output": str(folder / "run"), **more}
    return Settings.from_mapping(mapping)


def interrupted(folder: Path) -> None:
    with pytest.raises(Stop):
        run(in_folder(folder, rounds=3), listeners=[StopAfter(2)])


def noted(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "run" / "run.json").read_text()))


def test_a_run_notes_its_data_and_its_commit(tmp_path: Path, commits: list[str | None]) -> None:
    write_data(tmp_path / "d.npz")
    run(in_folder(tmp_path))
    digest = source_of(str(tmp_path / "d.npz")).fingerprint()
    expected = {"fingerprint": digest, "commits": list(commits)}
    assert {key: noted(tmp_path).get(key) for key in expected} == expected
    assert read_result(tmp_path / "run").provenance == Provenance(digest, (COMMITS[0],), NOTHING_FROZEN)
    record = read_record(tmp_path / "run" / "checkpoint.npz")
    assert {key: record.get(key) for key in expected} == expected


def test_an_installed_package_has_no_commit_and_a_function_no_fingerprint(
    tmp_path: Path, commits: list[str | None]
) -> None:
    commits.append(None)
    run(in_folder(tmp_path, data="tests.helpers.faulty_data:data"))
    assert (noted(tmp_path)["fingerprint"], noted(tmp_path)["commits"]) == (None, [None])


def test_a_run_is_not_resumed_on_other_data(tmp_path: Path) -> None:
    write_data(tmp_path / "d.npz")
    interrupted(tmp_path)
    write_data(tmp_path / "d.npz", 1)
    with pytest.raises(CheckpointError, match=r"a run on other data; fingerprint: \w{16} then, \w{16} now"):
        run(in_folder(tmp_path, rounds=3), resume=True)
    write_data(tmp_path / "d.npz")
    run(in_folder(tmp_path, rounds=3), resume=True)
    assert noted(tmp_path)["fingerprint"] == source_of(str(tmp_path / "d.npz")).fingerprint()


def test_a_resumed_run_names_the_commits_that_it_had(tmp_path: Path, commits: list[str | None]) -> None:
    write_data(tmp_path / "d.npz")
    interrupted(tmp_path)
    run(in_folder(tmp_path, rounds=3), resume=True)
    assert noted(tmp_path)["commits"] == [COMMITS[0]]
    commits.append(COMMITS[1])
    run(in_folder(tmp_path, rounds=4), resume=True)
    assert noted(tmp_path)["commits"] == list(COMMITS)


def test_what_is_not_known_at_one_time_is_not_known_at_the_other() -> None:
    now, unknown = Provenance("0" * 16, (COMMITS[1],)), Provenance(None, (None,))
    assert now.continuing(unknown.as_record()) == Provenance(None, (None, COMMITS[1]))
    assert unknown.continuing(Provenance("0" * 16, (None,)).as_record()) == unknown


def test_a_run_in_the_same_process_takes_the_data_as_they_are(tmp_path: Path) -> None:
    write_data(tmp_path / "d.npz")
    first = run(in_folder(tmp_path))
    write_data(tmp_path / "d.npz", 1)
    second = run(in_folder(tmp_path), overwrite=True)
    assert second.provenance.fingerprint != first.provenance.fingerprint
    assert not np.allclose(second.theta, first.theta)
