"""The page: one file, no network, light and dark."""

from __future__ import annotations

from html import escape
from importlib import resources

from dqnfed_flwr.report.page import blocks
from dqnfed_flwr.report.page.client_charts import client_chart, fairness_chart, histogram_limits
from dqnfed_flwr.report.page.curve_charts import accuracy_chart, rho_chart
from dqnfed_flwr.report.page.document import Chapter, Document, Section
from dqnfed_flwr.report.page.look import GREY, Style, styles
from dqnfed_flwr.reproduce.scale import AS_IN_MANIFEST


def html(document: Document) -> str:
    """The whole page."""
    alone = len(document.chapters) == 1
    chapters = "".join(_chapter(chapter, document, "" if alone else _heading(chapter)) for chapter in document.chapters)
    source = _source(document.chapters[0]) if alone else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(document.title)}</title>"
        '<link rel="icon" href="data:,">'
        f"<style>{_file('page.css')}</style></head><body>"
        '<button id="theme" type="button">Dark</button>'
        f"<header><h1>{escape(document.title)}</h1>{source}</header>"
        f"<main>{chapters}</main>"
        "<footer>Written by dqnfed report.</footer>"
        f"<script>{_file('page.js')}</script></body></html>\n"
    )


def _chapter(chapter: Chapter, document: Document, heading: str) -> str:
    return heading + "".join(_part(section, document) for section in chapter.sections) + _remarks(chapter)


def _heading(chapter: Chapter) -> str:
    return f'<div class="chapter"><h2>{escape(chapter.title)}</h2>{_source(chapter)}</div>'


def _source(chapter: Chapter) -> str:
    return f'<p class="source">{escape(chapter.source)}</p>' if chapter.source else ""


def _part(section: Section, document: Document) -> str:
    comparison = section.comparison
    look = styles(comparison, document.bright)
    ours = comparison.reference.label if comparison.reference else ""
    main, *others = section.tables
    heading = f"<h2>{escape(section.title)}</h2>" if section.title != document.title else ""
    body = [f'<section class="part" id="{escape(section.key)}">{heading}', _scale(section), blocks.tiles(section)]
    body.append(f'<div class="card">{blocks.table(main, ours)}</div>')
    if look:
        body += [blocks.claims(section), blocks.chips(look), *_charts(section, look)]
    for found in others:
        body.append(f'<div class="card"><h3>{escape(found.title)}</h3>{blocks.table(found, ours)}</div>')
    body.append(
        '<details class="card"><summary>How it was run: command, commit, machine</summary>'
        f"{blocks.environment(section)}</details></section>"
    )
    return "".join(body)


def _charts(section: Section, look: dict[int, Style]) -> list[str]:
    comparison = section.comparison
    reduced = (
        f" {section.label[:1].upper()}{section.label[1:]}." if section.label != AS_IN_MANIFEST and section.label else ""
    )
    grey = " Grey: the other methods." if any(style.colour == GREY for style in look.values()) else ""
    bands = f"Mean over clients; band: standard deviation over seeds.{grey}{reduced}"
    window = "Share of the participants whose training loss did not rise, running mean over a twentieth of the rounds."
    named = comparison.reference.label if comparison.reference else ""
    outline = f" Outline: {named}." if named else ""
    return [
        '<div class="pair">',
        _card("Accuracy by rounds", bands, accuracy_chart(comparison, look, "rounds")),
        _card("Accuracy by time", bands, accuracy_chart(comparison, look, "seconds")),
        _card("Nobody pays: ρ by rounds", window + reduced, rho_chart(comparison, look)),
        _card(
            "Fairness against accuracy",
            f"Up and to the right is better; bars: standard deviation over seeds.{reduced}",
            fairness_chart(comparison, look),
        ),
        "</div>",
        _card(
            "Clients by their accuracy",
            f"Share of the clients, all seeds together; dotted: mean.{outline}{reduced}",
            _histograms(section, look),
        ),
        _card(
            "Wall clock",
            f"Seconds of one run, mean ± standard deviation over seeds.{reduced}",
            blocks.clock(section, look),
        ),
    ]


def _histograms(section: Section, look: dict[int, Style]) -> str:
    edges, top = histogram_limits(section.comparison, look)
    panels = "".join(client_chart(section.comparison, look, place, edges, top) for place in look)
    return f'<div class="smalls">{panels}</div>'


def _card(title: str, caption: str, body: str) -> str:
    return (
        f'<div class="card"><h3>{escape(title)}</h3><p class="caption">{escape(caption)}</p>{body}</div>'
        if body
        else ""
    )


def _scale(section: Section) -> str:
    if not section.label:
        return ""
    kind = "scale" if section.label == AS_IN_MANIFEST else "scale less"
    return f'<p class="{kind}">{escape(section.label[:1].upper() + section.label[1:])}</p>'


def _remarks(chapter: Chapter) -> str:
    shown = "".join(f'<div class="card"><h3>{head}</h3>{blocks.notes(texts)}</div>' for head, texts in chapter.lists)
    return f'<section class="part">{shown}</section>' if shown else ""


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8").strip()
