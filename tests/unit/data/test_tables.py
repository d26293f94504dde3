from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import OneHotEncoder

from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import load_client
from dqnfed_flwr.data.client_part import find_part
from dqnfed_flwr.data.sources import source_of
from dqnfed_flwr.data.table_files import read_csv_table
from dqnfed_flwr.data.tables import read_csv, read_parquet
from dqnfed_flwr.errors import DataError
from tests.helpers.small_sets import as_list, load_dataset
from tests.helpers.small_tables import FLOWERS, Tables, labelled


def test_numbers_truth_values_and_texts_become_features(write: Tables) -> None:
    data = load_dataset(f"csv:{write(FLOWERS)},label=kind,drop=bed")

    expected = [  # size, blue, green, red, fresh
        [1.5, 0, 0, 1, 1],
        [2, 1, 0, 0, 0],
        [-0.3, 0, 0, 1, 1],
        [4, 0, 1, 0, 0],
    ]
    assert data.x_train.dtype == np.float32
    np.testing.assert_array_equal(data.x_train, np.array(expected, np.float32))
    assert (data.y_train.tolist(), as_list(data.class_names)) == ([2, 1, 2, 0], ["aster", "rose", "tulip"])
    assert (data.num_classes, data.x_test, data.groups_train, data.group_names) == (3, None, None, None)


def test_a_group_column_makes_natural_groups(write: Tables) -> None:
    data = f"csv:{write(FLOWERS)},label=kind,group=bed"

    found = load_dataset(data)

    assert (as_list(found.groups_train), as_list(found.group_names)) == ([0, 1, 0, 1], ["north", "south"])
    assert found.x_train.shape == (4, 5)
    settings = Settings.from_mapping(
        {"data": data, "partition": "groups", "clients": 2, "split": {"test-fraction": 0.5}}
    )
    assert load_client(settings, 1).x_train.shape == (1, 5)


def test_signs_make_no_texts_and_parquet_says_itself_what_is_text(write: Tables, tmp_path: Path) -> None:
    assert labelled(write("a,y\n+1,0\n-2.5,1\n"))["x_train"].tolist() == [[1], [-2.5]]
    codes = [str(code % 15) for code in range(30)]
    pq.write_table(pa.table({"code": codes, "y": [0, 1] * 15}), tmp_path / "t.parquet")
    assert load_dataset(f"parquet:{tmp_path / 't.parquet'},label=y").x_train.shape == (30, 15)


def test_groups_keep_their_spelling(write: Tables) -> None:
    found = labelled(write("id,x,y\n007,1,0\n7,2,1\n"), "label=y,group=id")
    assert (found["groups_train"].tolist(), found["group_names"].tolist()) == ([0, 1], ["007", "7"])


@pytest.mark.parametrize(
    ("labels", "options", "numbers", "names"),
    [
        ("0 2 1 0", "", [0, 2, 1, 0], None),
        ("1.0 0.0 1. 0", "", [1, 0, 1, 0], None),
        ("1 7 10 2", "", [0, 2, 3, 1], ["1", "2", "7", "10"]),
        ("-1 1 +1 -1", "", [0, 1, 1, 0], ["-1", "1"]),
        ("b a b c", "", [1, 0, 1, 2], ["a", "b", "c"]),
        ("True False True True", "", [1, 0, 1, 1], ["False", "True"]),
        ("b a b a", "b+a+c", [0, 1, 0, 1], ["b", "a", "c"]),
        ("0 2 2 0", "0+1+2", [0, 2, 2, 0], ["0", "1", "2"]),
        ("2 1 2 1", "02+1.0", [0, 1, 0, 1], ["2", "1"]),
        ("1 x 1 2", "", [0, 2, 0, 1], ["1", "2", "x"]),
    ],
)
def test_labels_are_numbered(write: Tables, labels: str, options: str, numbers: list[int], names: list[str]) -> None:
    path = write("x,y\n" + "".join(f"1,{label}\n" for label in labels.split()))

    found = labelled(path, f"label=y,classes={options}" if options else "label=y")

    assert found["y_train"].tolist() == numbers
    assert ("class_names" in found) == (names is not None)
    if names:
        assert (found["class_names"].tolist(), found["num_classes"]) == (names, len(names))


