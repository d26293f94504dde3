from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dqnfed_flwr.compare.plan import make_plan, plan_rows
from dqnfed_flwr.compare.row_specs import RowSpec
from dqnfed_flwr.config import Settings
from dqnfed_flwr.config.methods import METHODS
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.methods.dqn_fed.settings import DqnFedSettings
from dqnfed_flwr.methods.q_ffl import QFflSettings
from tests.helpers.comparisons import plan_in
from tests.helpers.runs import TINY, make_event, make_result

TINY_KEYS: dict[str, Any] = {key.replace(".", "__"): value for key, value in TINY.items()}


def test_a_run_for_every_row_and_seed_each_in_its_folder(tmp_path: Path) -> None:
    made = plan_in(tmp_path, "dqn-fed,dqn-fed@dqn-fed.form=one-sided,fedavg", "0,7", rounds=3, method="mgda", seed=5)
    jobs = [job for spec in made.specs for job in made.final(spec, {})]
    assert [(str(job.folder.relative_to(tmp_path)), job.settings.method, job.settings.seed) for job in jobs] == [
        ("runs/dqn-fed/seed-0", "dqn-fed", 0),
        ("runs/dqn-fed/seed-7", "dqn-fed", 7),
        ("runs/dqn-fed,dqn-fed.form=one-sided/seed-0", "dqn-fed", 0),
        ("runs/dqn-fed,dqn-fed.form=one-sided/seed-7", "dqn-fed", 7),
        ("runs/fedavg/seed-0", "fedavg", 0),
        ("runs/fedavg/seed-7", "fedavg", 7),
    ]
    assert {job.settings.rounds for job in jobs} == {3}
    assert [job.settings.output for job in jobs] == [str(job.folder) for job in jobs]
    assert jobs[2].settings.group_of(DqnFedSettings).form == "one-sided"
    assert made.possible() == jobs


def test_a_grid_whose_rounds_do_not_fit_a_method_leaves_it_out_or_names_it(tmp_path: Path) -> None:
    grids = ("local.lr=0.1,0.5",)
    made = plan_in(tmp_path, "all", "0", grids, 2, rounds=80)
    assert "--grid-rounds: rounds: found 2" in made.skipped["fedcorr"]
    with pytest.raises(ConfigError, match=r"^fedcorr: --grid-rounds: rounds: found 2"):
        plan_in(tmp_path, "fedavg,fedcorr", "0", grids, 2, rounds=80)


def test_one_thread_unless_told_otherwise(tmp_path: Path) -> None:
    assert plan_in(tmp_path).possible()[0].settings.local.threads == 1
    assert plan_in(tmp_path, local__threads=0).possible()[0].settings.local.threads == 0


def test_rows_show_what_is_their_own(tmp_path: Path) -> None:
    made = plan_in(tmp_path, "q-ffl,q-ffl@q-ffl.q=2,fedavg@local.lr=0.3")
    assert [spec.title for spec in made.specs] == ["q-FFL", "q-FFL [q=2]", "FedAvg [local.lr=0.3]"]


def test_a_grid_brings_a_validation_part_to_all_its_runs(tmp_path: Path) -> None:
    made = plan_in(tmp_path, grids=("local.lr=0.1,0.3",))
    assert {job.settings.split.validation_fraction for job in made.possible()} == {0.1}
    kept = plan_in(tmp_path, grids=("local.lr=0.1,0.3",), split__validation_fraction=0.3)
    assert {job.settings.split.validation_fraction for job in kept.possible()} == {0.3}
    assert {job.settings.split.validation_fraction for job in plan_in(tmp_path).possible()} == {0.0}


def test_a_grid_without_validation_samples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"split\.validation-fraction: found 0; a grid is chosen by"):
        plan_in(tmp_path, grids=("local.lr=0.1,0.3",), split__validation_fraction=0)


def test_short_grid_runs_have_folders_of_their_own_and_full_ones_serve_twice(tmp_path: Path) -> None:
    grids = ("q-ffl.q=0.1,1",)
    short = plan_in(tmp_path, "fedavg,q-ffl", grids=grids, grid_rounds=2, grid_seed=9, rounds=5)
    assert short.search(short.specs[0]) == []
    assert [
        (
            str(job.folder.relative_to(tmp_path)),
            job.settings.rounds,
            job.settings.seed,
            job.settings.group_of(QFflSettings).q,
        )
        for job in short.search(short.specs[1])
    ] == [("grid/q-ffl,q-ffl.q=0.1/seed-9", 2, 9, 0.1), ("grid/q-ffl,q-ffl.q=1/seed-9", 2, 9, 1)]
    full = plan_in(tmp_path, "q-ffl", grids=grids, rounds=5)
    assert full.search(full.specs[0])[1] == full.final(full.specs[0], {"q-ffl.q": 1})[0]
    assert len(full.possible()) == 4


