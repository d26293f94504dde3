"""The table of docs/settings.md, made from the settings themselves."""

from __future__ import annotations

from pathlib import Path

from dqnfed_flwr.config import Scalar, describe

DOCUMENT = Path(__file__).parents[2] / "docs" / "settings.md"
BEGIN, END = "<!-- settings: begin -->\n", "<!-- settings: end -->\n"


def settings_table() -> str:
    """One row a key: name, default, meaning."""
    lines = ["| key | default | meaning |", "|---|---|---|"]
    lines += [f"| `{key}` | {_shown(default)} | {_escaped(meaning)} |" for key, default, meaning in describe()]
    return "\n".join(lines) + "\n"


def with_table(text: str) -> str:
    """Replace what stands between the marks in `text` by the table of today."""
    head, _, rest = text.partition(BEGIN)
    _, mark, tail = rest.partition(END)
    return head + BEGIN + settings_table() + mark + tail


def _shown(default: Scalar) -> str:
    if default == "":
        return "empty"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _escaped(meaning: str) -> str:
    return meaning.replace("|", "\\|").replace("<", "\\<").replace("_", "\\_")


if __name__ == "__main__":
    DOCUMENT.write_text(with_table(DOCUMENT.read_text("utf-8")), "utf-8")
