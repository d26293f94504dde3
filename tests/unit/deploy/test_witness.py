"""What the audit log is told of calls, and of what happens without one."""

from __future__ import annotations

import asyncio
import time
import zipfile
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest, StartRunResponse, StopRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.log_pb2 import PushLogsRequest
from flwr.proto.transport_pb2 import Scalar

from dqnfed_flwr.deploy import operators, pki
from dqnfed_flwr.deploy.audit_log import AuditLog, lines_in, verify
from dqnfed_flwr.deploy.orders import OPERATOR, is_order
from dqnfed_flwr.deploy.prefork.allowed import app_hash
from dqnfed_flwr.deploy.witness import KINDS, OTHERS, REFUSAL_SECONDS, Witness, remembered

FILES = {
    "pyproject.toml": b'[project]\nname = "x"\n[tool.flwr.app]\npublisher = "y"\n[tool.flwr.app.config]\nrounds = 3\n',
    "app.py": b"",
}


def all_lines(place: Path) -> list[dict[str, Any]]:
    return [line for line in lines_in(place / "server" / "state") if line is not None]


class Flower:
    """An app that answers each call with `status` and `answer`."""

    def __init__(self, status: int = 200, answer: bytes = b"") -> None:
        self.status, self.answer, self.bodies = status, answer, [b""][:0]

    async def __call__(self, _scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.bodies.append(body)
        await send({"type": "http.response.start", "status": self.status})
        await send({"type": "http.response.body", "body": self.answer})


def told(place: Path, flower: Flower, path: str, body: bytes, cut: int = 7) -> tuple[list[dict[str, Any]], list[Any]]:
    """Lines that a call adds to the log, and what it is answered with."""
    log = AuditLog(place / "server" / "state")
    before, sent = len(log.lines), []
    pieces = [body[:cut], body[cut:]]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, OPERATOR: "alice"}
    asyncio.run(Witness(flower, log, place / "server" / "operators")(scope, receive, send))
    log.close()
    assert verify(place / "server" / "state").faults == []
    return all_lines(place)[before:], sent


def test_an_order_that_is_cut_off_is_handed_on_to_nobody(place: Path) -> None:
    flower, log = Flower(), AuditLog(place / "server" / "state")
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": b"half", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def send(message: Any) -> None:
        pytest.fail(f"an answer to nobody: {message}")

    scope = {"type": "http", "method": "POST", "path": "/v1/control/start-run", OPERATOR: "alice"}
    before = len(log.lines)
    asyncio.run(Witness(flower, log, place / "server" / "operators")(scope, receive, send))
    log.close()
    assert (flower.bodies, len(all_lines(place))) == ([], before)


def test_a_submission_is_told_with_app_settings_and_run(place: Path) -> None:
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)
    request = StartRunRequest(fab=Fab(content=packed.getvalue()), override_config={"seed": Scalar(sint64=5)})
    flower = Flower(answer=StartRunResponse(run_id=17).SerializeToString())
    lines, sent = told(place, flower, "/v1/control/start-run", request.SerializeToString())
    order, done = lines
    assert (order["what"], order["operator"], order["call"]) == ("order", "alice", "start-run")
    assert order["app"] == app_hash(FILES)
    assert order["settings"] == {"rounds": 3, "seed": 5}
    assert (done["what"], done["status"], done["run"]) == ("order done", 200, "17")
    assert flower.bodies == [request.SerializeToString()]
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]


def test_other_orders_and_failures_are_told(place: Path) -> None:
    _, public = pki.make_node_key("x")
    request = RegisterNodeRequest(public_key=public, name="node-0").SerializeToString()
    lines, _ = told(place, Flower(409, b"Public key already in use"), "/v1/control/register-node", request)
    assert (lines[0]["key"], lines[0]["name"]) == (pki.fingerprint(public), "node-0")
    assert (lines[1]["status"], lines[1]["why"]) == (409, "Public key already in use")
    lines, _ = told(place, Flower(), "/v1/control/stop-run", StopRunRequest(run_id=17).SerializeToString())
    assert lines[0]["run"] == "17"
    lines, _ = told(place, Flower(500), "/v1/control/start-run", b"\xff" * 9)
    assert "unreadable" in lines[0]
    lines, _ = told(place, Flower(), "/v1/control/archive-federation", b"abc")
    assert (lines[0]["call"], lines[0]["bytes"]) == ("archive-federation", 3)


