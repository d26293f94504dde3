from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
import yaml

from dqnfed_flwr.compare.notes import one_full_step
from dqnfed_flwr.config import Settings, flatten, nest, resolve
from dqnfed_flwr.config.loading import load_config, parse_scalar, shipped
from dqnfed_flwr.errors import ConfigError


def test_shipped_experiments_are_valid() -> None:
    assert {"digits", "digits-fedavg"} <= set(shipped())
    for name in shipped():
        assert Settings.from_mapping(load_config(name)).flat()


def test_the_two_sides_of_the_demo_differ_in_the_method_alone() -> None:
    ours, theirs = (Settings.from_mapping(load_config(name)).flat() for name in ("digits", "digits-fedavg"))
    different = {key for key in ours if ours[key] != theirs[key]}
    assert "method" in different
    assert {key for key in different if key.split(".")[0] not in ("method", "step-rule", "local")} == set()


def test_fedavg_on_digits_is_no_fedsgd() -> None:
    settings = Settings.from_mapping({**load_config("digits"), "method": "fedavg"})
    assert not one_full_step(resolve(settings))
    assert one_full_step(resolve(Settings.from_mapping({"method": "fedavg"})))


def test_own_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("rounds: 3\nstep: {armijo: 1e-5}\ndqn-fed.form: one-sided\n")
    loaded = load_config(file)
    assert flatten(nest(loaded)) == {"rounds": 3, "step.armijo": 1e-5, "dqn-fed.form": "one-sided"}
    assert load_config(str(file)) == loaded


def test_empty_file_means_defaults(tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    file.write_text("# nothing\n")
    assert Settings.from_mapping(load_config(file)) == Settings()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rounds: 3\nrounds: 4\n", "rounds: set twice"),
        ("rounds: [3\n", "mine.yaml"),
        ("- rounds\n", "found list"),
        ("3: rounds\n", "mapping of keys"),
        ("split: &own {alpha: *own}\n", "mine.yaml: a mapping or list holds itself"),
        ("a: !!python/object:os.system {}\n", "mine.yaml"),
    ],
)
def test_faulty_file_says_so(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_config(file)


def laughs(levels: int, link: str) -> str:
    """YAML whose last line stands for 10 ** `levels` words."""
    lines = ["a0: &a0 {x: 1}" if link == "merge" else "a0: &a0 [lol]"]
    for level in range(1, levels + 1):
        alias = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} " + (f"{{<<: [{alias}]}}" if link == "merge" else f"[{alias}]"))
    return "\n".join(lines)


@pytest.mark.parametrize("link", ["list", "merge"])
def test_a_billion_laughs_are_refused_before_they_take_memory(tmp_path: Path, link: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(laughs(9, link))
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match=r"mine\.yaml: [\d,]+ values with its aliases followed; at most 100,000"):
            load_config(file)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_a_text_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("a: " + "[" * 50_000)
    with pytest.raises(ConfigError, match="nested too deeply"):
        load_config(file)


def test_aliases_that_stay_small_are_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(laughs(2, "list"))
    assert len(load_config(file)["a2"]) == 10


def test_unknown_name_lists_the_shipped_ones() -> None:
    with pytest.raises(ConfigError, match=r"'digit' is no shipped experiment \(.*digits.*\)"):
        load_config("digit")


def test_missing_file_and_folder_say_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="directory"):
        load_config(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(tmp_path / "binary.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("3", 3), ("0.5", 0.5), ("1e-4", 1e-4), ("1E3", 1000.0), ("true", True), ("false", False)),
        *(("fedavg", "fedavg"), ("a:b", "a:b"), ("'3'", "3"), ("runs/x y", "runs/x y")),
        *(("[1", "[1"), ("-.5e+1", -5.0), ("off", "off"), ("no", "no"), ("True", True)),
    ],
)
def test_scalars_of_the_command_line(text: str, value: object) -> None:
    parsed = parse_scalar(text)
    assert (parsed, type(parsed)) == (value, type(value))


@pytest.mark.parametrize("text", ["", "[1, 2]", "{a: 1}", "null"])
def test_only_scalars_on_the_command_line(text: str) -> None:
    with pytest.raises(ConfigError, match="give one number, word"):
        parse_scalar(text)


def test_shipped_files_read_the_same_with_plain_yaml() -> None:
    folder = Path(__file__).parents[3] / "dqnfed_flwr" / "experiments"
    for name in shipped():
        assert yaml.safe_load((folder / f"{name}.yaml").read_text()) == load_config(name)
