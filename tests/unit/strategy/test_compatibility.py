"""A node whose data, model or app do not fit the others' is left out with a reason, and nobody else notices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, MessageType
from flwr.clientapp import ClientApp

from benchmarks._clock import Clock
from dqnfed_flwr import wire
from dqnfed_flwr.errors import DataError
from dqnfed_flwr.strategy import client_registry
from dqnfed_flwr.strategy.client_registry import ClientRegistry
from dqnfed_flwr.strategy.compatibility import (
    OTHER_FORM,
    OTHER_FROZEN,
    OTHER_VERSION,
    Form,
    Member,
    common_form,
    incompatibility,
    scale_warning,
)
from dqnfed_flwr.version import UNKNOWN
from tests.helpers.grids import ChangingGrid
from tests.helpers.quadratics import Federation, spread_out, start_at, strategy

IMAGES = Member(7, 0, 100, 10, (1, 8, 8), "images", 650, version("dqnfed-flwr"))
FORM = Form((1, 8, 8), "images", 10, 650)
TUNED = replace(IMAGES, frozen="ab" * 32)
MAJOR, MINOR = map(int, version("dqnfed-flwr").split(".")[:2])


def told(properties: Mapping[int, Mapping[str, Any]], clients: int = 4) -> ClientApp:
    """A federation of which some clients say other things of themselves."""
    inner = Federation(spread_out(clients)).app()

    class Odd(ClientApp):
        def __call__(self, message: Message, context: Context) -> Message:
            reply = inner(message, context)
            changed = properties.get(int(context.node_config["partition-id"]))
            if message.metadata.message_type == MessageType.QUERY and changed:
                said = {**wire.decode_properties(reply.content), **changed}
                return Message(wire.encode_properties(said), reply_to=message)
            return reply

    return Odd()


def at_rest(grid: ChangingGrid) -> None:
    """Change nothing."""


def test_the_majority_makes_the_form() -> None:
    members = [replace(IMAGES, client=client) for client in range(3)] + [replace(IMAGES, client=3, input_shape=(64,))]
    assert common_form(members, 0) == FORM
    assert common_form(members, 12).num_classes == 12


@pytest.mark.parametrize(("counts", "classes"), [([10, 10, 100], 10), ([7, 7, 7, 2], 7), ([4], 4)])
def test_the_class_count_that_more_than_half_name_counts(counts: list[int], classes: int) -> None:
    members = [replace(IMAGES, client=client, num_classes=count) for client, count in enumerate(counts)]
    assert common_form(members, 0).num_classes == classes


@pytest.mark.parametrize("counts", [[9, 10], [3, 7, 7, 2], [3, 4, 5, 6, 7, 2**31 - 1]])
def test_no_node_chooses_the_size_of_the_model_alone(counts: list[int]) -> None:
    members = [replace(IMAGES, client=client, num_classes=count) for client, count in enumerate(counts)]
    with pytest.raises(DataError, match=rf"number of classes: .*{counts[-1]}: 1.*Set num-classes"):
        common_form(members, 0)
    assert common_form(members, 10).num_classes == 10


def test_without_a_majority_nobody_is_guessed_to_be_right() -> None:
    with pytest.raises(DataError, match="disagree on the shape"):
        common_form([IMAGES, replace(IMAGES, client=1, input_shape=(64,))], 0)


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        ({"input_shape": (3, 8, 8)}, OTHER_FORM, r"images of shape \(3, 8, 8\).*of shape \(1, 8, 8\)"),
        ({"input_kind": "features"}, OTHER_FORM, "features of shape"),
        ({"num_classes": 11}, OTHER_FORM, "set num-classes to 11"),
        ({"dim": 651}, OTHER_FORM, "651 values"),
        ({"version": "0.0.9"}, OTHER_VERSION, "0.0.9"),
        ({"version": f"{MAJOR + 1}.{MINOR}.0"}, OTHER_VERSION, "install"),
        ({"frozen": "none"}, OTHER_FROZEN, "fingerprint none, that of the federation abababababab; install the same"),
    ],
)
def test_what_stands_against_a_node(change: dict[str, Any], reason: str, words: str) -> None:
    import re

    found = incompatibility(replace(TUNED, **change), replace(FORM, frozen=TUNED.frozen))
    assert found is not None
    assert found[0] == reason
    assert re.search(words, found[1])


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"num_classes": 9, "dim": 585, "frozen": "cd"},
        {"dim": 0},
        {"version": ""},
        {"version": f"{MAJOR}.{MINOR}.99"},
        {"frozen": ""},
    ],
)
def test_fewer_classes_a_patch_or_silence_stand_against_nobody(change: dict[str, Any]) -> None:
    assert incompatibility(replace(TUNED, **change), replace(FORM, frozen=TUNED.frozen)) is None


def test_the_majority_says_what_stays_on_the_nodes() -> None:
    said = [TUNED.frozen, "none", TUNED.frozen, "", ""]
    members = [replace(TUNED, client=client, frozen=frozen) for client, frozen in enumerate(said)]
    assert common_form(members, 0) == replace(FORM, frozen=TUNED.frozen)
    assert common_form(members[3:], 0) == FORM
    with pytest.raises(DataError, match=r"frozen part of the model: fingerprints \{'abababababab': 1, 'none': 1\}"):
        common_form(members[:2], 0)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"input-shape": "2"}, OTHER_FORM),
        ({"num-classes": 9}, OTHER_FORM),
        ({"version": "0"}, OTHER_VERSION),
        ({"frozen": "ef" * 99}, OTHER_FROZEN),
    ],
)
def test_the_run_goes_on_without_a_misfit_and_says_so(changed: dict[str, Any], reason: str) -> None:
    server = strategy(4)
    others = {client: {"frozen": "none"} for client in (0, 1, 3)}
    server.start(ChangingGrid(told({2: changed, **others}), 4, at_rest), start_at(np.zeros(6)))
    assert server.outcome is not None
    assert server.outcome.status == "finished"
    for event in server.outcome.events:
        assert event.participants == [0, 1, 3]
        assert [(drop.client, drop.reason) for drop in event.dropped] == [(2, reason)]


def test_who_comes_later_is_held_to_the_same_form(clock: Clock) -> None:
    apps: dict[str, Callable[[Message, Context], Message]] = {"now": told({2: {"input-shape": "9"}})}

    class Mended(ClientApp):
        def __call__(self, message: Message, context: Context) -> Message:
            return apps["now"](message, context)

    grid, registry = ChangingGrid(Mended(), 4, at_rest), ClientRegistry(4, 1, 60)
    grid.leave(4)
    registry.wait(grid)
    grid.join(4, client=2)
    registry.refresh(grid)
    assert sorted(registry.members) == [0, 1, 3]
    assert [(drop.client, drop.reason) for drop in registry.left_out] == [(2, OTHER_FORM)]
    apps["now"] = told({})
    clock.sleep(61)
    registry.refresh(grid)
    assert sorted(registry.members) == [0, 1, 2, 3]
    assert registry.left_out == []


def test_a_version_that_nobody_knows_is_no_objection(monkeypatch: pytest.MonkeyPatch) -> None:
    assert incompatibility(replace(IMAGES, version=UNKNOWN), FORM) is None
    monkeypatch.setattr("dqnfed_flwr.strategy.compatibility.package_version", lambda: UNKNOWN)
    assert incompatibility(replace(IMAGES, version="9.9"), FORM) is None


def test_large_features_are_told_of_once_and_by_client(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(client_registry, "log", lambda level, text, *values: said.append(text % values))
    scales = [math.nan, 1000.0, "x" * 999, 100.0, [1e9]]
    odd = {client: {"feature-scale": scale} for client, scale in enumerate(scales)}
    registry = ClientRegistry(5, 1, 60)
    for _ in range(2):
        registry.wait(ChangingGrid(told(odd, 5), 5, at_rest))
    assert len(registry.members) == 5
    (words,) = [text for text in said if "scale them" in text]
    assert words == (
        "data: features of 1000 or more on 2 of 5 clients (1, 3): scale them (mean 0, deviation 1), alike on all, "
        "or set data-scale standardise"
    )


def test_features_of_usual_size_are_no_matter() -> None:
    members = [replace(IMAGES, client=client, feature_scale=10.0) for client in range(3)]
    assert scale_warning(members) == ""
    many = [replace(IMAGES, client=client, feature_scale=1e308) for client in range(12)]
    assert "of 1e+308 or more on 12 of 12 clients (0, 1, 2, 3, 4, 5, 6, 7, ...)" in scale_warning(many)
