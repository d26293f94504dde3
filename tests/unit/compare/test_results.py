from __future__ import annotations

from dataclasses import replace

from dqnfed_flwr.compare.record import Record
from dqnfed_flwr.compare.results import Comparison
from dqnfed_flwr.config import Settings
from tests.helpers.comparisons import make_comparison

STOPPED = Settings.from_mapping({"early-stopping": 2, "split.validation-fraction": 0.1})


def changed(comparison: Comparison, place: int, **changes: object) -> Comparison:
    """`comparison`, with the first run of a row changed."""
    rows = list(comparison.rows)
    first, *others = rows[place].records
    rows[place] = replace(rows[place], records=(replace(first, **changes), *others))  # type: ignore[arg-type]
    return replace(comparison, rows=tuple(rows))


def stopped(record: Record) -> dict[str, object]:
    """The change that makes a run one with early stopping."""
    return {"job": replace(record.job, settings=STOPPED)}


def test_a_run_that_lacks_clients_is_named() -> None:
    made = make_comparison(
        {"dqn-fed": [[0.5, 0.7, 0.9], [0.5, 0.7, 0.9]], "fedavg": [[0.5, 0.7, 0.9], [0.5, 0.7, 0.9]]}
    )
    assert made.remarks == []
    short = changed(made, 1, evaluations=({0: 0.5, 2: 0.9},))
    assert short.remarks == [
        "FedAvg, seed 0: figures are those of 2 of the 3 clients that other runs have; they cannot be compared client "
        "by client."
    ]


def test_figures_after_early_stopping_are_said_to_be_those_of_the_model_that_was_kept() -> None:
    made = replace(make_comparison({"dqn-fed": [[0.5, 0.7]], "fedavg": [[0.5, 0.7]]}), last=5)
    (averaged,) = made.remarks
    assert averaged.startswith("Figures of accuracy are those of each of the last 5 evaluations")
    kept = "Figures of accuracy are those of the model that early stopping kept: "
    mixed = changed(made, 1, **stopped(made.rows[1].records[0]))
    assert mixed.remarks == [averaged, f"{kept}FedAvg."]
    both = changed(mixed, 0, **stopped(made.rows[0].records[0]))
    assert both.remarks == [f"{kept}DQN-Fed, FedAvg."]
