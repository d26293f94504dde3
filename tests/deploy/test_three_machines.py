"""The walkthrough "Three machines" of docs/deploy.md: a server, and two devices that are hosts on a network, each with
nothing but the folder that was copied to it, started with the commands that lie in it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from benchmarks._federation import ONLINE_SECONDS, START_SECONDS
from benchmarks._hosts import SERVER, Host, Missing, hosts
from benchmarks._programs import free_ports, listening, wait_for
from dqnfed_flwr.deploy.registry import listed
from dqnfed_flwr.deploy.superlink import link_of
from tests.helpers import devices
from tests.helpers.shells import Shells

pytestmark = pytest.mark.deploy
PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"
NODES, NAME, PLACE = 2, "fl.example.org", "/etc/dqnfed"


def line_of_the_page(word: str) -> str:
    """The command of the section that has a word, from a block or from the text."""
    text = PAGE.read_text("utf-8").split("\n## Three machines\n")[1].split("\n### ")[0]
    found = re.findall(r"(?m)^ *(dqnfed .*)$|`(dqnfed [^`]*)`", text)
    return next(line for line in map("".join, found) if word in line)


class ThreeMachines(Shells):
    """The administrator of them all."""

    def __init__(self, place: Path, stack: ExitStack, network: list[Host]) -> None:
        super().__init__(place, stack)
        self.network, self.federation, self.safe = network, place / "etc" / "dqnfed", place / "safe"
        self.control, self.fleet = free_ports(2)
        self.data = Path(devices.write(place, 1)[0])

    def carry_out(self, line: str, *, on: Sequence[str] = ()) -> str:
        """Carry out a line of the page, with this test's folder, address, data and ports."""
        ports = f"--control-port {self.control} --fleet-port {self.fleet}"
        for found, mine in (
            (f" init {PLACE}", f" init {PLACE} {ports}"),
            (PLACE, str(self.federation)),
            ("192.0.2.10", SERVER),
            ("/data/site.npz", str(self.data)),
        ):
            line = line.replace(found, mine)
        return self.type(line, on=on).stdout

    def folder(self, k: int) -> Path:
        """Where the folder of node k lies on device k."""
        return self.place / f"device-{k}" / f"node-{k}"

    def copy_and_move(self) -> None:
        """Step 2 of the page."""
        self.safe.mkdir()
        for k in range(NODES):
            shutil.copytree(self.federation / "nodes" / f"node-{k}", self.folder(k))
            shutil.move(self.federation / "nodes" / f"node-{k}" / "node.key", self.safe / f"{k}.key")
        shutil.move(self.federation / "ca" / "ca.key", self.safe / "ca.key")

    def start_server(self) -> None:
        for role in ("superlink", "superexec"):
            self.open(role, (self.federation / "commands" / f"{role}.txt").read_text())
        wait_for(lambda: listening(self.control), START_SECONDS, self.texts)

    def start_devices(self) -> None:
        """Each from the `commands.txt` of its folder, with the path changed as the file asks for."""
        for k, host in enumerate(self.network):
            text = (self.folder(k) / "commands.txt").read_text()
            changed = text.replace(f"{PLACE}/nodes/node-{k}", str(self.folder(k)))
            assert changed != text
            self.open(f"node-{k}", changed, on=host.words)
        link = link_of(self.federation)
        wait_for(lambda: [*listed(link).values()].count("online") == NODES, ONLINE_SECONDS, self.texts, pause=2)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[ThreeMachines]:
    try:
        with hosts(NODES) as network, ExitStack() as stack:
            for host in network:
                host.know(NAME, SERVER)
            yield ThreeMachines(tmp_path, stack, network)
    except Missing as missing:
        pytest.skip(str(missing))


def test_the_page_is_carried_out_in_its_order(machines: ThreeMachines, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"model": "logistic", "rounds": 2, "local.threads": 1}))
    machines.carry_out(line_of_the_page(" init "))
    machines.copy_and_move()
    machines.start_server()
    machines.carry_out(f"dqnfed deploy register {PLACE}")
    machines.start_devices()
    machines.carry_out(f"dqnfed deploy check {PLACE}")
    for k, host in enumerate(machines.network):
        machines.carry_out(f"dqnfed deploy check {machines.folder(k)}", on=host.words)
    said = machines.carry_out(line_of_the_page("submit mine.yaml"))
    assert "heard 2 of 2" in said
    assert len(list((machines.federation / "server" / "state" / "runs").glob("*/model.npz"))) == 1

    elsewhere = tmp_path / "elsewhere"  # an operator of another machine, behind the tunnel to the same port
    shutil.copytree(machines.federation / "operator", elsewhere)
    config = (elsewhere / "config.toml").read_text()
    (elsewhere / "config.toml").write_text(config.replace(str(machines.federation / "operator"), str(elsewhere)))
    assert "finished:completed" in machines.carry_out(f"dqnfed runs {elsewhere}")
