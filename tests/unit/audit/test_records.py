"""Lines of clients: what is written is read back, and what contradicts itself, its run or other lines is not used."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dqnfed_flwr.audit.client_audit import ClientAudit, rounded
from dqnfed_flwr.audit.records import AuditLine, canonical, faults_of, read_lines, record_of, usable
from dqnfed_flwr.audit.weights import FEDERATED
from dqnfed_flwr.errors import ConfigError
from tests.helpers.audit_lines import MADE
from tests.helpers.audits import OWN, make_audit, make_measured, make_pair, pretended_run

LINES = {k: make_audit(k, start=make_pair(3, 1, 0.01, 0.99), FedAvg=make_pair(0, 0)) for k in range(3)}


def text_of(audit: ClientAudit) -> str:
    return canonical(record_of(audit))


def read(folder: Path, *texts: str) -> list[AuditLine]:
    (folder / "lines.jsonl").write_text("".join(f"{text}\n" for text in texts))
    return read_lines([folder])


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    lines = read(tmp_path, *map(text_of, LINES.values()))
    assert [line.audit for line in lines] == list(LINES.values())
    assert usable(lines, pretended_run()) == (list(LINES.values()), [])


def test_a_line_of_right_answers_is_to_the_byte_what_it_always_was() -> None:
    assert text_of(LINES[0]) == MADE


def test_a_line_has_no_float_and_sorted_keys() -> None:
    record = json.loads(text_of(LINES[0]), parse_float=pytest.fail)
    assert list(record) == sorted(record)
    assert record["models"][FEDERATED]["loss"] == "0.75"
    assert " " not in text_of(LINES[0])


@given(st.floats(1e-12, 1e6))
def test_a_figure_is_the_same_before_and_after(value: float) -> None:
    assert rounded(rounded(value)) == rounded(value)
    assert float(f"{rounded(value):.9g}") == rounded(value)


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no line": (lambda r: r.clear(), "its format is not"),
    "another format": (lambda r: r.update(format="2"), "its format is not"),
    "more right than there are": (lambda r: r["models"]["start"].update(correct=41), "a whole number from 0 to 40"),
    "right answers": (lambda r: r["pairs"]["start"].update(only_other=2), "right answers contradict"),
    "losses": (lambda r: r["models"]["start"].update(loss="0.6"), "losses contradict"),
    "interval": (lambda r: r["pairs"]["start"].update(low="0.3"), "outside of its interval"),
    "a p of 0": (lambda r: r["pairs"]["start"].update(worse="0"), "a p-value is 0"),
    "a p above 1": (lambda r: r["pairs"]["start"].update(worse="1.5"), "need a number from 0 to 1"),
    "no number": (lambda r: r["pairs"]["start"].update(worse="nan"), "need a number from 0 to 1"),
    "another text of a number": (lambda r: r["pairs"]["start"].update(worse="0.010"), "in 9 digits"),
    "a number for text": (lambda r: r["pairs"]["start"].update(worse=1), "need a number as text"),
    "a flag for a count": (lambda r: r.update(partition=True), "a whole number"),
    "no hash": (lambda r: r["models"]["start"].update(digest="x"), "no SHA-256"),
    "a model without a pair": (lambda r: r["pairs"].pop("FedAvg"), "do not belong together"),
    "a name that writes to the screen": (lambda r: r.update(run="\x1b[2J"), "has no name"),
    "something more": (lambda r: r.update(more=1), "unknown: 'more'"),
    "a key alone": (lambda r: r.update(key="x"), "belong together"),
    "a field less": (lambda r: r["pairs"]["start"].pop("low"), "need"),
    "a list": (lambda r: r.update(models=[]), "AttributeError|items|no line"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_line_that_contradicts_itself_is_not_used(tmp_path: Path, name: str) -> None:
    change, said = FAULTS[name]
    record = record_of(LINES[0])
    change(record)
    lines = read(tmp_path, canonical(record), text_of(LINES[1]))
    found, faults = usable(lines, pretended_run())
    assert found == [LINES[1]]
    (fault,) = faults
    assert fault.startswith("lines.jsonl:1: changed, or no line of a client")
    if "|" not in said:
        assert said in fault


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "null", '{"format":"dqnfed-audit-1"}', "ÿ", "[" * 5000, "x" * 100_000, text_of(LINES[0]) + " "],
)
def test_what_is_no_line_is_not_used(tmp_path: Path, text: str) -> None:
    _, faults = usable(read(tmp_path, text, text_of(LINES[1])), pretended_run())
    assert [fault[:14] for fault in faults] == ["lines.jsonl:1:"]


def test_a_fault_in_one_file_costs_no_line_of_another_with_the_same_name(tmp_path: Path) -> None:
    files = [tmp_path / folder / "line.jsonl" for folder in "ab"]
    for file, text in zip(files, (text_of(LINES[0]), f"junk\n{text_of(LINES[1])}"), strict=True):
        file.parent.mkdir()
        file.write_text(f"{text}\n")
    found, (fault,) = usable(read_lines(files), pretended_run())
    assert found == [LINES[0], LINES[1]]
    assert fault.startswith(f"{files[1]}:1: ")


def test_a_float_in_a_line_is_refused(tmp_path: Path) -> None:
    (line,) = read(tmp_path, text_of(LINES[0]).replace('"examples":40', '"examples":40.0'))
    assert "40.0 is a float" in line.fault


def test_a_client_with_two_lines_has_none(tmp_path: Path) -> None:
    found, faults = usable(read(tmp_path, *map(text_of, (LINES[0], LINES[1], LINES[0]))), pretended_run())
    assert found == [LINES[1]]
    assert faults == [f"lines.jsonl:{k}: client 0: 2 lines are of this client" for k in (1, 3)]


def other_model(audit: ClientAudit, name: str) -> ClientAudit:
    models = {**audit.models, name: replace(audit.models[name], digest="f" * 64)}
    return replace(audit, models=models)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (other_model(LINES[2], FEDERATED), "another model than the others' or the run's: federated"),
        (other_model(LINES[2], "FedAvg"), "another model than the others' or the run's: FedAvg"),
        (replace(LINES[2], run="fedavg-x"), "of run fedavg-x, not fedavg-0123456789ab"),
        (replace(LINES[2], partition=3), "client 3: the run has clients 0..2"),
        (replace(LINES[2], bound=9.0), "losses cut off at 0 and 9, the run asks for 0 and 4.60517019"),
        (replace(LINES[2], resamples=99), "another bound or number of draws"),
    ],
)
def test_a_line_of_something_else_is_not_used(tmp_path: Path, changed: ClientAudit, said: str) -> None:
    found, faults = usable(read(tmp_path, *map(text_of, (LINES[0], LINES[1], changed))), pretended_run())
    assert found == [LINES[0], LINES[1]]
    assert [said in fault for fault in faults] == [True]


def test_no_line_at_all_and_no_file_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no line in"):
        read(tmp_path, "")
    with pytest.raises(ConfigError, match="absent: cannot be read"):
        read_lines([tmp_path / "absent"])


def test_lines_of_another_run_cost_no_line_of_this_one(tmp_path: Path) -> None:
    others = [
        replace(audit, run="another", models={**audit.models, "start": replace(audit.models["start"], digest="9" * 64)})
        for audit in (*LINES.values(), make_audit(3, start=make_pair(3, 1, 0.01, 0.99), FedAvg=make_pair(0, 0)))
    ]
    found, faults = usable(read(tmp_path, *map(text_of, (*others, *LINES.values()))), pretended_run())
    assert found == list(LINES.values())
    assert len(faults) == 4
    assert all(": of run another, not " in fault for fault in faults)


MEASURED = {k: make_measured(k, start=(0.01, 0.99), FedAvg=(1.0, 1.0)) for k in range(3)}


def test_a_line_without_right_answers_is_read_back_and_counts_none(tmp_path: Path) -> None:
    lines = read(tmp_path, *map(text_of, MEASURED.values()))
    assert [line.audit for line in lines] == list(MEASURED.values())
    assert usable(lines, pretended_run(figure=OWN)) == (list(MEASURED.values()), [])
    record = json.loads(text_of(MEASURED[0]), parse_float=pytest.fail)
    assert record["format"] == "dqnfed-audit-2"
    assert record["figure"] == {"name": "mae", "higher_is_better": False, "percent": False}
    assert (record["floor"], record["bound"]) == ("0", "3")
    assert record["models"]["start"] == {"digest": "1" * 64, "loss": "0.5", "figure": "1.5"}
    assert sorted(record["pairs"]["start"]) == ["better", "difference", "high", "low", "worse"]


def test_a_client_without_the_figure_says_so(tmp_path: Path) -> None:
    models = {name: replace(model, figure=None) for name, model in MEASURED[0].models.items()}
    (line,) = read(tmp_path, text_of(replace(MEASURED[0], models=models)))
    assert line.audit is not None
    assert [model.figure for model in line.audit.models.values()] == [None] * 3


def as_share(record: dict[str, Any]) -> None:
    record["figure"]["percent"] = True


def without_samples(record: dict[str, Any]) -> None:
    record["examples"] = 0


OWN_FAULTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "right answers": (lambda r: r["models"]["start"].update(correct=3), "need"),
    "counts of a pair": (lambda r: r["pairs"]["start"].update(only_other=0), "need"),
    "the other format": (lambda r: r.update(format="dqnfed-audit-1"), "unknown: 'figure'"),
    "no figure": (lambda r: r.pop("figure"), "figure"),
    "a figure without a name": (lambda r: r["figure"].update(name=""), "no name"),
    "a figure that writes to the screen": (lambda r: r["figure"].update(name="\x1b[2J"), "no name"),
    "a direction that is no flag": (lambda r: r["figure"].update(higher_is_better=1), "yes or no"),
    "a figure with more": (lambda r: r["figure"].update(more=1), "need"),
    "a share above 1": (as_share, "need a number from 0 to 1"),
    "a figure that is no number": (lambda r: r["models"]["start"].update(figure="inf"), "need a number"),
    "a figure as a number": (lambda r: r["models"]["start"].update(figure=1), "need a number as text"),
    "a figure of nothing": (without_samples, "a figure of no sample"),
    "a loss above the bound": (lambda r: r["models"]["start"].update(loss="3.1"), "need a number from 0 to 3"),
    "losses": (lambda r: r["models"]["start"].update(loss="0.500001"), "losses contradict"),
}


@pytest.mark.parametrize("name", OWN_FAULTS)
def test_a_line_without_right_answers_that_contradicts_itself_is_not_used(tmp_path: Path, name: str) -> None:
    change, said = OWN_FAULTS[name]
    record = record_of(MEASURED[0])
    change(record)
    found, (fault,) = usable(read(tmp_path, canonical(record), text_of(MEASURED[1])), pretended_run(figure=OWN))
    assert found == [MEASURED[1]]
    assert said in fault


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (replace(MEASURED[2], bound=2.5), "losses cut off at 0 and 2.5, the run asks for 0 and 3"),
        (replace(MEASURED[2], figure=replace(OWN, higher=True)), "its figure is mae, not that of the run"),
        (replace(LINES[2], bound=3.0), "its figure is right answers, not that of the run"),
        (replace(MEASURED[2], resamples=99), "another bound or number of draws"),
    ],
)
def test_all_lines_have_the_bound_and_the_figure_of_the_run(tmp_path: Path, changed: ClientAudit, said: str) -> None:
    lines = read(tmp_path, *map(text_of, (MEASURED[0], MEASURED[1], changed)))
    found, (fault,) = usable(lines, pretended_run(figure=OWN))
    assert found == [MEASURED[0], MEASURED[1]]
    assert said in fault
    assert list(faults_of(lines, None)) == ["lines.jsonl:3"]  # also where nobody has the run


def test_lines_of_a_run_whose_start_is_not_known_are_refused(tmp_path: Path) -> None:
    unknown = replace(pretended_run(figure=OWN), start_loss=None)
    with pytest.raises(ConfigError, match=r"its run.json does not say"):
        usable(read(tmp_path, text_of(MEASURED[0])), unknown)
