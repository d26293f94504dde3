from __future__ import annotations

from pathlib import Path

import pytest

from dqnfed_flwr.config import Settings
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.reproduce.manifests import load_manifest, manifest_names
from dqnfed_flwr.reproduce.measures import MEASURES
from dqnfed_flwr.reproduce.parts import ReproduceOptions, plan_part, seeds_of
from dqnfed_flwr.reproduce.schema import check_manifest
from dqnfed_flwr.reproduce.tables import published_figures
from tests.helpers.manifests import PARTS, part_of, shipped

UNPUBLISHED_ROWS = {("semi-vred-table1", "cifar100", "FedAvg"), ("semi-vred-table6", "cifar10", "AFL")}
TINY = """
title: A try
source: nobody
parts:
  one:
    title: Five clients
    settings: {data: digits, clients: 5, model: logistic, rounds: 4}
    rows:
      - {paper: Ours, method: dqn-fed, figures: {mean: 95.5}}
      - {paper: FedAvg, method: fedavg, grid: {local.lr: [0.1, 0.5]}}
    reduced: {settings: {rounds: 2}, seeds: [0]}
"""


def written(directory: Path, text: str = TINY) -> str:
    path = directory / "mine.yaml"
    path.write_text(text, "utf-8")
    return str(path)


def test_every_table_and_figure_of_the_issue_has_a_manifest() -> None:
    tables = {f"table{number}" for number in (1, 2, 3, 4, 5, 6, 9, 10, 11, 12)}
    others = {"fedmdfg-table2", "fedmdfg-table3", "fedmdfg-table4", "semi-vred-table1", "semi-vred-table6"}
    assert set(manifest_names()) == tables | others | {"anchors", "figure1", "figure2", "figure3"}


@pytest.mark.parametrize(("name", "key"), PARTS)
def test_published_figures_stand_under_the_names_of_rows_and_columns(name: str, key: str) -> None:
    part = part_of(name, key)
    found = published_figures(part)
    for column in part.columns:
        assert column in MEASURES
    if part.published:
        absent = {row for *place, row in UNPUBLISHED_ROWS if place == [name, key]}
        assert set(found) == {row.paper for row in part.rows if row.paper} - absent
    if part.scale == 100:
        assert all(5 < figures["mean"] < 100 for figures in found.values() if "mean" in figures)


@pytest.mark.parametrize("name", manifest_names())
def test_every_manifest_says_what_is_open_and_what_was_chosen(name: str) -> None:
    manifest = shipped(name)
    assert manifest.open
    assert manifest.chosen


@pytest.mark.parametrize("name", manifest_names())
def test_the_least_size_of_a_dirichlet_client_is_said(name: str) -> None:
    manifest = shipped(name)
    if any(part.own.get("partition") == "dirichlet" for part in manifest.parts.values()):
        assert Settings().split.min_samples == 10
        assert any("At least ten training samples a client" in text for text in manifest.chosen)
        assert any("has a small test part" in text for text in manifest.chosen)


@pytest.mark.parametrize(("name", "key"), [("table5", "original"), ("table6", "setup1"), ("table6", "setup2")])
def test_clients_are_natural_groups_one_each(name: str, key: str) -> None:
    part = part_of(name, key)
    for config in (part.own, {**part.own, **part.reduced.own}):
        assert config["partition"] == "groups"
        assert config["split.groups"] == config["clients"]


def test_femnist_has_five_hundred_of_its_writers() -> None:
    part = part_of("table5", "original")
    assert part.own["split.groups"] == 500
    assert "split.groups" not in part_of("table5", "skewed").own


