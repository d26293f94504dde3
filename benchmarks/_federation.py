"""A real federation on loopback: SuperLink, SuperNodes and their executors as processes, with TLS and keys.

All of them are killed at the end, whatever the test did.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks._gate import gate
from benchmarks._programs import Program, free_ports, listening, wait_for
from dqnfed_flwr.config import Settings
from dqnfed_flwr.deploy.build import create
from dqnfed_flwr.deploy.commands import (
    ENVIRONMENT,
    node_superexec_arguments,
    superexec_arguments,
    superlink_arguments,
    supernode_arguments,
)
from dqnfed_flwr.deploy.plan import Federation, Node, read_plan
from dqnfed_flwr.deploy.registry import listed, register
from dqnfed_flwr.deploy.superlink import link_of
from dqnfed_flwr.engine.flower import write_app
from dqnfed_flwr.engine.flwr_command import CONNECTION, FlwrCommand, flwr_environment, run_record, run_status
from dqnfed_flwr.run_files import EVENTS, RUN
from dqnfed_flwr.telemetry.event_log import read_events
from dqnfed_flwr.telemetry.events import RoundEvent

ROOT = Path(__file__).parents[1]
Gate = Callable[[int, int, Path], AbstractContextManager[None]]
"""Given the port of the Fleet, that of the SuperLink, and the folder `server/`."""
RESTART_SECONDS = 5.0
START_SECONDS, ONLINE_SECONDS, RUN_SECONDS, ASK_SECONDS = 90.0, 150.0, 480.0, 30.0


class Loopback:
    """A federation of `deploy init` on this machine.

    Attributes
    ----------
    directory : Path
        Where `deploy init` wrote to.
    programs : dict[str, Program]
        `superlink`, `superexec`, and for each node `NAME` and `NAME-superexec`.
    """

    def __init__(self, directory: Path, logs: Path) -> None:
        self.directory, self.logs = directory, logs
        self.federation = read_plan(directory)
        self.programs: dict[str, Program] = {}
        self.output: Path | None = None
        server = directory / "server"
        state = {"FLWR_HOME": str(server / "state" / "flwr"), "DQNFED_OUTPUT": str(server / "state" / "runs")}
        self.define("superlink", superlink_arguments(self.federation), server, state)
        self.define("superexec", superexec_arguments(self.federation), server, state)
        for node in self.federation.nodes:
            self.define_node(node)

    @property
    def flwr(self) -> FlwrCommand:
        """Flower's command as the operator has it."""
        return link_of(self.directory).flwr

    def define(self, name: str, arguments: Sequence[str], place: Path, variables: Mapping[str, str]) -> Program:
        """Add a program without starting it."""
        environment = {
            **flwr_environment(),
            **ENVIRONMENT,
            **variables,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }
        self.programs[name] = Program(arguments, place, self.logs / f"{name}.log", environment)
        return self.programs[name]

    def define_node(self, node: Node) -> None:
        """Add a SuperNode and its SuperExec."""
        place = self.directory / "nodes" / node.name
        home = {"FLWR_HOME": str(place / "flwr")}
        self.define(node.name, supernode_arguments(self.federation, node), place, home)
        self.define(f"{node.name}-superexec", node_superexec_arguments(node), place, home)

    def start(self) -> None:
        """Start everything, register the keys, wait until all nodes are online."""
        self.start_server()
        assert set(register(self.directory, self.federation).values()) <= {"registered", "known"}
        for node in self.federation.nodes:
            self.start_node(node.name)
        self.await_online([node.name for node in self.federation.nodes])

    def start_server(self) -> None:
        """Start SuperLink and SuperExec, and wait until the SuperLink answers."""
        for name in ("superlink", "superexec"):
            self.programs[name].start()
        self.await_server()

    def await_server(self) -> None:
        """Wait until the Control port takes connections."""
        wait_for(lambda: listening(self.federation.control_port), START_SECONDS, self.programs["superlink"].text)

    def start_node(self, name: str) -> None:
        """Start a SuperNode and its SuperExec."""
        for one in (name, f"{name}-superexec"):
            self.programs[one].start()

    def await_online(self, names: Sequence[str]) -> None:
        """Wait until these nodes are online."""
        wait_for(
            lambda: list(listed(link_of(self.directory)).values()).count("online") >= len(names),
            ONLINE_SECONDS,
            lambda: "\n".join(self.programs[name].text()[-1500:] for name in names),
        )

    @contextmanager
    def kept_running(self, *names: str) -> Iterator[None]:
        """Do as the units do, in this block: whenever one of `names` has ended, start it again some seconds later."""
        over = threading.Event()

        def keep() -> None:
            while not over.wait(RESTART_SECONDS):
                for name in names:
                    if self.programs[name].status is not None:
                        self.programs[name].start()

        thread = threading.Thread(target=keep)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def submit(self, settings: Mapping[str, Any], app: Path) -> str:
        """Start a run; Flower's id for it."""
        found = Settings.from_mapping(settings)
        self.output = Path(found.output) if found.output else None
        write_app(app, found)
        answer = self.flwr.json("run", str(app), CONNECTION)
        assert "run-id" in answer, answer
        return str(answer["run-id"])

    @contextmanager
    def submitted(self, settings: Mapping[str, Any], output: Path, *options: str) -> Iterator[Program]:
        """`dqnfed submit`, following its run as long as the block lasts."""
        self.output = output
        given = [f"--set={key}={value}" for key, value in settings.items()]
        command = ["dqnfed", "submit", "digits", str(self.directory), *given, "--output", str(output), *options]
        submit = self.define("submit", command, self.directory, {})
        submit.start()
        try:
            yield submit
        finally:
            submit.end()

    def await_exit(self, program: Program, seconds: float) -> None:
        """Wait until a program has ended by itself."""
        wait_for(lambda: program.status is not None, seconds, lambda: program.text()[-3000:] + self.texts())

    def await_end(self, run_id: str, seconds: float = RUN_SECONDS) -> str:
        """How the run ended. Asking `flwr` costs seconds of a core, so the output folder is looked at in between."""
        end, asked = time.monotonic() + seconds, 0.0
        while True:
            over = self.output is not None and (self.output / RUN).exists()
            if over or time.monotonic() - asked > ASK_SECONDS:
                asked = time.monotonic()
                if (status := run_status(self.flwr, run_id)).startswith("finished"):
                    return status
            assert time.monotonic() < end, f"not within {seconds:.0f} s\n{self.story(run_id)}"
            time.sleep(0.5)

    def await_round(self, number: int, seconds: float = RUN_SECONDS) -> None:
        """Wait until that many rounds are in the event log."""
        submit = self.programs.get("submit")

        def there() -> bool:
            assert submit is None or submit.status is None or self.rounds_done() >= number, submit.text()[-3000:]
            return self.rounds_done() >= number

        wait_for(there, seconds, self.texts, 0.05)

    def await_together(self, rounds: int = 2, seconds: float = RUN_SECONDS) -> None:
        """Wait until all nodes took part in so many rounds from now on."""
        since, submit = self.rounds_done(), self.programs.get("submit")

        def there() -> bool:
            assert submit is None or submit.status is None, submit.text()[-3000:] + self.texts()
            full = [event for event in self.events()[since:] if len(event.participants) == len(self.federation.nodes)]
            return len(full) >= rounds

        wait_for(there, seconds, self.texts)

    def rounds_done(self) -> int:
        """Rounds in the event log by now."""
        log = self._log()
        return len(log.read_text().splitlines()) if log else 0

    def events(self) -> list[RoundEvent]:
        """The event log of the run by now."""
        log = self._log()
        return read_events(log) if log else []

    def _log(self) -> Path | None:
        log = None if self.output is None else self.output / EVENTS
        return log if log and log.exists() else None

    def story(self, run_id: str) -> str:
        """What there is to say about a run, for a test that fails."""
        record = run_record(self.flwr, run_id)
        return "\n".join([str(record), self.flwr("log", run_id, CONNECTION, "--show")[-4000:], self.texts()])

    def texts(self) -> str:
        """The end of what every program has written."""
        return "\n".join(f"--- {name} ({one.status})\n{one.text()[-1500:]}" for name, one in self.programs.items())

    def end(self) -> None:
        """Kill everything."""
        for one in reversed(self.programs.values()):
            one.end()


@contextmanager
def loopback(place: Path, nodes: Sequence[Node], before: Gate = gate, **changes: Any) -> Iterator[Loopback]:
    """A federation with `nodes` under `place`, not started; it ends with the block, as does the gate `before` HTTP."""
    ports = free_ports(2 + len(nodes))
    numbered = tuple(replace(node, port=port) for node, port in zip(nodes, ports[2:], strict=True))
    plan = Federation("127.0.0.1", fleet_port=ports[0], control_port=ports[1], nodes=numbered)
    create(place / "federation", replace(plan, **changes))
    (place / "logs").mkdir()
    federation = Loopback(place / "federation", place / "logs")
    entrance: AbstractContextManager[object] = (
        before(ports[0], ports[1], federation.directory / "server")
        if federation.federation.transport.listener == "gate"
        else nullcontext()
    )
    with entrance:
        try:
            yield federation
        finally:
            federation.end()


def node(number: int, data: str = "") -> Node:
    """A node for `loopback`, which gives it a port."""
    return Node(f"node-{number}", number, 1, data)
