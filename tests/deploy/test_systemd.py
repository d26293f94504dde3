"""The section "systemd" of docs/deploy.md, line by line, on a machine whose first process is systemd."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks._federation import ONLINE_SECONDS, RUN_SECONDS, START_SECONDS
from benchmarks._hosts import Missing
from benchmarks._programs import wait_for
from tests.helpers.machine import Machine, machine
from tests.helpers.markdown import blocks

pytestmark = pytest.mark.deploy
PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"
FEDERATION = "/etc/dqnfed"
CONTROL, EXPORTER = 8000, 9464
UNITS = (
    *("dqnfed-superlink", "dqnfed-superexec", "dqnfed-exporter"),
    *("dqnfed-supernode@node-0", "dqnfed-clientexec@node-0"),
)
KEY = f"{FEDERATION}/nodes/node-0/node.key"


def lines_of_the_page() -> list[str]:
    """The commands of the section's first block."""
    begin = PAGE.read_text("utf-8").split("\n## systemd\n")[0].count("\n")
    block = next(block for block in blocks(PAGE) if block.line > begin)
    return [line.partition("#")[0].strip() for line in block.text.splitlines()]


@pytest.fixture(scope="module")
def installed() -> Iterator[Machine]:
    """A machine on which the page was carried out, line by line."""
    with tempfile.TemporaryDirectory(prefix="dqnfed-machine-") as place:
        try:
            with machine(Path(place)) as found:
                found.must(f"dqnfed deploy init {FEDERATION} --nodes 1 --host localhost")
                for line in lines_of_the_page():
                    if " register " in line:
                        wait_for(lambda: found.listens(CONTROL), START_SECONDS, found.journal)
                    found.must(line)
                wait_for(lambda: online(found), ONLINE_SECONDS, found.journal, pause=2)
                yield found
        except Missing as missing:
            pytest.skip(str(missing))


def online(one: Machine) -> bool:
    return '"online"' in one.type(f"dqnfed deploy flwr {FEDERATION} supernode list dqnfed --format json").stdout


def test_units_are_as_systemd_wants_them(installed: Machine) -> None:
    said = installed.type("systemd-analyze verify /etc/systemd/system/dqnfed-*.service")
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")


def test_everything_is_up_and_stays_so(installed: Machine) -> None:
    assert installed.type(f"systemctl is-active {' '.join(UNITS)}").stdout.split() == ["active"] * len(UNITS)
    assert "1 online" in installed.must(f"dqnfed deploy check {FEDERATION}")
    assert "1 online" in installed.must(f"runuser -u dqnfed -- env PATH=$PATH dqnfed deploy check {FEDERATION}")


def test_a_run_of_clients_that_see_no_key(installed: Machine) -> None:
    said = installed.must(
        f"dqnfed submit digits {FEDERATION} --set clients=1 --set rounds=2 --set local.threads=1", RUN_SECONDS
    )
    assert "moved 2 of 2" in said
    assert installed.must("ls /var/lib/dqnfed/server/runs/*/model.npz").count("\n") == 1
    owners = installed.must("stat -c %U /var/lib/dqnfed/node-0/client/apps/*").split()
    assert set(owners) == {"dqnfed-client"}
    unseen = installed.type(f"runuser -u dqnfed-client -- cat {KEY}")
    assert unseen.returncode != 0
    assert "Permission denied" in unseen.stderr
    page = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{EXPORTER}/metrics').read().decode())"
    assert "dqnfed_superlink_up 1.0" in installed.must(f'python3 -c "{page}"')
    installed.must("dqnfed deploy audit verify /var/lib/dqnfed/superlink")


@pytest.mark.parametrize("unit", UNITS)
def test_a_killed_service_comes_back(installed: Machine, unit: str) -> None:
    installed.must(f"systemctl kill --signal KILL {unit}")
    show = f"systemctl show --property NRestarts --property ActiveState --value {unit}"

    def back() -> bool:
        restarts, state = installed.must(show).split()
        return int(restarts) > 0 and state == "active"

    wait_for(back, START_SECONDS, installed.journal, pause=1)
    wait_for(lambda: installed.listens(CONTROL) and online(installed), ONLINE_SECONDS, installed.journal, pause=2)
