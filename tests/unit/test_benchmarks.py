from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import Array

from benchmarks import (
    _fedavg_app,
    _hosts,
    agreement,
    chunks,
    client_rate,
    convex,
    deployed,
    engine,
    heldout,
    many_clients,
    method_step,
    round_files,
    rounding,
    server_memory,
    server_step,
    short_messages,
    slow_line,
    spilled_rows,
    stragglers,
    streaming,
)
from benchmarks._common import Bar, Json, report, settings_of
from benchmarks._convex_plot import linear_shape, superlinear_shape
from benchmarks._gradient_sets import gradient_sets
from dqnfed_flwr import wire
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import load_client
from dqnfed_flwr.engine.dry_run import Line
from dqnfed_flwr.engine.start import initial_model
from dqnfed_flwr.guarantee.held_out import rises
from dqnfed_flwr.linalg.rows import RowSet
from dqnfed_flwr.strategy.client_registry import ClientRegistry
from dqnfed_flwr.strategy.compatibility import Member, common_form

Main = Callable[[Sequence[str]], None]

BENCHMARKS = (
    *(server_step, method_step, server_memory, agreement, engine, client_rate, chunks, convex, round_files),
    *(heldout, streaming, many_clients, spilled_rows, rounding, short_messages, slow_line, stragglers),
)


def record_of(main: Main, arguments: Sequence[str], tmp_path: Path) -> dict[str, Any]:
    """What the benchmark writes as JSON."""
    target = tmp_path / "figures.json"
    main([*arguments, "--json", str(target)])
    record: dict[str, Any] = json.loads(target.read_text())
    assert {"cpu_count", "python", "numpy", "torch", "flwr"} <= set(record["environment"])
    return record


