"""The figures of one client against those worked out from the models' own outputs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dqnfed_flwr.audit.client_audit import audit_client, loss_bound
from dqnfed_flwr.audit.records import canonical, record_of
from dqnfed_flwr.audit.weights import FEDERATED, START, AuditedRun, Weights, read_run, start_of
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import ClientData, load_client, to_model_input
from dqnfed_flwr.engine.start import model_for
from dqnfed_flwr.params import ParamSpec
from dqnfed_flwr.strategy.compatibility import Form
from dqnfed_flwr.types import ClientTask
from tests.helpers.audit_lines import OF_MODELS
from tests.helpers.audits import END, leave_run


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> AuditedRun:
    return read_run(leave_run(tmp_path_factory.mktemp("run")))


def outputs(run: AuditedRun, weights: Weights, data: ClientData) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Right answers and losses by torch's own module."""
    module = model_for(run.settings, run.form)
    ParamSpec.of(module).unflatten(torch.from_numpy(np.array(weights.theta)), module)
    labels = torch.tensor(data.y_test)
    with torch.no_grad():
        logits = module.eval()(to_model_input(data.x_test, torch.float32))
    losses = torch.nn.functional.cross_entropy(logits.double(), labels, reduction="none")
    return (logits.argmax(1) == labels).numpy(), losses.numpy()


def test_counts_and_losses_are_those_of_the_models(audited: AuditedRun) -> None:
    data, start = load_client(audited.settings, 1), start_of(audited)
    found = audit_client(audited, 1, data, {FEDERATED: audited.weights, START: start})
    (mine, my_losses), (theirs, their_losses) = (outputs(audited, w, data) for w in (audited.weights, start))
    bound = 2 * math.log(10)
    assert found.examples == len(data.y_test)
    assert found.models[FEDERATED].correct == mine.sum()
    assert found.models[START].correct == theirs.sum()
    pair = found.pairs[START]
    assert (pair.only_federated, pair.only_other) == ((mine & ~theirs).sum(), (theirs & ~mine).sum())
    assert found.models[FEDERATED].loss == pytest.approx(np.minimum(my_losses, bound).mean(), rel=1e-6)
    expected = np.minimum(my_losses, bound).mean() - np.minimum(their_losses, bound).mean()
    assert pair.difference == pytest.approx(expected, rel=1e-6)
    assert pair.low < pair.difference < pair.high
    assert pair.better < 0.05 < pair.worse


def test_swapped_models_give_mirrored_figures(audited: AuditedRun) -> None:
    data, start = load_client(audited.settings, 0), start_of(audited)
    one = audit_client(audited, 0, data, {FEDERATED: audited.weights, START: start}).pairs[START]
    other = audit_client(audited, 0, data, {FEDERATED: start, START: audited.weights}).pairs[START]
    assert (one.only_federated, one.only_other) == (other.only_other, other.only_federated)
    assert (one.worse, one.better) == (other.better, other.worse)
    np.testing.assert_allclose([one.difference, one.low, one.high], [-other.difference, -other.high, -other.low])


def test_a_model_beside_itself_shows_nothing(audited: AuditedRun) -> None:
    data = load_client(audited.settings, 0)
    pair = audit_client(audited, 0, data, {FEDERATED: audited.weights, "same": audited.weights}).pairs["same"]
    assert (pair.only_federated, pair.only_other, pair.difference, pair.worse, pair.better) == (0, 0, 0.0, 1.0, 1.0)


def test_a_model_that_is_no_number_counts_as_the_bound(audited: AuditedRun) -> None:
    data = load_client(audited.settings, 0)
    lost = Weights(np.full_like(audited.weights.theta, np.nan), {})
    found = audit_client(audited, 0, data, {FEDERATED: lost, START: audited.weights})
    assert found.models[FEDERATED].loss == pytest.approx(loss_bound(10), rel=1e-8)
    assert found.pairs[START].worse < 0.01


def test_without_test_samples_there_is_an_audit_all_the_same(audited: AuditedRun) -> None:
    data = load_client(audited.settings, 0)
    empty = ClientData(
        data.x_train, data.y_train, data.x_validation, data.y_validation, data.x_test[:0], data.y_test[:0], 10
    )
    found = audit_client(audited, 0, empty, {FEDERATED: audited.weights, START: start_of(audited)})
    assert found.examples == 0
    accuracy = found.pairs[START].accuracy
    assert accuracy is not None
    assert accuracy.smallest == found.loss_test(START).smallest == 1.0


def test_scores_agree_with_an_evaluation_and_leave_the_memory_alone(audited: AuditedRun) -> None:
    settings = audited.settings.model_copy(update={"method": "local"})
    client = DQNFedClient(settings, 2, load_client(settings, 2))
    theta = audited.weights.theta
    client.work(ClientTask(1, 1), theta)
    before = client.export_state()
    found = client.scores(10, theta, {})
    after = client.export_state()
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    plain = DQNFedClient(audited.settings, 2, load_client(settings, 2))
    test = plain.work(ClientTask(1, 1, train=False, evaluate=True), theta).test
    assert test is not None
    assert (found.right.sum(), len(found.right)) == (test.correct, test.examples)
    assert found.losses.mean() == pytest.approx(test.loss, rel=1e-12)


def test_the_hash_is_that_of_the_bytes(tmp_path: Path) -> None:
    import hashlib

    theta = np.array([1.0, -2.5], dtype=np.float32)
    assert Weights(theta, {}).digest == hashlib.sha256(theta.astype("<f4").tobytes()).hexdigest()
    assert Weights(theta.astype(">f4"), {}).digest == Weights(theta, {}).digest
    one, other = (Weights(theta, {"mean": np.array([value])}) for value in (1.0, 2.0))
    assert len({one.digest, other.digest, Weights(theta, {}).digest}) == 3


def test_the_line_of_a_classification_is_to_the_byte_what_it_always_was() -> None:
    """Logits b_c = c / 8 against logits 0, by the version that wrote the first lines."""

    class Pretended(AuditedRun):
        name = "fedavg-0123456789ab"

    settings = Settings.from_mapping({"clients": 3, "model": "logistic", "local.threads": 1, "partition": "iid"})
    zeros = np.zeros(650, np.float32)
    biased = np.concatenate([zeros[10:], np.arange(10, dtype=np.float32) / 8])
    run = Pretended(Path("nowhere"), settings, Form((1, 8, 8), "images", 10, 650), Weights(biased, {}), None, END)
    found = audit_client(run, 1, load_client(settings, 1), {FEDERATED: run.weights, START: Weights(zeros, {})})
    assert canonical(record_of(found)) == OF_MODELS
