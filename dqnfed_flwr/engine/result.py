"""What a run leaves behind, in memory and on disk."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.archives import read_npz
from dqnfed_flwr.config import Settings
from dqnfed_flwr.errors import ConfigError, DQNFedError, RunError
from dqnfed_flwr.fairness import fairness_report
from dqnfed_flwr.run_files import EVENTS, MODEL, RUN, replacing
from dqnfed_flwr.strategy.checkpoint import DAMAGE, Provenance
from dqnfed_flwr.strategy.compatibility import Form
from dqnfed_flwr.strategy.confirmation import Confirmed
from dqnfed_flwr.telemetry.event_log import read_events
from dqnfed_flwr.telemetry.events import TEST, RoundEvent, finite
from dqnfed_flwr.telemetry.totals import Totals
from dqnfed_flwr.types import ACCURACY, Figure, FloatArray
from dqnfed_flwr.version import DISTRIBUTION, package_version
from dqnfed_flwr.wire import Buffers

LIBRARIES = ("flwr", "torch", "numpy")
BUFFER = "buffer."
"""Begins the names of buffers in `model.npz`."""
BELOW = ("*", "*/*/*")
"""Where runs lie in a folder of theirs, and in that of a comparison."""


def versions_here() -> dict[str, str]:
    """Of Python and of what a result may depend on."""
    return {
        "python": platform.python_version(),
        DISTRIBUTION: package_version(),
        **{name: version(name) for name in LIBRARIES},
    }


@dataclass(frozen=True, slots=True)
class RunResult:
    """Final model, history and figures of a run.

    Attributes
    ----------
    settings : Settings
        Of the run.
    status : str
        `finished`, `early-stopped`, `held-out-stationary`, `stalled`, or one of `strategy.state.ENDED_EARLY`.
    theta : FloatArray
        Trainable parameters of the final model [D]; `ParamSpec.unflatten` writes them into a module.
    buffers : Buffers
        Its buffers.
    events : list[RoundEvent]
        One a round.
    accuracies : dict[int, float]
        Test accuracy of every client at `theta`, in [0, 1], or the figure that the task has in its place, in its own
        unit.
    validation : Mapping[int, float]
        The same on the validation part, where clients keep one.
    modules : tuple[str, ...]
        Folders from which the user's functions that `settings` name were imported.
    seconds : float
        Wall clock; of a resumed run also that of its earlier rounds.
    form : Form
        Of the data, which with `settings.model` makes the module.
    left_out : Mapping[str, str]
        Nodes that were there at the end and could not take part, `client 3` or `node 17`, with their reasons.
    versions : Mapping[str, str]
        Of Python and the packages it ran with.
    provenance : Provenance
        Its data and the commits of its code, as far as they are known.
    figure : Figure
        What `accuracies` and `validation` are: a name, whether more is better, and whether it is a share.
    without_figure : Mapping[str, list[int]]
        Clients that were evaluated and have no such figure, by part, `test` or `validation`; only parts with some.
    start_loss : float | None
        Mean training loss of the participants of round 1 at the model that it began at; None where it is not known.
    confirmed : Confirmed | None
        With `guarantee.confirm` the round whose model `theta` is, who confirmed it, and who gave no word.
    """

    settings: Settings
    status: str
    theta: FloatArray
    events: list[RoundEvent]
    accuracies: dict[int, float]
    seconds: float
    form: Form
    buffers: Buffers = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=versions_here)
    provenance: Provenance = field(default_factory=Provenance)
    left_out: Mapping[str, str] = field(default_factory=dict)
    validation: Mapping[int, float] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    figure: Figure = ACCURACY
    without_figure: Mapping[str, list[int]] = field(default_factory=dict)
    start_loss: float | None = None
    confirmed: Confirmed | None = None

    @property
    def joined(self) -> list[int]:
        """Clients that gave the run anything: a part in a round, or an evaluation."""
        trained = {client for event in self.events for client in event.participants}
        return sorted(trained | set(self.accuracies) | set(self.without_figure.get(TEST, ())))

    @property
    def final(self) -> dict[str, float]:
        """Fairness of the clients' final figures, see `fairness_report`; empty where no client has one."""
        return fairness_report(self.accuracies, self.figure) if self.accuracies else {}

    @property
    def improved_ratio(self) -> list[float]:
        """rho_t (29), one a round."""
        return [event.improved_ratio for event in self.events]

    @property
    def improved_of_asked(self) -> list[float]:
        """Share of all clients asked whose loss is known not to have risen, one a round."""
        return [event.improved_of_asked for event in self.events]

    @property
    def unharmed_ratio(self) -> list[float]:
        """Share of the participants that were not harmed, one a round."""
        return [event.unharmed_ratio for event in self.events]

    @property
    def totals(self) -> Totals:
        """Counts and means over the rounds."""
        return Totals.of(self.events)

    @property
    def exchanges(self) -> int:
        """Exchanges of all rounds; an evaluation after the last of them is not among them."""
        return sum(event.cost.exchanges for event in self.events)

    @property
    def bytes_up(self) -> int:
        """Bytes from the clients."""
        return sum(event.cost.bytes_up for event in self.events)

    @property
    def bytes_down(self) -> int:
        """Bytes to the clients."""
        return sum(event.cost.bytes_down for event in self.events)

    def to_json(self) -> dict[str, Any]:
        """Settings, final figures and history, as `run.json` holds them."""
        return {
            "settings": self.settings.flat(),
            "status": self.status,
            "rounds": len(self.events),
            "start_loss": self.start_loss,
            **self._figure_record(),
            "validation": {str(client): value for client, value in self.validation.items()},
            "rounds_moved": self.totals.moved,
            "improved_ratio": finite(self.improved_ratio),
            "improved_of_asked": finite(self.improved_of_asked),
            "unharmed_ratio": finite(self.unharmed_ratio),
            "improved_of_asked_moved": finite(self.totals.improved_of_asked),
            "unharmed_ratio_moved": finite(self.totals.unharmed_ratio),
            "asked": [event.asked for event in self.events],
            "heard": [len(event.votes.heard) for event in self.events],
            "overruled": [len(event.votes.overruled) for event in self.events],
            "moved": [event.moved for event in self.events],
            "exchanges": self.exchanges,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "seconds": self.seconds,
            "left_out": dict(self.left_out),
            "modules": list(self.modules),
            **({"confirmed": asdict(self.confirmed)} if self.confirmed else {}),
            **({"privacy": self.totals.privacy.words} if self.totals.privacy else {}),
            "form": asdict(self.form),
            "versions": dict(self.versions),
            **self.provenance.as_record(),
        }

    def _figure_record(self) -> dict[str, Any]:
        """Figures of fairness and of the clients; another figure than accuracy is named."""
        other = self.figure != ACCURACY
        without = {"without_figure": dict(self.without_figure)} if self.without_figure else {}
        return {
            **({"figure": self.figure.to_json()} if other else {}),
            "final": finite(self.final),
            TEST if other else "accuracies": {str(client): value for client, value in self.accuracies.items()},
            **without,
        }

    def write(self, directory: Path) -> None:
        """Write `model.npz` (theta and buffers) and then `run.json`, whose presence says that all is there."""
        with (directory / MODEL).open("wb") as file:
            np.savez(file, allow_pickle=False, theta=self.theta, **{BUFFER + k: v for k, v in self.buffers.items()})
        with replacing(directory / RUN) as file:
            file.write(f"{json.dumps(self.to_json(), indent=2)}\n".encode())