@pytest.fixture
def two_classes(tmp_path: Path) -> Path:
    """120 samples of five features, whose classes overlap."""
    rng = np.random.default_rng(0)
    y = np.arange(120) % 2
    x = rng.standard_normal((120, 5)) + 0.5 * y[:, None]
    path = tmp_path / "two.npz"
    np.savez(path, x_train=x.astype(np.float32), y_train=y)
    return path


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_help_names_the_json_option(benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        benchmark.main(["--help"])
    assert ended.value.code == 0
    assert "--json PATH|-" in capsys.readouterr().out


def test_every_benchmark_is_in_the_readme() -> None:
    readme = (Path(convex.__file__).parent / "README.md").read_text()
    scripts = {path.name for path in Path(convex.__file__).parent.glob("[!_]*.py")}
    assert scripts >= {f"{module.__name__.rpartition('.')[2]}.py" for module in BENCHMARKS}
    assert all(f"benchmarks/{name}" in readme for name in scripts)


def test_the_held_out_benchmark_trains_with_each_judge(tmp_path: Path) -> None:
    options = ["runs", "--rounds", "3", "--seeds", "1", "--only", "digits, 4 clients, half"]
    rows = record_of(heldout.main, options, tmp_path)["runs"]
    assert [row["judge"] for row in rows] == ["training", "both", "held-out"]
    assert all(row["its best"] <= row["test loss"] <= row["worst client"] for row in rows)
    assert rows[0]["refused by held-out"] == 0


def test_rounding_is_that_of_bfloat16_and_decides_where_steps_are_short(tmp_path: Path) -> None:
    options = ["digits", "clients=3", "rounds=4", "local.threads=1", "--every", "2"]
    record = record_of(rounding.main, options, tmp_path)
    rows = {row["times the step"]: row for row in record["by_multiple"]}
    assert [*rows] == [2.0**-k for k in range(-2, 9)]
    assert record["pairs"] == sum(row["pairs"] for row in rows.values()) == 2 * 3 * len(rows)
    assert rows[1.0]["change"] > 10 * rows[2.0**-8]["change"]
    assert all(1e-6 < row["error_of_loss"] < 2.0**-6 for row in rows.values())  # bfloat16 has 8 bits
    assert 1e-6 < record["error_of_change"] < record["error_of_change_90"] < 2.0**-5
    assert rows[1.0]["turned"] <= record["turned"]


def test_a_decision_is_turned_where_only_one_loss_rises() -> None:
    low, high = np.array([1.0, 2.0]), np.array([1.5, 2.5])
    assert rounding.Change(1.0, (low, high), (high, low)).turned
    assert not rounding.Change(1.0, (low, high), (low, high)).turned
    change = rounding.Change(1.0, (low, high + 0.25), (low, high))
    assert change.changes == (0.5, 1 / 3)
    assert change.error == pytest.approx(1 / 6)


def test_the_rise_that_the_held_out_benchmark_detects_is_refused_half_of_the_time() -> None:
    rise, rng = heldout.detected(30, 0.01), np.random.default_rng(3)
    refused = [rises(rise + rng.standard_normal(30), np.zeros(30), 0.01) for _ in range(2000)]
    assert 0.45 < np.mean(refused) < 0.55


@pytest.mark.parametrize("payload", deployed.MODELS)
def test_fedavg_of_the_deployed_benchmark_starts_where_dqn_fed_does(payload: str) -> None:
    settings = Settings.from_mapping(deployed.shared_settings(payload, nodes=2, rounds=3))
    member = Member(1, 0, _fedavg_app.SAMPLES, _fedavg_app.CLASSES, load_client(settings, 0).input_shape)
    with_form = cast(ClientRegistry, SimpleNamespace(form=common_form([member], settings.num_classes)))
    theta, _, _ = wire.decode_model(initial_model(settings, with_form))
    np.testing.assert_array_equal(_fedavg_app.first_model(deployed.MODELS[payload]), theta)


def test_fedavg_of_the_deployed_benchmark_has_no_equal_parts_to_send_once() -> None:
    theta = Array(_fedavg_app.first_model(deployed.MODELS["large"]))
    assert len(theta.data) > 43e6
    assert len(theta.children) == len(theta.slice_array()) > 8


@pytest.mark.parametrize("given", ["--set seed=1", "--set start.epochs=2", "--rounds 2"])
def test_the_deployed_benchmark_refuses_what_is_no_comparison(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        deployed.main(given.split())
    assert ended.value.code == 2
    assert f"error: {given.partition('=')[0]}" in capsys.readouterr().err


@pytest.mark.slow  # the memory of a real round
def test_rows_in_a_file_take_less_memory_than_they_are(tmp_path: Path) -> None:
    sizes = ["--clients", "40", "--parameters", "4000000", "--memory", "600000000", "--probe", "10000000"]
    record = record_of(spilled_rows.main, [*sizes, "--folder", str(tmp_path)], tmp_path)
    assert record["rows_bytes"] == 640_000_000
    assert record["peak_memory_bytes"] < 600_000_000
    assert record["disk_over_rows"] > 0


@pytest.mark.slow  # half a minute
def test_the_streaming_benchmark_reads_both_ways_to_store_images(tmp_path: Path) -> None:
    record = record_of(streaming.main, ["--size", "3e6", "--repeats", "1"], tmp_path)
    assert record["bytes_on_disk"] == 20 * 224 * 224 * 3
    for kind in streaming.KINDS:
        assert record[f"{kind}_samples"] == 16
        assert record[f"{kind}_parameters"] == 2_044_012
        assert 0 < record[f"{kind}_peak_memory_bytes"] < 1e9
        assert record[f"{kind}_plain_over_ours"] > 0
    assert len(record["bars"]) == 4


def test_server_step(tmp_path: Path) -> None:
    record = record_of(server_step.main, ["--clients", "4", "--parameters", "3000", "--repeats", "2"], tmp_path)
    for key in (
        "after_last_reply_over_fedavg",
        "recursion_over_step",
        "recursion_over_after_last_reply",
        "memory_bandwidth_bytes_per_second",
        "after_last_reply_over_two_reads",
        "peak_memory_bytes",
        "memory_over_rows_plus_100mb",
        "streaming_seconds",
    ):
        assert record[key] > 0
    assert [bar["figure"] for bar in record["bars"]] == ["memory_over_rows_plus_100mb"]


def test_server_step_without_the_recursion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_step, "server_memory", lambda clients, parameters: {})
    arguments = ["--clients", "3", "--parameters", "50", "--repeats", "1", "--no-recursion"]
    record = record_of(server_step.main, arguments, tmp_path)
    assert not [key for key in record if key.startswith("recursion")]


def test_method_step_has_every_method_that_needs_rows_alone(tmp_path: Path) -> None:
    record = record_of(method_step.main, ["--clients", "5", "--parameters", "200", "--repeats", "1"], tmp_path)
    rows = {row["method"]: row for row in record["methods"]}
    assert {"fedavg", "mgda", "dqn-fed", "dqn-fed, two-sided"} <= set(rows)
    assert "fednl" not in rows
    assert rows["dqn-fed"]["needs"] == "vectors"
    assert all(row["over_fedavg"] > 0 for row in rows.values())
    assert [bar["figure"] for bar in record["bars"]] == ["worst_inner_product_ratio"]


def test_server_memory_counts_the_rows(tmp_path: Path) -> None:
    target = tmp_path / "memory.json"
    command = [sys.executable, server_memory.__file__, "--clients", "8", "--parameters", "4000000"]
    subprocess.run([*command, "--json", str(target)], check=True)  # the peak is that of a whole process
    record = json.loads(target.read_text())
    assert record["rows_bytes"] == 8 * 4_000_000 * 4
    assert record["peak_memory_bytes"] >= record["rows_bytes"]
    assert record["memory_over_rows_plus_100mb"] <= 1


def test_many_clients_hold_one_model(tmp_path: Path) -> None:
    target = tmp_path / "clients.json"
    command = [sys.executable, "-m", "benchmarks.many_clients", "--clients", "150", "--sampled", "2", "--rounds", "2"]
    subprocess.run([*command, "--json", str(target)], check=True)  # the peak is that of a whole process
    record = json.loads(target.read_text())
    assert record["parameters"] == 998_566
    assert min(record["start_seconds"], record["seconds"]) > 0
    assert record["peak_memory_bytes"] < 150 * record["parameters"] * 4


def test_short_messages_are_a_share_of_whole_ones(tmp_path: Path) -> None:
    arguments = ["--clients", "3", "--rounds", "3", "--seeds", "1", "--parameters", "5000", "--set", "model=logistic"]
    record = record_of(short_messages.main, arguments, tmp_path)
    assert record["4/2_over_fedavg"] < record["default_over_fedavg"] < record["8/8_over_fedavg"]
    assert record["8/8_over_fedavg"] < record["16/16_over_fedavg"] < 1
    assert [row["messages"] for row in record["runs"]] == ["FedAvg", *short_messages.BITS]
    assert [row["bits"] for row in record["coding"]] == [16, 8, 6, 4]
    assert record["default_coding_over_read"] > 0


def test_a_slow_line_times_all_rounds_but_the_first_and_the_last_and_says_what_they_should_take() -> None:
    settings = {name: slow_line.settings_for(name, 2, 2, {"model": "mlp"}) for name in slow_line.RUNS}
    assert {name for lane in slow_line.LANES for name in lane} == set(settings)
    assert {name: each["rounds"] - 2 for name, each in settings.items()} == {
        **dict.fromkeys(("FedAvg", "DQN-Fed"), 2),
        **dict.fromkeys(slow_line.SHORT, 6),
    }
    line = Line.of("1Mbit/2Mbit")
    whole, short = (cast("dict[str, float]", slow_line.said_before(settings[name], line)) for name in ("FedAvg", "6/2"))
    assert whole["said"] == pytest.approx(8 * whole["MB down"] + 4 * whole["MB up"])
    assert short["MB down"] < 0.15 * whole["MB down"]
    assert short["MB up"] < 0.3 * whole["MB up"]


def test_a_slow_line_is_held_against_fedavg(capsys: pytest.CaptureFixture[str]) -> None:
    one: dict[str, Json] = {"seconds": 10.0, "rounds": 1, "exchanges": 1.0, "dropped": 0, "carried": 1.05}
    found: dict[str, dict[str, Json]] = {"FedAvg": one, "8/8": {**one, "seconds": 2.5}, "4/2": {**one, "seconds": 4.0}}
    said: dict[str, dict[str, Json]] = {name: {"MB down": 1.0, "MB up": 1.0, "said": 9.0} for name in found}
    figures = slow_line.figures_of(said, found)
    assert (figures["8/8_over_fedavg"], figures["4/2_over_fedavg"]) == (0.25, 0.4)
    report("slow line", figures, slow_line.BARS, "")
    shown = capsys.readouterr().out
    for words in ("<= 0.3  met", "<= 0.3  missed", "said", "carried", "FedAvg"):
        assert words in shown
    assert "8/8_over_fedavg" not in slow_line.figures_of(said, {"8/8": one})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--line 10Mbps", "--line: found '10Mbps'; allowed is"),
        ("--clients 9", "--clients: found 9; allowed are 2 to 4"),
        ("--timed 0", "--timed: found 0; allowed is 1 or more"),
        ("--set rounds=9", "--set rounds: the benchmark sets it itself"),
    ],
)
def test_a_slow_line_refuses_what_it_cannot_measure(given: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        slow_line.main(given.split())
    assert words in capsys.readouterr().err


def test_a_slow_line_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_hosts, "NAMESPACES", ("sh", "-c", "echo 'unshare: Operation not permitted' >&2; exit 1"))
    with pytest.raises(SystemExit, match=r"\(sh .*Operation not permitted\); run it on Linux as root"):
        slow_line.main([])


