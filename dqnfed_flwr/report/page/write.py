"""Write the page and its Markdown."""

from __future__ import annotations

from pathlib import Path

from dqnfed_flwr.errors import ConfigError, RunError
from dqnfed_flwr.report.page.document import read_document
from dqnfed_flwr.report.page.html import html
from dqnfed_flwr.report.page.markdown import is_report, report_markdown

PAGE, MARKDOWN = "report.html", ".md"


def write_report(directory: Path, output: Path | None) -> list[Path]:
    """Write `report.html` and `report.md` about what lies in a folder.

    Parameters
    ----------
    directory : Path
        Of a reproduction, a comparison, a single run, or runs in folders of their own, such as those of the demo.
    output : Path | None
        The page, the Markdown beside it; None for the folder itself.

    Raises
    ------
    ConfigError
        If there is nothing to report on, `output` is a folder or would be both files, or the Markdown beside it would
        replace a file that is no report.
    RunError
        If a file cannot be written.
    """
    page = output or directory / PAGE
    if output:
        _check(output)
    document = read_document(directory)
    texts = {page: html(document), page.with_suffix(MARKDOWN): report_markdown(document)}
    for path, text in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        except OSError as error:
            raise RunError(f"{path}: cannot be written ({error.strerror})") from None
    return list(texts)


def _check(page: Path) -> None:
    if page.is_dir():
        raise ConfigError(f"--output: {page} is a folder; name the page, such as {page / PAGE}")
    if page.suffix.lower() == MARKDOWN:
        raise ConfigError(
            f"--output: found {page}, which is where the Markdown goes; name the page, such as "
            f"{page.with_suffix('.html')}: the Markdown is written beside it"
        )
    beside = page.with_suffix(MARKDOWN)
    if beside.exists() and not _ours(beside):
        raise ConfigError(f"--output: the Markdown of {page} would replace {beside}, which is no report; name another")


def _ours(path: Path) -> bool:
    try:
        return is_report(path.read_text("utf-8"))
    except (OSError, ValueError):
        return False
