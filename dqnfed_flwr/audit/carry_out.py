"""An audit from beginning to end: of all clients of a run in this process, of one on its node, or from their lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from dqnfed_flwr.audit.client_audit import ClientAudit, audit_client, range_of
from dqnfed_flwr.audit.local_models import LocalModels, read_given, train_local
from dqnfed_flwr.audit.records import read_lines, usable
from dqnfed_flwr.audit.tables import html
from dqnfed_flwr.audit.verdict import Audit, judge
from dqnfed_flwr.audit.weights import FEDERATED, LOCAL, START, AuditedRun, Weights, others_of, start_of
from dqnfed_flwr.client.parts import ClientSource, open_client
from dqnfed_flwr.config.methods import profile_of
from dqnfed_flwr.data.sources import FILE
from dqnfed_flwr.engine.notices import listed
from dqnfed_flwr.engine.run_folder import directory_lock
from dqnfed_flwr.errors import ClientDataError, ConfigError, DataError, RunError
from dqnfed_flwr.run_files import private_folder, replacing
from dqnfed_flwr.tasks import task_of

FOLDER, JSON, PAGE = "audit", "audit.json", "audit.html"
Progress = Callable[[int], Callable[[], None]]
"""Called with the number of a client whose model is to be trained; the answer is called after each round."""


class Auditor:
    """Audits clients of one run, all against the same models.

    Parameters
    ----------
    run : AuditedRun
        The run.
    against : Sequence[Path]
        Folders of other runs of the same data.
    local : Path | None
        Folder of local-only models; None for those that an audit keeps in the run's own folder.
    progress : Progress
        Told of the training of models that are not there.

    Raises
    ------
    ConfigError, DataError
        If folders are unfit, or the start cannot be made anew.
    """

    def __init__(self, run: AuditedRun, against: Sequence[Path], local: Path | None, progress: Progress) -> None:
        range_of(run)  # what cannot be audited is told before anything is trained
        self.run, self._progress = run, progress
        self._start = start_of(run)
        self._others = {name: other.weights for name, other in others_of(run, against).items()}
        self._kept = LocalModels(run.folder / FOLDER / LOCAL, run)
        self._given = read_given(local, run) if local else None
        self._lacking: list[int] = []
        if self._kept.differs:
            self._kept.forget()

    def audit(self, partition: int, data: ClientSource) -> ClientAudit:
        """The audit of one client; its local-only model is trained and kept where there is none."""
        own = self._local(partition, data)
        models = {FEDERATED: self.run.weights, LOCAL: own, START: self._start, **self._others}
        return audit_client(self.run, partition, data, models)

    @property
    def notes(self) -> list[str]:
        """What is to be known of the models."""
        found = []
        if task_of(self.run.settings).source.is_code:
            found.append(
                "The data come from code of your own and have no fingerprint: whether they are those that the run was "
                "trained on is not checked."
            )
        if profile_of(self.run.settings.method).personal:
            found.append(f"{self.run.settings.title} has personal models; audited is the model that all share.")
        if self._given and self._given.differs:
            found.append(
                f"local-only models of other settings (wanted, found): {'; '.join(self._given.differs.values())}"
            )
        if self._lacking:
            found.append(f"clients {listed(self._lacking)} have no model in --local; those trained here were taken.")
        return found

    def _local(self, partition: int, data: ClientSource) -> Weights:
        if self._given and (given := self._given.find(partition, data)):
            return given
        if self._given:
            self._lacking.append(partition)
        if kept := self._kept.find(partition, data):
            return kept
        trained = train_local(self.run, partition, data, self._start, self._progress(partition))
        self._kept.keep(partition, data, trained)
        return trained


def audit_run(run: AuditedRun, against: Sequence[Path], local: Path | None, progress: Progress) -> Audit:
    """Audit every client of a run whose data are on this machine.

    Raises
    ------
    DQNFedError
        If the run, its data or other models cannot be used.
    """
    _check_data(run)
    with directory_lock(run.folder / FOLDER):
        auditor = Auditor(run, against, local, progress)
        audits, missing = [], {}
        for partition in run.clients:
            try:
                audits.append(auditor.audit(partition, open_client(run.settings, partition)))
            except ClientDataError as error:  # the run went on without it as well
                missing[partition] = str(error)
        if not audits:
            raise DataError(next(iter(missing.values()), "data: the run has no client"))
        return Audit(run.name, judge(audits, missing), run.end, notes=auditor.notes)


def audit_lines(run: AuditedRun, files: Sequence[Path]) -> Audit:
    """The same from the lines of clients, without any data; who sent none is named as left out.

    Raises
    ------
    ConfigError
        If there is no line of this run that can be used.
    """
    audits, faults = usable(read_lines(files), run)
    if not audits:
        raise ConfigError(f"no line can be used: {'; '.join(faults[:3])}")
    have = {audit.partition for audit in audits}
    missing = {client: "no line that can be used" for client in run.clients if client not in have}
    notes = ["Signatures were not checked here; dqnfed audit --verify does."]
    return Audit(run.name, judge(audits, missing), run.end, faults, notes)


def audit_node(
    run: AuditedRun, partition: int, data: str, against: Sequence[Path], local: Path | None, progress: Progress
) -> tuple[ClientAudit, list[str]]:
    """The audit of one client on its node, with its own file `data` where that is not empty; and notes for its owner.

    Raises
    ------
    DQNFedError
        As `audit_run`.
    """
    if data and task_of(run.settings).source.kind == "task":
        raise ConfigError(f"--data: task {run.settings.task} brings its own data sets; leave it out")
    samples = open_client(run.settings, partition, data or None)
    auditor = Auditor(run, against, local, progress)
    return auditor.audit(partition, samples), auditor.notes


def write(audit: Audit, run: AuditedRun) -> list[Path]:
    """Write `audit.json` and `audit.html` into the folder `audit` of the run; `RunError` if that cannot be done."""
    folder = run.folder / FOLDER
    texts = {folder / JSON: json.dumps(audit.to_json(), indent=2) + "\n", folder / PAGE: html(audit)}
    for path, text in texts.items():
        try:
            private_folder(folder)
            with replacing(path) as file:
                file.write(text.encode())
        except OSError as error:
            raise RunError(f"{path}: cannot be written ({error.strerror})") from None
    return list(texts)


def _check_data(run: AuditedRun) -> None:
    """Refuse data that are not those of the run: those of nodes, which are not here, or other samples.

    Of data sets that a task brings there is no fingerprint: `Auditor.notes` says so.
    """
    source = task_of(run.settings).source
    if source.kind == "task":
        return
    if run.fingerprint is None and source.dealt_by(run.settings.partition) == FILE:
        raise ConfigError(
            "partition: file: every node has a file of its own; audit each with --client there, and judge by --records"
        )
    if run.fingerprint is not None and (now := source.fingerprint()) != run.fingerprint:
        raise ConfigError(
            f"data: {run.settings.data} is not what the run was trained on (fingerprint {now}, then {run.fingerprint})"
        )