def test_works_side_by_side_come_in_their_order_and_are_not_waited_for_once_one_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first_over = threading.Event()

    def late() -> dict[str, Json]:
        assert first_over.wait(10)
        return {"who": "late"}

    def soon() -> dict[str, Json]:
        first_over.set()
        return {"who": "soon"}

    assert slow_line.side_by_side([late, soon]) == [{"who": "late"}, {"who": "soon"}]
    never = threading.Event()

    def hang() -> dict[str, Json]:
        never.wait(60)
        return {}

    def fail() -> dict[str, Json]:
        raise SystemExit("no round within 600 s")

    try:
        with pytest.raises(SystemExit, match="no round"):
            slow_line.side_by_side([hang, fail])
        monkeypatch.setattr(slow_line, "MOST_SECONDS", 0.1)
        with pytest.raises(SystemExit, match=r"not over within 0 s; run it on an idle machine"):
            slow_line.side_by_side([hang, soon])
    finally:
        never.set()


def test_round_files_are_those_of_a_round_with_gradients(tmp_path: Path) -> None:
    before = sys.getprofile()
    record = record_of(round_files.main, ["--clients", "2"], tmp_path)
    assert sys.getprofile() is before
    rooms = {room["room"]: room["names"].split() for room in record["rooms"]}
    assert {"client", "client/work", "linalg", "methods", "strategy", "wire"} <= set(rooms)
    assert {"gradients.py", "worker.py"} <= set(rooms["client"])
    assert record["files"] == sum(map(len, rooms.values()))