@pytest.mark.parametrize(
    ("options", "y"), [("label=y", "0.5 1 2"), ("target=y", "150 75 141"), ("target=y", "1 2.5 -3")]
)
def test_numbers_to_be_learnt_stay_numbers(write: Tables, options: str, y: str) -> None:
    path = write("x,y\n" + "".join(f"1,{value}\n" for value in y.split()))

    found = labelled(path, options)

    assert found["y_train"].dtype == np.float32
    assert found["y_train"].tolist() == [float(value) for value in y.split()]
    assert "class_names" not in found


def test_a_table_of_the_same_columns_is_tested_on(write: Tables) -> None:
    train, test = write(FLOWERS), write("kind,fresh,colour,size,bed\nrose,1,red,7,west\n", "test.csv")
    name = f"csv:{train},test={test},label=kind,group=bed"

    data = load_dataset(name)

    assert data.groups_test is not None
    assert data.group_names is not None
    assert (as_list(data.x_test), as_list(data.y_test)) == ([[7, 0, 0, 1, 1]], [1])
    assert data.group_names[data.groups_test].tolist() == ["west"]
    assert source_of(name).paths == list(source_of(name).files().paths) == [train, test]
    assert source_of(name).files() == source_of(f"csv:{train},{test},label=kind,group=bed").files()


def test_values_of_a_test_table_are_read_as_in_training(write: Tables) -> None:
    train, test = write("code,x,y\na,1,b\n1,2,01\n"), write("code,x,y\n1,2.5,01\n", "test.csv")

    found = read_csv([train, test], {"label": "y"}, train)

    assert (found["x_test"].tolist(), found["y_test"].tolist()) == ([[1, 0, 2.5]], [0])


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["C"], exclude_characters="\x00"), max_size=6)
WORD = TEXT.map(str.strip).filter(lambda text: (text and not text.isascii()) or text in ("a", "b,c", 'd"e', "x y"))


