"""One page about runs, light and dark, in one file that needs no network; and the same as Markdown."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from dqnfed_flwr.compare.claims import NEAR_ONE, ClaimFinding, ClaimVerdict, claims_of, near_one
from dqnfed_flwr.compare.results import Summary, summarise
from dqnfed_flwr.compare.tables import figure_digits
from dqnfed_flwr.errors import ConfigError, writing
from dqnfed_flwr.report.comparison_plots import AGAINST, axis_label, client_chart, fairness_chart, mean_chart, rho_chart
from dqnfed_flwr.report.document import (
    HOW,
    TONES,
    Document,
    Section,
    about,
    claim_notes,
    read_document,
    report_markdown,
)
from dqnfed_flwr.report.drawing import inline_svg, render_page
from dqnfed_flwr.report.labels import Look, Style, bright_names, look_of
from dqnfed_flwr.reproduce.parts import AS_IN_MANIFEST

PAGE, MARKDOWN = "report.html", ".md"


def write_report(directory: Path, output: Path | None) -> list[Path]:
    """Write `report.html` and `report.md` about what lies in a folder.

    Parameters
    ----------
    directory : Path
        Of a reproduction, a comparison, a single run, or runs in folders of their own, such as those of the demo.
    output : Path | None
        The page, the Markdown next to it; None for the folder itself.

    Raises
    ------
    ConfigError
        If there is nothing to report on, `output` is a folder or would be both files, or the Markdown would
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
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    return list(texts)


def _check(page: Path) -> None:
    if page.is_dir():
        raise ConfigError(f"--output: {page} is a folder; name the page, such as {page / PAGE}")
    if page.suffix.lower() == MARKDOWN:
        raise ConfigError(
            f"--output: found {page}, which is where the Markdown goes; name the page, such as "
            f"{page.with_suffix('.html')}: the Markdown is written beside it"
        )
    markdown = page.with_suffix(MARKDOWN)
    if markdown.exists() and not _is_report(markdown):
        raise ConfigError(
            f"--output: the Markdown of {page} would replace {markdown}, which is no report; name another"
        )


def _is_report(markdown: Path) -> bool:
    try:
        return re.search(f"^#+ {HOW}$", markdown.read_text("utf-8"), re.MULTILINE) is not None
    except (OSError, ValueError):
        return False


def html(document: Document) -> str:
    """The whole page."""
    comparisons = [section.comparison for chapter in document.chapters for section in chapter.sections]
    names = {
        "about": about,
        "as_in_manifest": AS_IN_MANIFEST,
        "bright": bright_names(comparisons),
        "charts_of": charts_of,
        "claim_notes": claim_notes,
        "claim_rows": claim_rows,
        "claims_of": claims_of,
        "clock": clock,
        "document": document,
        "look_of": look_of,
        "near_limit": NEAR_ONE,
        "near_one": near_one,
        "tiles": tiles,
        "tones": TONES,
    }
    return render_page("page.html", names)


def charts_of(section: Section, look: Look) -> dict[str, Markup | list[Markup]]:
    """Charts of a section as SVG; `clients` has one a row."""
    comparison = section.comparison

    def svg(figure: Figure, name: str, label: str) -> Markup:
        return Markup(inline_svg(figure, f"{section.key} {name}", label) if figure.axes[0].lines else "")

    of = comparison.figure

    def mean_figure(against: str) -> Markup:
        label = f"test {axis_label(of)} against {AGAINST[against][0]}"
        return svg(mean_chart(comparison, look, against), against, label)

    def clients(style: Style) -> Markup:
        mean = float(comparison.rows[style.key].client_figures.mean())
        label = f"clients of {style.name} by {of.name}; mean {of.label(mean)}"
        return svg(client_chart(comparison, look, style.key), f"clients {style.key}", label)

    return {
        "rounds": mean_figure("rounds"),
        "seconds": mean_figure("seconds"),
        "rho": svg(rho_chart(comparison, look), "rho", "ρ against round"),
        "fairness": svg(fairness_chart(comparison, look), "fairness", "worst 10 % of the clients against their mean"),
        "clients": [clients(style) for style in look.values()],
    }


