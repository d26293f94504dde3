"""kill -9 of every kind of process in the middle of a run, at moments drawn by chance."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from benchmarks._federation import RUN_SECONDS, Loopback, loopback, node
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.result import read_result
from dqnfed_flwr.run_files import MODEL
from tests.helpers import devices
from tests.helpers.killing import KINDS, Killer
from tests.helpers.replay import replayed
from tests.helpers.trials import NODES, PATIENT, SETTINGS, usual_seconds

pytestmark = pytest.mark.deploy

SERVER_SIDE = ("superexec", "serverapp", "superlink")
REPEATS = int(os.environ.get("DQNFED_TEST_KILLS", "20"))
"""How often each kind is killed in the long form."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    place = tmp_path_factory.mktemp("kills")
    nodes = [node(k, path) for k, path in enumerate(devices.write(place, NODES))]
    with loopback(place, nodes) as federation:
        federation.start()
        with federation.kept_running(*list(federation.programs)):
            yield federation


@pytest.fixture(scope="module")
def usual(federation: Loopback, tmp_path_factory: pytest.TempPathFactory) -> float:
    """Seconds of a round on this machine."""
    return usual_seconds(federation, tmp_path_factory.mktemp("usual"))


@pytest.fixture
def deadline(usual: float) -> float:
    """Seconds in which this machine does a round at its leisure."""
    return 5.0 + 3.0 * usual


def outlived(
    federation: Loopback, place: Path, blows: Sequence[tuple[str, ...]], seed: int, deadline: float, usual: float
) -> None:
    """Train through all `blows`, at most one a round, and check what a run must come out with.

    A victim that is just being started again is waited for, and the run goes on meanwhile: hence the spare rounds.
    """
    settings = {**SETTINGS, "rounds": 2 * len(blows) + 2, "deadline": deadline}
    output = place / "deployed"
    with federation.submitted(settings, output, "--restarts", str(4 * len(blows) + 4)) as submit:
        for dealt in Killer(federation, seed, moment=usual).strike(blows):
            print(dealt, flush=True)
        federation.await_exit(submit, RUN_SECONDS + settings["rounds"] * usual)
        assert submit.status == 0, submit.text()[-3000:] + federation.texts()
    events = read_result(output).events
    print("participants", [event.participants for event in events])
    assert [event.round for event in events] == list(range(1, settings["rounds"] + 1))
    replayed(Settings.from_mapping({**settings, "output": str(place / "here")}), events)
    assert (output / MODEL).read_bytes() == (place / "here" / MODEL).read_bytes()
    if deadline == PATIENT:
        assert {tuple(event.participants) for event in events} == {tuple(range(NODES))}


def test_a_run_outlives_every_process_of_the_server(federation: Loopback, usual: float, tmp_path: Path) -> None:
    outlived(federation, tmp_path, [(kind,) for kind in SERVER_SIDE], seed=1, deadline=PATIENT, usual=usual)


def test_a_run_outlives_every_process_of_a_node(
    federation: Loopback, deadline: float, usual: float, tmp_path: Path
) -> None:
    blows = [(kind,) for kind in KINDS if kind not in SERVER_SIDE]
    outlived(federation, tmp_path, blows, seed=2, deadline=deadline, usual=usual)


@pytest.mark.soak
@pytest.mark.parametrize("together", [1, 2])
def test_a_run_outlives_kills_without_end(
    federation: Loopback, deadline: float, usual: float, tmp_path: Path, together: int
) -> None:
    random = Random(together)
    kinds = [kind for kind in KINDS for _ in range(REPEATS)]
    random.shuffle(kinds)
    blows = [tuple(kinds[first : first + together]) for first in range(0, len(kinds), together)]
    outlived(federation, tmp_path, blows, seed=together, deadline=deadline, usual=usual)
