"""The walkthrough "Laptop" of docs/deploy.md, line by line in its own order, on the commands that are written there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks._federation import ONLINE_SECONDS, RUN_SECONDS, START_SECONDS
from benchmarks._gate import gate
from benchmarks._programs import Program, free_ports, listening, wait_for
from dqnfed_flwr.deploy.plan import read_plan
from dqnfed_flwr.deploy.registry import listed
from dqnfed_flwr.deploy.superlink import operator_command
from dqnfed_flwr.engine.flwr_command import flwr_environment
from tests.helpers.markdown import blocks
from tests.helpers.processes import child

pytestmark = pytest.mark.deploy
PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"
NODES = 3
ENVIRONMENT = {
    **flwr_environment(),
    "OMP_NUM_THREADS": "1",
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
}


class Laptop:
    """A folder in which somebody types what the page says; shells that stay open are killed at the end."""

    def __init__(self, place: Path, stack: ExitStack) -> None:
        self.place, self._stack = place, stack
        self.shells: dict[str, Program] = {}
        self.control, self.fleet = free_ports(2)
        first = 20_000 + 10 * (os.getpid() % 1_000)  # of ports in a row, below those that the system hands out
        while any(listening(first + k) for k in range(NODES)):
            first += NODES
        self.ports = f"--control-port {self.control} --fleet-port {self.fleet} --node-port {first}"

    @property
    def federation(self) -> Path:
        return self.place / "federation"

    def type(self, line: str) -> subprocess.CompletedProcess[str]:
        """Carry out a line, which must succeed: `init` with ports that are free, `submit` for few rounds."""
        line = line.replace(" init federation", f" init federation {self.ports}")
        line = line.replace(" --set clients=3", " --set clients=3 --set rounds=2")
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=self.place,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}{self.texts()}"
        return done

    def open_shells(self, name: str) -> None:
        """Start each command of `commands/NAME.txt` in a shell of its own, as it stands there.

        Over HTTP the SuperLink gets the gate that the page on transport asks for.
        """
        if name == "superlink" and read_plan(self.federation).over_http:
            self._stack.enter_context(gate(self.fleet, self.control, self.federation / "server"))
        text = (self.federation / "commands" / f"{name}.txt").read_text()
        commands = [part for part in re.split(r"(?m)^(?:#.*)?\n", text) if part.strip()]
        for number, command in enumerate(commands):
            log = self.place / f"{name}-{number}.log"
            shell = self.shells[f"{name}-{number}"] = Program(["sh", "-c", command], self.place, log, ENVIRONMENT)
            self._stack.callback(shell.end)
            shell.start()

    def await_server(self) -> None:
        wait_for(lambda: listening(self.control), START_SECONDS, self.texts)

    def await_online(self) -> None:
        flwr = operator_command(self.federation)
        wait_for(lambda: [*listed(flwr).values()].count("online") == NODES, ONLINE_SECONDS, self.texts, pause=2)

    def texts(self) -> str:
        return "\n".join(f"{name}: {shell.text()[-1000:]}" for name, shell in self.shells.items())


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
