"""Rows that `--methods` names."""

from __future__ import annotations

import pytest

from dqnfed_flwr.compare.row_specs import RowSpec
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.reproduce.parts import ReproduceOptions, paper_names
from tests.helpers.manifests import part_of, plan_of

MUTEX = part_of("fedmdfg-table2", "mutex")


def rows(methods: str, name: str = "fedmdfg-table2", key: str = "mutex") -> list[str]:
    specs = plan_of(name, key, ReproduceOptions(reduced=True, methods=methods)).specs
    named = paper_names(part_of(name, key), specs)
    return [row.name or spec.title for row, spec in zip(named, specs, strict=True)]


@pytest.mark.parametrize("name", [row.paper for row in MUTEX.rows if row.paper])
def test_every_name_of_the_paper_takes_its_row_alone(name: str) -> None:
    assert rows(name) == [name]
    assert rows(f" {name.upper()} , fedavg") == list(dict.fromkeys([name, "FedAvg"]))


def test_names_with_commas_stand_beside_others() -> None:
    assert rows("FedFV(0.1,2),FedMDFG(pi/32,5),TERM(5),ditto") == [
        "FedFV(0.1,2)",
        "FedMDFG(pi/32,5)",
        "TERM(5)",
        "Ditto(0.1)",
        "Ditto(0.5)",
    ]


def test_our_name_takes_all_rows_of_the_method_and_theirs_one() -> None:
    assert rows("term") == ["TERM(1)", "TERM(5)"]
    assert rows("dqn-fed", "table1", "setup1") == [
        "DQN-Fed",
        "DQN-Fed, Algorithm 1",
        "DQN-Fed, Algorithm 1, safeguarded",
        "DQN-Fed (one-sided)",
    ]
    assert rows("DQN-Fed", "table1", "setup1") == ["DQN-Fed"]
    assert rows("dqn-fed (one-sided)", "table1", "setup1") == ["DQN-Fed (one-sided)"]
    assert rows("DQN-Fed, unbounded,TERM", "table3", "participation10") == ["DQN-Fed, unbounded", "TERM"]


def test_the_names_of_our_tables_are_known_where_the_paper_has_none() -> None:
    assert rows("FedNL (last layer)", "table1", "setup1") == ["FedNL"]
    assert rows("DQN-Fed,FedAvg", "fedmdfg-table2", "mutex-mnist") == ["DQN-Fed", "FedAvg"]
    assert rows("FedMDFG", "fedmdfg-table2", "mutex-mnist") == rows("fedmdfg", "fedmdfg-table2", "mutex-mnist")


def test_a_row_that_is_named_twice_comes_once() -> None:
    assert rows("TERM(5),term,TERM(5)") == ["TERM(5)", "TERM(1)"]


def test_what_no_row_is_called_is_a_method_with_settings_or_refused() -> None:
    plan = plan_of("table9", "fashion-mnist", ReproduceOptions(reduced=True, methods="term@term.t=2,FedAvg"))
    assert [(spec.method, dict(spec.own)) for spec in plan.specs] == [("term", {"term.t": 2}), ("fedavg", {})]
    assert isinstance(plan.specs[0], RowSpec)
    with pytest.raises(ConfigError, match=r"found 'FedMDFG\(pi/64'"):
        rows("FedMDFG(pi/64,5)")
    with pytest.raises(ConfigError, match=r"(?s)found 'FedAvgg'.*\nrows here: .*FedAvg, .*TERM\(5\)"):
        rows("FedAvgg")
    with pytest.raises(ConfigError, match="found ''"):
        rows("fedavg,,term")
