"""A machine of its own whose first process is systemd: a container of systemd-nspawn's over this machine's /usr.

It has an /etc of its own, no network but loopback, and nothing of what it writes is left when the block ends. What
`pip install` would put into /opt/dqnfed is this environment, mounted there for reading.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks._hosts import Missing, check_rights
from benchmarks._programs import Program, wait_for
from tests.helpers.processes import child

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
OPT, TREE, PYTHON, LIBRARIES = Path("/opt/dqnfed"), Path("/opt/tree"), Path("/opt/python"), Path("/opt/libraries")
ETC = (
    *("passwd", "group", "shadow", "gshadow", "login.defs", "nsswitch.conf", "default", "pam.d", "security", "hosts"),
    *("ld.so.conf", "ld.so.conf.d"),
)
INIT, BOOT_SECONDS = "/lib/systemd/systemd", 120.0
PATH = f"{OPT}/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SCRIPTS = ("dqnfed", "flwr", "flower-")


class Machine:
    """A container that has booted; `type` is what its administrator does."""

    def __init__(self, leader: int) -> None:
        self._leader = leader

    def type(self, line: str, seconds: float = 300.0) -> subprocess.CompletedProcess[str]:
        """Carry out a line as root, in the checkout; whether it succeeds is for the caller."""
        enter = ["nsenter", f"--target={self._leader}", "--all", "--root", "--wd"]
        return subprocess.run(
            [*enter, "env", "-i", f"--chdir={TREE}", f"PATH={PATH}", "HOME=/root", "sh", "-c", line],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def must(self, line: str, seconds: float = 300.0) -> str:
        """Carry out a line that must succeed; what it says."""
        done = self.type(line, seconds)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}\n{self.journal()}"
        return done.stdout

    def listens(self, port: int) -> bool:
        """Whether somebody takes connections on that port of its loopback."""
        return self.type(f"bash -c ': < /dev/tcp/127.0.0.1/{port}'", 20).returncode == 0

    def journal(self) -> str:
        """The end of what its services have said."""
        return self.type("journalctl --no-pager --lines 80 --unit 'dqnfed-*'", 30).stdout


@contextmanager
def machine(place: Path) -> Iterator[Machine]:
    """A machine with this package in /opt/dqnfed, without accounts, folders or units for it; it ends with the block.

    Raises
    ------
    Missing
        If this machine cannot have it; says why.
    """
    check_rights("systemd-nspawn", ("systemd-nspawn", "nsenter"))
    Path("/run/systemd").mkdir(exist_ok=True)  # where nspawn keeps its locks
    command = [
        *("systemd-nspawn", "--directory=/", "--volatile=yes", "--register=no", "--keep-unit", "--private-network"),
        *("--resolv-conf=off", "--timezone=off", "--link-journal=no", "--console=pipe", f"--machine=dq{os.getpid()}"),
        f"--bind={_etc(place)}:/etc",
        *(f"--bind-ro={source}:{target}" for source, target in _installed(place).items()),
        *("--boot", "systemd.unit=basic.target"),
    ]
    container = Program(command, place, place / "machine.log", dict(os.environ))
    container.start()
    leader = 0
    try:
        nspawn = container.process.pid if container.process else 0
        leader = wait_for(lambda: container.status is not None or child(nspawn, INIT), BOOT_SECONDS, container.text)
        if container.status is not None:
            raise Missing(f"systemd-nspawn: {container.text().strip()[-500:]}")
        found = Machine(leader)
        wait_for(lambda: _booted(found, container), BOOT_SECONDS, container.text)
        found.must("ldconfig")
        yield found
    finally:
        if leader and container.status is None:
            os.kill(leader, signal.SIGKILL)  # the kernel ends the rest of the container with its first process
        container.end()


def _booted(one: Machine, container: Program) -> bool:
    if container.status is not None:
        raise Missing(f"systemd does not start in a container here: {container.text().strip()[-500:]}")
    return one.type("systemctl is-system-running", 20).stdout.strip() in ("running", "degraded")


def _etc(place: Path) -> Path:
    """An /etc with this machine's accounts and without its services."""
    etc = place / "etc"
    (etc / "systemd" / "system").mkdir(parents=True)
    for name in ETC:
        source = Path("/etc") / name
        if source.is_dir():
            shutil.copytree(source, etc / name, symlinks=True)
        elif source.exists():
            shutil.copy2(source, etc / name)
    (etc / "machine-id").write_text(f"{secrets.token_hex(16)}\n")  # else systemd asks what a first boot asks
    (etc / "ld.so.conf.d").mkdir(exist_ok=True)
    (etc / "ld.so.conf.d" / "python.conf").write_text(f"{PYTHON}/lib\n")
    return etc


def _installed(place: Path) -> dict[Path, Path]:
    """What is mounted where, so that /opt/dqnfed is an environment like this one."""
    opt, base = place / "opt", Path(sys.base_prefix)
    packages = opt / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True)
    (opt / "bin").mkdir()
    (opt / "pyvenv.cfg").write_text(f"home = {PYTHON}/bin\ninclude-system-site-packages = false\n")
    for name in ("python", "python3"):
        (opt / "bin" / name).symlink_to(PYTHON / "bin" / f"python3.{sys.version_info.minor}")
    for script in (path for path in BIN.iterdir() if path.name.startswith(SCRIPTS)):
        copy = opt / "bin" / script.name
        copy.write_text(f"#!{OPT}/bin/python3\n" + script.read_text().split("\n", 1)[1])
        copy.chmod(0o755)
    found = [Path(entry) for entry in sys.path if Path(entry).is_dir() and not Path(entry).is_relative_to(base)]
    libraries = [entry for entry in dict.fromkeys(found) if entry.name == "site-packages"]
    binds = {library: LIBRARIES / str(number) for number, library in enumerate(libraries)}
    (packages / "here.pth").write_text("\n".join(map(str, [TREE, *binds.values()])))
    return {base: PYTHON, ROOT: TREE, opt: OPT, **binds}
