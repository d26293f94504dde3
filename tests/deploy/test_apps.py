"""What a real node runs: the apps that its owner listed, as they were listed, and as a user who cannot read its key."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks._federation import Loopback, loopback, node
from benchmarks._programs import wait_for
from dqnfed_flwr.config import Settings
from dqnfed_flwr.deploy import apps
from dqnfed_flwr.engine.flower import write_app
from dqnfed_flwr.engine.flwr_command import CONNECTION

pytestmark = pytest.mark.deploy

NOBODY = 54321
"""A user of no account, as whom a client runs that is not the node's own user."""
SETTINGS = {
    **{"data": "digits", "model": "logistic", "split.samples": 150, "clients": 1, "rounds": 1},
    **{"local.threads": 1, "deadline": 40, "min-clients": 1},
}
SPY = """
import os
from pathlib import Path
for key in {keys!r}:
    try:
        Path(key).read_bytes()
        said = "could be read"
    except OSError as error:
        said = type(error).__name__
    Path({told!r}).open("a").write(f"{{os.geteuid()}} {{Path(key).name}} {{said}}\\n")
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Loopback]:
    with tempfile.TemporaryDirectory(prefix="dqnfed-apps-") as place:
        Path(place).chmod(0o755)  # it is the federation's own folder that is closed to others
        with loopback(Path(place), [node(0)]) as federation:
            federation.start()
            yield federation


def make(app: Path, change: Callable[[Path], object] = lambda app: None, seed: int = 0) -> str:
    """Lay out an app, changed; the hash by which it is allowed."""
    write_app(app, Settings.from_mapping({**SETTINGS, "seed": seed}))
    change(app)
    return apps.hash_of_folder(app)


def run(server: Loopback, app: Path) -> tuple[str, str]:
    """Submit an app; how the run ended, and its log."""
    server.output = None
    answer = server.flwr.json("run", str(app), CONNECTION)
    assert "run-id" in answer, answer
    return server.await_end(answer["run-id"]), server.flwr("log", answer["run-id"], CONNECTION, "--show")


def spying(told: Path, *keys: Path) -> Callable[[Path], object]:
    """A change that makes an app tell which keys it could read."""

    def change(app: Path) -> None:
        code = SPY.format(keys=[str(key) for key in keys], told=str(told))
        module = app / "client_app" / "app.py"
        module.write_text(code + module.read_text().replace("from __future__ import annotations", ""))

    return change


def installed(server: Loopback) -> list[Path]:
    return sorted((server.directory / "nodes" / "node-0" / "flwr" / "apps").glob("*"))


def test_the_packages_own_app_runs(server: Loopback, tmp_path: Path) -> None:
    make(tmp_path / "own")
    status, log = run(server, tmp_path / "own")
    assert status == "finished:completed", log + server.texts()
    assert len(installed(server)) == 1


def test_an_app_that_is_not_listed_is_refused_in_clear_words(server: Loopback, tmp_path: Path) -> None:
    before, told = installed(server), tmp_path / "told"
    place = server.directory / "nodes" / "node-0"
    found = make(tmp_path / "spy", spying(told, place / "node.key"))
    status, log = run(server, tmp_path / "spy")
    assert status == "finished:failed"
    assert f"this node does not run app {found}" in log
    assert f"dqnfed deploy allow {place} {found}" in log
    assert not told.exists()
    assert installed(server) == before
    apps.allow(place, found)
    status, log = run(server, tmp_path / "spy")
    assert status == "finished:completed", log + server.texts()
    assert told.exists()  # allowed from the next message on, without a restart


def test_an_installed_app_that_was_edited_is_refused(server: Loopback, tmp_path: Path) -> None:
    told = tmp_path / "told"
    app, before = tmp_path / "edited", installed(server)
    make(app, seed=7)
    status, log = run(server, app)
    assert status == "finished:completed", log + server.texts()
    (place,) = set(installed(server)) - set(before)
    module = place / "client_app" / "app.py"
    module.write_text(f"open({str(told)!r}, 'w').close()\n" + module.read_text())
    status, log = run(server, app)  # the same content, so the same folder of the node
    assert status == "finished:failed", log
    assert "client_app/app.py was changed" in log
    assert not told.exists()


def test_what_starts_cold_is_looked_at_too(server: Loopback, tmp_path: Path) -> None:
    program = server.programs["node-0-superexec"]
    program.end()
    program.start()
    fork_servers = wait_for(lambda: _fork_servers(program.process.pid if program.process else 0), 60, program.text)
    for number in fork_servers:
        os.kill(number, 9)
    told = tmp_path / "told"
    make(tmp_path / "cold", spying(told, tmp_path))
    status, log = run(server, tmp_path / "cold")
    assert "the client starts cold" in program.text()
    assert status == "finished:failed"
    assert "this node does not run app" in log
    assert not told.exists()
    make(tmp_path / "own")
    status, log = run(server, tmp_path / "own")
    assert status == "finished:completed", log + server.texts()


OPENED = """
mount --bind "$1" "$2" && mount -t tmpfs -o mode=755 none "$3" && mkdir -p "$1" && mount --bind "$2" "$1" || exit 9
shift 3; exec "$@"
"""


def as_nobody(aside: Path) -> list[str]:
    """Words before a command that make it another user's, who is shown a Python that lies in somebody's closed home."""
    words = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    base = Path(sys.base_prefix)
    closed = [place for place in reversed(base.parents) if not place.stat().st_mode & 0o001]
    if not closed:
        return words
    unshared = ["unshare", "--mount", "--propagation", "private", "sh", "-c", OPENED, "sh"]
    return [*unshared, str(base), str(aside), str(closed[0]), *words]


def _fork_servers(parent: int) -> list[int]:
    """Fork servers that an executor started."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words, stat = (place / "cmdline").read_bytes(), (place / "stat").read_text()
        except OSError:
            continue
        if b"fork_server.py" in words and int(stat.rpartition(")")[2].split()[1]) == parent:
            found.append(int(place.name))
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start a program as another user")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
def test_a_client_of_another_user_works_and_cannot_read_the_key(server: Loopback, tmp_path: Path) -> None:
    """As the unit dqnfed-clientexec@ has it: the list, a copy of the secret and a place of its own."""
    place, program = server.directory / "nodes" / "node-0", server.programs["node-0-superexec"]
    keys = [place / "node.key", place / "superexec.secret", server.directory / "operator" / "operator.key"]
    program.end()
    with tempfile.TemporaryDirectory(prefix="dqnfed-other-") as folder:
        mine, told = Path(folder), Path(folder) / "told"
        shutil.copy(place / "superexec.secret", mine / "superexec.secret")
        shutil.copytree(place / "apps", mine / "apps")
        for path in (mine, mine / "superexec.secret"):
            os.chown(path, NOBODY, NOBODY)
        (mine / "apps").chmod(0o755)
        was = (program.arguments, program.place, program.environment)
        (mine / "python").mkdir()
        program.arguments = [*as_nobody(mine / "python"), *program.command]
        program.place = mine
        program.environment = {**program.environment, "FLWR_HOME": str(mine / "flwr"), "HOME": folder, "TMPDIR": folder}
        program.start()
        try:
            (mine / "apps" / make(tmp_path / "spy", spying(told, *keys))).touch()
            status, log = run(server, tmp_path / "spy")
            assert status == "finished:completed", log + server.texts()
            lines = set(told.read_text().splitlines())
        finally:
            program.end()
            program.arguments, program.place, program.environment = was
    assert lines == {f"{NOBODY} {key.name} PermissionError" for key in keys}