@pytest.mark.parametrize(
    ("methods", "config", "lines"),
    [
        ("fedavg,mgda", {"round": 3}, ["round: unknown key; did you mean rounds?"]),
        ("fedavg,mgda", {"rounds": 0}, ["rounds: Input should be greater than or equal to 1, found 0"]),
        ("fedavg,mgda", {"local__work": "gradient"}, ["fedavg: local.work: fedavg works with sgd, found 'gradient'"]),
        (
            "mgda@local.lr=-1,fedavg,dqn-fed@dqn-fed.from=x",
            {"step_rule": "probed"},
            [
                "mgda@local.lr=-1: local.lr: Input should be greater than 0, found -1",
                "fedavg: step-rule: fedavg goes with newton, fixed, clipped, found 'probed'",
                "dqn-fed@dqn-fed.from=x: dqn-fed.from: unknown key; did you mean dqn-fed.form?",
            ],
        ),
    ],
)
def test_all_faults_are_named_with_their_methods(
    tmp_path: Path, methods: str, config: dict[str, Any], lines: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_in(tmp_path, methods, **config)
    found = str(caught.value).splitlines()
    assert len(found) == len(lines)
    assert all(text.startswith(line) for text, line in zip(found, lines, strict=True))


def test_a_fault_at_any_point_of_a_grid_is_found(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"q-ffl: q-ffl\.q: Input should be greater than or equal to 0, found -1"):
        plan_in(tmp_path, "fedavg,q-ffl", grids=("q-ffl.q=1,-1",))


def test_methods_of_all_that_do_not_fit_are_left_out_with_the_reason(tmp_path: Path) -> None:
    made = plan_in(tmp_path, "all", step_rule="probed")
    assert "step-rule: fedavg goes with" in made.skipped["fedavg"]
    assert {spec.method for spec in made.specs} == METHODS.keys() - made.skipped.keys()
    assert "dqn-fed" not in made.skipped


def test_a_data_set_and_a_model_that_there_are_not_are_faults_of_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^data: unknown set 'nosuch'; allowed: digits"):
        plan_in(tmp_path, data="nosuch")
    with pytest.raises(ConfigError, match=r"^model: unknown name 'nosuch'; allowed: logistic"):
        plan_in(tmp_path, model="nosuch")


def test_two_rows_of_one_title_are_refused(tmp_path: Path) -> None:
    rows = [RowSpec("fedavg", title="Same"), RowSpec("fedsgd", title="Same")]
    with pytest.raises(ConfigError, match="two would be called 'Same'"):
        plan_rows({}, rows, (0,), tmp_path)


def test_a_row_with_many_settings_has_a_folder_that_file_systems_take(tmp_path: Path) -> None:
    keys = [key for key in Settings().flat() if key.startswith(("step.", "guarantee."))]
    defaults = Settings().flat()
    own = {key: defaults[key] for key in keys}
    (job, other) = (
        plan_rows({}, [RowSpec("fedavg", {**own, "local.lr": lr})], (0,), tmp_path).possible()[0] for lr in (0.1, 0.2)
    )
    assert len(job.folder.parent.name) < 255
    assert job.folder != other.folder


def test_a_key_that_nobody_knows_is_a_fault_of_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^round: unknown key"):
        plan_in(tmp_path, "all", round=3)


def test_each_mapping_is_validated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    validated: list[str] = []
    whole = Settings.from_mapping

    def counting(mapping: Mapping[str, Any]) -> Settings:
        validated.append(repr(sorted(mapping.items())))
        return whole(mapping)

    monkeypatch.setattr(Settings, "from_mapping", counting)
    made = plan_in(tmp_path, "fedavg,q-ffl", "0,1", ("q-ffl.q=0.1,1",), rounds=5, grid_rounds=2)
    replace(made, note="more").possible()
    assert len(validated) == len(set(validated)) == 10  # two of them to see that q-FFL reads the key


def test_a_title_says_an_anchor_once() -> None:
    methods = "dqn-fed,dqn-fed@dqn-fed.anchor=krum,dqn-fed@dqn-fed.anchor=krum@krum.keep=2"
    plan = make_plan({}, methods, "0", Path("nowhere"))
    assert [spec.title for spec in plan.specs] == ["DQN-Fed", "DQN-Fed over Krum", "DQN-Fed over Krum [krum.keep=2]"]


def finish(folder: Path, settings: Settings) -> None:
    folder.mkdir(parents=True)
    make_result([make_event(1, (0.5, 0.5, 0.5, 0.5))], settings=settings).write(folder)


def test_finished_runs_of_other_settings_are_refused_by_naming_the_keys(tmp_path: Path) -> None:
    first = plan_in(tmp_path, rounds=3).possible()[1]
    finish(first.folder, first.settings)
    assert first.finished
    plan_in(tmp_path, rounds=3)
    plan_in(tmp_path, rounds=3, deadline=5.0)
    with pytest.raises(ConfigError) as caught:
        plan_in(tmp_path, rounds=4, local__lr=0.3)
    assert str(caught.value).splitlines() == [
        f"{first.folder} holds a run of other settings; local.lr: 0.1 there, 0.3 now; rounds: 3 there, 4 now",
        f"{tmp_path} holds another comparison; name another folder by --output",
    ]
    plan_in(tmp_path, "mgda", rounds=4)  # nothing of it is there


def test_a_folder_that_was_moved_is_taken_up(tmp_path: Path) -> None:
    first = plan_in(tmp_path / "old").possible()[0]
    finish(first.folder, first.settings)
    (tmp_path / "old").rename(tmp_path / "new")
    assert plan_in(tmp_path / "new").possible()[0].finished


def test_unfinished_runs_of_other_settings_are_refused_too(tmp_path: Path) -> None:
    job = plan_in(tmp_path, "fedavg", "0", **TINY_KEYS).possible()[0]
    run(job.settings)
    (job.folder / "run.json").unlink()
    plan_in(tmp_path, "fedavg", "0", **TINY_KEYS)
    with pytest.raises(ConfigError, match="model: 'logistic' there, 'mlp' now"):
        plan_in(tmp_path, "fedavg", "0", **{**TINY_KEYS, "model": "mlp"})


def own_data(path: Path, shift: int = 0) -> dict[str, Any]:
    """Keys of a tiny run on a file of our own, its labels rotated by `shift`."""
    x = np.random.default_rng(0).standard_normal((90, 3)).astype(np.float32)
    np.savez(path, x_train=x, y_train=((x[:, 0] > 0) + shift) % 2)
    return {**TINY_KEYS, "split__samples": 0, "data": str(path)}


@pytest.mark.parametrize("finished", [True, False])
def test_runs_on_other_data_are_refused(tmp_path: Path, finished: bool) -> None:
    keys = own_data(tmp_path / "d.npz")
    job = plan_in(tmp_path, "fedavg", "0", **keys).possible()[0]
    run(job.settings)
    if not finished:
        (job.folder / "run.json").unlink()
    own_data(tmp_path / "d.npz")
    plan_in(tmp_path, "fedavg", "0,1", **keys)  # written anew, with the same contents
    own_data(tmp_path / "d.npz", 1)
    for seeds in ("0", "0,1"):
        with pytest.raises(ConfigError) as caught:
            plan_in(tmp_path, "fedavg", seeds, **keys)
        first, last = str(caught.value).splitlines()
        assert re.fullmatch(
            f"{re.escape(str(job.folder))} holds a run on other data; "
            rf"fingerprint of {re.escape(keys['data'])}: \w{{16}} there, \w{{16}} now",
            first,
        )
        assert last.endswith("holds another comparison; name another folder by --output")


def test_runs_that_noted_no_fingerprint_and_data_that_are_gone_are_accepted(tmp_path: Path) -> None:
    keys = own_data(tmp_path / "d.npz")
    job = plan_in(tmp_path, "fedavg", "0", **keys).possible()[0]
    run(job.settings)
    (tmp_path / "d.npz").unlink()
    assert plan_in(tmp_path, "fedavg", "0", **keys).possible()[0].finished
    own_data(tmp_path / "d.npz", 1)
    found = json.loads((job.folder / "run.json").read_text())
    (job.folder / "run.json").write_text(json.dumps({**found, "fingerprint": None}))  # as of data of a function
    assert plan_in(tmp_path, "fedavg", "0", **keys).possible()[0].finished
    del found["fingerprint"]
    (job.folder / "run.json").write_text(json.dumps(found))
    with pytest.raises(ConfigError, match=r"run.json: cannot be read \('fingerprint'\); remove it"):
        plan_in(tmp_path, "fedavg", "0", **keys)


def test_data_are_looked_at_once_and_only_for_runs_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("dqnfed_flwr.data.sources.Source.fingerprint", lambda source: asked.append(source.name))
    jobs = plan_in(tmp_path).possible()
    assert asked == []
    for job in jobs:
        finish(job.folder, job.settings)
        found = json.loads((job.folder / "run.json").read_text())
        (job.folder / "run.json").write_text(json.dumps({**found, "fingerprint": "0" * 16}))
    plan_in(tmp_path)
    assert asked == ["digits"]


def figures(folder: Path, status: str, settings: dict[str, Any]) -> None:
    rows = [{"runs": [{"seed": 0, "status": status}]}]
    (folder / "comparison.json").write_text(json.dumps({"settings": settings, "methods": rows}))


def test_figures_of_runs_of_other_settings_are_not_overwritten(tmp_path: Path) -> None:
    figures(tmp_path, "finished", dict(plan_in(tmp_path, rounds=3).config))
    with pytest.raises(ConfigError, match=r"comparison.json has figures .* rounds: 3 there, 5 now\n.*--output"):
        plan_in(tmp_path, rounds=5)
    assert plan_in(tmp_path, "mgda", rounds=3, deadline=9.0).specs


def test_figures_of_runs_that_all_failed_may_be_overwritten(tmp_path: Path) -> None:
    figures(tmp_path, "failed", {"rounds": 3})
    assert plan_in(tmp_path, rounds=5).specs
    (tmp_path / "comparison.json").write_text("[]")
    assert plan_in(tmp_path, rounds=5).specs
