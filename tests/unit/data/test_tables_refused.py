from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dqnfed_flwr.data import columns
from dqnfed_flwr.data.tables import read_csv
from dqnfed_flwr.errors import DataError
from tests.helpers.small_sets import refused
from tests.helpers.small_tables import FLOWERS, Tables, labelled


def refusal(path: Path, options: str = "label=y") -> str:
    with pytest.raises(DataError) as caught:
        labelled(path, options)
    return str(caught.value).removeprefix(f"data: {path}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", " is empty; it needs a header line"),
        ("\n\n", " is empty; it needs a header line"),
        ("a,y\n", " has a header of 2 columns and no row"),
        ("a,y\n1,0\n\n2\n", ", line 4: found 1 values, the header has 2 columns"),
        ("a,y\n1,0\n2,1,0\n", ", line 3: found 3 values"),
        ('a,y\n1,0\n2,"1\n', ", near its end: unexpected end of data; close all quotes"),
        ("a,y,a,y\n1,0,2,1\n", ": the columns a, y stand twice in its header"),
        ("a,,y\n0,1,0\n", ", column 'Unnamed: 1': has no name of its own in the header, and may be an index"),
        (",a,y\nu,1,0\nu,2,0\n", ", column 'Unnamed: 0': has no name of its own"),
        ("a,y\n1,0\n,1\n3,\n", ", line 3, column 'a': found a missing value"),
        ("a,y\n1,0\nNaN,1\nNA,0\n", ", line 3, column 'a': found a missing value (nothing, NaN, or a word such as NA)"),
        ("a,y\nq,0\n  ,1\n", ", line 3, column 'a': found a missing value"),
        ("a,y\n,0\n,1\n", ", line 2, column 'a': found a missing value"),
        ('a,y\n"1\n",0\n\n2,\n', ", line 5, column 'y': found a missing value"),
        ("a,y\n1,0\n1e39,1\n", ", line 3, column 'a': found 1e+39; allowed are numbers of at most 3.4e38"),
        ("a,y\n1,0\ninf,1\n", ", line 3, column 'a': found inf; allowed are numbers"),
        ("a,when,y\n1,31/01/2020,0\n", ", line 2, column 'when': found '31/01/2020' in a column of dates; allowed"),
        ("y\n1\n", " has no column of features besides y"),
        ("a;y\n1;0\n", " has no column 'y', which label names; commas belong between columns. Columns are a;y"),
        ("a,Y1\n1,0\n", " has no column 'y', which label names. Columns are a, Y1"),
        (b"a,y\n1,0\n\xe9,1\n", ", line 3, column 'a': found the byte 0xe9, which is no UTF-8; save the file as UTF-8"),
        (b"a,y\r\n1,\xff\r\n", ", line 2, column 'y': found the byte 0xff"),
        (b"a,\xe4\n1,0\n", ", line 1, column 2: found the byte 0xe4"),
        ("a,y\n1,0\n".encode("utf-16"), ", line 1, column 1: found the byte 0xff"),
        (b"PAR1 and so on \xff", " is a Parquet file; write parquet:PATH"),
    ],
)  # fmt: skip
def test_bad_files_are_told_with_line_and_column(write: Tables, content: str | bytes, message: str) -> None:
    assert refusal(write(content)).startswith(message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("label=knd", " has no column 'knd', which label names; did you mean 'kind'? Columns are size, colour, fresh"),
        ("group=bed", ": found neither label nor target; name the column to be learnt: label=COLUMN"),
        ("label=kind,target=size", ": found label and target; name the column"),
        ("label=kind,drop=bed+id", " has no column 'id', which drop names"),
        ("label=kind,drop=bed+kind", ": label=kind, drop=bed, drop=kind: name each column once"),
        (
            "label=kind,classes=rose+tulip",
            ", line 5, column 'kind': found 'aster'; allowed are the classes given, rose",
        ),
        ("label=kind,classes=rose", "data: classes='rose'; give two or more different labels"),
        ("label=kind,classes=a+b+a", "data: classes='a+b+a'; give two or more different labels"),
        ("target=kind", ", line 2, column 'kind': found 'tulip'; allowed are numbers in this column"),
    ],
)
def test_bad_options_say_what_is_allowed(write: Tables, options: str, message: str) -> None:
    assert refusal(write(FLOWERS), options).startswith(message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("size,colour,y\n1,red,0\n", ": lacks the columns bed and has others none than"),
        ("size,colour,y,bed,id\n1,red,0,n,7\n", ": lacks the columns none and has others id than"),
        ("size,colour,y,bed\n1,red,b,n\n1,red,c,n\n", ", line 3, column 'y': found 'c'; allowed are the values in"),
        ("size,colour,y,bed\n1,pink,a,n\n", ", line 2, column 'colour': found 'pink'; allowed are the values in"),
        ("size,colour,y,bed\n1,red,a,n\nbig,red,a,n\n", ", line 3, column 'size': found 'big'; allowed are numbers"),
        ("size,colour,y,bed\n1,red,a,n\n,red,a,n\n", ", line 3, column 'size': found a missing value"),
        ("size,colour,y,bed\n1,red,,n\n", ", line 2, column 'y': found a missing value"),
        ("size,colour,y,bed\n2020-01-01,red,a,n\n", ", column 'size': found the type date32[day]; allowed are numbers"),
    ],
)
def test_a_test_table_that_is_unlike_is_refused(write: Tables, content: str, message: str) -> None:
    train, test = write("size,colour,y,bed\n1,red,a,n\n2,blue,b,s\n"), write(content, "test.csv")
    with pytest.raises(DataError) as caught:
        read_csv([train, test], {"label": "y", "group": "bed"}, train)
    assert str(caught.value).startswith(f"data: {test}{message}")


