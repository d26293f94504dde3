"""What leaves a client that shows its row to nobody, whatever its server has set or asks."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from dqnfed_flwr.client.masks import RUN, STATE, Masks, masks_of
from dqnfed_flwr.config import Settings
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.masked import ALONG
from dqnfed_flwr.masked.budget import Budget, Protection
from dqnfed_flwr.masked.given import Given
from dqnfed_flwr.masked.member import RefusedError
from dqnfed_flwr.masked.secrets import signing_public
from dqnfed_flwr.types import ClientReply, ClientTask
from dqnfed_flwr.wire import Assignment
from tests.helpers.masked import group, key_of, rows

SETTINGS = Settings.from_mapping({"privacy.mode": "masked", "clients": 5, "seed": 7})


def masks() -> Masks:
    """The masks of a client that has agreed with three others."""
    made, agreed = Masks(group(4)[0].identity), group(4)[0]
    made.load({**agreed.export(), RUN: np.frombuffer(agreed.identity.run.encode(), np.uint8)})
    return made


def test_memory_of_another_run_is_none() -> None:
    """Flower gives a run the memory of the one before in its series: with the same secrets noise would be the same."""
    kept = {name.removeprefix(STATE): values for name, values in masks().export().items()}
    same, other = Masks(group(4)[0].identity), Masks(replace(group(4)[0].identity, run="another"))
    same.load(kept)
    other.load(kept)
    assert same.export().keys() == {STATE + name for name in kept}
    fresh = Masks(replace(group(4)[0].identity, run="another")).export()
    assert other.export().keys() == fresh.keys()
    assert not [name for name in fresh if "secret" in name]


def test_processes_with_the_same_memory_are_charged_once_for_one_question(tmp_path: Path) -> None:
    """Answers to many questions of one exchange, each with noise of its own, would have a mean with less."""
    pytest.importorskip("dp_accounting")
    known, given = group(4)[0], Given(tmp_path / "given")
    both = [Masks(replace(known.identity, given=given), protection=Protection(Budget(3.0, 1e-5, 9), 1.0, 5.0))]
    both.append(Masks(replace(known.identity, given=given), protection=Protection(Budget(3.0, 1e-5, 9), 1.0, 5.0)))
    for each in both:
        each.load({**known.export(), RUN: np.frombuffer(known.identity.run.encode(), np.uint8)})
    theta, other = rows(2, 20)
    first = both[0].release(asked(1, theta))
    with pytest.raises(RefusedError, match="another question in exchange 1, each of which is charged once"):
        both[1].release(asked(1, other))
    again = both[1].release(asked(1, theta))
    assert first is not None
    assert again is not None
    assert (first.noise("gradients", 1, 9) == again.noise("gradients", 1, 9)).all()


def asked(exchange: int, theta: Any, step: Any = None) -> Assignment:
    return Assignment(ClientTask(exchange, 1), theta, step, {})


@pytest.mark.parametrize("kind", ["vectors", "packed", "coded", "buffers"])
def test_work_that_makes_more_than_a_row_gives_nothing(kind: str) -> None:
    row, theta = rows(2, 20)
    more: Any = {"momentum": {".q": row} if kind == "packed" else row}
    reply = ClientReply(9, row, **{kind: more})
    with pytest.raises(RefusedError, match=r"work that sends \['momentum'\] besides the row"):
        masks().hidden(asked(1, theta), reply)


def test_server_that_asks_for_products_with_vectors_of_its_choice_gets_one_a_model() -> None:
    """Else D unit vectors in place of the last step would show the whole row, at one model."""
    made, (row, theta, step) = masks(), rows(3, 20)
    reply = ClientReply(9, row)
    assert made.hidden(asked(1, theta, step), reply).figures[ALONG] == pytest.approx(row @ step)
    for exchange in (1, 2, 3):
        for unit in np.eye(20):
            with pytest.raises(RefusedError, match="a product with a second vector at one model"):
                made.hidden(asked(exchange, theta, unit), reply)
    reborn = masks()
    reborn.load({name.removeprefix("masked/"): each for name, each in made.export().items()})
    with pytest.raises(RefusedError, match="second vector"):
        reborn.hidden(asked(4, theta, row), reply)
    assert reborn.hidden(asked(5, theta, step), reply).figures[ALONG] == pytest.approx(row @ step)


def test_node_of_a_supernode_draws_its_own_secrets_also_where_its_config_counts_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower's help shows `num-partitions` for real nodes; the seed, which the server knows, is no key."""
    context = Context(1, 12345, {"partition-id": 0, "num-partitions": 5}, RecordDict(), {})
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    simulated = masks_of(SETTINGS, 0, context)
    assert simulated is not None
    monkeypatch.setattr(TaskIdentity, "_node_id", 12345)
    with pytest.raises(ConfigError, match=r"identity: .*identity\.key"):
        masks_of(SETTINGS, 0, context)
    (tmp_path / "identity.key").write_text(key_of(0).hex())
    (tmp_path / "peers.toml").write_text(f'[peers.a]\npartition = 0\nkey = "{signing_public(key_of(0)).hex()}"\n')
    real = masks_of(SETTINGS, 0, context)
    assert real is not None
    assert real.answer({"ask": "hello"}, 9) != simulated.answer({"ask": "hello"}, 9)


