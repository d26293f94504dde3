from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dqnfed_flwr.config import Settings, describe, flatten, nest, resolve
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.methods.dqn_fed.settings import DqnFedSettings

keys = st.sampled_from(["a", "b", "cd", "e-f", "gh-ij", "k-l", "mno", "p"])
scalars = st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
trees = st.dictionaries(
    keys, st.recursive(scalars, lambda leaves: st.dictionaries(keys, leaves, min_size=1), max_leaves=8)
)


@given(trees)
def test_nest_and_flatten_are_inverses(tree: dict[str, Any]) -> None:
    assert nest(flatten(tree)) == tree


def test_flat_settings_read_back() -> None:
    settings = Settings.from_mapping({"rounds": 7, "split": {"alpha": 0.1}, "dqn-fed.form": "two-sided"})
    assert (settings.rounds, settings.split.alpha, settings.group_of(DqnFedSettings).form) == (7, 0.1, "two-sided")
    assert Settings.from_mapping(settings.flat()) == settings


def test_nested_and_dotted_keys_are_one() -> None:
    nested = Settings.from_mapping({"local": {"epochs": 2, "lr": 0.5}})
    assert Settings.from_mapping({"local.epochs": 2, "local.lr": 0.5}) == nested
    assert Settings.from_mapping({"local": {"epochs": 2}, "local.lr": 0.5}) == nested


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"local.epochs": 2, "local": {"epochs": 3}}, "local.epochs: found both 2 and 3; give it once"),
        ({"local": {"epochs": 3}, "local.epochs": 2}, "local.epochs: found both 3 and 2; give it once"),
        ({"local.epochs": 2, "local": 3}, "local: found both {'epochs': 2} and 3; give it once"),
    ],
)
def test_a_key_that_has_two_values_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        nest(given)
    assert str(refused.value) == told
    assert nest({"local.epochs": 2, "local": {"epochs": 2}}) == {"local": {"epochs": 2}}


@pytest.mark.parametrize("key", ["local.lr", "ridge", "step.start", "step.max-factor", "deadline"])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_numbers_that_are_not_finite_are_refused_by_key(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"{key}: .*finite"):
        Settings.from_mapping({key: value})


def test_a_seed_has_63_bits() -> None:
    assert Settings.from_mapping({"seed": 2**63 - 1}).seed == 2**63 - 1
    with pytest.raises(ConfigError, match=r"seed: .*less than 9223372036854775808"):
        Settings.from_mapping({"seed": 2**63})


def test_flat_holds_what_flower_takes() -> None:
    flat = Settings().flat()
    assert all(isinstance(value, str | int | float | bool) for value in flat.values())
    assert all("_" not in key for key in flat)


def test_describe_lists_every_key_with_its_default() -> None:
    rows = describe()
    assert {key: default for key, default, _ in rows} == {**Settings().flat(), "evaluate-every": "auto"}
    assert all(meaning and meaning != "None" for _, _, meaning in rows)


@pytest.mark.parametrize(
    ("given", "read"),
    [(0.5, "0.5"), (0, "0"), (2.0, "2"), (1_234_567, "1234567"), (0.12345678, "0.12345678"), ("1e3", "1e3")],
)
def test_an_entitlement_is_the_number_that_was_given(given: float | str, read: str) -> None:
    assert Settings.from_mapping({"guarantee.entitlement": given}).guarantee.entitlement == read


def test_whole_numbers_pass_for_real_ones() -> None:
    assert Settings.from_mapping({"participation": 1, "local.lr": 1}).participation == 1.0


@pytest.mark.parametrize("key", ["split.merge", "split.only-classes", "attack.clients"])
@pytest.mark.parametrize(("given", "read"), [(2, "2"), ([2, 5], "2,5"), ([3], "3"), ("1,2", "1,2"), ("", "")])
def test_lists_of_numbers_come_in_any_form(key: str, given: object, read: str) -> None:
    assert Settings.from_mapping({key: given}).flat()[key] == read


@pytest.mark.parametrize("given", [True, 2.5, ["a"], [1, [2]], [], {}])
def test_what_is_no_list_of_numbers_is_refused(given: object) -> None:
    with pytest.raises(ConfigError, match=r"^split\.merge"):
        Settings.from_mapping({"split.merge": given})


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"round": 5}, ["round: unknown key", "rounds"]),
        (
            {"local.epoch": 5},
            ["local.epoch: unknown key; did you mean local.epochs? `dqnfed settings --all` lists all"],
        ),
        ({"local.zzzz": 5}, ["local.zzzz: unknown key; allowed in local: autocast, ", "epochs"]),
        ({"zzzz": 5}, ["zzzz: unknown key; `dqnfed settings --all` lists all"]),
        ({"rounds": "5"}, ["rounds", "integer", "'5'"]),
        ({"rounds": True}, ["rounds", "True"]),
        ({"rounds": 1.5}, ["rounds", "1.5"]),
        ({"rounds": 0}, ["rounds", "greater than or equal to 1", "0"]),
        ({"split.alpha": -1.0}, ["split.alpha", "greater than 0", "-1.0"]),
        ({"method": "fed-avg"}, ["method", "fedavg", "'fed-avg'"]),
        ({"local": 3}, ["local", "3"]),
        ({"local": 3, "local.lr": 0.1}, ["local.lr", "both as a value and as a group"]),
        ({"rounds": 0, "clients": 0}, ["rounds", "clients"]),
    ],
)
def test_fault_names_key_value_and_what_is_allowed(mapping: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_mapping(mapping)
    assert [word for word in words if word not in str(caught.value)] == []
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("mapping", "key"),
    [
        ({"method": "fedavg", "local.work": "gradient"}, "local.work"),
        ({"method": "fedsgd", "local.work": "sgd"}, "local.work"),
        ({"method": "fedavg", "step-rule": "probed"}, "step-rule"),
        ({"method": "dqn-fed", "local.work": "lbfgs"}, "local.work"),
        ({"method": "dqn-fed", "local.gradient-batch": 8}, "local.gradient-batch"),
        ({"method": "fedavg", "step-rule": "newton", "local.work": "lbfgs"}, "local.work"),
        ({"dqn-fed.form": "one-sided", "local.work": "lbfgs", "local.epochs": 2}, "step-rule"),
        ({"min-clients": 6, "participation": 0.5}, "min-clients"),
        ({"early-stopping": 5}, "early-stopping"),
    ],
)
def test_impossible_combination_is_refused(mapping: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: "):
        Settings.from_mapping(mapping)


@pytest.mark.parametrize(
    ("method", "work", "rule"),
    [
        ("dqn-fed", "gradient", "probed"),
        ("fedavg", "sgd", "newton"),
        ("fedsgd", "gradient", "newton"),
        ("mgda", "gradient", "newton"),
    ],
)
def test_auto_asks_the_method(method: str, work: str, rule: str) -> None:
    settings = Settings.from_mapping({"method": method})
    assert (resolve(settings).work.name, resolve(settings).rule.name) == (work, rule)


@pytest.mark.parametrize(("clients", "participation", "sampled"), [(100, 0.1, 10), (10, 1.0, 10), (10, 0.01, 1)])
def test_sampled_clients(clients: int, participation: float, sampled: int) -> None:
    assert Settings.from_mapping({"clients": clients, "participation": participation}).sampled == sampled


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().rounds = 3  # type: ignore[misc]
