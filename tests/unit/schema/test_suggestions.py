from __future__ import annotations

import pytest

from dqnfed_flwr.config import KNOWN, Settings
from dqnfed_flwr.config.methods import METHODS, profile_of
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.schema.suggestions import OTHER_KEYS, OTHER_METHODS, did_you_mean, keys_like, method_like


def test_keys_with_the_same_last_part_are_named_those_of_local_first() -> None:
    assert keys_like("lr", list(KNOWN))[0] == "local.lr"
    assert {"step.lr", "start.lr"} < set(keys_like("lr", list(KNOWN)))
    assert keys_like("epochs", list(KNOWN)) == ["local.epochs", "start.epochs"]
    assert "split.alpha" in keys_like("alpha", list(KNOWN))


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("shards", "split.shards"),
        ("q", "q-ffl.q"),
        ("batch_size", "local.batch-size"),
        ("Rounds", "rounds"),
        ("round", "rounds"),
        ("epoch", "local.epochs"),
        ("local.epoch", "local.epochs"),
        ("local.alph", "split.alpha"),
        ("training.shards", "split.shards"),
        ("learning_rate", "local.lr"),
        ("local.learning-rate", "local.lr"),
        ("num-server-rounds", "rounds"),
    ],
)
def test_what_may_have_been_meant_by_a_key_is_asked(key: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{key}: unknown key; did you mean {meant}\b.*\?"):
        Settings.from_mapping({key: 1})


@pytest.mark.parametrize("key", ["zzzz", "local.zzzz", "zzzz.zzzz"])
def test_nothing_is_asked_where_nothing_is_near(key: str) -> None:
    assert keys_like(key, list(KNOWN)) == []
    with pytest.raises(ConfigError) as caught:
        Settings.from_mapping({key: 1})
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("FedAvg", "fedavg"),
        ("fed-avg", "fedavg"),
        ("dqnfed", "dqn-fed"),
        ("DQN_Fed", "dqn-fed"),
        ("fedprox", "fedavg with local.proximal"),
        ("FedProx", "fedavg with local.proximal"),
        ("qffl", "q-ffl"),
        ("fedmgda", "fedmgda+"),
        ("FedEBA+", "fedeba+"),
        ("Local only", "local"),
        ("fedagv", "fedavg"),
        ("L-BFGS", "server-lbfgs"),
    ],
)
def test_a_method_is_known_by_its_title_and_by_other_names(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"method: found '{name.replace('+', '.')}'; did you mean ") as caught:
        Settings.from_mapping({"method": name})
    assert f"did you mean {meant}? allowed: aaggff" in str(caught.value)


@pytest.mark.parametrize("name", ["scaffold", "", "?"])
def test_no_method_stands_for_one_that_is_not_here(name: str) -> None:
    assert method_like(name, [(own, profile.title) for own, profile in METHODS.items()]) == []
    with pytest.raises(ConfigError, match="; allowed: aaggff"):
        profile_of(name)


def test_every_other_name_is_of_something_that_exists() -> None:
    for meant in OTHER_METHODS.values():
        method, _, key = meant.partition(" with ")
        assert method in METHODS
        assert not key or key.partition("=")[0] in KNOWN
    assert set(OTHER_KEYS.values()) <= KNOWN.keys()
    assert not OTHER_KEYS.keys() & KNOWN.keys()
    plain = {"".join(sign for sign in name if sign.isalnum()) for name in METHODS}
    assert not OTHER_METHODS.keys() & plain


def test_several_are_joined() -> None:
    assert did_you_mean(["a", "b", "c"]) == "did you mean a, b or c?"
    assert did_you_mean([]) == ""
