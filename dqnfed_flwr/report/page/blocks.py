"""Pieces of the page: tables, tiles, claims, bars, lists."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from dqnfed_flwr.compare.claims import CLAIMS, NEAR_ONE, SMOOTH, Finding, Verdict, near_one
from dqnfed_flwr.compare.figures import summarise
from dqnfed_flwr.compare.provenance import commits_text, seconds_of
from dqnfed_flwr.compare.sheets import Cell, Table
from dqnfed_flwr.report.page.document import Section
from dqnfed_flwr.report.page.interval_charts import interval_chart, reach_of
from dqnfed_flwr.report.page.look import GREY, Style

RANKS = {0: "", 1: "first", 2: "second"}
TONES = {
    Verdict.BORNE_OUT: ("yes", "✓"),
    Verdict.UNDECIDED: ("open", "?"),
    Verdict.NOT_BORNE_OUT: ("no", "✗"),
}
PAPER, LONG, MINUS = "paper", 24, "\N{MINUS SIGN}"
CLAIM_NOTES = (
    "Each interval is that of the difference to the rival, drawn so that to the right is better for {name}. ✓ borne "
    "out: all of the interval is on the claim's side of 0; ✗ not borne out: all on the other; ? undecided: 0 lies "
    "inside, or there is one seed.",
    "Intervals are Student's 95 % intervals of the differences of runs with the same seed; they are not corrected for "
    f"the number of rivals. Rounds are counted on means of up to {SMOOTH} evaluations. Other forms of the method "
    "itself and methods with a model for every client are no rivals.",
)


def table(found: Table, ours: str) -> str:
    """A table that scrolls sideways by itself; the row named `ours` stands out."""
    kinds = [PAPER if heading == PAPER else "" for heading in found.headings]
    head = "".join(
        f'<th scope="col" class="{kind}">{escape(h)}</th>' for h, kind in zip(found.headings, kinds, strict=True)
    )
    rows = []
    for row in found.rows:
        cells = "".join(_cell(cell, kind, place) for place, (cell, kind) in enumerate(zip(row, kinds, strict=True)))
        rows.append(f"<tr{' class=ours' if row[0].text == ours else ''}>{cells}</tr>")
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
        f"{notes(found.notes)}"
    )


def notes(texts: Sequence[str]) -> str:
    """Remarks below a table."""
    return f'<ul class="notes">{"".join(f"<li>{escape(text)}</li>" for text in texts)}</ul>' if texts else ""


def claims(section: Section) -> str:
    """Which claims the runs bear out, against each rival."""
    reference = section.comparison.reference
    if reference is None or not any(section.claims.values()):
        return ""
    head = "".join(f'<th scope="col">{escape(claim.text)}</th>' for claim in CLAIMS)
    reach = {claim.key: reach_of(claim, section.claims[claim.key]) for claim in CLAIMS}
    rows = []
    for place, first in enumerate(section.claims[CLAIMS[0].key]):
        cells = "".join(_claim(section.claims[claim.key][place], reach[claim.key]) for claim in CLAIMS)
        rows.append(f"<tr><td>{escape(first.rival.label)}</td>{cells}</tr>")
    units = "Units: " + "; ".join(f"{claim.text}: {claim.unit}" for claim in CLAIMS) + "."
    lowest, verdict = near_one(reference)
    tone, mark = TONES[verdict]
    near = (
        f'<p class="note">ρ of {escape(reference.label)} near 1, at least {NEAR_ONE} on average over the rounds of '
        f'every seed: <span class="verdict {tone}">{mark} {verdict.value}</span>'
        + ("" if math.isnan(lowest) else f" (lowest seed {lowest:.4f})")
        + "</p>"
    )
    listed = [text.format(name=reference.label) for text in CLAIM_NOTES]
    return (
        f'<div class="card"><h3>Does it hold? {escape(reference.label)} against each rival</h3>{near}'
        f'<div class="scroll"><table><thead><tr><th scope="col">rival</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>{notes([*listed, units])}</div>"
    )


def tiles(section: Section) -> str:
    """The reference in figures, and how many claims hold."""
    reference = section.comparison.reference
    if reference is None or not reference.good:
        return ""
    figures = section.comparison.figures[section.comparison.rows.index(reference)]
    shown = [
        (_plus_minus(100 * figures[key].mean, 100 * figures[key].std, 1), f"{name}, {reference.label}")
        for key, name in (
            ("mean", "mean accuracy, %"),
            ("std", "σ over clients"),
            ("worst10", "worst 10 % of clients, %"),
        )
    ]
    shown.append((_plus_minus(figures["rho_mean"].mean, math.nan, 3), "ρ: clients whose loss did not rise"))
    shown.append((_plus_minus(figures["unharmed_mean"].mean, math.nan, 3), "clients that were not harmed"))
    rounds = _plus_minus(figures["rounds"].mean, math.nan, 1)
    shown.append(
        (
            f"{_plus_minus(figures['rounds_moved'].mean, math.nan, 1)}<small> of {rounds}</small>",
            "rounds moved the model, mean over seeds",
        )
    )
    found = [finding for each in section.claims.values() for finding in each if finding.bounded]
    if found:
        held = sum(finding.verdict is Verdict.BORNE_OUT for finding in found)
        against = sum(finding.verdict is Verdict.NOT_BORNE_OUT for finding in found)
        text = f"claims against rivals borne out; {against} not, {len(found) - held - against} undecided"
        shown.append((f"{held}<small> of {len(found)}</small>", text))
    return "".join(
        [
            '<div class="tiles">',
            *(f"<div><b>{big}</b><span>{escape(name)}</span></div>" for big, name in shown),
            "</div>",
        ]
    )


def chips(look: dict[int, Style]) -> str:
    """One button a method, in the order of the rows: the legend of all charts."""
    words = "".join(
        f'<button data-k="{style.key}" aria-pressed="false"{" class=strong" if style.colour != GREY else ""}>'
        f'<i class="{style.kind}" style="background:currentColor"></i>{escape(style.name)}</button>'
        for style in look.values()
    )
    return f'<div class="chips" aria-label="methods; press one to see it in every chart">{words}</div>'


def clock(section: Section, look: dict[int, Style]) -> str:
    """Seconds of a run, one bar a method."""
    comparison = section.comparison
    seconds = {
        place: summarise([record.figures["seconds"] for record in comparison.rows[place].good]) for place in look
    }
    longest = max((summary.mean for summary in seconds.values()), default=0.0) or 1.0
    rows = []
    for place, summary in seconds.items():
        style = look[place]
        strong = ' class="strong"' if style.colour != GREY else ""
        rows.append(
            f'<span{strong}>{escape(style.name)}</span><div class="{style.kind}"><i style="width:'
            f'{100 * summary.mean / longest:.1f}%"></i></div><b>{_plus_minus(summary.mean, summary.std, 1)}</b>'
        )
    return f'<div class="bars">{"".join(rows)}</div>'


def environment(section: Section) -> str:
    """Where it ran."""
    rows = [(name, text) for name, text in about(section) if text]
    listed = "".join(
        f"<dt>{escape(name)}</dt><dd>{f'<code>{escape(text)}</code>' if name == 'command' else escape(text)}</dd>"
        for name, text in rows
    )
    return f"<dl>{listed}</dl>" if rows else ""


def about(section: Section) -> list[tuple[str, str]]:
    """Command, commit, versions and machine, as texts; empty where they were not recorded."""
    found = section.about
    versions = found.get("versions", {})
    cores = found.get("cores")
    seconds = found.get("seconds")
    return [
        ("command", str(found.get("command", ""))),
        ("commit", commits_text(section.comparison) or str(found.get("commit") or "")),
        ("versions", ", ".join(f"{name} {number}" for name, number in versions.items())),
        ("machine", ", ".join(str(x) for x in (found.get("processor"), cores and f"{cores} cores") if x)),
        ("accelerator", str(found.get("accelerator") or ("none" if "accelerator" in found else ""))),
        ("platform", str(found.get("platform", ""))),
        ("wall clock", f"{seconds:.0f} s for what was still to be done" if isinstance(seconds, int | float) else ""),
        ("sum of the runs", f"{seconds_of(section.comparison):.0f} s"),
        ("seeds", ", ".join(map(str, section.comparison.plan.seeds))),
        (
            "settings",
            ", ".join(f"{key} {value}" for key, value in section.comparison.plan.config.items() if _short(value)),
        ),
    ]


def _short(value: object) -> bool:
    return value not in ("", None)


def _cell(cell: Cell, kind: str, place: int) -> str:
    wordy = place > 0 and len(cell.text) > LONG and "±" not in cell.text
    names = " ".join(word for word in (RANKS[cell.rank], kind, "text" if wordy else "") if word)
    value, pm, spread = cell.text.partition(" ± ")
    shown = f"<span>{escape(value)}</span>" + (
        f'<small><span class="pm">±</span>{escape(spread)}</small>' if pm else ""
    )
    return f"<td{f' class={chr(34)}{names}{chr(34)}' if names else ''}>{shown}</td>"


def _claim(finding: Finding, reach: float) -> str:
    tone, mark = TONES[finding.verdict]
    return (
        f'<td class="claim {tone}"><span class="verdict">{mark} {finding.verdict.value}</span>'
        f'{interval_chart(finding, reach)}<span class="figure">{escape(finding.text).replace("-", MINUS)}</span></td>'
    )


def _plus_minus(value: float, spread: float, digits: int) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:.{digits}f}" + ("" if math.isnan(spread) else f"<small> ± {spread:.{digits}f}</small>")
