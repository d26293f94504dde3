"""Which manifests a folder holds runs of."""

from __future__ import annotations

from pathlib import Path

import pytest

from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.reproduce.manifests import (
    REPRODUCTION,
    Reproduction,
    load_manifest,
    read_reproductions,
    write_reproduction,
)

TABLE, FIGURE = load_manifest("semi-vred-table6"), load_manifest("semi-vred-table1")


def test_a_second_manifest_leaves_the_first_in_the_record(tmp_path: Path) -> None:
    write_reproduction(tmp_path, Reproduction("semi-vred-table6", TABLE, {"cifar10": "one"}))
    write_reproduction(tmp_path, Reproduction("semi-vred-table1", FIGURE, {"cifar100": "two"}))
    write_reproduction(tmp_path, Reproduction("semi-vred-table6", TABLE, {"cifar100": "three"}))
    table, figure = read_reproductions(tmp_path)
    assert table == Reproduction("semi-vred-table6", TABLE, {"cifar10": "one", "cifar100": "three"})
    assert figure == Reproduction("semi-vred-table1", FIGURE, {"cifar100": "two"})
    assert [path.name for path in tmp_path.iterdir()] == [REPRODUCTION]


def test_a_file_is_known_by_its_name_wherever_it_lies(tmp_path: Path) -> None:
    write_reproduction(tmp_path, Reproduction("mine.yaml", FIGURE, {"a": "one"}))
    write_reproduction(tmp_path, Reproduction("elsewhere/mine.yaml", FIGURE, {"b": "two"}))
    (found,) = read_reproductions(tmp_path)
    assert found.commands == {"a": "one", "b": "two"}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"manifests": [{}]}', '{"manifests": 3}'])
def test_a_damaged_record_is_named_and_not_written_over(text: str, tmp_path: Path) -> None:
    (tmp_path / REPRODUCTION).write_text(text, "utf-8")
    with pytest.raises(ConfigError, match="cannot be read as a reproduction"):
        write_reproduction(tmp_path, Reproduction("table9", FIGURE, {}))
    assert (tmp_path / REPRODUCTION).read_text("utf-8") == text
