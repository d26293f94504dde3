from __future__ import annotations

from dataclasses import replace

from dqnfed_flwr.compare.notes import footnotes
from dqnfed_flwr.compare.record import Record
from dqnfed_flwr.compare.results import Comparison
from dqnfed_flwr.config import Settings
from dqnfed_flwr.telemetry.events import DroppedClient
from tests.helpers.comparisons import make_comparison

STOPPED = Settings.from_mapping({"clients": 2, "early-stopping": 2, "split.validation-fraction": 0.1})


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
    assert footnotes(made) == []
    short = changed(made, 1, evaluations=({0: 0.5, 2: 0.9},))
    assert footnotes(short) == [
        "FedAvg, seed 0: figures are those of 2 of the 3 clients; missing from some or all evaluations: 1."
    ]
    nobody = changed(short, 0, evaluations=({0: 0.5, 2: 0.9},))
    assert len(footnotes(nobody)) == 2  # although no run of that seed has the client
    assert footnotes(changed(made, 1, evaluations=({0: 0.5, 2: 0.9},), noted={"without_figure": {"test": [1]}})) == [
        "No accuracy, so not in the figures: seed 0, clients 1 (FedAvg)."
    ]


def test_clients_without_a_part_in_most_rounds_are_named_in_the_notes() -> None:
    made = make_comparison({"dqn-fed": [[0.5, 0.7]], "fedavg": [[0.5, 0.7]]})
    absent = [replace(event, no_part=[4]) for event in made.rows[1].records[0].events]
    (note,) = footnotes(changed(made, 1, events=tuple(absent)))
    assert note == "FedAvg, seed 0: asked, and without a part in most of the rounds: clients 4 in 3 of 3"


def test_figures_after_early_stopping_are_said_to_be_those_of_the_model_that_was_kept() -> None:
    made = replace(make_comparison({"dqn-fed": [[0.5, 0.7]], "fedavg": [[0.5, 0.7]]}), last=2)
    made = changed(made, 0, evaluations=made.rows[0].records[0].evaluations * 2)
    made = changed(made, 1, evaluations=made.rows[1].records[0].evaluations * 2)
    (averaged,) = footnotes(made)
    assert averaged.startswith("Figures of accuracy are those of each of the last 2 evaluations")
    kept = "Figures of accuracy are those of the model that early stopping kept: "
    mixed = changed(made, 1, **stopped(made.rows[1].records[0]))
    assert footnotes(mixed) == [averaged, f"{kept}FedAvg."]
    both = changed(mixed, 0, **stopped(made.rows[0].records[0]))
    assert footnotes(both) == [f"{kept}DQN-Fed, FedAvg."]


def test_runs_with_fewer_evaluations_than_asked_for_are_named() -> None:
    made = replace(make_comparison({"dqn-fed": [[0.5, 0.7]], "fedavg": [[0.5, 0.7], [0.5, 0.7]]}), last=2)
    made = changed(made, 0, evaluations=made.rows[0].records[0].evaluations * 2)
    assert footnotes(made)[1:] == ["Not all runs have 2 evaluations: FedAvg 1."]


def test_clients_that_were_not_heard_are_counted() -> None:
    made = make_comparison({"dqn-fed": [[0.5, 0.7]], "fedavg": [[0.5, 0.7]]})
    events = made.rows[0].records[0].events
    drops = [
        DroppedClient(0, "contradiction", "it said two things"),
        DroppedClient(1, "overruled", ""),
        DroppedClient(2, "absent", ""),
    ]
    changes = [replace(event, dropped=drops[: place + 1]) for place, event in enumerate(events)]
    assert footnotes(changed(made, 0, events=tuple(changes))) == [
        "DQN-Fed: clients were not heard, in all rounds of all seeds: contradiction 3, overruled 2."
    ]
