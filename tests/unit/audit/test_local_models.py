"""Local-only models: trained here as in a run of `local`, kept, found again, and refused where they are of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dqnfed_flwr.audit.local_models import LocalModels, local_settings, read_given, train_local
from dqnfed_flwr.audit.weights import AuditedRun, Weights, check_same_data, others_of, read_run, start_of
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.config.methods import METHODS
from dqnfed_flwr.data import ClientData, load_client
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.run_files import RUN
from tests.helpers.audits import SMALL, leave_run

NORM = "tests.helpers.models:norm_mlp"


def samples(audited: AuditedRun, partition: int) -> ClientData:
    return load_client(audited.settings, partition)


def trained(audited: AuditedRun, partition: int) -> Weights:
    return train_local(audited, partition, samples(audited, partition), start_of(audited), lambda: None)


def accuracy(audited: AuditedRun, partition: int, weights: Weights) -> float:
    client = DQNFedClient(audited.settings, partition, samples(audited, partition))
    return float(client.scores(audited.form.num_classes, weights.theta, weights.buffers).right.mean())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": NORM},
        {"participation": 0.4, "rounds": 5},
        {"split.validation-fraction": 0.2, "early-stopping": 1, "rounds": 6},
        {"start.epochs": 1},
    ],
)
def test_a_model_trained_here_is_that_of_a_run_of_local(tmp_path: Path, changes: dict[str, Any]) -> None:
    audited = read_run(leave_run(tmp_path / "run", **changes))
    alone = run({**SMALL, **changes, "method": "local", "output": str(tmp_path / "local")})
    found = read_given(tmp_path / "local", audited)
    assert found.differs == {}
    for partition in audited.clients:
        own, theirs = trained(audited, partition), found.find(partition, samples(audited, partition))
        assert accuracy(audited, partition, own) == alone.accuracies[partition]
        if theirs is not None:
            assert own.digest == theirs.digest
    assert any(found.find(partition, samples(audited, partition)) for partition in audited.clients)


def test_the_start_is_the_model_of_the_run_before_round_1(tmp_path: Path) -> None:
    audited = read_run(leave_run(tmp_path / "run"))
    assert np.array_equal(start_of(audited).theta, run({**SMALL, "method": "local"}).theta)


def test_a_client_that_is_never_asked_stays_at_the_start(tmp_path: Path) -> None:
    audited = read_run(leave_run(tmp_path / "run", clients=3, participation=0.3, rounds=1))
    digests = [trained(audited, partition).digest for partition in audited.clients]
    assert digests.count(start_of(audited).digest) == 2


def test_what_was_kept_is_found_and_what_is_of_another_run_is_told(tmp_path: Path) -> None:
    audited = read_run(leave_run(tmp_path / "run", model=NORM))
    own, kept = trained(audited, 1), LocalModels(tmp_path / "kept", audited)
    data = samples(audited, 1)
    assert kept.find(1, data) is None
    kept.keep(1, data, own)
    found = LocalModels(tmp_path / "kept", audited)
    again = found.find(1, data)
    assert again is not None
    assert found.find(1, samples(audited, 2)) is None  # of other samples
    assert again.digest == own.digest
    assert found.differs == {}
    other = read_run(leave_run(tmp_path / "other", model=NORM, **{"local.lr": 0.3}))
    elsewhere = LocalModels(tmp_path / "kept", other)
    assert elsewhere.differs == {"local.lr": "local.lr: 0.3, 0.1"}
    elsewhere.forget()
    assert list((tmp_path / "kept").iterdir()) == []


def test_a_damaged_model_is_told(tmp_path: Path) -> None:
    audited = read_run(leave_run(tmp_path / "run"))
    kept = LocalModels(tmp_path / "kept", audited)
    kept.keep(0, samples(audited, 0), start_of(audited))
    (tmp_path / "kept" / "client-0.npz").write_bytes(b"PK nothing")
    with pytest.raises(ConfigError, match=r"client-0.npz: damaged .*trained anew"):
        kept.find(0, samples(audited, 0))


@pytest.mark.parametrize("method", METHODS)
def test_local_settings_can_be_made_of_those_of_any_method(method: str) -> None:
    settings = Settings.from_mapping({"method": method, "rounds": 100})
    found = local_settings(settings)
    assert (found.method, found.rounds, resolve(found).work.name) == ("local", 100, "local")


def test_local_settings_keep_data_budget_and_start() -> None:
    given = {
        "rounds": 7,
        "local.epochs": 3,
        "local.work": "gradient",
        "local.together": 2,
        "seed": 5,
        "start.epochs": 1,
    }
    found = local_settings(Settings.from_mapping({**given, "attack.kind": "zero", "step-rule": "probed"})).flat()
    assert [found[key] for key in ("rounds", "local.epochs", "seed", "start.epochs")] == [7, 3, 5, 1]
    assert [found[key] for key in ("local.work", "attack.kind", "step-rule")] == ["auto", "none", "auto"]


def test_models_of_other_data_are_refused(tmp_path: Path) -> None:
    audited = read_run(leave_run(tmp_path / "run"))
    leave_run(tmp_path / "local", method="local", seed=4)
    with pytest.raises(ConfigError, match=r"models of other data \(wanted, found\): seed: 0, 4"):
        read_given(tmp_path / "local", audited)


def test_models_of_data_that_changed_since_are_refused(tmp_path: Path) -> None:
    audited = read_run(leave_run(tmp_path / "run"))
    folder = leave_run(tmp_path / "local", method="local")
    assert read_given(folder, audited).fingerprint == audited.fingerprint
    record = json.loads((folder / RUN).read_text())
    (folder / RUN).write_text(json.dumps({**record, "fingerprint": "0" * 16}))
    with pytest.raises(ConfigError, match="models of other data: the data themselves changed since"):
        read_given(folder, audited)


def test_folders_without_models_are_refused(tmp_path: Path) -> None:
    audited = read_run(leave_run(tmp_path / "run"))
    with pytest.raises(ConfigError, match="holds no local-only models"):
        read_given(tmp_path, audited)
    with pytest.raises(ConfigError, match="is a run of fedavg"):
        read_given(tmp_path / "run", audited)
    with pytest.raises(ConfigError, match="no result of a finished run"):
        read_run(tmp_path)
    leave_run(tmp_path / "local", method="local")
    with pytest.raises(ConfigError, match="no model to audit"):
        read_run(tmp_path / "local")
    (tmp_path / "local" / "checkpoint.npz").unlink()
    with pytest.raises(ConfigError, match="in its checkpoint, which cannot be read"):
        read_given(tmp_path / "local", audited)


def test_runs_of_other_data_are_refused_and_equal_titles_told_apart(tmp_path: Path) -> None:
    audited = read_run(leave_run(tmp_path / "run"))
    leave_run(tmp_path / "other", seed=3)
    with pytest.raises(ConfigError, match=r"its clients differ .*: seed"):
        check_same_data(audited, read_run(tmp_path / "other"))
    leave_run(tmp_path / "a", **{"local.lr": 0.2})
    leave_run(tmp_path / "b", **{"local.lr": 0.3})
    assert list(others_of(audited, [tmp_path / "a", tmp_path / "b"])) == ["FedAvg [a]", "FedAvg [b]"]
    with pytest.raises(ConfigError, match="given twice"):
        others_of(audited, [tmp_path / "a", tmp_path / "a"])


def test_the_name_is_that_of_the_experiment_wherever_it_lies(tmp_path: Path) -> None:
    names = [read_run(leave_run(tmp_path / str(k), **changes)).name for k, changes in enumerate([{}, {}, {"seed": 1}])]
    assert names[0] == names[1] != names[2]
    assert names[0].startswith("fedavg-")
