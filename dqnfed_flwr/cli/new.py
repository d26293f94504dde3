"""`dqnfed new`: a folder with a task of one's own that runs as it is, to be changed from there."""

from __future__ import annotations

import keyword
import re
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from dqnfed_flwr.cli.command import reported
from dqnfed_flwr.errors import ConfigError, writing

TEMPLATES = "new_task"
FILES = {
    "task.py.in": "{name}.py",
    "settings.yaml.in": "{name}.yaml",
    "test.py.in": "test_{name}.py",
    "README.md.in": "README.md",
}
"""Templates, and what the files made of them are called."""


@reported
def new(
    folder: Annotated[Path, typer.Argument(metavar="NAME", help="The folder to make; its name is the module's.")],
) -> None:
    """Write a task of your own to begin with: a module, its settings, a test and a README.

    All of it runs as it is, on scikit-learn's diabetes.

    \b
    Examples:
      dqnfed new mine
      dqnfed run mine/mine.yaml
      pytest mine
    """  # noqa: D301  # \b keeps the lines of a help text apart
    for path in write_task(folder):
        typer.echo(str(path))


def write_task(folder: Path) -> list[Path]:
    """Write the files of a new task into a new folder; their paths.

    Raises
    ------
    ConfigError
        If the name is none of a module that is free, or the folder is there.
    RunError
        If it cannot be written.
    """
    name = folder.name
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(f"{name!r} is no name of a module; give small letters, digits and _, such as my_task")
    if folder.exists():
        raise ConfigError(f"{folder}: is there already; give another name, or remove it")
    if find_spec(name) is not None:
        raise ConfigError(f"{name!r} is the name of a module that is installed here; give another")
    kind = "".join(part.capitalize() for part in name.split("_"))
    templates = resources.files("dqnfed_flwr.cli").joinpath(TEMPLATES)
    written = []
    with writing(folder):
        folder.mkdir(parents=True)
        for template, called in FILES.items():
            text = Template(templates.joinpath(template).read_text("utf-8")).substitute(name=name, kind=kind)
            path = folder / called.format(name=name)
            path.write_text(text, "utf-8")
            written.append(path)
    return written