def test_agreement(tmp_path: Path) -> None:
    sizes = ["--sets", "4", "--streamed-values", "3000"]
    large = ["--large", "--large-clients", "3", "--large-parameters", "999"]
    record = record_of(agreement.main, [*sizes, *large], tmp_path)
    assert record["order_changes_bits"] == 0
    assert record["worst_error_float64"] <= 1e-10
    assert record["worst_error_float32"] <= 1e-5
    assert record["large_worst_error"] <= 2e-6
    assert set(record["large"]) == set(agreement.SHARES)
    assert record["large_worst_error"] < record["large_worst_error_recursion_float32"]


def test_gradient_sets_are_drawn_anew_and_conflict() -> None:
    sets = list(gradient_sets(8, seed=1, streamed_values=2000))
    assert [drawn.kind for drawn in sets] == ["random", "conflicting"] * 4
    assert all(drawn.rows.size >= 2000 for drawn in sets[2:4] + sets[6:])
    for drawn in sets[1::2]:
        products = drawn.rows @ drawn.rows.T
        pairs = products[~np.eye(len(products), dtype=bool)]
        assert np.mean(pairs) < 0


def test_engine(tmp_path: Path) -> None:
    arguments = ["--clients", "4", "--samples", "20", "--participation", "0.5", "--rounds", "2", "--repeats", "1"]
    put = RowSet.put
    record = record_of(engine.main, arguments, tmp_path)
    assert RowSet.put is put
    for key in ("messages_per_second", "grid_messages_per_second", "overhead", "overhead_without_server_arithmetic"):
        assert record[key] > 0
    assert record["gradient_passes"] == 4
    assert record["evaluation_passes"] >= 4


