"""What a client does and refuses, against a server that says whatever it likes."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dqnfed_flwr.masked import SHORT
from dqnfed_flwr.masked.member import Member, RefusedError, spread_of
from dqnfed_flwr.masked.secrets import agreement_public, sign, signing_public
from dqnfed_flwr.masked.sums import opened, unit_for
from tests.helpers.masked import RUN, SAMPLES, agree, delivery, group, invitation, key_of, member, request, rows

MODEL = b"m" * 32


def with_rows(count: int, dim: int = 20) -> dict[int, Member]:
    members = group(count)
    for client, row in enumerate(rows(count, dim)):
        members[client].hide(1, MODEL, row)
    return members


def test_group_shows_the_gramian_and_gives_the_sum_that_it_is_asked_for() -> None:
    members, given_rows = group(5), rows(5, 20)
    seen = np.array([members[client].hide(1, MODEL, row) for client, row in enumerate(given_rows)])
    np.testing.assert_allclose(seen @ seen.T, given_rows @ given_rows.T, rtol=1e-11, atol=1e-11)
    assert np.abs(seen - given_rows).max() > 0.1
    asked = request(range(5), [0.3, 0.1, 0.1, 0.4, 0.1])
    total = opened([members[client].summand(asked) for client in range(5)], asked["unit"])
    np.testing.assert_allclose(total, np.array(asked["weights"]) @ given_rows, atol=5 * asked["unit"])


def test_rotation_is_another_in_each_exchange_and_run() -> None:
    one, other, row = group(4), group(4, salt="another run"), rows(1, 20)[0]
    first, second = (one[0].hide(exchange, MODEL, row) for exchange in (1, 2))
    assert np.abs(first - second).max() > 0.1
    assert np.abs(first - other[0].hide(1, MODEL, row)).max() > 0.1


def test_the_same_sum_again_is_the_same_bytes_and_another_is_refused() -> None:
    members = with_rows(4)
    asked = request(range(4), [0.25] * 4)
    first = members[0].summand(asked)
    np.testing.assert_array_equal(first, members[0].summand(asked))
    for other in ([0.3, 0.2, 0.25, 0.25], [0.2, 0.3, 0.25, 0.25]):
        with pytest.raises(RefusedError, match="a second sum at one model"):
            members[0].summand(request(range(4), other))
    members[0].hide(2, MODEL, rows(1, 20)[0])
    with pytest.raises(RefusedError, match="a second sum at one model"):
        members[0].summand(request(range(4), [0.25] * 4, exchange=2))


def test_server_does_not_know_how_a_sum_in_coarse_units_was_rounded() -> None:
    """Else single signs of single rows show: where it knows that one client alone is about to be rounded up."""
    asked, given_rows = request(range(4), [0.25] * 4, longest=1e12), rows(4, 2000)
    totals = []
    for salt in ("", "other secrets"):
        members = group(4, salt)
        for client, row in enumerate(given_rows):
            members[client].hide(1, MODEL, row)
        totals.append(opened([each.summand(asked) for each in members.values()], asked["unit"]) / asked["unit"])
    assert np.abs(totals[0] - totals[1]).max() >= 1
    assert abs(np.corrcoef(*totals)[0, 1]) < 0.1


def test_who_is_told_something_else_spoils_the_sum_and_shows_nothing() -> None:
    members, given_rows = with_rows(4, 2000), rows(4, 2000)
    asked, other = request(range(4), [0.25] * 4), request(range(4), [0.25, 0.25, 0.26, 0.24])
    shown = [members[client].summand(other if client == 0 else asked) for client in range(4)]
    total = opened(shown, asked["unit"])
    assert abs(np.corrcoef(total, given_rows.mean(axis=0))[0, 1]) < 0.1
    assert np.abs(total).max() > 100 * np.abs(given_rows).max()


def floored(floor: int, samples: dict[int, int], client: int = 0) -> Member:
    """A client with a floor, which has a row, in a group of clients with so many samples."""
    members = {each: member(each, floor=floor if each == client else 1) for each in samples}
    agree(members, samples)
    members[client].hide(1, MODEL, rows(1, 20)[0])
    return members[client]


@pytest.mark.parametrize(
    ("samples", "weights", "found"),
    [
        ([4, 4, 4, 4], [0.25] * 4, 16),
        ([64, 64, 64, 64], [0.25] * 4, 256),
        ([63, 64, 64, 64], [0.25] * 4, 254),
        ([4, 1000, 1000, 1000], [0.25] * 4, 63),
        ([4, 1000, 1000, 1000], [0.004, 0.332, 0.332, 0.332], 2983),
        ([1000, 1000, 1000, 4], [0.5, 0.0, 0.0, -0.5], 15),
    ],
)
def test_sum_of_few_samples_is_refused_by_what_peers_said_of_themselves(
    samples: list[int], weights: list[float], found: int
) -> None:
    one, asked = floored(256, dict(enumerate(samples))), request(range(4), weights)
    before = dict(one.spent)
    if found >= 256:
        one.summand(asked)
        return
    with pytest.raises(RefusedError, match=rf"one of {found} samples; 256 are needed \(privacy\.min-samples"):
        one.summand(asked)
    assert one.spent == before
    reborn = member(0, floor=256)
    reborn.load(one.export())
    with pytest.raises(RefusedError, match=rf"one of {found} samples"):
        reborn.summand(asked)


def test_number_of_samples_is_what_a_client_said_first_and_must_be_some() -> None:
    one = member(0)
    one.hello(5)
    one.hello(5000)
    assert one.samples == {0: 5}
    with pytest.raises(RefusedError, match=r"client 2 says that its row is the mean of no sample"):
        agree({client: member(client) for client in range(4)}, {2: 0})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clients": [0, 1, 2], "weights": [0.4, 0.3, 0.3]}, "with 2 others; 3 are needed"),
        ({"weights": [0.7, 0.1, 0.1, 0.1]}, "client 0 has 70% of the weights"),
        ({"weights": [0.1, -0.7, 0.1, 0.1]}, "client 1 has 70% of the weights"),
        ({"clients": [0, 1, 2, 9]}, "the group is"),
        ({"clients": [1, 2, 3, 4]}, "a sum of clients"),
        ({"clients": [1, 0, 2, 3]}, "rising"),
        ({"clients": [0, 0, 2, 3]}, "rising"),
        ({"clients": [0, 1, 2, True]}, "rising"),
        ({"weights": [0.25, 0.25, 0.25]}, "no request for a sum"),
        ({"weights": [float("nan"), 0.25, 0.25, 0.25]}, "not finite|no request"),
        ({"weights": [0.0] * 4}, "not finite and above 0"),
        ({"unit": 0.0}, "not finite and above 0"),
        ({"unit": 1e-30}, "too small for the row"),
        ({"unit": "1"}, "no request for a sum"),
        ({"exchange": 2}, "the last row is of exchange 1"),
        ({"model": b"n" * 32}, "the last row is of exchange 1"),
        ({"model": None}, "no request for a sum"),
    ],
)
def test_sum_that_shows_too_much_or_makes_no_sense_is_refused_and_spends_nothing(
    changes: dict[str, Any], words: str
) -> None:
    members = with_rows(5)
    asked = request(range(4), [0.25] * 4)
    with pytest.raises(RefusedError, match=words):
        members[0].summand({**asked, **changes})
    members[0].summand(asked)


def test_exchange_is_answered_once_and_in_order() -> None:
    members, (one, other) = group(4), rows(2, 20)
    first = members[0].hide(3, MODEL, one)
    np.testing.assert_array_equal(first, members[0].hide(3, MODEL, other))  # the row that is kept, whatever comes
    for exchange, model in ((3, b"n" * 32), (2, MODEL)):
        with pytest.raises(RefusedError, match="each is answered once"):
            members[0].hide(exchange, model, one)
    with pytest.raises(RefusedError, match="NaN or Inf"):
        members[0].hide(4, MODEL, np.array([np.inf] * 20))
    with pytest.raises(RefusedError, match="no agreement"):
        member(0).hide(1, MODEL, one)
    with pytest.raises(RefusedError, match="a sum before a row"):
        group(4)[0].summand(request(range(4), [0.25] * 4))


def test_stranger_is_refused_by_name_and_so_is_a_key_that_is_not_pinned() -> None:
    pins = {client: signing_public(key_of(client)) for client in range(4)}
    members = {client: member(client, pins) for client in range(5)}
    with pytest.raises(RefusedError, match=r"clients \[4\] do not show the keys") as caught:
        members[0].invite(invitation(members))
    assert caught.value.peers == (4,)
    del members[4]
    agree(members)
    members = {client: member(client, {**pins, 2: pins[1]} if client == 0 else pins) for client in range(4)}
    with pytest.raises(RefusedError, match=r"clients \[2\]"):
        members[0].invite(invitation(members))


def test_invitation_that_the_server_made_up_is_refused() -> None:
    members = {client: member(client) for client in range(4)}
    asked = invitation(members)
    own = agreement_public(b"s" * 32)
    forged = {**asked, "publics": [*asked["publics"][:3], own]}
    with pytest.raises(RefusedError, match=r"clients \[3\]"):
        members[0].invite(forged)
    other_run = sign(key_of(3), "dqnfed-flwr masked hello", "run 2", 3, asked["publics"][3])
    with pytest.raises(RefusedError, match=r"clients \[3\]"):
        members[0].invite({**asked, "signatures": [*asked["signatures"][:3], other_run]})
    older = member(0, salt="an earlier life").hello(SAMPLES)
    earlier = {key: [older[key[:-1]], *asked[key][1:]] for key in ("publics", "signatures")}
    with pytest.raises(RefusedError, match="with the key it gave"):
        members[0].invite({**asked, **earlier})
    with pytest.raises(RefusedError, match="2 peers"):
        members[0].invite({key: each[:3] for key, each in asked.items()})
    with pytest.raises(RefusedError, match="before it was asked for its key"):
        member(0).invite(asked)


def test_box_of_another_or_for_another_is_refused() -> None:
    members = {client: member(client) for client in range(4)}
    asked = invitation(members)
    invited = {client: each.invite(asked) for client, each in members.items()}
    mine = delivery(0, invited)
    swapped = {**mine, "boxes": [mine["boxes"][1], mine["boxes"][0], mine["boxes"][2]]}
    with pytest.raises(RefusedError, match="box of client 1"):
        members[0].deliver(swapped)
    with pytest.raises(RefusedError, match="was invited with"):
        members[0].deliver(delivery(1, invited))
    members[0].deliver(mine)


def test_one_agreement_a_run() -> None:
    members = group(4)
    known = members[0].hello(SAMPLES)
    assert known["members"] == [0, 1, 2, 3]
    with pytest.raises(RefusedError, match="one agreement a run"):
        members[0].invite(invitation({client: member(client) for client in range(4)}))


def test_life_goes_on_with_the_same_bits_from_what_was_exported() -> None:
    members, row = with_rows(4), rows(1, 20)[0]
    reborn = member(0, salt="other draws")
    reborn.load(members[0].export())
    asked = request(range(4), [0.25] * 4)
    np.testing.assert_array_equal(reborn.summand(asked), members[0].summand(asked))
    reborn.load(members[0].export())
    with pytest.raises(RefusedError, match="a second sum"):
        reborn.summand(request(range(4), [0.2, 0.3, 0.25, 0.25]))
    np.testing.assert_array_equal(reborn.hide(2, b"n" * 32, row), members[0].hide(2, b"n" * 32, row))
    reborn.load({})
    assert "public" in reborn.hello(SAMPLES)


MODELS = [bytes([number]) * 32 for number in range(3)]
ASKED = st.one_of(
    st.tuples(st.just("hide"), st.integers(1, 6), st.sampled_from(MODELS)),
    st.tuples(
        st.just("sum"),
        st.one_of(st.none(), st.integers(1, 6)),
        st.one_of(st.none(), st.sampled_from(MODELS)),
        st.sampled_from([(0, 1, 2, 3), (0, 1, 2, 4), (0, 1, 2, 3, 4)]),
        st.sampled_from([0.2, 0.25, 0.3, 0.5, 0.6]),
    ),
    st.tuples(st.sampled_from(["hello", "invite", "deliver", "reborn"])),
)


@settings(max_examples=150)
@given(st.lists(ASKED, min_size=5, max_size=60))
def test_no_sequence_of_messages_makes_a_client_give_two_sums_at_one_model(asked: list[tuple[Any, ...]]) -> None:
    members = {client: member(client) for client in range(5)}
    invited_with = invitation(members)
    invited = {client: each.invite(invited_with) for client, each in members.items()}
    boxes = delivery(0, invited)
    one, row = members[0], rows(1, 12)[0]
    one.deliver(boxes)
    given_at: defaultdict[bytes, set[bytes]] = defaultdict(set)
    shown: defaultdict[int, set[bytes]] = defaultdict(set)
    plain: dict[str, Callable[[], object]] = {
        "hello": lambda: one.hello(SAMPLES),
        "invite": lambda: one.invite(invited_with),
        "deliver": lambda: one.deliver(boxes),
        "reborn": lambda: one.load(copy.deepcopy(one.export())),
    }
    for kind, *rest in asked:
        try:
            if kind == "hide":
                exchange, model = rest
                shown[exchange].add(one.hide(exchange, model, row * (1 + MODELS.index(model))).tobytes())
            elif kind == "sum":
                exchange, model = rest[0] or one.exchange, rest[1] or one.model
                clients, weight = rest[2:]
                weights = [weight, *[(1 - weight) / (len(clients) - 1)] * (len(clients) - 1)]
                said = request(clients, weights, exchange=exchange, model=model)
                given_at[model].add(one.summand(said).tobytes())
            else:
                plain[kind]()
        except RefusedError:
            continue
    assert all(len(sums) <= 1 for sums in given_at.values())
    assert all(len(views) <= 1 for views in shown.values())


NONSENSE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=4),
    st.binary(max_size=70),
    st.lists(st.one_of(st.integers(-2, 9), st.binary(max_size=70), st.floats(), st.booleans()), max_size=6),
)
KEYS = ("clients", "publics", "signatures", "boxes", "exchange", "model", "weights", "unit", "other")


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["new", "invited", "agreed", "with a row"])
@settings(max_examples=2500)
@given(st.sampled_from(["invite", "deliver", "sum"]), st.dictionaries(st.sampled_from(KEYS), NONSENSE, max_size=4))
def test_nonsense_is_refused_and_changes_nothing(stage: str, kind: str, changes: dict[str, Any]) -> None:
    """10,000 messages: right ones, of which some values are not."""
    one, right = STAGES[stage]
    saved = copy.deepcopy(one.export())
    before = {name: values.tobytes() for name, values in saved.items()}
    asked = {**right[kind], **changes}
    ask: dict[str, Callable[[dict[str, Any]], object]] = {
        "invite": one.invite,
        "deliver": one.deliver,
        "sum": lambda values: one.summand(values),
    }
    try:
        ask[kind](asked)
    except RefusedError:
        assert {name: values.tobytes() for name, values in one.export().items()} == before
    else:
        other = {key for key in right[kind] if asked[key] != right[kind][key]}
        assert other <= ({"unit"} if kind == "sum" else set())  # a coarser one: worse for the server alone
        one.load(saved)


def _stages() -> dict[str, tuple[Member, dict[str, dict[str, Any]]]]:
    found = {}
    for count, stage in enumerate(("new", "invited", "agreed", "with a row")):
        members = {client: member(client) for client in range(4)}
        asked = invitation(members)
        invited = {client: each.invite(asked) for client, each in members.items()}
        one = members[0]
        if not count:
            one = member(0)
            one.hello(SAMPLES)
        if count > 1:
            one.deliver(delivery(0, invited))
        if count > 2:
            one.hide(1, MODEL, rows(1, 8)[0])
        right = {"invite": asked, "deliver": delivery(0, invited), "sum": request(range(4), [0.25] * 4)}
        found[stage] = one, right
    return found


STAGES = _stages()


def test_the_run_is_part_of_every_secret() -> None:
    members = {client: member(client) for client in range(4)}
    elsewhere = {client: member(client, run="run 2") for client in range(4)}
    for each in (members, elsewhere):
        agree(each)
    row = rows(1, 20)[0]
    assert RUN != "run 2"
    assert np.abs(members[0].hide(1, MODEL, row) - elsewhere[0].hide(1, MODEL, row)).max() > 0.1


def test_short_sum_is_that_of_the_rows_and_no_second_one() -> None:
    """Nor is the same sum given in other words: the same masks would lie over other numbers."""
    members, given_rows = group(5, bits=SHORT), rows(5, 300)
    for client, row in enumerate(given_rows):
        members[client].hide(1, MODEL, row)
    spread, weights = spread_of(300, range(5), 1, MODEL), [0.3, 0.1, 0.1, 0.4, 0.1]
    unit = unit_for(float(np.array(weights) @ np.linalg.norm(given_rows, axis=1)), 5, spread)
    asked = {**request(range(5), weights), "unit": unit}
    words = [members[client].summand(asked) for client in range(5)]
    assert {each.dtype for each in words} == {np.dtype(np.uint16)}
    np.testing.assert_allclose(opened(words, unit, spread), np.array(weights) @ given_rows, atol=12 * unit)
    np.testing.assert_array_equal(words[0], members[0].summand(asked))
    members[0].bits = 32
    with pytest.raises(RefusedError, match="a second sum at one model"):
        members[0].summand(asked)
    members[1].spent.clear()
    with pytest.raises(RefusedError, match="too small for the row"):
        members[1].summand({**asked, "unit": unit / 1e4})