@pytest.mark.parametrize("call", ["list-runs", "stream-logs", "show-federation", "get-run-series", "pull-artifacts"])
def test_what_only_reads_is_no_order(call: str) -> None:
    assert not is_order(f"/v1/control/{call}")


def test_without_a_place_to_write_no_order_is_carried_out(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    flower = Flower()
    monkeypatch.setattr(AuditLog, "append", full)
    _, sent = told(place, flower, "/v1/control/stop-run", b"")
    assert (sent[0]["status"], flower.bodies) == (503, [])


def test_what_a_run_says_of_clients_is_told_if_flower_takes_it(place: Path) -> None:
    logs = ["INFO : Audit: ", '{"round": 3, "refused": {"1": "late"}}\n', "INFO : round 3\n", "Audit: {no json}\n"]
    body = PushLogsRequest(run_id=17, logs=logs).SerializeToString()
    lines, _ = told(place, Flower(), "/v1/runtime/push-logs", body)
    assert [line["words"] for line in lines] == [{"round": 3, "refused": {"1": "late"}}, "{no json}"]
    assert {line["run"] for line in lines} == {"17"}
    assert told(place, Flower(401), "/v1/runtime/push-logs", body)[0] == []


def test_refusals_at_the_door_share_lines(place: Path) -> None:
    log = AuditLog(place / "server" / "state")
    witness = Witness(Flower(), log, place / "server" / "operators")
    for _ in range(50):
        witness.refused("/v1/control/list-runs", "127.0.0.1", "no certificate")
    witness.refused("/v1/control/start-run", "127.0.0.1", "no certificate")
    assert [line["call"] for line in all_lines(place)[1:]] == ["/v1/control/list-runs", "/v1/control/start-run"]


def test_whoever_is_refused_with_ever_other_paths_costs_no_memory_and_is_counted(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    log = AuditLog(place / "server" / "state")
    witness = Witness(Flower(), log, place / "server" / "operators")
    minutes, calls = 3, 5 * KINDS
    for minute in range(minutes):
        for call in range(calls):
            witness.refused(f"/{minute}/{call}/" + "x" * 60_000, "127.0.0.1", "no certificate")
            assert len(witness._refused) <= KINDS + 1  # and the others
        clock += REFUSAL_SECONDS
    witness.refused(*OTHERS)
    assert sum(len(call) for call, _, _ in witness._refused) < (KINDS + 1) * 3_000
    lines = all_lines(place)[1:]
    assert len(lines) <= minutes * (KINDS + 1) + 1
    assert sum(1 + int(line["unsaid"]) for line in lines) == minutes * calls + 1


class State:
    """As much of Flower's state as is looked at."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.runs: list[Any] = []

    def get_node_info(self) -> list[Any]:
        return self.nodes

    def get_run_info(self, *, statuses: Any = None, run_ids: Any = None) -> list[Any]:
        return [
            run
            for run in self.runs
            if (run.status.status in statuses if statuses is not None else run.run_id in run_ids)
        ]


def test_operators_nodes_and_runs_are_told_once_for_each_change(place: Path) -> None:
    folder, state = place / "server" / "operators", State()
    log = AuditLog(place / "server" / "state")
    witness = Witness(Flower(), log, folder)

    def look() -> list[tuple[str, ...]]:
        before = log._number
        witness._look_at_operators()
        witness._look_at_nodes(state)
        witness._look_at_runs(state)
        lines = [line for line in all_lines(place) if line["number"] > before]
        keys = ("operator", "node", "state", "run", "how")
        return [(line["what"], *(str(line[key]) for key in keys if key in line)) for line in lines]

    assert look() == [("operator added", "operator")]
    assert look() == []
    operators.add(place, "alice")
    _, public = pki.make_node_key("x")
    state.nodes = [SimpleNamespace(node_id=5, status="online", public_key=public, name="node-0")]
    running = SimpleNamespace(status="running", sub_status="", details="")
    state.runs = [SimpleNamespace(run_id=17, status=running)]
    assert look() == [("operator added", "alice"), ("node", "5", "online")]
    operators.remove(place, "alice")
    state.nodes[0].status = "offline"
    state.runs[0].status = SimpleNamespace(status="finished", sub_status="failed", details="no nodes")
    assert look() == [
        ("operator removed", "alice"),
        ("node", "5", "offline"),
        ("run ended", "17", "finished:failed"),
    ]
    assert look() == []
    runs: set[str] = {"17"}
    known, nodes = remembered(all_lines(place), runs)
    assert (list(known), nodes, runs) == (["operator"], {"5": "offline"}, set())
