"""Settings of earlier versions: who gives one is told what takes its place, and what they left can be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from dqnfed_flwr.cli.app import app
from dqnfed_flwr.compare.existing_results import conflicting_runs
from dqnfed_flwr.compare.plan import plan_rows
from dqnfed_flwr.compare.row_specs import RowSpec
from dqnfed_flwr.config import Settings, retired_in, without_retired
from dqnfed_flwr.engine.result import RunResult, read_result
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.engine.run_folder import LOCK
from dqnfed_flwr.errors import CheckpointError, ConfigError
from dqnfed_flwr.run_files import CHECKPOINT, EVENTS, RUN
from dqnfed_flwr.strategy.checkpoint import CheckpointStore
from tests.helpers.runs import TINY, Stop, StopAfter

ADMISSION = "admission: no longer a setting; "
ACCEPTANCE = "step.acceptance: no longer a setting; "
RETIRED = {
    "admission.mode": "reject",
    "admission.norm-factor": 8.0,
    "admission.min-replies": 5,
    "step.acceptance": 1.0,
}
NEW_IN_PENDING = ("asked", "heard", "binding", "voteless", "aside", "overruled", "refused", "caught", "entitlement")
NEW_IN_EVENTS = ("asked", "heard", "overruled", "refused", "entitlement", "certificate", "distance", "harmed")


@pytest.mark.parametrize(
    ("mapping", "told"),
    [
        ({"admission.mode": "off"}, [ADMISSION]),
        ({"admission": {"mode": "off", "spread": 3.0}}, [ADMISSION]),
        ({"admission": None}, [ADMISSION]),
        ({"step.acceptance": 0.6}, [ACCEPTANCE]),
        ({"step": {"acceptance": 0.6, "lr": 0.5}}, [ACCEPTANCE]),
        ({"step": {"acceptance": 0.6}, "admission.mode": "clip", "rounds": 0}, [ACCEPTANCE, ADMISSION, "rounds: "]),
    ],
)
def test_a_retired_key_is_refused_with_what_takes_its_place(mapping: dict[str, Any], told: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_mapping(mapping)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(told)
    assert [words for words in told if not any(line.startswith(words) for line in lines)] == []
    assert all("guarantee.tolerate" in line for line in lines if "no longer" in line)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "digits", "--set", "admission.mode=off"], ADMISSION),
        (["run", "digits", "--set", "step.acceptance=0.6"], ACCEPTANCE),
        (["run", "old.yaml"], ADMISSION),
        (["run", "old.yaml"], ACCEPTANCE),
        (["compare", "digits", "--set", "admission.mode=off"], ADMISSION),
        (["compare", "digits", "--methods", "fedavg,dqn-fed@step.acceptance=0.6"], ACCEPTANCE),
        (["compare", "digits", "--grid", "admission.norm-factor=4,8"], ADMISSION),
    ],
)
def test_the_command_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old.yaml").write_text("rounds: 3\nadmission: {mode: reject, norm-factor: 4}\nstep: {acceptance: 0.6}\n")
    result = CliRunner().invoke(app, [*arguments, "--output", "out"])
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.split())
    assert [path.name for path in Path().glob("out/*") if path.name != LOCK] == []


def test_records_are_read_without_the_retired_keys() -> None:
    flat = Settings.from_mapping({"rounds": 7}).flat()
    assert without_retired({**flat, **RETIRED}) == flat
    assert retired_in({**flat, **RETIRED}) == ["admission", "step.acceptance"]
    assert retired_in(flat) == []
    assert Settings.from_record({**flat, **RETIRED}) == Settings.from_mapping({"rounds": 7})
    with pytest.raises(ConfigError, match=r"^step\.acceptence: unknown key"):
        Settings.from_record({**flat, "step.acceptence": 1.0})


def of_earlier_version(flat: dict[str, Any]) -> dict[str, Any]:
    """Settings as an earlier version wrote them down."""
    return {**{key: value for key, value in flat.items() if not key.startswith("guarantee.")}, **RETIRED}


def age(folder: Path) -> None:
    """Rewrite the files of a run as an earlier version, without the guarantee, would have left them."""
    lines = [json.loads(line) for line in (folder / EVENTS).read_text().splitlines()]
    kept = [
        {key: value for key, value in line.items() if key not in (*NEW_IN_EVENTS, "unharmed_ratio")} for line in lines
    ]
    (folder / EVENTS).write_text("".join(json.dumps(line) + "\n" for line in kept))
    if (folder / RUN).exists():
        record = json.loads((folder / RUN).read_text())
        record["settings"] = of_earlier_version(record["settings"])
        (folder / RUN).write_text(json.dumps(record))
    store = CheckpointStore(folder / CHECKPOINT)
    found, arrays = store.read()
    record = {key: value for key, value in found.items() if key not in ("format", "standing", "moves", "unmoved")}
    record["settings"] = of_earlier_version(record["settings"])
    record["admission"] = {"past": {"0": {"norm": 0.8, "loss": 0.7, "rate": -2.3}}, "strikes": {}, "until": {}}
    record["rule"] = {key: value for key, value in record["rule"].items() if not key.startswith("contested")}
    if record.get("pending"):
        pending = {key: value for key, value in record["pending"].items() if key not in NEW_IN_PENDING}
        pending["scale"] = {key: pending["scale"][key] for key in pending["scale"] if key != "contested"}
        record["pending"] = {**pending, "silenced": [], "promised": [[0, 0.5]]}
    new = ("pending/gram", "method/fallback", "method/of")
    store.write(record, {name: values for name, values in arrays.items() if name not in new})


@pytest.mark.parametrize(
    "method", [{}, {"dqn-fed.form": "one-sided"}, {"participation": 0.7}, {"method": "fedmdfg"}, {"method": "fedavg"}]
)
def test_a_run_of_an_earlier_version_goes_on(tmp_path: Path, method: dict[str, Any]) -> None:
    strict = {"guarantee.entitlement": 0} if "method" not in method else {}
    settings = {**TINY, **strict, **method, "rounds": 6}
    whole = run(settings)
    with pytest.raises(Stop):
        run({**settings, "output": str(tmp_path)}, listeners=[StopAfter(2)])
    age(tmp_path)
    if strict:  # it goes on as it was, or not at all
        given = {key: value for key, value in settings.items() if key not in strict}
        with pytest.raises(CheckpointError, match=r"guarantee\.entitlement: '0' then, '50%' now"):
            run({**given, "output": str(tmp_path), "resume": True})
    result = run({**settings, "output": str(tmp_path), "resume": True})
    assert (result.status, len(result.events)) == ("finished", 6)
    assert [event.harmed for event in result.events] == [[]] * 6 or method.get("method")
    assert result.events[0].heard == result.events[0].participants
    assert result.theta.tobytes() == whole.theta.tobytes()


def finished(folder: Path) -> RunResult:
    result = run({**TINY, "output": str(folder)})
    age(folder)
    return result


def test_a_result_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    written = finished(tmp_path)
    result = read_result(tmp_path)
    assert (result.status, result.improved_ratio) == (written.status, written.improved_ratio)
    assert [event.entitlement for event in result.events] == [0.0] * 2  # nobody was entitled to a rise then
    assert [event.asked for event in result.events] == [3] * 2
    np.testing.assert_array_equal(result.theta, written.theta)


def test_a_comparison_does_not_mix_runs_of_an_earlier_version_with_those_of_today(tmp_path: Path) -> None:
    (job,) = plan_rows(dict(TINY), [RowSpec("dqn-fed")], (0,), tmp_path).possible()
    finished(job.folder)
    assert conflicting_runs({job.folder: job.settings}) == [
        f"{job.folder} holds a run of other settings; admission: set there, no longer a setting; step.acceptance: set "
        "there, no longer a setting; guarantee.entitlement: '0' there, '50%' now"
    ]
