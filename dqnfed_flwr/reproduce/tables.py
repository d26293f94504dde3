"""Ours ± σ next to the paper's, one description for terminal, Markdown and page."""

from __future__ import annotations

from dqnfed_flwr.compare.figures import UNKNOWN, ranks
from dqnfed_flwr.compare.results import Comparison
from dqnfed_flwr.compare.tables import Cell, Column, Table, failure_notes, footnotes, left_out_notes
from dqnfed_flwr.reproduce.measures import MEASURES
from dqnfed_flwr.reproduce.parts import AS_IN_MANIFEST, PaperName, paper_names
from dqnfed_flwr.reproduce.published import published_doubts, published_figures
from dqnfed_flwr.reproduce.schema import Part

OTHERWISE = "*"


def paper_table(part: Part, comparison: Comparison) -> Table:
    """A row a method; two columns a figure where the paper has it."""
    published, names = published_figures(part), paper_names(part, comparison.plan.specs)
    headings, columns, marked = ["method"], [[Cell(row.label) for row in comparison.rows]], False
    for key in part.columns:
        measure = MEASURES[key]
        headings.append(measure.heading)
        columns.append(measure.cells(comparison))
        printed = {name: figures[key] for name, figures in published.items() if key in figures}
        if any(each.name in printed for each in names):
            headings.append("paper")
            columns.append(_paper_cells(measure, printed, names))
            marked |= any(each.name in printed and not each.same for each in names)
    rows = tuple(zip(*columns, strict=True))
    return Table(part.title, tuple(headings), rows, notes_of(part, comparison, marked=marked))


def notes_of(part: Part, comparison: Comparison, *, marked: bool = False) -> tuple[str, ...]:
    """What must be known to read the table, scale first; `marked` where the mark of published figures stands."""
    mark = [f"{OTHERWISE} the paper's figure of the method, which was run with other settings here."] if marked else []
    return (
        comparison.plan.note or AS_IN_MANIFEST,
        "Ours: mean ± standard deviation over seeds; accuracies in per cent. Bold: best; underlined or slanted: second "
        "best.",
        *mark,
        *footnotes(comparison),
        *published_doubts(part),
        *part.remarks,
        *failure_notes(comparison),
        *left_out_notes(comparison),
    )


def _paper_cells(measure: Column, printed: dict[str, float], names: list[PaperName]) -> list[Cell]:
    """Published figures, ranked among all rows of the paper; marked where ours was run with other settings."""
    marks = dict(zip(printed, ranks([*printed.values()], higher=measure.higher, digits=measure.digits), strict=True))
    return [
        Cell(f"{printed[name]:.{measure.digits}f}" + ("" if same else OTHERWISE), marks[name])
        if name in printed
        else Cell(UNKNOWN)
        for name, same in names
    ]