def read_result(directory: Path) -> RunResult:
    """Read what `RunResult.write` and the event log left; `RunError` if a file is missing or cannot be read."""
    final = read_final(directory)
    try:
        return replace(final, events=read_events(directory / EVENTS))
    except DQNFedError:  # says itself what it is
        raise
    except DAMAGE as error:
        raise _unreadable(directory, error) from None


def read_final(directory: Path) -> RunResult:
    """Read what `RunResult.write` left, without the history; `RunError` if a file is missing or cannot be read."""
    try:
        return _result(json.loads((directory / RUN).read_text()), read_npz(directory / MODEL))
    except (ConfigError, *DAMAGE) as error:
        raise _unreadable(directory, error) from None


def _unreadable(directory: Path, error: Exception) -> RunError:
    if isinstance(error, FileNotFoundError):
        return RunError(
            f"{directory}: no result of a finished run, {Path(error.filename).name} is missing{_below(directory)}"
        )
    return RunError(f"{directory}: no result of a finished run, or a damaged one ({type(error).__name__}: {error})")


def _below(directory: Path) -> str:
    """Words for somebody who gave a folder of runs in place of one of them."""
    found = next((file.parent for depth in BELOW for file in sorted(directory.glob(f"{depth}/{RUN}"))), None)
    return f"; it holds runs, such as {found}" if found else ""


def _result(record: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> RunResult:
    """From what `RunResult.write` wrote, without events."""
    return RunResult(
        settings=Settings.from_record(record["settings"]),
        status=record["status"],
        theta=arrays.pop("theta"),
        events=[],
        accuracies=client_figures(record),
        seconds=record["seconds"],
        buffers={name.removeprefix(BUFFER): value for name, value in arrays.items()},
        form=_form(record["form"]),
        versions=record["versions"],
        provenance=Provenance(record["fingerprint"], tuple(record["commits"]), record["frozen"]),
        left_out=record["left_out"],
        validation={int(client): value for client, value in record["validation"].items()},
        modules=tuple(record["modules"]),
        figure=Figure.from_json(record.get("figure")),
        without_figure=record.get("without_figure", {}),
        start_loss=None if record["start_loss"] is None else float(record["start_loss"]),
        confirmed=Confirmed(**record["confirmed"]) if "confirmed" in record else None,
    )


def start_loss(events: Sequence[RoundEvent]) -> float | None:
    """Mean training loss of the participants of round 1 before it, each counted once; None where it is not known."""
    losses = events[0].losses_before if events and events[0].round == 1 else []
    mean = math.fsum(losses) / len(losses) if losses else math.nan
    return mean if math.isfinite(mean) else None


def client_figures(record: Mapping[str, Any]) -> dict[int, float]:
    """The final figure of every client, from what `RunResult.to_json` gave."""
    found = record[TEST] if TEST in record else record["accuracies"]
    return {int(client): float(value) for client, value in found.items()}


def _form(record: Mapping[str, Any]) -> Form:
    found = {each.name: record[each.name] for each in fields(Form)}
    return Form(**{**found, "input_shape": tuple(found["input_shape"])})
