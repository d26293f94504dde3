"""Write the page and its Markdown."""

from __future__ import annotations

from pathlib import Path

from dqnfed_flwr.errors import RunError
from dqnfed_flwr.report.page.document import read_document
from dqnfed_flwr.report.page.html import html
from dqnfed_flwr.report.page.markdown import report_markdown

PAGE = "report.html"


def write_report(directory: Path, output: Path | None) -> list[Path]:
    """Write `report.html` and `report.md` about what lies in a folder.

    Parameters
    ----------
    directory : Path
        Of a reproduction, a comparison or a single run.
    output : Path | None
        The page, the Markdown beside it; None for the folder itself.

    Raises
    ------
    ConfigError
        If there is nothing to report on.
    RunError
        If a file cannot be written.
    """
    document = read_document(directory)
    page = output or directory / PAGE
    texts = {page: html(document), page.with_suffix(".md"): report_markdown(document)}
    for path, text in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        except OSError as error:
            raise RunError(f"{path}: cannot be written ({error.strerror})") from None
    return list(texts)
