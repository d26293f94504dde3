from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from dqnfed_flwr.cli.app import app
from dqnfed_flwr.compare import execute
from dqnfed_flwr.compare.plan import Job
from dqnfed_flwr.compare.workers import Watcher
from dqnfed_flwr.engine.run import Engine
from tests.helpers.comparisons import with_validation
from tests.helpers.runs import leave_run, make_event


class FakeWorkers:
    """Stands for the processes; notes what they were asked for."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.workers = 0
        self.engine: Engine = "in-process"
        self.error: BaseException | None = None
        self.failures: dict[int | str, str] = {}  # by seed, or by method
        self.no_part: list[int] = []
        self.stalled: set[tuple[str, int]] = set()

    def __call__(self, jobs: Sequence[Job], workers: int, engine: Engine, watcher: Watcher) -> dict[Path, str]:
        self.jobs += jobs
        self.workers, self.engine = workers, engine
        if self.error:
            raise self.error
        for job in jobs:
            watcher.on_begin(job)
            if not self.failure_of(job):
                event = replace(with_validation(make_event(1, (0.5, 0.9)), 0.5), asked=5, no_part=self.no_part)
                stalled = (job.settings.method, job.seed) in self.stalled
                if stalled:
                    event = replace(event, factor=0.0, losses_after=event.losses_before, status="no-step")
                watcher.on_round(job, event)
                status = "stalled" if stalled else "finished"
                leave_run(job.folder, [event], settings=job.settings, status=status)
            watcher.on_end(job, self.failure_of(job))
        return {job.folder: failure for job in jobs if (failure := self.failure_of(job))}

    def failure_of(self, job: Job) -> str:
        return self.failures.get(job.seed, "") or self.failures.get(job.settings.method, "")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeWorkers:
    fake = FakeWorkers()
    monkeypatch.setattr(execute, "carry_out", fake)
    return fake


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["compare", *arguments], terminal_width=100, prog_name="dqnfed")


def test_help_shows_examples() -> None:
    result = call("--help")
    assert result.exit_code == 0
    words = ["--methods A,B,...", "--grid KEY=V1,V2", "--last", "  dqnfed compare digits\n", "Exit status: 0"]
    assert [word for word in words if word not in result.output] == []


def test_a_comparison_leaves_tables_and_pictures(fake: FakeWorkers, tmp_path: Path) -> None:
    options = ["--seeds", "0,1", "--jobs", "2", "--set", "rounds=3", "--engine", "flower", "--output", str(tmp_path)]
    result = call("digits-fedavg", "--methods", "fedavg,fedavg@local.lr=1", *options)
    assert result.exit_code == 0, result.output
    assert {(job.settings.method, job.settings.rounds) for job in fake.jobs} == {("fedavg", 3)}
    assert (len(fake.jobs), fake.workers, fake.engine) == (4, 2, "flower")
    names = ["comparison.json", "comparison.csv", "comparison.md", "evaluations.csv"]
    names += ["accuracy.png", "clients.png", "rho.png", "fairness.png"]
    for name in names:
        assert (tmp_path / name).stat().st_size > 0
        assert str(tmp_path / name) in result.stdout
    assert "FedAvg [local.lr=1]" in result.stdout
    figures = json.loads((tmp_path / "comparison.json").read_text())
    words = ["dqnfed", "compare", "digits-fedavg", "--methods", "fedavg,fedavg@local.lr=1", *options]
    assert figures["command"] == shlex.join(words)


def test_settings_that_no_row_reads_are_named(fake: FakeWorkers, tmp_path: Path) -> None:
    options = ["--seeds", "0", "--output", str(tmp_path)]
    options += ["--set", "q-ffl.q=5", "--set", "local.epochs=2", "--set", "step.radius=1", "--set", "rounds=3"]
    result = call("digits", *options)
    assert (result.exit_code, len(fake.jobs)) == (0, 2)
    assert result.stderr == "dqnfed: no effect with dqn-fed, fedavg: q-ffl.q, step.radius\n"


def test_settings_of_a_row_that_its_method_does_not_read_are_named(fake: FakeWorkers, tmp_path: Path) -> None:
    methods = "fedavg@dqn-fed.form=one-sided@local.lr=0.3,dqn-fed@dqn-fed.form=one-sided"
    result = call("digits", "--seeds", "0,1", "--methods", methods, "--output", str(tmp_path))
    assert (result.exit_code, len(fake.jobs)) == (0, 4)
    assert result.stderr == "dqnfed: no effect in fedavg@dqn-fed.form=one-sided@local.lr=0.3: dqn-fed.form\n"


def test_settings_that_rows_and_grids_replace_are_named(fake: FakeWorkers, tmp_path: Path) -> None:
    methods = "q-ffl@q-ffl.q=2,q-ffl,fedavg"
    more = ["--grid", "q-ffl.q=0.1,1", "--set", "q-ffl.q=3", "--set", "local.lr=0.2"]
    result = call("digits", "--seeds", "0", "--methods", methods, *more, "--output", str(tmp_path / "1"))
    assert result.exit_code == 0
    assert result.stderr == "dqnfed: no effect, for rows or grids have their own: q-ffl.q\n"
    some = ["--methods", "q-ffl@q-ffl.q=2,q-ffl", "--set", "q-ffl.q=3", "--output", str(tmp_path / "2")]
    taken = call("digits", "--seeds", "0", *some)
    assert taken.stderr == ""


def test_grid_options_reach_the_runs(fake: FakeWorkers, tmp_path: Path) -> None:
    grid = ["--grid", "local.lr=0.1,0.3", "--grid-rounds", "2", "--grid-seed", "8", "--select", "worst10"]
    result = call("digits", "--methods", "mgda", "--seeds", "4", *grid, "--output", str(tmp_path), "--json", "-")
    assert result.exit_code == 0, result.output
    assert [(job.seed, job.settings.rounds, job.settings.local.lr) for job in fake.jobs] == [
        (8, 2, 0.1),
        (8, 2, 0.3),
        (4, 60, 0.1),
    ]
    figures = json.loads(result.stdout)
    assert (figures["select"], figures["reference"], figures["methods"][0]["chosen"]) == (
        "worst10",
        None,
        {"local.lr": 0.1},
    )
    assert (tmp_path / "grid.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["digit"], "'digit' is no shipped experiment"),
        (["digits", "--methods", "fedagv"], "--methods: found 'fedagv'"),
        (["digits", "--seeds", "x"], "--seeds: found 'x'"),
        (["digits", "--set", "round=3"], "round: unknown key"),
        (["digits", "--grid", "q-ffl.q=1"], "--grid q-ffl.q: none of the methods has this key open"),
        (["digits", "--reference", "mgda"], "--reference: found 'mgda'; allowed: dqn-fed, fedavg"),
        (["digits", "--set", "seed=7"], "--set seed: name seeds by --seeds"),
        (["digits", "--set", "output=here"], "--set output: name a folder by --output"),
        (["digits", "--grid-rounds", "2"], "--grid-rounds and --grid-seed say how --grid is searched"),
        (["digits", "--grid", "rounds=2,4", "--grid-rounds", "3"], "--grid rounds: cannot be searched with"),
        (["digits", "--last", "0"], "'--last': 0 is not in the range"),
        (["digits", "--jobs", "0"], "0 is not in the range"),
        (["digits", "--json", "/dev/null/here"], "--json: cannot write to /dev/null/here"),
    ],
)
def test_faults_end_it_before_anything_runs(
    fake: FakeWorkers, tmp_path: Path, arguments: list[str], reason: str
) -> None:
    result = call(*arguments, "--output", str(tmp_path))
    assert (result.exit_code, fake.jobs) == (2, [])
    assert reason in result.stderr
    assert "Traceback" not in result.output


def test_a_fault_leaves_no_empty_json(fake: FakeWorkers, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    assert call("absent.yaml", "--json", str(file), "--output", str(tmp_path / "runs")).exit_code == 2
    assert not file.exists()


def test_a_second_comparison_of_other_settings_in_one_folder_is_refused(fake: FakeWorkers, tmp_path: Path) -> None:
    assert call("digits", "--seeds", "0", "--output", str(tmp_path)).exit_code == 0
    count = len(fake.jobs)
    result = call("digits", "--seeds", "0", "--set", "rounds=7", "--output", str(tmp_path))
    assert (result.exit_code, len(fake.jobs)) == (2, count)
    assert "holds a run of other settings; rounds: 60 there, 7 now" in result.stderr
    assert call("digits", "--seeds", "0,1", "--output", str(tmp_path)).exit_code == 0
    assert [job.seed for job in fake.jobs[count:]] == [1, 1]


def test_failed_runs_are_named_and_a_row_of_none_but_such_is_status_1(fake: FakeWorkers, tmp_path: Path) -> None:
    fake.failures = {1: "ValueError: no data"}
    result = call("digits", "--seeds", "0,1", "--output", str(tmp_path))
    assert result.exit_code == 0
    assert "FedAvg: seed 1 failed: ValueError: no data" in result.stdout
    fake.failures = {"fedavg": "ValueError: no model"}
    result = call("digits", "--seeds", "0,1", "--output", str(tmp_path / "other"))
    assert result.exit_code == 1
    assert "failed: ValueError: no model" in result.stdout
    assert [f"FedAvg: seed {k} failed: ValueError: no model" in result.stdout for k in (0, 1)] == [True, True]
    assert "| 2 of 2 |" in (tmp_path / "other" / "comparison.md").read_text()
    assert result.stderr == "dqnfed: FedAvg: every run failed; the reasons are below the table\n"


def test_methods_left_out_of_all_are_named(fake: FakeWorkers, tmp_path: Path) -> None:
    result = call("digits", "--methods", "all", "--set", "step-rule=probed", "--seeds", "0", "--output", str(tmp_path))
    assert result.exit_code == 0
    assert "fedavg is left out: step-rule: fedavg goes with" in result.stdout
    assert "fedavg" not in {job.spec.method for job in fake.jobs}


def test_an_interrupt_says_how_to_go_on(fake: FakeWorkers, tmp_path: Path) -> None:
    fake.error = KeyboardInterrupt()
    result = call("digits", "--seeds", "0", "--output", str(tmp_path / "a folder"))
    assert result.exit_code == 130
    assert f"go on with: dqnfed compare digits --seeds 0 --output '{tmp_path}/a folder'\n" in result.stderr


def test_a_plot_that_cannot_be_written_costs_the_plots_only(fake: FakeWorkers, tmp_path: Path) -> None:
    (tmp_path / "accuracy.png").mkdir()
    result = call("digits", "--seeds", "0", "--output", str(tmp_path))
    assert (result.exit_code, len(fake.jobs)) == (0, 2)
    assert re.search(r"no plots: .*accuracy\.png: the plot cannot be written", result.stdout)


@pytest.mark.usefixtures("fake")
def test_what_is_worth_knowing_of_own_models_is_said_once_before_the_runs(tmp_path: Path) -> None:
    options = ["--seeds", "0,1", "--set", "rounds=3", "--output", str(tmp_path)]
    model = "tests.helpers.models:norm_mlp"
    result = call("digits", "--methods", "dqn-fed,fedavg", *options, "--set", f"model={model}")
    assert result.output.count(f"model: {model} has BatchNorm (BatchNorm1d): gradients take") == 1
    assert result.output.count("local SGD takes those of its batches") == 1


def test_runs_that_stalled_are_counted_named_and_end_a_comparison_with_5(fake: FakeWorkers, tmp_path: Path) -> None:
    fake.stalled = {("fedavg", 1)}
    result = call("digits", "--seeds", "0,1", "--output", str(tmp_path), "--json", str(tmp_path / "all.json"))
    assert result.exit_code == 5
    (said,) = [line for line in result.stderr.splitlines() if line.startswith("dqnfed: ")]
    assert said == "dqnfed: 1 run stalled, see the tables: FedAvg, seed 1"
    notes = " ".join(result.stdout.split())
    assert "1 of 4 runs stalled: their models stood still" in notes
    assert "FedAvg, seed 1: 0 of 1 rounds moved the model; over these ρ –, not harmed –. no-step: " in notes
    rows = {row["method"]: row for row in json.loads((tmp_path / "all.json").read_text())["methods"]}
    assert [run["status"] for run in rows["fedavg"]["runs"]] == ["finished", "stalled"]
    assert [run["figures"]["stalled"] for run in rows["fedavg"]["runs"]] == [False, True]
    assert rows["fedavg"]["figures"]["stalled"]["mean"] == 0.5
    assert rows["fedavg"]["runs"][1]["figures"]["rho_moved"] is None
    assert "rho_moved" in (tmp_path / "comparison.csv").read_text().splitlines()[0].split(",")
    fake.stalled = set()
    assert call("digits", "--seeds", "0", "--output", str(tmp_path / "other")).exit_code == 0


def test_clients_left_out_of_most_rounds_are_named_and_end_a_strict_comparison_with_3(
    fake: FakeWorkers, tmp_path: Path
) -> None:
    fake.no_part = [4]
    words = ("digits", "--methods", "fedavg", "--seeds", "0,1", "--set", "rounds=3", "--output", str(tmp_path))
    mild, strict = call(*words), call(*words, "--strict")
    assert (mild.exit_code, strict.exit_code) == (0, 3)
    for result in (mild, strict):
        assert "FedAvg, seed 1: asked, and without a part in most of the rounds: clients 4 in 1 of 1" in result.output
    assert "2 runs had clients without a part in most rounds" in strict.output