@given(st.lists(st.tuples(st.floats(-1e6, 1e6, width=32), WORD, st.booleans(), WORD), min_size=1, max_size=20))
@settings(deadline=None)
def test_texts_are_encoded_as_by_scikit_learn_and_parquet_is_csv(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[float, str, bool, str]]
) -> None:
    folder, names = tmp_path_factory.mktemp("tables"), ["number", "word", "flag", "label"]
    with (folder / "t.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([names, *rows])
    columns = [list(column) for column in zip(*rows, strict=True)]
    pq.write_table(pa.table(dict(zip(names, columns, strict=True))), folder / "t.parquet")

    found = read_csv([folder / "t.csv"], {"label": "label"}, folder)
    again = read_parquet([folder / "t.parquet"], {"label": "label"}, folder)

    words = OneHotEncoder(sparse_output=False).fit_transform(np.array(columns[1])[:, None])
    expected = np.column_stack([columns[0], words, columns[2]]).astype(np.float32)
    np.testing.assert_array_equal(found["x_train"], expected)
    assert found["class_names"][found["y_train"]].tolist() == columns[3]
    assert found.keys() == again.keys()
    for key, values in found.items():
        np.testing.assert_array_equal(values, again[key])


def test_parquet_types_are_read(write: Tables, tmp_path: Path) -> None:
    table = pa.table(
        {
            "small": pa.array([1, 2, 3], pa.int8()),
            "exact": pa.array(["1.25", "2.50", "3.75"]).cast(pa.decimal128(5, 2)),
            "large": pa.array(["a", "b", "a"], pa.large_string()),
            "coded": pa.array(["u", "v", "u"]).dictionary_encode(),
            "site": pa.array([10, 9, 10]),
            "y": pa.array([False, True, True]),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")

    data = load_dataset(f"parquet:{tmp_path / 't.parquet'},label=y,group=site")

    expected = [[1, 1.25, 1, 0, 1, 0], [2, 2.5, 0, 1, 0, 1], [3, 3.75, 1, 0, 1, 0]]
    assert data.x_train.tolist() == expected
    assert (data.y_train.tolist(), as_list(data.class_names)) == ([0, 1, 1], ["False", "True"])
    assert as_list(data.group_names) == ["10", "9"]


def test_a_byte_order_mark_is_no_part_of_the_first_name(write: Tables) -> None:
    assert labelled(write("\ufeffa,y\n1,0\n"), "label=a")["x_train"].tolist() == [[0]]


def test_packed_tables_are_unpacked(write: Tables) -> None:
    assert labelled(write(gzip.compress(b"a,y\n3,0\n"), "t.csv.gz"))["x_train"].tolist() == [[3]]


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ("label=kind,drop=colour+bed", "kind"),
        ("label=kind,drop=bed", "colour, kind"),
        ("label=kind,classes=aster+rose+tulip,drop=bed", "colour"),
        ("label=fresh,classes=False+True,drop=colour+kind+bed", ""),
    ],
)
def test_a_device_does_not_number_texts_by_itself(write: Tables, options: str, columns: str) -> None:
    settings = Settings.from_mapping({"partition": "file", "split": {"test-fraction": 0.5}})
    path = f"csv:{write(FLOWERS.replace('true', 'True').replace('false', 'False'))},{options}"
    if not columns:
        assert find_part(settings, 0, path).data.num_classes == 2
        return
    with pytest.raises(DataError, match=f"numbers the values of the columns {columns} as it finds them"):
        find_part(settings, 0, path)


def test_class_numbers_are_everywhere_the_same(write: Tables) -> None:
    settings = Settings.from_mapping({"partition": "file"})
    plain, gaps = (write(f"x,y\n1,{a}\n2,{b}\n3,{a}\n4,{b}\n", f"{a}{b}.csv") for a, b in ((0, 1), (1, 2)))
    assert find_part(settings, 0, f"csv:{plain},label=y").data.num_classes == 2
    with pytest.raises(DataError, match="numbers the values of the columns y"):
        find_part(settings, 0, f"csv:{gaps},label=y")
    assert find_part(settings, 0, f"csv:{gaps},label=y,classes=0+1+2").data.num_classes == 3


def test_classes_that_are_chosen_keep_their_names(write: Tables) -> None:
    settings = Settings.from_mapping(
        {"data": f"csv:{write(FLOWERS)},label=kind,drop=bed", "partition": "iid", "clients": 1}
        | {"split": {"only-classes": "2,1", "test-fraction": 0.4}}
    )
    names = find_part(settings, 0).data.class_names
    assert as_list(names) == ["tulip", "rose"]


@pytest.mark.parametrize(("mode", "kept"), [(0o600, 0o600), (0o640, 0o640), (0o775, 0o644), (0o400, 0o600)])
def test_who_could_not_read_the_table_cannot_read_what_is_kept_of_it(write: Tables, mode: int, kept: int) -> None:
    path = write("x,y\n1,0\n2,1\n")
    path.chmod(mode)
    assert source_of(f"csv:{path},label=y").fetch().stat().st_mode & 0o777 == kept


def test_a_file_that_changes_is_read_anew(write: Tables) -> None:
    path = write("x,y\n1,0\n2,1\n")
    before = source_of(f"csv:{path},label=y").arrays()["x_train"].tolist()
    write("x,y\n1,0\n2,1\n3,1\n")
    assert (before, source_of(f"csv:{path},label=y").arrays()["x_train"].tolist()) == ([[1], [2]], [[1], [2], [3]])


@given(st.lists(st.lists(st.sampled_from(["1", "a", "", "b\nc", 'd"', " e\r\nf"]), min_size=2, max_size=2)))
@settings(deadline=None)
def test_lines_of_rows_are_those_of_the_file(tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]) -> None:
    path, expected = tmp_path_factory.mktemp("lines") / "t.csv", []
    text = "a,b\n"
    for row in [*rows, ["1", "2"]]:
        text += "\n" * (len(text) % 2)
        expected.append(1 + len(text.splitlines()))
        stream = io.StringIO()
        csv.writer(stream, lineterminator="\n").writerow(row)
        text += stream.getvalue()
    path.write_bytes(text.encode())

    table = read_csv_table(path, ())

    assert as_list(table.lines) == expected
