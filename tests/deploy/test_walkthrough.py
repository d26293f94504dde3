"""The walkthrough "Laptop" of docs/deploy.md, line by line in its own order, on the commands that are written there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks._federation import ONLINE_SECONDS, START_SECONDS
from benchmarks._gate import gate
from benchmarks._programs import free_ports, listening, wait_for
from dqnfed_flwr.deploy.plan import read_plan
from dqnfed_flwr.deploy.registry import listed
from dqnfed_flwr.deploy.superlink import link_of
from tests.helpers.markdown import blocks
from tests.helpers.processes import child
from tests.helpers.shells import Shells

pytestmark = pytest.mark.deploy
PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"
NODES = 3


class Laptop(Shells):
    """The machine of somebody who types what the page says, with ports that are free."""

    def __init__(self, place: Path, stack: ExitStack) -> None:
        super().__init__(place, stack)
        self.control, self.fleet = free_ports(2)
        first = 20_000 + 10 * (os.getpid() % 1_000)  # of ports in a row, below those that the system hands out
        while any(listening(first + k) for k in range(NODES)):
            first += NODES
        self.ports = f"--control-port {self.control} --fleet-port {self.fleet} --node-port {first}"

    @property
    def federation(self) -> Path:
        return self.place / "federation"

    def type(self, line: str, *, on: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """Carry out a line: `init` with those ports, `submit` for few rounds."""
        line = line.replace(" init federation", f" init federation {self.ports}")
        return super().type(line.replace(" --set clients=3", " --set clients=3 --set rounds=2"), on=on)

    def open_shells(self, name: str) -> None:
        """Start each command of `commands/NAME.txt`; before a SuperLink that speaks HTTP, its gate."""
        if name == "superlink" and read_plan(self.federation).transport.listener == "gate":
            self._stack.enter_context(gate(self.fleet, self.control, self.federation / "server"))
        self.open(name, (self.federation / "commands" / f"{name}.txt").read_text())

    def await_server(self) -> None:
        wait_for(lambda: listening(self.control), START_SECONDS, self.texts)

    def await_online(self) -> None:
        link = link_of(self.federation)
        wait_for(lambda: [*listed(link).values()].count("online") == NODES, ONLINE_SECONDS, self.texts, pause=2)


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Laptop]:
    with ExitStack() as stack:
        yield Laptop(tmp_path, stack)


def lines_of_the_page() -> list[str]:
    """The commands and remarks of the walkthrough's first two blocks."""
    begin = PAGE.read_text("utf-8").split("## Laptop")[0].count("\n")
    first, second = [block for block in blocks(PAGE) if block.line > begin][:2]
    assert "init federation" in first.text
    return [line for line in (first.text + second.text).splitlines() if line.strip()]


def test_the_page_is_carried_out_in_its_order(laptop: Laptop) -> None:
    done: list[str] = []
    for line in lines_of_the_page():
        command, _, remark = line.partition("#")
        files = re.findall(r"([\w-]+)\.txt", remark)
        for name in files:
            for one in [f"node-{k}" for k in range(NODES)] if name == "node-K" else [name]:
                laptop.open_shells(one)
        if "superlink" in files:
            laptop.await_server()
        if "node-K" in files:
            laptop.await_online()
        if command.strip():
            said = laptop.type(command)
            done.append(command.split()[1] if "deploy" not in command else command.split()[2])
            if "online" in remark:
                assert remark.strip() in said.stdout
    assert done == ["init", "check", "register", "check", "submit"]
    assert read_plan(laptop.federation).nodes
    assert sorted(laptop.shells)[:2] == ["node-0-0", "node-0-1"]


def test_nodes_that_came_too_early_or_were_killed_come_back(laptop: Laptop) -> None:
    laptop.type(f"dqnfed deploy init federation --nodes {NODES} --host localhost")
    for name in ("superlink", "superexec", *(f"node-{k}" for k in range(NODES))):
        laptop.open_shells(name)
    laptop.await_server()
    wait_for(lambda: "2004" in laptop.shells["node-0-0"].text(), START_SECONDS, laptop.texts)  # nobody knows it
    laptop.type("dqnfed deploy register federation")
    laptop.await_online()
    shell = laptop.shells["node-1-0"].process
    assert shell is not None
    before = child(shell.pid, "flower-supernode")
    assert before is not None
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: (child(shell.pid, "flower-supernode") or before) != before, START_SECONDS, laptop.texts)
    one = laptop.shells["node-2-0"]
    number = child(one.process.pid, "flower-supernode") if one.process else None
    assert number is not None
    os.kill(number, signal.SIGINT)  # Ctrl-C reaches it as well as the shell
    wait_for(lambda: one.status == 0, START_SECONDS, one.text)