def test_credentials_of_a_service_or_container_come_before_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = Context(1, 2, {"partition-id": 0}, RecordDict(), {})
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "folder" / "flwr"))
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "credentials"))
    for place, salt in (("folder", ""), ("credentials", "another")):
        (tmp_path / place).mkdir()
        with (
            pytest.raises(ConfigError, match=r"identity: .*folder/identity\.key")
            if place == "folder"
            else nullcontext()
        ):
            masks_of(SETTINGS, 0, context)
        (tmp_path / place / "identity.key").write_text(key_of(0, salt=salt).hex())
        (tmp_path / place / "peers.toml").write_text(f'[peers.a]\npartition = 0\nkey = "{"0" * 64}"\n')
        found = masks_of(SETTINGS, 0, context)
        assert found is not None
        assert found._member.identity.private == key_of(0, salt=salt)


def test_node_that_cannot_keep_what_it_gave_gives_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "identity.key").write_text(key_of(0).hex())
    (tmp_path / "peers.toml").write_text(f'[peers.a]\npartition = 0\nkey = "{"0" * 64}"\n')
    (tmp_path / "flwr").write_text("no folder")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    with pytest.raises(ConfigError, match=r"given-7-0: cannot be written .*; let FLWR_HOME be a folder"):
        masks_of(SETTINGS, 0, Context(7, 2, {"partition-id": 0}, RecordDict(), {}))


def test_floor_of_a_real_node_is_its_own_and_the_run_may_only_raise_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def floor(settings: dict[str, Any], **node: Any) -> int:
        made = Settings.from_mapping({**SETTINGS.flat(), **settings})
        found = masks_of(made, 0, Context(1, 2, {"partition-id": 0, **node}, RecordDict(), {}))
        assert found is not None
        return found._member.identity.floor

    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    (tmp_path / "identity.key").write_text(key_of(0).hex())
    (tmp_path / "peers.toml").write_text(f'[peers.a]\npartition = 0\nkey = "{signing_public(key_of(0)).hex()}"\n')
    low, high = {"privacy.min-samples": 1}, {"privacy.min-samples": 300}
    assert [floor(each) for each in ({}, low, high)] == [256, 256, 300]
    assert [floor(each, **{"min-samples": 1000}) for each in ({}, low, high)] == [1000, 1000, 1000]
    assert [floor(each, **{"min-samples": "64"}) for each in ({}, low, high)] == [256, 64, 300]
    assert floor(low, **{"num-partitions": 5}) == 1  # a simulation, which protects nobody
    for wrong in (0, -1, 2.5, "many", True):
        with pytest.raises(ConfigError, match=r"min-samples, in the node config: found .*; give a whole number from 1"):
            floor({}, **{"min-samples": wrong})


def test_secrets_are_not_in_what_is_printed() -> None:
    member = group(4)[0]
    member.hide(1, b"m" * 32, rows(1, 20)[0])
    shown = repr(member)
    for secret in (member.identity.private, *member.secrets.values(), *member.pairs.values()):
        assert repr(secret) not in shown
    assert "row" not in shown