def test_names_and_slips_are_no_features(write: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    names = "".join(f"{chr(65 + row // 26)}{chr(65 + row % 26)},{row % 2}\n" for row in range(300))
    assert refusal(write("name,y\n" + 2 * names)).startswith(", column 'name': found 300 different texts, as names")
    ages = "".join(f"{2 * row},{row % 2}\n" for row in range(50))
    assert refusal(write(f"age,y\n{ages}\nold,1\n")).startswith(
        ", line 53, column 'age': found 'old' in a column of num"
    )
    monkeypatch.setattr(columns, "MOST_BYTES", 30)
    with pytest.raises(DataError, match="50 samples of 1 features are 0 GiB as dense rows"):
        labelled(write("age,y\n" + ages))


def test_texts_that_differ_from_row_to_row_are_names(write: Tables) -> None:
    names = [f"{chr(65 + row // 26)}{chr(65 + row % 26)}" for row in range(40)]
    table = "".join(f"{name},{row % 2}\n" for row, name in enumerate([*names[:37], *names[:3]]))
    said = refusal(write("name,y\n" + table))
    assert said.startswith(", column 'name': found 37 different texts in 40 rows, as names have; allowed are texts")
    assert said.endswith("keep its texts as they are, keep=name, or leave the column out, drop=name")
    assert labelled(write("name,y\n" + table), "label=y,keep=name")["x_train"].shape == (40, 37)
    shared = "".join(f"{name},{row % 2}\n" for row, name in enumerate([*names[:35], *names[:5]]))
    assert labelled(write("name,y\n" + shared))["x_train"].shape == (40, 35)


WORDS = ["?", "-", ".", "--", "unknown", "Missing", "None", "N.A.", "Total"]


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("wrong", [1, 5])
def test_a_word_among_few_different_numbers_is_no_category(write: Tables, word: str, wrong: int) -> None:
    rows = "".join(f"{word if row % 10 == 9 and row < 10 * wrong else row % 5},{row % 2}\n" for row in range(50))
    said = refusal(write(f"v,y\n{rows}"))
    assert said.startswith(f", line 11, column 'v': found '{word}' in a column of numbers; allowed are numbers with")
    assert said.endswith("correct it, or keep its texts as they are, keep=v, or leave the column out, drop=v")
    assert labelled(write(f"v,y\n{rows}"), "label=y,keep=v")["x_train"].shape == (50, 6)
    flags = f"v,y\ntrue,0\n{word},1\nFalse,0\n"
    assert refusal(write(flags)).startswith(f", line 3, column 'v': found '{word}' in a column of truth values")
    few = f"v,y\n1,0\n{word},1\n2,0\n"
    assert refusal(write(few)).startswith(f", line 3, column 'v': found '{word}' in a column of numbers")


def test_another_word_is_a_slip_where_few_rows_hold_it(write: Tables) -> None:
    rows = "".join(f"{row % 3},{row % 2}\n" for row in range(40))
    assert refusal(write(f"v,y\n{rows}lots,0\n")).startswith(", line 42, column 'v': found 'lots' in a column of num")
    assert labelled(write("v,y\n" + rows.replace("2,", "lots,")))["x_train"].shape == (40, 3)
    assert labelled(write("v,y\n" + "?,0\na,1\nb,1\n"))["x_train"].shape == (3, 3)
    rows = "".join(f"1.5,{row % 3}\n" for row in range(40))
    assert refusal(write(f"x,y\n{rows}2.5,?\n")).endswith("or name the classes, classes=A+B")


@pytest.mark.parametrize(
    "form",
    [
        *("US$1,2{:02}", "${}k", "{}.5°C", "140/{}", "10-{}", ">={}", "~{}", "8{}*", "{}:05:x", "P0{}"),
        *("{} days 02:00:00", "1{} km/h", "<{}", "{}+", "{}th", "{}h{}", "1:{}", "±{}", "{}²", "{} / 100", "No. {}"),
    ],
)
@pytest.mark.parametrize("times", [1, 3])
def test_numbers_with_something_beside_them_are_refused(write: Tables, form: str, times: int) -> None:
    values = [form.format(row, row) for row in range(30)] * times
    path = write("v,y\n" + "".join(f'"{value}",{row % 2}\n' for row, value in enumerate(values)))
    said = refusal(path)
    assert said.startswith(f", line 2, column 'v': found '{values[0]}' in a column of numbers with ")
    assert "keep=v, or leave the column out, drop=v" in said
    assert labelled(path, "label=y,keep=v")["x_train"].shape == (30 * times, 30)


def test_classes_may_hold_digits(write: Tables) -> None:
    found = labelled(write("x,y\n" + "".join(f"1.5,kind {row % 25}a\n" for row in range(50))))
    assert len(found["class_names"]) == 25


@pytest.mark.parametrize("number", ["{0},5", "{0},345.67"])
def test_numbers_with_commas_are_no_texts(write: Tables, number: str) -> None:
    rows = "".join(f'"{number.format(row)}",{row % 2}\n' for row in range(50))
    assert refusal(write(f"age,y\n{rows}")).startswith(
        f", line 2, column 'age': found '{number.format(0)}' in a column of numbers with commas"
    )


@pytest.mark.parametrize("slip", ["n.a.", "inf", "12;5"])
def test_numbers_with_a_slip_are_no_labels(write: Tables, slip: str) -> None:
    rows = "".join(f"{row % 2},{row}.25\n" for row in range(50))
    said = refusal(write(f"x,y\n{rows}1,{slip}\n"))
    assert said.startswith(f", line 52, column 'y': found '{slip}' in a column of numbers")
    assert said.endswith("or name the classes, classes=A+B")


def test_what_is_no_parquet_is_refused(write: Tables, tmp_path: Path) -> None:
    path = write(FLOWERS, "t.parquet")
    refused(f"parquet:{path},label=kind", r"t\.parquet cannot be read as Parquet .*name a CSV file as csv:PATH")
    pq.write_table(pa.table({"a": [1, None, 3], "y": [0, 1, 0]}), path)
    refused(f"parquet:{path},label=y", r"t\.parquet, row 2, column 'a': found a missing value")
    pq.write_table(pa.table({"a": [1.0, float("nan")], "y": [0, 1]}), path)
    refused(f"parquet:{path},label=y", r"row 2, column 'a': found a missing value.*or the column, drop=a")
    pq.write_table(pa.table({"a": [[1], [2]], "y": [0, 1]}), path)
    refused(f"parquet:{path},label=y", r"column 'a': found the type list<.*>; allowed are numbers")
    pq.write_table(pa.table({"a": pa.array([], pa.int64()), "y": pa.array([], pa.int64())}), path)
    refused(f"parquet:{path},label=y", "has a header of 2 columns and no row")


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_missing_files_and_folders_are_told(write: Tables, tmp_path: Path, form: str) -> None:
    refused(f"{form}:{tmp_path / 'no-such'},label=y", f"missing .*no-such; needed is a table: {form}:PATH,label=COLUMN")
    refused(f"{form}:{tmp_path},label=y", f"{tmp_path} is no file; name one: {form}:PATH")


@pytest.mark.parametrize("name", ["t.csv", "/data/t.csv.gz", "t.csv,label=y", "/data/t.parquet"])
def test_a_bare_table_says_how_it_is_written(name: str) -> None:
    form, path = "parquet" if "parquet" in name else "csv", name.partition(",")[0]
    refused(name, f"is a table; write {form}:{path},label=COLUMN")


def test_without_pyarrow_the_extra_is_named(write: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused(f"csv:{write(FLOWERS)},label=kind", r"tables are read by pyarrow: pip install 'dqnfed-flwr\[tabular\]'")


def test_a_target_is_refused_as_class_numbers(write: Tables) -> None:
    refused(f"csv:{write(FLOWERS)},target=size", r"y_train has dtype float32 .*store class numbers from 0")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["5%", "5"], ", line 3, column 'v': found '5' where most values have the sign of a unit '%'"),
        (["$5", "€5"], ", line 3, column 'v': found '€5' where most values have the sign of a unit '$'"),
        (["12,5", "3"], ", line 2, column 'v': found '12,5' in a column of numbers with commas"),
        (["12,5 %", "3,5 %"], ", line 2, column 'v': found '12,5 %' in a column of numbers with commas"),
        (["1.234,50", "2,5"], ", line 2, column 'v': found '1.234,50' in a column of numbers with commas"),
        (["1,234", "1 234"], ", line 3, column 'v': found '1 234' where most values have the mark between thousands"),
        (["5 €", "1.234 €"], ", line 3, column 'v': found '1.234 €' in a column of amounts"),
        (["01/02/2024", "03/04/2024"], ", line 2, column 'v': found '01/02/2024' in a column of dates; allowed are d"),
        (["2024/01/31", "2024/02/01"], ", line 2, column 'v': found '2024/01/31' in a column of dates"),
        (["2024-01-31", "31.01.2024"], ", line 3, column 'v': found '31.01.2024' in a column of dates"),
        (["Dec-2011", "Jan-2012"], ", line 2, column 'v': found 'Dec-2011' in a column of dates"),
        ([f"{row} km" for row in range(30)], ", line 2, column 'v': found '0 km' in a column of numbers with the word"),
        ([*(f"{row}%" for row in range(30)), "n.a."], ", line 32, column 'v': found 'n.a.' in a column of numbers"),
        ([*(f"2024-01-{row + 1:02}" for row in range(30)), "?"], ", line 32, column 'v': found '?' in a column of dat"),
        (["<NA>", "a"], ", line 2, column 'v': found a missing value"),
    ],
)
def test_what_is_no_number_without_doubt_is_refused_with_its_place(
    write: Tables, values: list[str], message: str
) -> None:
    said = refusal(write("v,y\n" + "".join(f'"{value}",{row % 2}\n' for row, value in enumerate(values))))
    assert said.startswith(message)
    assert said.endswith("drop=v")


