from __future__ import annotations

import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

from dqnfed_flwr.cli.app import app
from dqnfed_flwr.config import Settings, flatten
from tests.helpers.cli import call


def commands(group: click.Group, *words: str) -> Iterator[tuple[str, ...]]:
    yield words
    for name, command in group.commands.items():
        yield from commands(command, *words, name) if isinstance(command, click.Group) else [(*words, name)]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ((), ["dqnfed demo", "dqnfed run digits", "dqnfed settings", "--version"]),
        (("run",), ["CONFIG is a shipped experiment", "--set KEY=VALUE", "--engine", "--resume", "--json", "--quiet"]),
        (
            ("run",),
            [
                "  dqnfed run mine.yaml --output runs/mine --resume\n",
                "Exit status: 0",
                "it ended before its rounds were done",
            ],
        ),
        (("demo",), ["FedAvg", "--output DIR", "runs/demo"]),
        (("settings",), ["every setting"]),
    ],
)
def test_help_is_for_newcomers(command: tuple[str, ...], words: list[str]) -> None:
    result = call(*command, "--help")
    assert result.exit_code == 0
    assert [word for word in words if word not in result.output] == []
    assert "\\" not in result.output


def test_every_option_and_command_has_help() -> None:
    group = get_command(app)
    assert isinstance(group, click.Group)
    for command in group.commands.values():
        assert command.help
        assert [option.name for option in command.params if isinstance(option, click.Option) and not option.help] == []


def test_no_help_escapes_its_brackets() -> None:
    group = get_command(app)
    assert isinstance(group, click.Group)
    found = {words: call(*words, "--help") for words in commands(group)}
    assert ("deploy", "init") in found
    assert [words for words, result in found.items() if "\\[" in result.output] == []
    assert "[default: 0,1,2]" in found["compare",].output
    assert "\\[" not in call().output + call("data").output


def test_a_mistyped_command_gets_one_suggestion() -> None:
    assert call("rnu").stderr.count("Did you mean 'run'?") == 1


def test_no_arguments_show_the_help() -> None:
    assert "dqnfed demo" in call().output


def test_help_answers_at_once() -> None:
    code = "import sys; from dqnfed_flwr.cli import main; sys.argv = ['dqnfed', 'run', '--help']; main()"
    took = []
    for _ in range(3):
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, check=True
        )
        took.append(time.perf_counter() - began)
        loaded = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
        assert loaded.isdisjoint({"torch", "flwr", "numpy", "pydantic", "matplotlib"})
    assert min(took) < 0.6


def test_version() -> None:
    result = call("--version")
    assert result.exit_code == 0
    assert result.output.startswith("dqnfed 0.")


def test_settings_lists_every_key() -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["settings"])
    assert result.exit_code == 0
    assert [key for key in Settings().flat() if key not in result.output] == []
    assert "Dirichlet concentration" in result.output


def test_settings_are_found_by_a_word_and_have_a_line_each_in_a_pipe() -> None:
    lines = call("settings", "guarantee", "fednew.b").stdout.splitlines()
    found = {line.partition(":")[0] for line in lines}
    assert found == {key for key in Settings().flat() if "guarantee" in key or "fednew.b" in key}
    read = yaml.safe_load("\n".join(lines))
    assert read == {key: value for key, value in Settings().flat().items() if key in read}
    refused = call("settings", "no-such")
    assert (refused.exit_code, refused.stderr.splitlines()[-1]) == (
        2,
        "dqnfed: no setting has no-such in its name; dqnfed settings lists all",
    )


def test_a_full_disk_behind_the_output_is_told_without_a_traceback() -> None:
    with Path("/dev/full").open("w") as full:
        program = "from dqnfed_flwr.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", program, "settings"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (1, "dqnfed: the output cannot be written: No space left on device\n")


def test_settings_as_toml_are_those_of_the_app() -> None:
    result = call("settings", "--toml")
    written = tomllib.loads(result.stdout)["tool"]["flwr"]["app"]["config"]
    assert Settings.from_mapping(written) == Settings()
    assert set(flatten(written)) == set(Settings().flat())
