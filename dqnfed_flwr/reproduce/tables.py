"""Ours ± σ next to the paper's figures, in our units, with what cannot be true of these."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from dqnfed_flwr.compare.notes import failure_notes, footnotes, left_out_notes
from dqnfed_flwr.compare.results import UNKNOWN, Comparison, ranks
from dqnfed_flwr.compare.tables import Cell, Column, Table
from dqnfed_flwr.reproduce.measures import MEASURES, printed_figures
from dqnfed_flwr.reproduce.parts import AS_IN_MANIFEST, PaperName, paper_names
from dqnfed_flwr.reproduce.schema import Part

Figures = dict[str, float]
SHARES = ("mean", "std", "worst", "best", "worst5", "worst10", "worst20", "best5", "best10", "best20")
TAILS = (5, 10, 20)
CLIENTS = ("tshirt", "pullover", "shirt")
"""Figures of a single client each."""
ROUNDING = 0.05
"""Percentage points by which a bound must be missed before anything is said."""
AVERAGING = 0.5
"""The same, in points of σ and in degrees, where a bound is exact for one seed only.

An average over seeds misses such a bound in second order: by about 0.2 where seeds differ by two points in each figure.
"""
ANGLES = {"angle_deg": ("°", 2, 1.0), "angle_rad": (" rad", 3, 180 / math.pi)}
"""Their unit, digits, and how many degrees it is."""
OTHERWISE = "*"


def published_figures(part: Part) -> dict[str, Figures]:
    """Of every row that the paper has: figures by our names, accuracies in per cent."""
    printed = printed_figures()[part.published.place] if part.published else {}
    found: dict[str, Figures] = {}
    for row in part.rows:
        if row.paper and (figures := {**printed.get(row.paper, {}), **row.figures}):
            found[row.paper] = {key: value * (part.scale if key in SHARES else 1) for key, value in figures.items()}
    return found


def impossible(figures: Mapping[str, float], clients: int) -> dict[str, str]:
    """Which published figures contradict each other, by the kind of contradiction; empty if none.

    `mean` and `std` are compared with an angle, with `worst10` and `best10` or the like, or with the accuracy of every
    client (Table 9's have names of their own); accuracies in per cent.
    """
    if not {"mean", "std"} <= figures.keys():
        return {}
    return dict([*_against_tails(figures, clients), *_against_angle(figures), *_against_clients(figures, clients)])


def published_doubts(part: Part) -> list[str]:
    """What cannot be true of the published figures."""
    clients = int(part.own.get("clients", 10))
    kinds: dict[str, list[str]] = {}
    for name, figures in published_figures(part).items():
        for kind, fault in impossible(figures, clients).items():
            kinds.setdefault(kind, []).append(f"{name}: {fault}")
    if not kinds:
        return []
    texts = " ".join(_first(faults) for faults in kinds.values())
    return [f"The paper's figures contradict each other. {texts} Compare such figures inside our own runs."]


def _first(faults: list[str]) -> str:
    """The first of several faults of a kind, and how many more there are."""
    rest = len(faults) - 1
    return faults[0] + (f"; the same of {rest} more row{'s' * (rest > 1)}" if rest else "") + "."


def _against_angle(figures: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """The angle between accuracies a and the vector of ones: cos = mean / sqrt(mean² + σ²), so tan = σ / mean."""
    mean, spread = figures["mean"], figures["std"]
    for key, (unit, digits, degrees) in ANGLES.items():
        if key in figures and mean > 0:
            implied, half = math.degrees(math.atan2(spread, mean)), 0.5 * 10**-digits * degrees
            if abs(figures[key] * degrees - implied) > AVERAGING + ROUNDING + half:
                yield (
                    "angle",
                    f"an angle of {figures[key]:.{digits}f}{unit} cannot hold beside σ {spread:.2f} and mean "
                    f"{mean:.2f}, whose quotient is its tangent: {implied / degrees:.{digits}f}{unit}",
                )


def _against_clients(figures: Mapping[str, float], clients: int) -> Iterator[tuple[str, str]]:
    """The mean against that of the clients, where the accuracy of each is published."""
    known = [figures[key] for key in CLIENTS if key in figures]
    if len(known) == clients and abs(figures["mean"] - sum(known) / clients) > ROUNDING:
        listed = ", ".join(f"{value:.2f}" for value in known)
        yield "clients", f"mean {figures['mean']:.2f} cannot be that of {listed}, which is {sum(known) / clients:.2f}"


def _against_tails(figures: Mapping[str, float], clients: int) -> Iterator[tuple[str, str]]:
    """Mean and σ against the averages of the worst and the best p per cent, for the first p that is published.

    What p per cent of the clients are is rounded up or down, whichever the figures can better bear.
    """
    for tail in TAILS:
        if not {f"worst{tail}", f"best{tail}"} <= figures.keys():
            continue
        mean, spread, low, high = (figures[key] for key in ("mean", "std", f"worst{tail}", f"best{tail}"))
        counts = {max(1, clients * tail // 100), math.ceil(clients * tail / 100)}
        shares = [count / clients for count in counts if 2 * count < clients]
        tails = f"worst {tail} % {low:.2f} and best {tail} % {high:.2f} over {clients} clients"
        if not shares:
            return
        between = [(mean - share * (low + high)) / (1 - 2 * share) for share in shares]
        if all(not low - ROUNDING <= middle <= high + ROUNDING for middle in between):
            yield "mean", f"mean {mean:.2f} cannot hold beside {tails}: the others would average {between[0]:.2f}"
            return
        bounds = [_bounds(mean, low, high, share) for share in shares]
        least, most = min(bound[0] for bound in bounds), max(bound[1] for bound in bounds)
        if spread < least - ROUNDING:
            yield "low", f"σ {spread:.2f} cannot hold beside {tails}, which alone force {least:.1f}"
        if spread > most + AVERAGING + ROUNDING:
            yield "high", f"σ {spread:.2f} cannot hold beside mean {mean:.2f}, {tails}, which allow {most:.1f} at most"
        return


def _bounds(mean: float, low: float, high: float, share: float) -> tuple[float, float]:
    """Least and greatest population standard deviation of accuracies between 0 and 100 per cent.

    The worst, the best and the others deviate from the mean by at least what their averages do; as a convex function
    of the figures, that holds for averages over seeds as well. Within the three groups the variance is at most
    (top - average)(average - bottom) by Bhatia and Davis (2000): the worst lie between 0 and the average of the others,
    these between the averages of the worst and the best, and the best between the average of the others and 100.
    """
    rest = 1 - 2 * share
    middle = min(max((mean - share * (low + high)) / rest, low), high)
    least = share * ((mean - low) ** 2 + (high - mean) ** 2) + rest * (middle - mean) ** 2
    within = share * (low * (middle - low) + (100 - high) * (high - middle)) + rest * (high - middle) * (middle - low)
    return math.sqrt(least), math.sqrt(least + max(0.0, within))


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
