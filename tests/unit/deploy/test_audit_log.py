"""A log that tells when it was changed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from dqnfed_flwr.cli.app import app
from dqnfed_flwr.deploy import audit_log
from dqnfed_flwr.deploy.audit_log import FIRST, AuditLog, hash_of, lines_in, parts, verify
from dqnfed_flwr.deploy.build import create
from dqnfed_flwr.deploy.plan import Federation, Node
from dqnfed_flwr.errors import RunError


def written(folder: Path, count: int = 6) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    log = AuditLog(folder)
    for number in range(count):
        log.append("order", operator="alice", call="start-run", settings={"rounds": number})
    log.close()
    return folder


def rewrite(folder: Path, lines: list[str]) -> None:
    (folder / "audit.log").write_text("\n".join(lines) + "\n")


def lines_of(folder: Path) -> list[str]:
    return (folder / "audit.log").read_text().splitlines()


def test_lines_are_chained_and_private(tmp_path: Path) -> None:
    folder = written(tmp_path)
    found = [line for line in lines_in(folder) if line is not None]
    assert [line["before"] for line in found] == [FIRST, *(line["hash"] for line in found[:-1])]
    assert [line["number"] for line in found] == list(range(1, 7))
    verdict = verify(folder)
    assert (verdict.count, verdict.head, verdict.faults) == (6, found[-1]["hash"], [])
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


@given(place=st.integers(0, 5), what=st.sampled_from(["change", "remove", "swap", "double", "rehash", "garbage"]))
def test_any_changed_line_is_found(tmp_path_factory: pytest.TempPathFactory, place: int, what: str) -> None:
    folder = written(tmp_path_factory.mktemp("log"))
    lines = lines_of(folder)
    if what == "change":
        lines[place] = lines[place].replace("alice", "mallory")
    elif what == "remove":
        del lines[place]
    elif what == "swap":
        other = (place + 1) % 6
        lines[place], lines[other] = lines[other], lines[place]
    elif what == "double":
        lines.insert(place, lines[place])
    elif what == "garbage":
        lines[place] = "[]"
    else:  # as somebody would who knows how hashes are made
        line = json.loads(lines[place]) | {"operator": "mallory"}
        lines[place] = json.dumps(line | {"hash": hash_of(line)})
    rewrite(folder, lines)
    assert verify(folder).faults


def test_a_history_that_is_cut_short_or_written_anew_is_found(tmp_path: Path) -> None:
    for kept in (0, 1, 5):
        folder = written(tmp_path / str(kept))
        rewrite(folder, lines_of(folder)[:kept])
        assert verify(folder).faults
    folder = written(tmp_path / "headless")
    (folder / "audit.head").unlink()
    assert verify(folder).faults
    other = written(tmp_path / "another", count=9)
    (other / "audit.head").write_bytes((written(tmp_path / "mine") / "audit.head").read_bytes())
    assert verify(other).faults


def test_it_goes_on_after_a_restart_and_after_a_loss_of_power(tmp_path: Path) -> None:
    folder = written(tmp_path)
    written(folder, 2)
    assert verify(folder).count == 8
    head = (folder / "audit.head").read_bytes()
    written(folder, 1)
    (folder / "audit.head").write_bytes(head)  # the line was written and its head was not
    assert verify(folder).faults == []
    with (folder / "audit.log").open("a") as file:
        file.write('{"number": 10, "wh')
    assert verify(folder).faults
    log = AuditLog(folder)
    log.close()
    assert [line and line["what"] for line in lines_in(folder)][-1] == "torn line removed"
    assert verify(folder).faults == []


def test_a_full_part_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "LARGEST_PART", 700)
    folder = written(tmp_path, 9)
    assert [path.name for path in parts(folder)][:2] == ["audit-000001.log", "audit-000002.log"]
    assert (verify(folder).count, verify(folder).faults) == (9, [])
    (folder / "audit-000001.log").unlink()
    assert verify(folder).faults


def test_a_part_that_was_archived_is_not_written_over_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "LARGEST_PART", 700)
    folder = written(tmp_path, 9)
    (folder / "audit-000001.log").unlink()
    last = parts(folder)[-2]
    kept, number = last.read_bytes(), int(last.stem[-6:])
    written(folder, 6)
    assert last.read_bytes() == kept
    assert (folder / f"audit-{number + 1:06}.log").exists()


@pytest.mark.parametrize("fails", ["short write", "fsync", "head"])
def test_a_line_that_cannot_be_written_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    log, write = AuditLog(tmp_path), os.write
    log.append("order", operator="alice")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if fails == "short write":
            patch.setattr("dqnfed_flwr.deploy.audit_log.os.write", lambda file, data: write(file, data[:9]))
        elif fails == "fsync":
            patch.setattr("dqnfed_flwr.deploy.audit_log.os.fsync", full)
        else:
            patch.setattr(audit_log, "write_private", full)
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                log.append("order", operator="bob")
    assert (verify(tmp_path).count, verify(tmp_path).faults) == (1, [])
    log.append("order", operator="carol")
    log.close()
    assert (verify(tmp_path).count, verify(tmp_path).faults) == (2, [])


def test_where_no_new_part_can_be_opened_the_old_one_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog(tmp_path)
    log.append("order", operator="alice")
    with monkeypatch.context() as patch:
        patch.setattr(audit_log, "LARGEST_PART", 10)
        patch.setattr(AuditLog, "_open", lambda _: os.open(tmp_path / "no" / "such", os.O_RDWR))
        with pytest.raises(FileNotFoundError):
            log.append("order", operator="bob")
    log.append("order", operator="carol")
    log.close()
    assert (verify(tmp_path).count, verify(tmp_path).faults) == (2, [])
    assert [path.name for path in parts(tmp_path)] == ["audit.log"]


def test_one_process_writes(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    with pytest.raises(RunError, match="another SuperLink"):
        AuditLog(tmp_path)
    log.close()
    AuditLog(tmp_path).close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RunError, match="cannot be written"):
        AuditLog(tmp_path)


def test_verify_tells_by_its_status(tmp_path: Path) -> None:
    def call(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["deploy", "audit", "verify", *words])
        return result.exit_code, result.output

    place = tmp_path / "fl"
    create(place, Federation("localhost", nodes=(Node("node-0", 0, 9094),)))
    status, said = call(str(place))
    assert status == 0, said
    (line,) = lines_of(place / "server" / "state")
    assert json.loads(line)["what"] == "federation made"
    assert json.loads(line)["hash"] in said
    assert call(str(place), "--head", json.loads(line)["hash"])[0] == 0
    assert call(str(place), "--head", "0" * 64)[0] == 1
    assert call(str(place / "server" / "state"))[0] == 0
    rewrite(place / "server" / "state", [line.replace("localhost", "elsewhere")])
    status, said = call(str(place))
    assert (status, "line 1 was changed" in said) == (1, True)
    assert call(str(tmp_path))[0] == 2
