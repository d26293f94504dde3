"""Which keys the SuperLink knows, and which it is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dqnfed_flwr.deploy import build, registry
from dqnfed_flwr.deploy.check_network import registered
from dqnfed_flwr.deploy.findings import failed
from dqnfed_flwr.deploy.plan import read_plan
from dqnfed_flwr.deploy.superlink import link_of
from dqnfed_flwr.errors import RunError
from tests.helpers.checks import remember, troubles


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has a `flwr supernode` give answers, by its second word; `calls` is what it was asked."""
    command = tmp_path / "flwr"
    monkeypatch.setattr("dqnfed_flwr.deploy.superlink.OPERATOR_FLWR", [str(command)])

    def says(**answers: object) -> None:
        cases = "\n".join(f"{word}) echo '{json.dumps(answer)}' ;;" for word, answer in answers.items())
        command.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\ncase "$2" in\n{cases}\nesac\n')
        command.chmod(0o755)

    return says


def listing(**states: str) -> dict[str, object]:
    return {"success": True, "nodes": [{"node-id": name[1:], "status": state} for name, state in states.items()]}


def test_keys_and_what_the_superlink_knows_of_them(place: Path, says: Callable[..., None]) -> None:
    remember(place, {"node-0": "11"})
    says(list=listing(_11="offline", _77="online", _5="unregistered"))
    found = troubles(list(registered(place, read_plan(place), str(place))))
    assert found["not registered: node-1"] == f"`dqnfed deploy register {place}`"
    assert "not online: node-0" in found
    assert "registered, but as no node of this folder: 77" in found


@pytest.mark.parametrize(("second", "fails"), [("offline", True), ("registered", True), ("online", False)])
def test_a_federation_without_a_node_online_could_begin_no_run(
    place: Path, says: Callable[..., None], second: str, fails: bool
) -> None:
    remember(place, {"node-0": "11", "node-1": "12"})
    says(list=listing(_11="offline", _12=second))
    findings = list(registered(place, read_plan(place), str(place)))
    words = "no node is online, so that no run could begin: node-0, node-1" if fails else "not online: node-0"
    assert words in troubles(findings)
    assert failed(findings) is fails


def test_what_another_command_remembers_meanwhile_is_not_lost(
    place: Path, says: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = read_plan(place)
    says(list=listing(), register={"success": True, "node-id": 11})
    read = registry._entries

    def and_another(directory: Path) -> dict[str, registry.RegisteredNode]:
        found = read(directory)
        monkeypatch.setattr(registry, "_entries", read)
        (place / registry.REGISTERED).write_text(json.dumps({"node-1": {"id": "12", "key": "k"}}))
        return found

    monkeypatch.setattr(registry, "_entries", and_another)
    assert registry.register(place, replace(plan, nodes=plan.nodes[:1])) == {"node-0": "registered"}
    assert registry.known(place) == {"node-0": "11", "node-1": "12"}


def test_register_tells_only_what_is_new(place: Path, says: Callable[..., None], tmp_path: Path) -> None:
    plan = read_plan(place)
    says(list=listing(), register={"success": True, "node-id": 11})
    assert registry.register(place, replace(plan, nodes=plan.nodes[:1])) == {"node-0": "registered"}
    (tmp_path / "calls").unlink()
    says(list=listing(_11="online"), register={"success": True, "node-id": 12})
    assert registry.register(place, plan) == {"node-0": "known", "node-1": "registered"}
    assert registry.known(place) == {"node-0": "11", "node-1": "12"}
    calls = (tmp_path / "calls").read_text()
    assert f"register {place / 'nodes/node-1/node.pub'} dqnfed --name node-1" in calls
    assert "node-0/node.pub" not in calls


AWAY = {"success": False, "error-message": "Using dqnfed\\n\\nConnection to the SuperLink is unavailable.\\n"}


def test_register_waits_for_a_superlink_that_is_starting(
    place: Path, says: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    says(list=AWAY)
    said: list[str] = []

    def started(_: float) -> None:
        says(list=listing(), register={"success": True, "node-id": 11})

    monkeypatch.setattr("dqnfed_flwr.deploy.superlink.time.sleep", started)
    assert set(registry.register(place, read_plan(place), said.append).values()) == {"registered"}
    assert said == ["the SuperLink does not answer yet; asked again for up to 60 s"]


def test_register_gives_up_on_a_superlink_that_stays_away(
    place: Path, says: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    says(list=AWAY)
    monkeypatch.setattr(registry, "START_SECONDS", -1.0)
    with pytest.raises(RunError, match="is unavailable"):
        registry.register(place, read_plan(place))


def test_a_key_that_the_superlink_has_and_the_folder_forgot(place: Path, says: Callable[..., None]) -> None:
    refusal = {"success": False, "error-message": "Using SuperLink: x\\nPublic key already in use."}
    says(list=listing(_11="online"), register=refusal)
    outcome = registry.register(place, read_plan(place))
    assert all("restore that file" in words for words in outcome.values())
    assert registry.known(place) == {}


def test_a_new_node_of_an_old_name_is_registered(place: Path, says: Callable[..., None]) -> None:
    says(list=listing(), register={"success": True, "node-id": 11})
    assert set(registry.register(place, read_plan(place)).values()) == {"registered"}
    build.remove_node(place, "node-0")
    says(list=listing(_11="online"), register={"success": True, "node-id": 12})
    assert "registered, but as no node of this folder: 11" in troubles(
        list(registered(place, replace(read_plan(place), nodes=()), str(place)))
    )
    assert build.add_node(place).name == "node-0"
    plan = replace(read_plan(place), nodes=read_plan(place).nodes[:1])
    assert "not registered: node-0" in troubles(list(registered(place, plan, str(place))))
    assert registry.register(place, plan) == {"node-0": "registered"}
    says(list=listing(_11="online", _12="online"))
    assert list(troubles(list(registered(place, plan, str(place))))) == [
        "registered, but as no node of this folder: 11"
    ]


def test_a_superlink_that_lost_its_database_is_told_again(place: Path, says: Callable[..., None]) -> None:
    remember(place, {"node-0": "11", "node-1": "12"})
    says(list=listing(), register={"success": True, "node-id": 13})
    assert set(registry.register(place, read_plan(place)).values()) == {"registered"}


def test_unregister(place: Path, says: Callable[..., None]) -> None:
    says(list=listing(_11="online"), unregister={"success": False, "error-message": "no"})
    assert not registry.unregister(place, "node-0")
    remember(place, {"node-0": "11", "node-1": "12"})
    with pytest.raises(RunError, match="node-0 could not be unregistered: no"):
        registry.unregister(place, "node-0")
    assert registry.unregister(place, "node-1")
    assert registry.known(place) == {"node-0": "11"}


@pytest.mark.parametrize("text", ["[1]", '{"node-0": {"key": 1}}', "{", "3"])
def test_a_damaged_memory_is_none(place: Path, text: str) -> None:
    (place / registry.REGISTERED).write_text(text)
    assert registry.known(place) == {}


def test_no_superlink(place: Path, says: Callable[..., None]) -> None:
    says(list=AWAY)
    with pytest.raises(RunError) as caught:
        registry.listed(link_of(place))
    assert str(caught.value) == "flwr supernode list dqnfed: Connection to the SuperLink is unavailable."
