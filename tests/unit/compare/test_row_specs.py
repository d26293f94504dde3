from __future__ import annotations

import pytest

from dqnfed_flwr.compare.row_specs import RowSpec, concerns, groups_of, parse_methods, parse_seeds, with_grids
from dqnfed_flwr.config.methods import METHODS
from dqnfed_flwr.errors import ConfigError


def test_methods_with_settings_of_their_own() -> None:
    plain, sided, foreign = parse_methods("fedavg, dqn-fed@dqn-fed.form=one-sided@local.lr=1e-2 ,torchjd:UPGrad")
    assert plain == RowSpec("fedavg")
    assert sided == RowSpec("dqn-fed", {"dqn-fed.form": "one-sided", "local.lr": 0.01})
    assert sided.given == "dqn-fed@dqn-fed.form=one-sided@local.lr=0.01"
    assert foreign == RowSpec("torchjd:UPGrad")


def test_all_are_the_registered_ones() -> None:
    assert [spec.method for spec in parse_methods("all")][:2] == ["dqn-fed", "fedavg"]
    assert {spec.method for spec in parse_methods("all")} == set(METHODS)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("fedagv", "--methods: found 'fedagv'; did you mean fedavg? allowed: aaggff, adafed, "),
        ("", "--methods: found ''; allowed"),
        ("torchjd:", "found 'torchjd:'"),
        ("fedavg@", "--methods fedavg@: found ''; give KEY=VALUE behind @"),
        ("fedavg@local.lr", "found 'local.lr'; give KEY=VALUE"),
        ("fedavg@local.lr=[1]", "--methods fedavg@local.lr=[1]: found '[1]'"),
        ("fedavg@seed=3", "--methods fedavg@seed=3: seed: name seeds by --seeds"),
        ("fedavg@local.lr=1@local.lr=2", "--methods fedavg@local.lr=1@local.lr=2: local.lr is given twice"),
        ("fedavg@split.alpha=3", "split.alpha must be the same for all"),
        ("fedavg,mgda,fedavg", "--methods: fedavg is given twice"),
    ],
)
def test_faulty_methods(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_methods(text)
    assert reason in str(caught.value)


def test_all_faults_of_the_methods_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_methods("nobody,mgda,mgda,fedavg@data=mine.npz")
    assert len(str(caught.value).splitlines()) == 3


def test_seeds() -> None:
    assert parse_seeds("3, 0,12") == (3, 0, 12)


@pytest.mark.parametrize("text", ["", "1,,2", "a", "-1", "0.5", "1,2,1"])
def test_faulty_seeds(text: str) -> None:
    with pytest.raises(ConfigError, match="--seeds: found"):
        parse_seeds(text)


def test_a_key_of_a_group_is_searched_by_its_method_alone_and_a_general_one_by_all() -> None:
    specs = with_grids(parse_methods("fedavg,q-ffl"), ["q-ffl.q=0.1,1", "local.lr=0.3,1e-2,1"], {})
    assert specs[0].axes == {"local.lr": (0.3, 0.01, 1)}
    assert specs[1].points == [{"q-ffl.q": q, "local.lr": lr} for q in (0.1, 1) for lr in (0.3, 0.01, 1)]


def test_a_key_that_a_row_does_not_read_is_not_searched_for_it() -> None:
    grids = ["step.lr=0.3,1", "local.lr=0.1,0.3"]
    ours, fedavg, adafed = with_grids(parse_methods("dqn-fed,fedavg,adafed"), grids, {})
    assert (set(ours.axes), set(fedavg.axes), set(adafed.axes)) == (
        {"local.lr"},
        {"local.lr"},
        {"step.lr", "local.lr"},
    )
    (fixed,) = with_grids(parse_methods("fedavg@step-rule=fixed"), grids, {})
    assert set(fixed.axes) == {"step.lr", "local.lr"}
    (ruled,) = with_grids(parse_methods("fedavg"), ["step-rule=newton,fixed", "step.lr=0.3,1"], {})
    assert len(ruled.points) == 4
    with pytest.raises(ConfigError, match=r"--grid step\.lr: none of the methods has this key open \(fedavg\)"):
        with_grids(parse_methods("fedavg"), ["step.lr=0.3,1"], {})


def test_a_setting_that_a_row_fixes_is_not_searched() -> None:
    fixed, free = with_grids(parse_methods("q-ffl@q-ffl.q=2,q-ffl"), ["q-ffl.q=0.1,1"], {})
    assert fixed.points == [{}]
    assert len(free.points) == 2


def test_fedcorr_has_the_keys_of_its_last_method() -> None:
    spec = RowSpec("fedcorr", {"fedcorr.last": "dqn-fed"})
    assert concerns("dqn-fed.scale", spec, {})
    assert not concerns("dqn-fed.scale", RowSpec("fedcorr"), {})
    assert concerns("fedcorr.mixup", spec, {})
    assert not concerns("fedcorr.last", spec, {})


def test_a_last_method_that_all_rows_share_counts_unless_a_row_has_its_own() -> None:
    base = {"fedcorr.last": "dqn-fed"}
    ours, own, other = with_grids(
        parse_methods("fedcorr,fedcorr@fedcorr.last=term,fedavg"), ["dqn-fed.scale=0.1,1"], base
    )
    assert (len(ours.points), own.points, other.points) == (2, [{}], [{}])


@pytest.mark.parametrize(
    ("grid", "reason"),
    [
        (["q-ffl.q=1,2"], "--grid q-ffl.q: none of the methods has this key open (fedavg, mgda)"),
        (["q-fll.q=1"], "--grid q-fll.q: unknown key; did you mean q-ffl.q?"),
        (["local.lr"], "--grid: found 'local.lr'; give KEY=V1,V2"),
        (["local.lr="], "give KEY=V1,V2"),
        (["=1"], "give KEY"),
        (["local.lr=1,1"], "with a value twice"),
        (["local.lr=1", "local.lr=2"], "--grid: local.lr is given twice"),
        (["seed=1,2"], "--grid seed: name seeds by --seeds"),
        (["method=a,b"], "--grid method: name methods by --methods"),
        (["split.alpha=1,2"], "--grid split.alpha must be the same for all"),
    ],
)
def test_faulty_grids(grid: list[str], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_grids(parse_methods("fedavg,mgda"), grid, {})
    assert reason in str(caught.value)


def test_the_groups_of_a_row() -> None:
    assert groups_of(RowSpec("fedmgda+"), {}) == ("fedmgda",)
    assert groups_of(RowSpec("fedcorr", {"fedcorr.last": "fedmgda+"}), {}) == ("fedcorr", "fedmgda")
    assert groups_of(RowSpec("fedcorr"), {"fedcorr.last": "q-ffl"}) == ("fedcorr", "q-ffl")


def test_points_are_shown_without_the_group_of_their_method() -> None:
    assert RowSpec("q-ffl").summary({"q-ffl.q": 0.5, "local.lr": 0.1, "curvature.damping": True}) == (
        "q=0.5, local.lr=0.1, curvature.damping=true"
    )
    assert RowSpec("q-ffl", title="q-FFL").named({"q-ffl.q": 0.5}) == "q-FFL (q=0.5)"
    assert RowSpec("q-ffl", title="q-FFL").named({}) == "q-FFL"
