"""Commands whose help is plain text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    import click

Function = TypeVar("Function", bound=Callable[..., Any])


def unescaped(text: str) -> str:
    """Help without the backslashes that typer puts before brackets for rich, which is not asked to show it."""
    return text.replace("\\[", "[")


class PlainCommand(TyperCommand):
    """A command."""

    def get_help(self, ctx: click.Context) -> str:
        """Its help."""
        return unescaped(super().get_help(ctx))


class PlainGroup(TyperGroup):
    """A group of commands. What a mistyped one might mean, click says; typer would say it once more."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.suggest_commands = False

    def get_help(self, ctx: click.Context) -> str:
        """Its help."""
        return unescaped(super().get_help(ctx))


class PlainTyper(typer.Typer):
    """A group of plain commands, with the looks that all commands of the package share."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(
            name=name,
            cls=PlainGroup,
            no_args_is_help=True,
            add_completion=False,
            rich_markup_mode=None,
            pretty_exceptions_enable=False,
            context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        )

    def command(self, name: str | None = None, **attributes: Any) -> Callable[[Function], Function]:
        """Make a command of a function."""
        return super().command(name, cls=PlainCommand, **attributes)
