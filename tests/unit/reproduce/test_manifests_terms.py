"""The rows of every shipped table run on equal terms, or the table says which do not and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from dqnfed_flwr.compare.notes import Entry, first_order, local_work, terms_notes
from dqnfed_flwr.compare.plan import Plan
from dqnfed_flwr.config import resolve
from dqnfed_flwr.config.methods import profile_of
from dqnfed_flwr.reproduce.manifests import load_manifest, manifest_names
from dqnfed_flwr.reproduce.parts import ReproduceOptions, plan_part
from dqnfed_flwr.schema.plan import FREE_LENGTH, LENGTH_KEYS

PARTS = [(name, key) for name in manifest_names() for key in load_manifest(name).parts]
TIMED = ("table2", "figure3")
"""They time every method on the same work, and search nothing; their tables say whose length is left as it comes."""
every_part = pytest.mark.parametrize(("name", "key"), PARTS)
both_forms = pytest.mark.parametrize("reduced", [False, True], ids=["full", "reduced"])


def plan_of(name: str, key: str, *, reduced: bool) -> Plan:
    manifest = load_manifest(name)
    return plan_part(manifest.parts[key], manifest.seeds, ReproduceOptions(reduced=reduced), Path("nowhere"))


def entries_of(plan: Plan) -> list[Entry]:
    return [
        Entry(spec.title, resolve(plan.settings(spec, spec.points[0], plan.grid_seed)), tuple(spec.axes))
        for spec in plan.specs
    ]


@every_part
@both_forms
def test_rows_of_first_order_share_one_local_work_or_the_table_says_why(name: str, key: str, reduced: bool) -> None:
    entries = entries_of(plan_of(name, key, reduced=reduced))
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
    plan = plan_of(name, key, reduced=reduced)
    free = [spec for spec in plan.specs if profile_of(spec.method).rule == FREE_LENGTH]
    untried = [note for note in terms_notes(entries_of(plan)) if "the length of the step is free" in note]
    if name in TIMED:
        assert [spec.title for spec in free] == ["FedMGDA+"]
        assert untried[0].startswith("FedMGDA+: ")
        return
    assert untried == []
    for spec in free:
        assert set(LENGTH_KEYS) <= set(spec.axes)
        assert 4 <= len(spec.points) <= 18
        assert all(
            each.rule.name == "fixed" for each in (entry.run for entry in entries_of(plan) if entry.label == spec.title)
        )


@every_part
@both_forms
def test_the_search_has_as_many_evaluations_as_the_figures(name: str, key: str, reduced: bool) -> None:
    plan, last = plan_of(name, key, reduced=reduced), load_manifest(name).parts[key].last
    for job in (job for spec in plan.specs for job in plan.search(spec)):
        assert job.settings.rounds // job.settings.evaluate_every >= last
