"""What stands over the figures of a run that is not the published one."""

from __future__ import annotations

import pytest

from dqnfed_flwr.config import Scalar
from dqnfed_flwr.reproduce.parts import AS_IN_MANIFEST, deviations
from dqnfed_flwr.reproduce.parts import ReproduceOptions as Options
from tests.helpers.manifests import part_of, plan_of

NOT_ALL = "training samples 90 %: the rest chose the settings"


def label(name: str, key: str, wanted: Options) -> str:
    return plan_of(name, key, wanted).note


def test_what_is_smaller_and_what_is_different_is_said() -> None:
    full: dict[str, Scalar] = {"rounds": 2000, "clients": 100, "model": "resnet18-gn", "evaluate-every": 20}
    assert deviations(full, full, (0, 1), (0, 1)) == ""
    assert deviations(full, {**full, "rounds": 200}) == "reduced: rounds 200 of 2000"
    assert deviations(full, {**full, "evaluate-every": 1, "device": "cpu"}) == ""
    here: dict[str, Scalar] = {**full, "rounds": 3000, "clients": 10, "split.samples": 500, "model": "mlp"}
    said = deviations(full, here, (0,), (0, 1))
    assert said == (
        "reduced: clients 10 of 100, training samples 500 of all, seeds 1 of 2; "
        "changed: rounds 3000 for 2000, model mlp for resnet18-gn"
    )


def test_other_seeds_are_said_and_more_of_them_are_not() -> None:
    assert label("table12", "noisy-cifar10", Options(seeds="5,6,7,8,9")) == "changed: seeds 5 6 7 8 9 for 0 1 2 3 4"
    assert label("table12", "noisy-cifar10", Options(seeds="7,8")) == "changed: seeds 7 8 for 0 1 2 3 4"
    assert label("table12", "noisy-cifar10", Options(seeds="3,1")) == "reduced: seeds 2 of 5"
    assert label("table12", "noisy-cifar10", Options(seeds="0,1,2,3,4,5")) == ""


def test_grids_that_are_not_searched_are_said() -> None:
    reduced = label("table1", "setup1", Options(reduced=True))
    assert f"; no grids searched, but for the step length of FedMGDA+; {NOT_ALL}" in reduced
    assert "grids" not in label("table1", "setup1", Options())
    assert "grids" not in label("table3", "participation50", Options(reduced=True))  # it has that of step lengths alone
    assert "grids" not in label("table12", "noisy-cifar10", Options(reduced=True))  # it has none
    assert label("table10", "cinic10", Options(reduced=True)).endswith("; no grids searched")
    assert "grids" not in label("table1", "setup1", Options(reduced=True, methods="DQN-Fed,FedAvg"))  # nor have these
    assert "no grids searched" in label("table1", "setup1", Options(methods="DQN-Fed,term@term.t=2"))
    some = label("table1", "setup1", Options(methods="q-FFL,term@term.t=2"))
    assert "no grid searched for TERM" in some


def test_rows_with_settings_of_their_own_are_said() -> None:
    own = label("table12", "noisy-cifar10", Options(methods="DQN-Fed,fedavg@local.lr=5"))
    assert own == "as in the manifest; rows with settings of their own: fedavg@local.lr=5"
    assert label("table12", "noisy-cifar10", Options(methods="DQN-Fed,mgda")) == ""


def test_settings_that_no_row_takes_from_the_command_line_are_no_change() -> None:
    mutex = "fedmdfg-table2", "mutex-mnist"
    replaced = Options(methods="FedMDFG(pi/32,5),FedAvg", overrides={"fedmdfg.angle": 3.0})
    assert "angle" not in label(*mutex, replaced)
    assert "changed: term.t 3" not in label(
        "table9", "fashion-mnist", Options(methods="FedAvg", overrides={"term.t": 3})
    )
    assert "term.t 3" not in label(
        "table1", "setup1", Options(methods="TERM", overrides={"term.t": 3})
    )  # its grid decides
    assert "fedmgda.epsilon 0.5" in label(
        "table3", "participation50", Options(methods="fedmgda+,FedAvg", overrides={"fedmgda.epsilon": 0.5})
    )


def test_samples_that_chose_the_settings_are_said() -> None:
    assert label("table1", "setup1", Options()) == f"as in the manifest; {NOT_ALL}"
    assert label("table1", "setup1", Options(overrides={"rounds": 9})) == f"reduced: rounds 9 of 2000; {NOT_ALL}"
    assert NOT_ALL not in label("table10", "cinic10", Options(reduced=True))
    assert label("table12", "noisy-cifar10", Options()) == ""
    kept = label("table1", "setup1", Options(methods="DQN-Fed"))
    assert kept == "as in the manifest; training samples 90 %: the rest is kept for choosing settings"
    kept = label("table12", "noisy-cifar10", Options(overrides={"split.validation-fraction": 0.25}))
    assert kept == "as in the manifest; training samples 75 %"


@pytest.mark.parametrize(("name", "key", "said"), [("table3", "participation10", True), ("table1", "setup2", False)])
def test_other_evaluations_are_said_where_accuracies_are_means_over_them(name: str, key: str, said: bool) -> None:
    assert (part_of(name, key).last > 1) == said
    shown = label(name, key, Options(overrides={"evaluate-every": 1}))
    assert ("changed: evaluate-every 1 for 5" in shown) == said


def test_fewer_natural_groups_are_fewer() -> None:
    assert "reduced: rounds 60 of 200, clients 100 of 500, natural groups 100 of 500, seeds 3 of 5;" in label(
        "table5", "original", Options(reduced=True)
    )


def test_the_full_form_is_not_called_published() -> None:
    assert "what the paper leaves open was chosen" in AS_IN_MANIFEST
    assert "published" not in AS_IN_MANIFEST