def tiles(section: Section) -> list[tuple[str, str, str]]:
    """The reference in figures, and how many claims hold: figures, what stands small behind them, and what they are."""
    reference = section.comparison.reference
    if reference is None or not reference.good:
        return []
    of, figures = section.comparison.figure, section.comparison.figures[section.comparison.rows.index(reference)]
    digits, unit = (1, ", %") if of.percent else (figure_digits(section.comparison, ("mean", "worst10")), "")
    shown = [
        (*_plus_minus(figures[key].times(of.scale), digits), f"{name}, {reference.label}")
        for key, name in (
            ("mean", f"mean {of.name}{unit}"),
            ("std", "σ over clients"),
            ("worst10", f"worst 10 % of clients{unit}"),
        )
    ]
    shown += [
        (Summary(figures["rho_mean"].mean).text(3), "", "ρ: clients whose loss did not rise"),
        (Summary(figures["unharmed_mean"].mean).text(3), "", "clients that were not harmed"),
    ]
    moved, rounds = (Summary(figures[key].mean).text(1) for key in ("rounds_moved", "rounds"))
    shown.append((moved, f" of {rounds}", "rounds moved the model, mean over seeds"))
    shown.append((Summary(figures["rho_moved"].mean).text(3), "", "ρ over the rounds that moved the model"))
    if stalled := sum(record.stalled for record in reference.good):
        shown.append((str(stalled), f" of {len(reference.good)}", "runs stalled: their models stood still"))
    found = [finding for each in section.claims.values() for finding in each if finding.bounded]
    if found:
        held = sum(finding.verdict is ClaimVerdict.BORNE_OUT for finding in found)
        against = sum(finding.verdict is ClaimVerdict.NOT_BORNE_OUT for finding in found)
        text = f"claims against rivals borne out; {against} not, {len(found) - held - against} undecided"
        shown.append((str(held), f" of {len(found)}", text))
    return shown


def clock(section: Section, look: Look) -> list[tuple[Style, str, str, str]]:
    """Seconds of a run, one bar a row: its width in per cent, its figure, and the deviation."""
    rows = section.comparison.rows
    seconds = {place: summarise([record.figures["seconds"] for record in rows[place].good]) for place in look}
    longest = max((summary.mean for summary in seconds.values()), default=0.0) or 1.0
    return [
        (look[place], f"{100 * summary.mean / longest:.1f}", *_plus_minus(summary, 1))
        for place, summary in seconds.items()
    ]


def claim_rows(section: Section) -> list[tuple[str, list[tuple[ClaimFinding, list[float]]]]]:
    """Each rival, with what was found of every claim and where its interval is drawn; empty without rivals."""
    reach = {key: _reach(found) for key, found in section.claims.items()}
    return [
        (each[0].rival.label, [(finding, _marks(finding, reach[finding.claim.key])) for finding in each])
        for each in zip(*section.claims.values(), strict=True)
    ]


def _marks(finding: ClaimFinding, reach: float) -> list[float]:
    """Places along 120 pixels, 0 in their middle, of the estimate and, where they are known, of the bounds."""
    if finding.interval is None:
        return []
    towards = finding.claim.sign * finding.claim.scale / reach  # positive where it speaks for the reference
    places = [60 + 56 * min(max(towards * value, -1.0), 1.0) for value in finding.interval if not math.isnan(value)]
    return sorted(round(place, 1) for place in places)


def _reach(found: Sequence[ClaimFinding]) -> float:
    """The largest bound of a claim's intervals, but at most three times their median."""
    bounds = [
        max(abs(finding.claim.scale * value) for value in finding.interval if not math.isnan(value))
        for finding in found
        if finding.interval
    ]
    known = [bound for bound in bounds if bound > 0]
    return min(max(known), 3 * float(np.median(known))) if known else 1.0


def _plus_minus(figure: Summary, digits: int) -> tuple[str, str]:
    """A figure and, with its sign, the deviation, which may be empty."""
    mean, sign, spread = figure.text(digits).partition(" ± ")
    return mean, sign + spread
