"""Hosts in namespaces of one process alone: they have lines of their own, and are gone however it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks._hosts import NAMESPACES, Missing, alone, call
from benchmarks._programs import wait_for

SENT = 200_000
TRANSFER = f"""
import json, socket, subprocess, sys
from benchmarks._hosts import SERVER, hosts, said

FETCH = '''
import socket, sys
print(len(socket.create_connection(sys.argv[1:]).recv({SENT}, socket.MSG_WAITALL)))
'''
with hosts(1, ("ip", "tc")) as (host,), socket.create_server((SERVER, 7001)) as server:
    host.limit("4mbit", "8mbit")
    fetch = subprocess.Popen([*host.words, sys.executable, "-c", FETCH, SERVER, "7001"], stdout=subprocess.PIPE)
    connection, _ = server.accept()
    connection.sendall(bytes({SENT}))
    got = int(fetch.communicate(timeout=60)[0])
    found = [got, *host.carried(), said("tc", "qdisc", "show", "dev", host.link)]
with open(sys.argv[1], "w") as file:
    json.dump(found, file)
"""


@pytest.fixture(autouse=True)
def allowed() -> None:
    try:
        call(*NAMESPACES, "ip", "link")
    except Missing as missing:
        pytest.skip(str(missing))


def test_a_program_has_a_network_of_its_own_and_ends_with_its_status(tmp_path: Path) -> None:
    script = f"ip -json link > {tmp_path}/links; touch $TMPDIR/left; echo $TMPDIR > {tmp_path}/place; exit 7"
    assert alone(["sh", "-c", script]) == 7
    assert {link["ifname"] for link in json.loads((tmp_path / "links").read_text())} == {"lo"}
    assert not Path((tmp_path / "place").read_text().strip()).exists()


def test_a_line_is_limited_both_ways_and_says_what_it_carried(tmp_path: Path) -> None:
    assert alone([sys.executable, "-c", TRANSFER, str(tmp_path / "found")]) == 0
    got, down, up, limits = json.loads((tmp_path / "found").read_text())
    assert got == SENT < down < 1.2 * SENT
    assert 0 < up < 0.2 * SENT
    assert "tbf" in limits
    assert "rate 8Mbit" in limits


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_nothing_is_left_of_it_however_the_process_ends(number: signal.Signals, tmp_path: Path) -> None:
    mark = tmp_path / "alive"
    loop = f"while :; do date +%s%N > {mark}; sleep 0.05; done"
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # a shell's & ignores it
    script = f"{heard}; from benchmarks._hosts import alone; alone(['sh', '-c', {f'({loop}) & ({loop})'!r}])"
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    wait_for(mark.exists, 60)
    process.send_signal(number)
    process.wait(30)

    def still() -> bool:
        before = mark.read_bytes()
        time.sleep(1)
        return mark.read_bytes() == before

    wait_for(still, 30)
