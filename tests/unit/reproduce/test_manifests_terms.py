"""The rows of every shipped table run on equal terms, or the table says which do not and why."""

from __future__ import annotations

from functools import cache

import pytest

from dqnfed_flwr.compare.notes import Entry, first_order, local_work, terms_notes
from dqnfed_flwr.compare.plan import Plan
from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.config.methods import profile_of
from dqnfed_flwr.reproduce.parts import ReproduceOptions, config_of
from dqnfed_flwr.schema.plan import FREE_LENGTH, LENGTH_KEYS
from tests.helpers import manifests
from tests.helpers.manifests import PARTS, part_of

TIMED = ("table2", "figure3")
"""They time every method on the same work, and search nothing; their tables say whose length is left as it comes."""
every_part = pytest.mark.parametrize(("name", "key"), PARTS)
both_forms = pytest.mark.parametrize("reduced", [False, True], ids=["full", "reduced"])


@cache
def planned(name: str, key: str, reduced: bool) -> tuple[Plan, list[Entry]]:
    plan = manifests.plan_of(name, key, ReproduceOptions(reduced=reduced))
    return plan, [
        Entry(spec.title, resolve(plan.settings(spec, spec.points[0], plan.grid_seed)), tuple(spec.axes))
        for spec in plan.specs
    ]


@every_part
@both_forms
def test_rows_of_first_order_share_one_local_work_or_the_table_says_why(name: str, key: str, reduced: bool) -> None:
    _, entries = planned(name, key, reduced)
    alike = [entry for entry in entries if first_order(entry.run)]
    baseline = next(local_work(entry.run) for entry in alike if entry.run.settings.method == "fedavg")
    notes = terms_notes(entries)
    for entry in alike:
        if (work := local_work(entry.run)) == baseline:
            continue
        as_printed = entry.run.settings.local.work == "lbfgs"  # the paper's own algorithm, where it takes several steps
        reason = "its settings say so" if as_printed else entry.run.last.method.one_gradient
        assert reason
        said = f": {work} a round, where the other rows take {baseline}: {reason}."
        assert [note for note in notes if note.endswith(said) and entry.label in note.removesuffix(said)]


@every_part
@both_forms
def test_free_step_lengths_are_searched(name: str, key: str, reduced: bool) -> None:
    plan, entries = planned(name, key, reduced)
    free = [spec for spec in plan.specs if profile_of(spec.method).rule == FREE_LENGTH]
    untried = [note for note in terms_notes(entries) if "the length of the step is free" in note]
    if name in TIMED:
        assert [spec.title for spec in free] == ["FedMGDA+"]
        assert untried[0].startswith("FedMGDA+: ")
        return
    assert untried == []
    for spec in free:
        assert set(LENGTH_KEYS) <= set(spec.axes)
        assert 4 <= len(spec.points) <= 18
        assert {entry.run.rule.name for entry in entries if entry.label == spec.title} == {"fixed"}


@every_part
@both_forms
def test_the_search_has_as_many_evaluations_as_the_figures(name: str, key: str, reduced: bool) -> None:
    (plan, _), last = planned(name, key, reduced), part_of(name, key).last
    for job in (job for spec in plan.specs for job in plan.search(spec)):
        assert job.settings.rounds // job.settings.evaluate_every >= last


@every_part
@both_forms
def test_settings_of_every_row_are_accepted(name: str, key: str, reduced: bool) -> None:
    (plan, _), part = planned(name, key, reduced), part_of(name, key)
    shared = config_of(part, ReproduceOptions(reduced=reduced))
    assert len(plan.specs) == len(part.rows)
    for spec in plan.specs:
        for point in spec.points:
            assert Settings.from_mapping({**shared, **spec.own, **point, "method": spec.method}).method == spec.method
    assert bool(plan.note) == (reduced or any(row.grid for row in part.rows))
