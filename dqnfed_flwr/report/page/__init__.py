"""One self-contained page about runs, and the same as Markdown."""

from dqnfed_flwr.report.page.write import write_report

__all__ = ["write_report"]
