"""What the columns of a table mean: numbers with units, dates, indices, and targets that stay what they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import load_client
from dqnfed_flwr.data.client_part import find_part
from dqnfed_flwr.data.dataset import TargetForm
from dqnfed_flwr.data.number_text import column_of_numbers, slip_in, written
from dqnfed_flwr.data.sources import source_of
from dqnfed_flwr.data.tables import read_csv, read_parquet
from dqnfed_flwr.errors import DataError
from tests.helpers.small_sets import load_dataset, refused
from tests.helpers.small_tables import Tables, labelled


def column(write: Tables, values: list[str]) -> Any:
    """Arrays of a table with these features."""
    return labelled(write("v,y\n" + "".join(f'"{value}",{row % 2}\n' for row, value in enumerate(values))))


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        (["13.56%", "7 %", "-2%"], [13.56, 7, -2]),
        (["$75,000", "$1,200.50", "$0"], [75000, 1200.5, 0]),
        (["€ 12.50", "€3", "-€1"], [12.5, 3, -1]),
        (["12.50 EUR", "3 EUR"], [12.5, 3]),
        (["1,234", "12", "1,234,567.5"], [1234, 12, 1234567.5]),
        (["1 234", "12"], [1234, 12]),
        (["1\u202f234 €", "12 €"], [1234, 12]),
        (["1'234", "12"], [1234, 12]),
        (["($1,200)", "$5"], [-1200, 5]),
        (["(3)", "4"], [-3, 4]),
        (["1970-01-02", "1971-01-01"], [1, 365]),
        (["1970-01-02 12:00", "1970-01-01T06:00"], [1.5, 0.25]),
        (["1970-01-01T12:00:00+06:00", "1970-01-02T00:00:00Z"], [0.25, 1]),
        (["12:30", "06:00"], [12.5, 6]),
    ],
)
def test_numbers_with_one_unit_and_dates_are_read_and_told(
    write: Tables, values: list[str], numbers: list[float]
) -> None:
    found = column(write, values)

    np.testing.assert_array_equal(found["x_train"], np.array(numbers, np.float32)[:, None])
    assert len(found["notes"]) == 1
    assert found["notes"][0].startswith("column 'v' is read as ")


@pytest.mark.parametrize(
    "values",
    [["A%", "B%"], ["5 km", "10 km"], ["1-5", "5-10"], ["36 months", "60 months"], ["yes", "no"], ["1.2.3", "1.2.4"]],
)
def test_few_texts_stay_categories(write: Tables, values: list[str]) -> None:
    found = column(write, values)
    assert found["x_train"].shape == (2, 2)
    assert "notes" not in found


def test_units_of_parquet_are_read_as_in_csv(write: Tables, tmp_path: Path) -> None:
    table = {"rate": ["5%", "6.5%"], "day": ["1970-01-02", "1970-01-03"], "y": [0, 1]}
    kinds = {"late": pa.array([3600, 7200], pa.duration("s")), "when": pa.array([0, 86400], pa.timestamp("s", "UTC"))}
    pq.write_table(pa.table({**table, **kinds}), tmp_path / "t.parquet")
    found = load_dataset(f"parquet:{tmp_path / 't.parquet'},label=y")
    np.testing.assert_allclose(found.x_train, [[5, 1, 1 / 24, 0], [6.5, 2, 1 / 12, 1]], rtol=1e-6)


@given(st.integers(-(10**9), 10**9), st.sampled_from(["", "%", "$", "€", "EUR"]), st.sampled_from(["", ",", "'", " "]))
def test_a_number_is_read_back_however_it_is_written(value: int, unit: str, mark: str) -> None:
    text = f"{abs(value):,}".replace(",", mark)
    for shown in (f"{text} {unit}".strip(), f"{unit}{text}" if unit != "%" else f"{text}%"):
        signed = "-" + shown if value < 0 else shown
        found = written(signed)
        assert found is not None
        assert (found.value, found.unit) == (value, unit)


@given(st.lists(st.text(max_size=8), max_size=30))
def test_any_texts_are_numbers_or_have_a_slip_or_are_texts(values: list[str]) -> None:
    read, slip = column_of_numbers(values), slip_in(values)
    assert read is None or slip is None
    assert slip is None or 0 <= slip.place < len(values)


INDEXED = "".join(f"{row},{row * row % 7},{row % 2}\n" for row in range(12))


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "Unnamed: 0.1", "id", "__index_level_0__"])
def test_an_index_is_no_feature_and_is_named(write: Tables, name: str) -> None:
    path, shown = write(f"{name},a,y\n{INDEXED}"), name or "Unnamed: 0"

    found = labelled(path)

    assert found["x_train"].shape == (12, 1)
    assert found["notes"][0].startswith(f"column '{shown}' is left out: it ")
    assert found["notes"][0].endswith(f"; keep={shown} keeps it")
    assert labelled(path, f"label=y,keep={shown}")["x_train"].shape == (12, 2)
    assert "notes" not in labelled(path, f"label=y,drop={shown}")
    assert labelled(path, f"label=y,group={shown}")["groups_train"].max() == 11


def test_an_index_after_a_filter_or_two_saves_is_left_out(write: Tables) -> None:
    assert labelled(write(",Unnamed: 0,a,y\n4,9,1,0\n2,4,5,1\n2,7,5,1\n"))["x_train"].tolist() == [[1], [5], [5]]
    assert labelled(write(",a,y\np1,1,0\np2,5,1\n"))["x_train"].tolist() == [[1], [5]]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_an_index_that_was_reset_is_left_out_where_it_leads(write: Tables, tmp_path: Path, form: str) -> None:
    def features(**columns: list[float]) -> int:
        table = pa.table({**columns, "y": [0, 1, 0]})
        path = tmp_path / f"t.{form}"
        pa.csv.write_csv(table, path) if form == "csv" else pq.write_table(table, path)
        arrays = (read_csv if form == "csv" else read_parquet)([path], {"label": "y"}, path)
        assert [note.partition(": it")[0] for note in arrays.get("notes", ())] == [
            f"column '{name}' is left out" for name in [*columns][: len(columns) - arrays["x_train"].shape[1]]
        ]
        return int(arrays["x_train"].shape[1])

    assert features(index=[7, 2, 9], a=[1, 1, 2]) == 1
    assert features(level_0=[0, 1, 2], index=[7, 2, 9], a=[1, 1, 2]) == 1
    assert features(level_0=[7, 2, 9], level_1=[3, 2, 9], a=[1, 1, 2]) == 1
    assert features(index=[7, 2, 2], a=[1, 1, 2]) == 2
    assert features(index=[7, 2.5, 2], a=[1, 1, 2]) == 2
    assert features(a=[1, 1, 2], index=[7, 2, 9]) == 2


def test_rows_counted_in_another_order_are_kept_with_a_word(write: Tables) -> None:
    rows = "".join(f"{(5 * row) % 12},{row % 2}\n" for row in range(12))
    found = labelled(write("a,y\n" + rows))
    assert found["x_train"].shape == (12, 1)
    assert found["notes"].tolist() == ["column 'a' holds each row number once; leave it out, drop=a, if it is an index"]
    assert "notes" not in labelled(write("a,y\n0,1\n1,0\n2,1\n"))  # few rows may be so by chance


def test_the_index_of_a_test_table_does_not_count(write: Tables) -> None:
    train = write(f"id,a,y\n{INDEXED}")
    for header, row in (("id,a,y", "77,3,1"), ("a,y", "3,1"), (",id,a,y", "5,9,3,1"), ("Unnamed: 0,a,y", "5,3,1")):
        test = write(f"{header}\n{row}\n", "test.csv")
        assert read_csv([train, test], {"label": "y"}, train)["x_test"].tolist() == [[3]]


@pytest.mark.parametrize(
    ("names", "left"),
    [(["__index_level_0__"], 2), (["patient"], 2), (["patient", "__index_level_0__"], 1), ([{"kind": "range"}], 3)],
)
def test_pandas_own_metadata_name_the_index(write: Tables, tmp_path: Path, names: list[Any], left: int) -> None:
    table = pa.table({"a": [0.5, 1.5], "patient": [7, 3], "__index_level_0__": [3, 9], "y": [0, 1]})
    if "__index_level_0__" not in names:
        table = table.rename_columns(["a", "patient", "b", "y"])
    meta = {b"pandas": json.dumps({"index_columns": names, "columns": []}).encode()}
    pq.write_table(table.replace_schema_metadata(meta), tmp_path / "t.parquet")
    data = f"parquet:{tmp_path / 't.parquet'},label=y"

    assert load_dataset(data).x_train.shape == (2, left)
    if "patient" in names:
        assert load_dataset(f"{data},keep=patient").x_train.shape == (2, left + 1)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["16777216", "16777217"], True),
        (["-16777216", "-16777217"], True),
        (["1152921504606846976", "1152921504606846977"], True),
        (["16777216", "16777218"], False),
        (["16777217", "16777217"], False),
        (["0.1", "16777216.5"], False),
    ],
)
def test_whole_numbers_that_become_equal_are_told(write: Tables, values: list[str], said: bool) -> None:
    path = write("v,y\n" + "".join(f"{value},{row}\n" for row, value in enumerate(values)))
    notes = labelled(path).get("notes", [])
    assert len(notes) == said
    if said:
        assert notes[0].startswith("column 'v' holds whole numbers above 16,777,216, some of which become equal in fl")
        assert labelled(path, "target=v")["notes"].tolist() == [notes[0]]
    money = labelled(write('v,y\n"$16,777,216",0\n"$16,777,217",1\n'))["notes"].tolist()
    assert [note.partition(",")[0] for note in money] == [
        "column 'v' is read as numbers",
        "column 'v' holds whole numbers above 16",
    ]


DAYS = "a,days\n" + "".join(f"{row % 5}.5,{7 * (row % 30)}\n" for row in range(60))


@pytest.mark.parametrize("first", ["values", "classes"])
def test_a_kept_set_gives_each_task_its_own_targets(write: Tables, first: TargetForm) -> None:
    data = f"csv:{write(DAYS)},label=days"
    load_dataset(data, targets=first)
    mark = source_of(data).fingerprint()

    numbers, classes = load_dataset(data, targets="values"), load_dataset(data)

    assert numbers.y_train.dtype == np.float32
    assert numbers.y_train[:, 0].tolist() == [7 * (row % 30) for row in range(60)]
    assert classes.y_train.tolist() == [row % 30 for row in range(60)]
    assert (numbers.num_classes, classes.num_classes) == (1, 30)
    assert source_of(data).fingerprint() == mark


@pytest.mark.parametrize(
    ("labels", "numbers"),
    [
        ("-1 1 -1", [-1, 1, -1]),
        ("1 2 3", [1, 2, 3]),
        ("0 1 2", [0, 1, 2]),
        ("$5 $7 $5", [5, 7, 5]),
        ("5% 7% 5%", [5, 7, 5]),
    ],
)
def test_labels_are_numbers_for_a_task_of_numbers(write: Tables, labels: str, numbers: list[float]) -> None:
    rows = "".join(f"0.5,{label}\n" for label in labels.split())
    data = f"csv:{write('a,y' + chr(10) + rows)}"
    for option in ("label", "target"):
        assert load_dataset(f"{data},{option}=y", targets="values").y_train[:, 0].tolist() == numbers


@pytest.mark.parametrize(
    ("train", "test", "numbers"),
    [
        ("0 1 2", "1 7", [1, 7]),
        ("3 7 9", "3 8", [3, 8]),
        ("3 7 9", "7.5 3.0", [7.5, 3]),
        ("0 1 2", "-1 0", [-1, 0]),
        ("$5 $7 $9", "$6 $7", [6, 7]),
    ],
)
@pytest.mark.parametrize("first", ["values", "classes"])
def test_numbers_that_only_the_test_table_has_are_learnt_but_are_no_classes(
    write: Tables, train: str, test: str, numbers: list[float], first: str
) -> None:
    def table(labels: str, name: str) -> Path:
        return write("a,y\n" + "".join(f"0.5,{label}\n" for label in labels.split()), name)

    data = f"csv:{table(train, 't.csv')},label=y,test={table(test, 'test.csv')}"
    message = r"test\.csv, line [23], column 'y': found .*; allowed are the values in .*set task to regression"
    if first == "classes":
        refused(data, message)
    found = load_dataset(data, targets="values")
    assert found.y_test is not None
    assert found.y_train[:, 0].tolist() == [float(label.strip("$")) for label in train.split()]
    assert found.y_test[:, 0].tolist() == numbers
    refused(data, message)


def test_a_target_with_a_unit_is_told(write: Tables) -> None:
    found = labelled(write('a,y\n1,"$75,000"\n2,"$1,200"\n'), "target=y")
    assert found["y_train"].tolist() == [75000, 1200]
    assert found["notes"].tolist() == ["column 'y' is read as numbers, '$75,000' as 75000"]


def test_a_device_with_its_own_table_learns_its_own_numbers(write: Tables) -> None:
    settings, path = Settings.from_mapping({"partition": "file"}), write(DAYS)
    part = find_part(settings, 0, f"csv:{path},label=days", "values")
    assert sorted({*part.data.y_train[:, 0].tolist()}) == [7 * days for days in range(30)]
    with pytest.raises(DataError, match="numbers the values of the columns days"):
        find_part(settings, 0, f"csv:{path},label=days")


def test_notes_are_told_at_every_run_and_many_classes_only_to_a_task_of_classes(write: Tables, said: list[str]) -> None:
    data = f"csv:{write(DAYS.replace('.5,', '%,'))},label=days"
    wanted: list[TargetForm] = ["classes", "values", "classes"]
    for targets in wanted:
        said.clear()
        source_of(data).tell(targets)
        read = f"data: {data}: column 'a' is read as numbers, '0%' as 0"
        many = f"data: {data}: 30 different whole numbers are learnt as so many classes, of 60 samples; if they are a "
        many += "quantity, set task to regression"
        assert said == [read, many][: 1 + (targets == "classes")]
    source_of("digits").tell("classes")


def test_clients_hold_the_numbers(write: Tables) -> None:
    settings = Settings.from_mapping({"data": f"csv:{write(DAYS)},label=days", "clients": 2, "partition": "iid"})
    parts = [load_client(settings, partition, None, "values") for partition in range(2)]
    held = np.concatenate([y[:, 0] for part in parts for y in (part.y_train, part.y_test)])
    assert sorted(held.tolist()) == sorted(7.0 * (row % 30) for row in range(60))
