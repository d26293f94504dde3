"""The models of an audit: those that runs left, and the one that they began at."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dqnfed_flwr.config import KNOWN, Scalar, Settings, without_effect
from dqnfed_flwr.data.own_folder import import_again
from dqnfed_flwr.engine.result import read_final
from dqnfed_flwr.engine.start import first_model, model_for
from dqnfed_flwr.errors import ConfigError, RunError
from dqnfed_flwr.params import frozen_fingerprint
from dqnfed_flwr.run_files import RUN, UNREADABLE
from dqnfed_flwr.strategy.compatibility import Form
from dqnfed_flwr.strategy.state import STALLED
from dqnfed_flwr.telemetry.events import finite
from dqnfed_flwr.telemetry.totals import moved_words
from dqnfed_flwr.types import Figure, FloatArray
from dqnfed_flwr.wire import Buffers

FEDERATED, START, LOCAL = "federated", "start", "local"
"""Names of models in an audit; any further one has the title of its method."""
LABELS = {FEDERATED: "the federated model", START: "the start", LOCAL: "local only"}
NAME_DIGITS = 12
CLASSIFICATION = "classification"
"""The one task whose answers are right or wrong, sample by sample."""


@dataclass(frozen=True)
class Weights:
    """Trainable parameters theta [D] of a model, and its buffers."""

    theta: FloatArray
    buffers: Buffers

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the bytes of theta, little-endian, then name and bytes of each buffer by name; hexadecimal."""
        found = hashlib.sha256(_bytes(self.theta))
        for name in sorted(self.buffers):
            found.update(name.encode() + b"\0" + _bytes(self.buffers[name]))
        return found.hexdigest()


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended, in how many of its rounds it moved its model, and rho and the share not harmed over these.

    The last two are NaN where they are not known.
    """

    status: str
    rounds: int
    moved: int
    rho: float
    unharmed: float
    privacy: str = ""  # what was spent of a budget, in words

    @property
    def words(self) -> str:
        """A sentence; of a run that stalled another one."""
        stalled = " Its model stood still: it is audited as it is, and little was learnt." * (self.status == STALLED)
        spent = f"; {self.privacy}" if self.privacy else ""
        return f"The run ended as {self.status}: {moved_words(*self._figures)}{spent}.{stalled}"

    @property
    def _figures(self) -> tuple[int, int, float, float]:
        return self.moved, self.rounds, self.rho, self.unharmed

    def to_json(self) -> dict[str, Any]:
        """As `audit.json` holds it."""
        names = ("rounds_moved", "rounds", "improved_of_asked_moved", "unharmed_ratio_moved")
        more = {"privacy": self.privacy} if self.privacy else {}
        return {"status": self.status, **dict(zip(names, map(finite, self._figures), strict=True)), **more}


@dataclass(frozen=True)
class AuditedRun:
    """A finished run in its folder.

    Attributes
    ----------
    folder : Path
        Where it lies.
    settings : Settings
        Of the run.
    form : Form
        Of its data.
    weights : Weights
        The final model.
    fingerprint : str | None
        Of its data; None where that is not known.
    end : RunEnd
        How it ended.
    figure : Figure | None
        The task's own figure; None for a classification, whose answers are right or wrong.
    start_loss : float | None
        Mean training loss of the participants of round 1 before it; None where it is not known.
    """

    folder: Path
    settings: Settings
    form: Form
    weights: Weights
    fingerprint: str | None
    end: RunEnd
    figure: Figure | None = None
    start_loss: float | None = None

    @property
    def name(self) -> str:
        """Method and a hash of the settings that make the experiment: the same on every machine."""
        text = json.dumps(experiment_of(self.settings), sort_keys=True)
        return f"{self.settings.method}-{hashlib.sha256(text.encode()).hexdigest()[:NAME_DIGITS]}"

    @property
    def clients(self) -> range:
        """Numbers of all clients that the settings ask for."""
        return range(self.settings.clients)


def read_run(folder: Path) -> AuditedRun:
    """Read the run of an output folder.

    Raises
    ------
    ConfigError
        If there is no finished run, or it has no model that all clients share.
    """
    try:
        found = read_final(folder)
    except RunError as error:
        raise ConfigError(f"{error}; give the output folder of a finished run") from None
    if found.settings.method == LOCAL:
        raise ConfigError(f"{folder}: a run of {LOCAL} has no model to audit; give it as --local, beside another run")
    import_again(found.settings, found.modules)
    return AuditedRun(
        folder,
        found.settings,
        found.form,
        Weights(found.theta, found.buffers),
        found.provenance.fingerprint,
        _end_of(folder),
        None if found.settings.task == CLASSIFICATION else found.figure,
        found.start_loss,
    )


def _end_of(folder: Path) -> RunEnd:
    """What `run.json` says of the end."""
    try:
        found = json.loads((folder / RUN).read_text("utf-8"))
        ratios = (found["improved_of_asked_moved"], found["unharmed_ratio_moved"])
        rho, unharmed = (math.nan if value is None else float(value) for value in ratios)
        counts = int(found["rounds"]), int(found["rounds_moved"])
        return RunEnd(str(found["status"]), *counts, rho, unharmed, str(found.get("privacy", "")))
    except UNREADABLE as error:
        raise ConfigError(f"{folder / RUN}: damaged ({type(error).__name__}: {error}); make the run anew") from None


def start_of(run: AuditedRun) -> Weights:
    """The model that the run began at, made anew from its settings.

    Raises
    ------
    ConfigError, DataError
        If it cannot be made, or the part that was not trained is another one here than in the run.
    """
    form = run.form
    if form.frozen and frozen_fingerprint(model_for(run.settings, form)) != form.frozen:
        raise ConfigError(
            f"{run.folder}: the model is built here with other frozen parameters than in the run; put the weights that "
            "it was fine-tuned from in their place"
        )
    return Weights(*first_model(run.settings.model_copy(update={"resume": False}), form))


def others_of(run: AuditedRun, folders: Sequence[Path]) -> dict[str, AuditedRun]:
    """Other runs of the same data, by the titles of their methods; equal titles have the folder's name, too.

    Raises
    ------
    ConfigError
        If one is no finished run, or of other data.
    """
    runs = [read_run(folder) for folder in folders]
    for other in runs:
        check_same_data(run, other)
    titles = [other.settings.title for other in runs]
    names = [
        title if titles.count(title) == 1 else f"{title} [{other.folder.resolve().name}]"
        for title, other in zip(titles, runs, strict=True)
    ]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"--against: {twice[0]} is given twice; give each run once")
    return dict(zip(names, runs, strict=True))


def check_same_data(run: AuditedRun, other: AuditedRun) -> None:
    """Refuse a run whose clients have other samples; the `ConfigError` names what differs."""
    mine, theirs = run.settings.flat(), other.settings.flat()
    differing = [key for key, known in KNOWN.items() if known.about == "data" and mine[key] != theirs[key]]
    unknown = "" in (run.form.frozen, other.form.frozen)  # no node said
    if run.form != (replace(other.form, frozen=run.form.frozen) if unknown else other.form):
        differing.append("the form of the samples, or the size or the frozen part of the model")
    if None not in (run.fingerprint, other.fingerprint) and run.fingerprint != other.fingerprint:
        differing.append("the data themselves")
    if differing:
        raise ConfigError(f"{other.folder}: its clients differ from those of {run.folder}: {', '.join(differing)}")


def experiment_of(settings: Settings) -> dict[str, Scalar]:
    """The settings that decide figures, without those that nobody reads."""
    flat = settings.flat()
    unread = set(without_effect(settings, flat))
    return {key: value for key, value in flat.items() if key not in unread and KNOWN[key].changes == "experiment"}


def differences(one: Mapping[str, Scalar], other: Mapping[str, Scalar]) -> dict[str, str]:
    """Where two experiments differ: by key, `key: one, other`."""
    keys = sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))
    return {key: f"{key}: {one.get(key, '-')}, {other.get(key, '-')}" for key in keys}


def _bytes(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> bytes:
    return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