def test_client_rate(tmp_path: Path) -> None:
    record = record_of(client_rate.main, ["--samples", "8", "--repeats", "2"], tmp_path)
    assert record["parameters"] == 656_810
    assert record["pairs_kept"] == 1
    assert record["rate_over_gradient"] > 0


def test_chunks(tmp_path: Path) -> None:
    record = record_of(chunks.main, ["--model", "mlp", "--samples", "8", "--sizes", "2", "--repeats", "1"], tmp_path)
    assert [row["chunk"] for row in record["chunks"]] == [4, 2, record["chosen"]]
    assert all(row["gradient_seconds"] > 0 and row["loss_seconds"] > 0 for row in record["chunks"])
    assert record["small_over_chosen"] > 0
    rounded = record_of(chunks.main, ["--model", "mlp", "--samples", "8", "--repeats", "1", "--bf16"], tmp_path)
    assert rounded["chosen"] >= record["chosen"]  # the copies of the weights in bfloat16 do not count


def test_convex(tmp_path: Path, two_classes: Path) -> None:
    picture = tmp_path / "errors.png"
    rounds = ["--copies-rounds", "6", "--fedsgd-rounds", "8", "--parts-rounds", "3", "--set", "clients=3"]
    record = record_of(convex.main, ["--data", str(two_classes), *rounds, "--plot", str(picture)], tmp_path)
    assert len(record["fedsgd"]) == 5
    assert {row["form"] for row in record["copies"]} == set(convex.ON_COPIES)
    for partition in ("iid", "shards"):
        assert {row["form"] for row in record[partition]} == set(convex.ON_PARTS)
        assert 0 < record[f"{partition}_share_of_start"] < 2
        assert record[f"{partition}_all_fell"] is True
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_convex_reads_libsvm_text(tmp_path: Path) -> None:
    text = "\n".join(f"{(-1) ** k} 1:{k % 3} 2:{k % 5}" for k in range(30))
    (tmp_path / "set.svm").write_text(text)
    arguments = ["--data", str(tmp_path / "set.svm"), "--problems", "iid", "--parts-rounds", "1", "--samples", "28"]
    record = record_of(convex.main, arguments, tmp_path)
    assert record["iid_rounds"] == 1
    assert "copies" not in record


def test_report_prints_a_table_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    figures: dict[str, Json] = {"ratio": 0.5, "missing": float("nan"), "rows": [{"name": "a", "value": 1.0}]}
    bars = [Bar("ratio", "<=", 1.0), Bar("missing", "<=", 1.0), Bar("absent", ">=", 1.0)]
    report("title", figures, bars, "")
    table = capsys.readouterr().out
    assert "<= 1  met" in table
    assert "<= 1  missed" in table
    report("title", figures, bars, "-")
    record = json.loads(capsys.readouterr().out)
    assert record["missing"] is None
    assert [bar["met"] for bar in record["bars"]] == [True, False]


def test_settings_of_reads_values_as_yaml() -> None:
    assert settings_of(["rounds=3", "step.lr=0.5", "method=mgda"]) == {"rounds": 3, "step.lr": 0.5, "method": "mgda"}
    with pytest.raises(SystemExit, match="KEY=VALUE"):
        settings_of(["rounds"])


def test_shapes_have_the_contraction_they_stand_for() -> None:
    errors = np.geomspace(1.0, 1e-9, 40)
    straight, bent = linear_shape(errors), superlinear_shape(errors)
    np.testing.assert_allclose(straight, errors, rtol=1e-12)
    assert bent[-1] == pytest.approx(1e-9)
    falling = bent[1:] / bent[:-1]
    later = falling[bent[1:] < 1]
    assert (np.diff(later) < 0).all()
