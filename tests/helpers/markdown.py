"""Markdown documents as tests see them: fenced blocks, links, headings, tables."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(?P<language>\w*)[ ]*\n(?P<text>.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"# (?P<name>\w+\.(?:py|yaml))\n")
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)
_CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, its text, and the line of the document where the text begins."""

    language: str
    text: str
    line: int

    @property
    def file_name(self) -> str | None:
        """Name of the file that the block shows; it stands in a comment on the first line."""
        match = _FILE_NAME.match(self.text)
        return match["name"] if match else None


def blocks(document: Path) -> list[Block]:
    """All fenced blocks, in order."""
    text = document.read_text("utf-8")
    return [
        Block(match["language"], match["text"], text.count("\n", 0, match.start("text")) + 1)
        for match in _FENCE.finditer(text)
    ]


def prose(document: Path) -> str:
    """The document without its fenced blocks."""
    return _FENCE.sub("", document.read_text("utf-8"))


def links(document: Path) -> list[str]:
    """Targets of all links, in order."""
    return [match["target"] for match in _LINK.finditer(prose(document))]


def anchors(document: Path) -> set[str]:
    """What a link may name behind `#`: the headings, in lower case, with hyphens for spaces."""
    titles = (match["title"].lower() for match in _HEADING.finditer(prose(document)))
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def section(document: Path, title: str) -> str:
    """The text between the heading `title` and the next heading of any depth."""
    parts = re.split(r"^#+ (.+)\n", prose(document), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[title]


def rows(text: str) -> list[list[str]]:
    """Rows of all tables in `text`, without their headings; an escaped bar is no end of a cell."""
    lines = text.splitlines()
    ruled = [place for place, line in enumerate(lines) if re.fullmatch(r"\|(?:-+\|)+", line)]
    found = []
    for place in ruled:
        for line in lines[place + 1 :]:
            if not line.startswith("|"):
                break
            found.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return found


def names(text: str) -> list[str]:
    """Everything in code type in the first cells of the tables in `text`."""
    return [name for row in rows(text) for name in _CODE.findall(row[0])]