def test_one_published_figure_to_the_digit() -> None:
    figures = published_figures(part_of("table1", "setup1"))
    assert figures["DQN-Fed"] == {"mean": 47.72, "std": 3.20, "worst5": 29.34, "best5": 69.37}
    shares = published_figures(part_of("fedmdfg-table2", "mutex"))
    assert shares["FedMDFG(pi/32,5)"] == pytest.approx({"mean": 69.0, "angle_rad": 0.165})


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("title: A try", "title: A try\nclaims: all", "claims: unknown key; allowed: title, source, reference"),
        ("    title: Five", "    rwos: []\n    title: Five", r"parts\.one\.rwos: unknown key; did you mean rows\?"),
        ("paper: Ours", "papr: Ours", r"parts\.one\.rows\.0\.papr: unknown key; did you mean paper\?"),
        ("seeds: [0]}", "seed: [0]}", r"parts\.one\.reduced\.seed: unknown key; did you mean seeds\?"),
        ("clients: 5", "seed: 5", r"parts\.one: settings: seed cannot stand here"),
        ("    reduced: {settings: {rounds: 2}, seeds: [0]}", "", r"parts\.one\.reduced: is missing"),
        ("    title: Five", "    runs: false\n    title: Five", r"parts\.one: runs: false needs a reason"),
        ("    title: Five", "    like: table1.setup9\n    title: Five", "give MANIFEST.PART of a shipped manifest"),
        ("source: nobody", "source: ' '", "source: found nothing; say it in a line of text"),
        ("source: nobody", "source: nobody\nseeds: [0, 0]", "seeds: found 0 twice"),
        ("source: nobody", "source: nobody\nseeds: [-1]", r"seeds\.0: Input should be greater than or equal to 0"),
        ("seeds: [0]}", "seeds: []}", r"parts\.one\.reduced\.seeds: List should have at least 1 item"),
        ("{mean: 95.5}", "{men: 95.5}", r"parts\.one\.rows\.0\.figures\.men: found 'men'; allowed: mean"),
        ("    title: Five", "    columns: [meen]\n    title: Five", r"columns\.0: found 'meen'; allowed: mean"),
        ("[0.1, 0.5]", "[]", r"grid\.local\.lr: List should have at least 1 item"),
        ("[0.1, 0.5]", "[0.1, 0.1]", r"grid\.local\.lr: found 0\.1 twice"),
        ("local.lr: [", "local.rate: [", r"grid\.local\.rate: found 'local\.rate', which is no setting"),
        (
            "local.lr: [",
            "split.alpha: [",
            r"split\.alpha must be the same for all rows; it stands in the part's settings",
        ),
        ("grid: {local.lr: [0.1, 0.5]}", "settings: {seed: 4}", r"rows\.1: seed must be the same for all rows"),
        (
            "method: dqn-fed, figures: {mean: 95.5}",
            "method: dqn-fed}\n      - {method: dqn-fed",
            "dqn-fed stands twice",
        ),
        (
            "method: dqn-fed, figures: {mean: 95.5}",
            "method: dqn-fed}\n      - {method: dqn-fed, grid: {local.lr: [1, 2]}",
            "dqn-fed stands twice",
        ),
        (
            "source: nobody",
            "source: nobody\nreference: dqnfed",
            r"reference: found 'dqnfed'; did you mean dqn-fed\? allowed: aaggff",
        ),
        ("  one:", "  ../one:", r"parts\.\.\./one: String should match pattern"),
        (
            "    title: Five",
            "    published: {paper: dqn-fed, table: '1', experiment: mine}\n    title: Five",
            "found dqn-fed, 1, mine; allowed are paper, table and experiment of dqn-fed, 1, cifar10-setup1; ",
        ),
    ],
)
def test_a_faulty_manifest_is_refused_by_file_key_and_what_is_allowed(
    old: str, new: str, said: str, tmp_path: Path
) -> None:
    assert old in TINY
    with pytest.raises(ConfigError, match=said) as refused:
        load_manifest(written(tmp_path, TINY.replace(old, new)))
    assert "mine.yaml" in str(refused.value)


def test_text_over_several_lines_becomes_one(tmp_path: Path) -> None:
    folded = "    title: |\n      Five\n\n      clients\n    remarks: [' of\n      note ']\n    settings"
    text = TINY.replace("    title: Five clients\n    settings", folded).replace("Ours", '"Ours,\n      at last"')
    part = load_manifest(written(tmp_path, text)).parts["one"]
    assert (part.title, part.remarks, part.rows[0].paper) == ("Five clients", ["of note"], "Ours, at last")


def test_unknown_manifests_and_files_are_named() -> None:
    with pytest.raises(ConfigError, match="'table7' is no shipped manifest"):
        load_manifest("table7")
    with pytest.raises(ConfigError, match=r"absent\.yaml: cannot be read"):
        load_manifest("absent.yaml")


def test_a_part_like_another_takes_what_it_does_not_give(tmp_path: Path) -> None:
    table, ablation = (shipped(name) for name in ("table1", "table3"))
    base, part = table.parts["setup2"], ablation.parts["participation10"]
    assert {**base.own, "participation": 0.1} == part.own
    assert part.reduced == base.reduced
    with pytest.raises(ConfigError, match="allowed: participation10, participation50"):
        ablation.part("setup2")


def test_rows_are_chosen_by_either_name_and_others_are_added(tmp_path: Path) -> None:
    manifest = load_manifest(written(tmp_path))
    part = manifest.parts["one"]
    plan = plan_part(part, manifest.seeds, ReproduceOptions(methods="Ours,term@term.t=2", seeds="3"), tmp_path)
    assert [(spec.method, dict(spec.own)) for spec in plan.specs] == [("dqn-fed", {}), ("term", {"term.t": 2})]
    assert plan.seeds == (3,)
    full = plan_part(part, manifest.seeds, ReproduceOptions(methods="fedavg"), tmp_path)
    assert full.specs[0].axes == {"local.lr": (0.1, 0.5)}
    assert full.config == plan.config  # whichever rows are asked for, the others may be added later
    assert seeds_of(part, manifest.seeds, ReproduceOptions()) == (0, 1, 2, 3, 4)


def test_a_manifest_survives_its_own_record() -> None:
    manifest = shipped("table1")
    assert check_manifest(manifest.model_dump(by_alias=True), "again") == manifest


def test_dotted_settings_are_laid_over_those_of_another_part_as_nested_ones_are(tmp_path: Path) -> None:
    text = (
        "title: Mine\nsource: our own\nseeds: [0]\nopen: [a]\nchosen: [b]\nparts:\n  small:\n    like: table1.setup1\n"
        "    settings: {local.lr: 0.5, rounds: 7}\n    reduced: {settings: {local.epochs: 2}}\n"
    )
    (tmp_path / "mine.yaml").write_text(text)
    part = load_manifest(str(tmp_path / "mine.yaml")).parts["small"]
    assert (part.own["local.lr"], part.own["local.batch-size"], part.own["rounds"]) == (0.5, 64, 7)
    assert part.reduced.own["local.epochs"] == 2
