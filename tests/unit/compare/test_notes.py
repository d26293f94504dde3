"""What stands below the tables: on which terms rows are, and who is not in their figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dqnfed_flwr.compare.notes import Entry, footnotes, local_work, terms_notes
from dqnfed_flwr.compare.record import Record
from dqnfed_flwr.compare.results import Comparison
from dqnfed_flwr.compare.tables import tables
from dqnfed_flwr.config import Scalar, Settings, resolve
from dqnfed_flwr.telemetry.events import DroppedClient
from tests.helpers.comparisons import make_comparison, make_record

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


FREE = (
    "the length of the step is free, and step.lr and step.decay were not searched; figures may be below what is "
    "possible."
)


def settings_of(method: str, **given: Scalar) -> Settings:
    keys = {key.replace("__", ".").replace("_", "-"): value for key, value in given.items()}
    return Settings.from_mapping({"method": method, "local.batch-size": 32, **keys})


def entry(method: str, searched: tuple[str, ...] = (), **given: Scalar) -> Entry:
    settings = settings_of(method, **given)
    return Entry(settings.title, resolve(settings), searched)


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"method": "fedavg"}, "1 epoch of SGD on all samples at once"),
        ({"method": "ditto", "local.epochs": 2, "local.batch-size": 8}, "2 epochs of SGD in batches of 8"),
        ({"method": "mgda"}, "one gradient of all samples"),
        ({"method": "fedsgd", "local.gradient-batch": 16}, "one gradient of 16 samples"),
        ({"dqn-fed.anchor": "fedavg"}, "one gradient of all samples and 1 epoch of SGD on all samples at once"),
        ({"method": "mgda", "local.work": "lbfgs", "local.epochs": 3}, "3 steps of lbfgs"),
        ({"method": "fedcorr", "fedcorr.last": "mgda", "rounds": 100}, "one gradient of all samples"),
    ],
)
def test_local_work_in_words(mapping: dict[str, Scalar], words: str) -> None:
    assert local_work(resolve(Settings.from_mapping(mapping))) == words


def test_rows_that_do_the_same_need_no_word() -> None:
    assert terms_notes([entry("fedavg"), entry("afl"), entry("q-ffl"), entry("propfair")]) == []
    assert terms_notes([entry("mgda"), entry("fedsgd")]) == []


def test_a_row_with_one_gradient_is_named_with_the_methods_reason() -> None:
    notes = terms_notes([entry("mgda"), entry("fedsgd"), entry("fedavg")])
    usual = "one gradient of all samples a round, where the other rows take 1 epoch of SGD in batches of 32"
    assert notes == [
        f"MGDA: {usual}: only the shortest point of the gradients' hull is a common descent direction.",
        f"FedSGD: {usual}: one gradient a round is what the method is.",
    ]


def test_it_is_said_whose_messages_are_rounded() -> None:
    notes = terms_notes([entry("dqn-fed"), entry("fedsgd", messages__row=16)])
    assert notes[-2:] == [
        "DQN-Fed: rows in 6 bits a value, steps in 1 to 4 bits a value.",
        "FedSGD: rows in 16 bits a value.",
    ]
    (note,) = terms_notes([entry("dqn-fed", privacy__mode="masked", messages__row=16), entry("fedsgd")])
    assert note == "DQN-Fed: sums in 16 bits a value, where the other rows round nothing."
    assert terms_notes([entry(method, messages__row=8, messages__step=8) for method in ("mgda", "fedsgd")]) == []


def test_what_a_row_was_given_is_its_own_reason() -> None:
    (gradient,) = terms_notes([entry("fedavg"), entry("afl", local__work="gradient")])
    assert gradient.startswith("AFL: one gradient of all samples a round")
    assert gradient.endswith("batches of 32: its settings say so.")
    (longer,) = terms_notes([entry("afl"), entry("fedavg"), entry("term", local__epochs=5)])
    assert longer.startswith("TERM: 5 epochs of SGD in batches of 32 a round, where the other rows take 1 epoch of SGD")


def test_rows_of_second_order_are_not_held_against_the_others() -> None:
    assert terms_notes([entry("fedavg"), entry("fednl"), entry("fednew"), entry("local-newton")]) == []


@pytest.mark.parametrize(
    ("row", "noted"),
    [
        (entry("fedmgda+"), True),
        (entry("adafed", step_rule="newton"), True),
        (entry("fairgrad", step__lr=0.3), False),
        (entry("fedmgda+", ("step.lr", "step.decay")), False),
        (entry("fedmgda+", step_rule="clipped"), False),
        (entry("fedlf"), False),
    ],
)
def test_a_step_whose_length_nobody_looked_for_is_named(row: Entry, noted: bool) -> None:
    assert terms_notes([entry("fedavg"), row]) == ([f"{row.label}: {FREE}"] if noted else [])


def test_the_notes_stand_below_the_table() -> None:
    made = make_comparison({"dqn-fed": [[0.5, 0.7]], "fedavg": [[0.5, 0.7]]})
    rows = [
        replace(row, records=(make_record(row.spec, 0, (0.5, 0.7), settings=settings_of(row.spec.method, clients=2)),))
        for row in made.rows
    ]
    note, messages = footnotes(replace(made, rows=rows))
    assert note.startswith("DQN-Fed: one gradient of all samples and 1 epoch of SGD in batches of 32 a round")
    assert messages.startswith("DQN-Fed: rows in 6 bits a value")
    assert note in tables(replace(made, rows=rows))[0].notes
