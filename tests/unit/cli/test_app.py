from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import pytest
import yaml
from typer.testing import CliRunner

from dqnfed_flwr.cli.app import COMMANDS, app, imported
from dqnfed_flwr.config import KNOWN, Settings, flatten
from tests.helpers.cli import call

HEAVY = {"torch", "flwr", "numpy", "scipy", "pandas", "pydantic", "matplotlib", "ray", "yaml", "cryptography"}


def commands(found: Mapping[str, click.Command], *words: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands and groups, by their words."""
    for name, command in found.items():
        yield (*words, name), command
        if isinstance(command, click.Group):
            yield from commands(command.commands, *words, name)


@pytest.fixture(scope="module")
def every() -> dict[tuple[str, ...], click.Command]:
    return dict(commands({name: imported(name) for name in COMMANDS}))


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
        (("settings",), ["everyday settings"]),
    ],
)
def test_help_is_for_newcomers(command: tuple[str, ...], words: list[str]) -> None:
    result = call(*command, "--help")
    assert result.exit_code == 0
    assert [word for word in words if word not in result.output] == []
    assert "\\" not in result.output


def test_every_option_and_command_has_help(every: dict[tuple[str, ...], click.Command]) -> None:
    for command in every.values():
        assert command.help
        assert [option.name for option in command.params if isinstance(option, click.Option) and not option.help] == []


def test_no_help_escapes_its_brackets(every: dict[tuple[str, ...], click.Command]) -> None:
    found = {words: call(*words, "--help") for words in every}
    assert ("deploy", "init") in found
    assert [words for words, result in found.items() if result.exit_code or "\\[" in result.output] == []
    assert "[default: 0,1,2]" in found["compare",].output
    assert "\\[" not in call().output + call("data").output


def test_the_help_has_a_whole_line_for_every_command() -> None:
    shown = CliRunner().invoke(app, ["--help"], terminal_width=80).stdout
    assert [words for _, words in COMMANDS.values() if words not in shown] == []


def test_a_mistyped_command_gets_one_suggestion() -> None:
    assert call("rnu").stderr.count("Did you mean 'run'?") == 1


@pytest.mark.parametrize("words", [[], ["run"], ["compare"]])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys\nfrom dqnfed_flwr.cli import main\n"
        f"sys.argv = ['dqnfed', *{words}, '--help']\n"
        "try:\n    main()\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert loaded.isdisjoint(HEAVY)
    ours = {name.removeprefix("dqnfed_flwr.cli.") for name in loaded if name.startswith("dqnfed_flwr.cli.")}
    assert ours == {"app", "command", *words}


def test_the_package_loads_nothing_heavy() -> None:
    code = "import sys, dqnfed_flwr; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert HEAVY.isdisjoint(done.stdout.split())


def test_version() -> None:
    result = call("--version")
    assert result.exit_code == 0
    assert result.output.startswith("dqnfed 0.")


def test_settings_lists_those_of_every_day_and_says_how_many_more_there_are() -> None:
    result = call("settings")
    everyday = [key for key, known in KNOWN.items() if known.level == "everyday"]
    assert [line.partition(":")[0] for line in result.stdout.splitlines()] == everyday
    left_out = len(KNOWN) - len(everyday)
    assert result.stderr == f"{left_out} expert settings are left out; dqnfed settings --all lists them too\n"
    assert "Dirichlet concentration" in result.stdout


def test_all_settings_are_listed_and_the_expert_ones_marked() -> None:
    result = call("settings", "--all")
    lines = dict(line.split(": ", 1) for line in result.stdout.splitlines())
    assert list(lines) == list(KNOWN)
    assert {key for key, line in lines.items() if "  # expert: " in line} == {
        key for key, known in KNOWN.items() if known.level == "expert"
    }
    assert result.stderr == ""


def test_a_word_finds_settings_of_either_level() -> None:
    result = call("settings", "voters", "tolerate")
    assert result.stdout.startswith("guarantee.tolerate: 0.0  # f, ")
    assert "\nguarantee.voters: 0.5  # expert: share of" in result.stdout
    assert result.stderr == ""


def test_settings_are_found_by_a_word_and_have_a_line_each_in_a_pipe() -> None:
    lines = call("settings", "guarantee", "fednew.b").stdout.splitlines()
    found = {line.partition(":")[0] for line in lines}
    assert found == {key for key in Settings().flat() if "guarantee" in key or "fednew.b" in key}
    read = yaml.safe_load("\n".join(lines))
    assert read == {key: value for key, value in Settings().flat().items() if key in read}
    refused = call("settings", "no-such")
    assert (refused.exit_code, refused.stderr.splitlines()[-1]) == (
        2,
        "dqnfed: no setting has no-such in its name; dqnfed settings --all lists all",
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
