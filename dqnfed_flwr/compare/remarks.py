"""What stands below the tables of a comparison, where its figures do not speak for themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from dqnfed_flwr.compare.record import Record
from dqnfed_flwr.compare.results import Comparison, Row
from dqnfed_flwr.guarantee.claims import CONTRADICTION
from dqnfed_flwr.guarantee.overrule import OVERRULED


def remarks(comparison: Comparison) -> list[str]:
    """What the accuracies are, which runs and clients are not in them, and who was not heard."""
    rows = comparison.rows
    return [
        *_which_models(rows, comparison.last),
        *(text for row in rows for record in row.good if (text := _missing(row, record, rows))),
        *(text for row in rows if (text := _left_out(row))),
        *(
            f"{row.label}: accuracies of a personal model on every client, where the others have one model for all; "
            "not ranked."
            for row in rows
            if row.personal and row.good
        ),
    ]


def _which_models(rows: Sequence[Row], last: int) -> Iterator[str]:
    """Of which models the accuracies are."""
    stopped = [row.label for row in rows if any(record.keeps_best for record in row.good)]
    if last > 1 and len(stopped) < sum(bool(row.good) for row in rows):
        yield (
            f"Figures of accuracy are those of each of the last {last} evaluations of a run, averaged: a spread or a "
            "tail is one of a model that there was."
        )
    if fewer := [text for row in rows if (text := _fewer(row, last))]:
        yield f"Not all runs have {last} evaluations: {', '.join(fewer)}."
    if last > 1 and stopped:
        yield f"Figures of accuracy are those of the model that early stopping kept: {', '.join(stopped)}."


def _fewer(row: Row, last: int) -> str:
    """The fewest evaluations of a run of this row, where they are not as many as asked for; empty else."""
    least = min((len(record.evaluations) for record in row.good if not record.keeps_best), default=last)
    return f"{row.label} {least}" if least < last else ""


def _missing(row: Row, record: Record, rows: Sequence[Row]) -> str:
    """Which clients other runs of the same seed have and this one has not; empty if none."""
    seed = record.job.seed
    others = [each.accuracies for found in rows for each in found.good if each.job.seed == seed]
    known = {client for accuracies in others for client in accuracies}
    least = min(len(evaluation) for evaluation in record.evaluations)
    if least == len(known):
        return ""
    return (
        f"{row.label}, seed {seed}: figures are those of {least} of the {len(known)} clients that other runs have; "
        "they cannot be compared client by client."
    )


def _left_out(row: Row) -> str:
    """How often a client was overruled or contradicted itself in the runs of a row; empty if never."""
    drops = (drop.reason for record in row.good for event in record.events for drop in event.dropped)
    counts = Counter(reason for reason in drops if reason in (OVERRULED, CONTRADICTION))
    told = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))
    return f"{row.label}: clients were not heard, in all rounds of all seeds: {told}." if told else ""