def test_a_test_table_has_the_units_of_the_training_table(write: Tables) -> None:
    train = write("v,w,y\n5%,2024-01-31,0\n6%,2024-02-01,1\n")
    for row, message in [
        ("7,2024-01-01,0", "line 2, column 'v': found 7; allowed are numbers with %, as in"),
        ("$7,2024-01-01,0", r"line 2, column 'v': found '\$7'; allowed are numbers with % in this column"),
        ("7%,08:30,0", "column 'w': found values of another kind than the days since 1970-01-01 of"),
    ]:
        with pytest.raises(DataError, match=message):
            read_csv([train, write(f"v,w,y\n{row}\n", "test.csv")], {"label": "y"}, train)


def test_columns_without_a_name_that_may_be_data_ask_for_one(write: Tables) -> None:
    rows = "".join(f"{row},{row % 2}\n" for row in range(12))
    said = refusal(write("x,y\n" + rows))
    assert said.endswith("'x' counts the rows from 0, as an index does: to keep it all the same, keep=x")
    assert refusal(write("a,Unnamed: 3,y\n1,2,0\n")).endswith("drop=Unnamed: 3, or keep it, keep=Unnamed: 3")
    assert labelled(write("x,y\n" + rows), "label=y,keep=x")["x_train"].shape == (12, 1)


def test_texts_are_no_numbers_to_learn(write: Tables) -> None:
    refused(
        f"csv:{write(FLOWERS)},label=kind",
        "targets are classes with names, such as aster, rose, tulip; this task needs",
        targets="values",
    )
    refused(f"csv:{write(FLOWERS)},label=size", r"found 1.5: to learn numbers, set task to regression")
