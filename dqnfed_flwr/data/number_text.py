"""Numbers as people write them in texts, such as `13.56%`, `$75,000`, `12 EUR`, `(1,200)` and `1 234.5`; and dates.

A column of texts is one of numbers where every value is a number with the same sign of a unit, or none. A sign is `%`,
any character that Unicode calls a currency, or a code such as EUR, before or behind the number; the number stays as it
is written, so that 13.56% is 13.56. Thousands may be kept apart by one mark (a comma, a space, an apostrophe), and
parentheses stand for a minus. What could be read in two ways is refused: 12,5 and 1.234 € with a decimal comma, and
01/02/2024.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

PLAIN = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
FEW, MOST = 20, 0.9
"""Of more texts or rows than the first, this share of numbers makes a column of numbers with a slip."""
_NO_VALUE = re.compile(
    r"[-?.*#/\u2013\u2014]*|#?n[/.]?a\.?|#(?:value|ref|div/0)!|nan|nil|null|none|[-+]?inf(?:inity)?|unk|unknown|unspecified"
    r"|undefined|missing|not (?:available|applicable|known|recorded|measured|done)|no data|n\.?d\.?|tbd"
    r"|(?:grand )?totals?|subtotals?|sum",
    re.IGNORECASE,
)
"""Words and signs that stand among numbers for no value, or for one that is no row's own."""
_THIN = "\u00a0\u2009\u202f"
_MARKED = re.compile(rf"[1-9]\d{{0,2}}(?P<mark>[,' \u2019{_THIN}])\d{{3}}(?:(?P=mark)\d{{3}})*(\.\d*)?", re.ASCII)
_COMMA = re.compile(rf"\d+,\d+(?:\.\d+)?|\d{{1,3}}(?:[. '{_THIN}]\d{{3}})+,\d+|\d{{1,3}}(?:\.\d{{3}}){{2,}}", re.ASCII)
_CODES = re.compile("AUD|BRL|CAD|CHF|CNY|CZK|DKK|EUR|GBP|HKD|INR|JPY|KRW|MXN|NOK|NZD|PLN|SEK|SGD|TRY|USD|ZAR")
_WORDED = re.compile(r"[-+]?\d[\d.,]*\s*(?P<word>[^\W\d_][^\d\s]*)")
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)\.?"
)
_CLOCK = r"(?:[ T]\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?: ?[ap]m)?(?:Z|[-+]\d{2}:?\d{2})?)?"
_DATE = re.compile(
    rf"(?:\d{{1,2}}([/.-])\d{{1,2}}\1\d{{2,4}}|\d{{4}}([/.-])\d{{1,2}}\2\d{{1,2}}|\d{{1,2}}[ -]{_MONTH}[ -]\d{{2,4}}"
    rf"|{_MONTH}[ -]\d{{1,2}},? \d{{2,4}}|{_MONTH}[ -]\d{{2,4}}|(?:19|20)\d{{2}}-(?:0[1-9]|1[0-2])){_CLOCK}",
    re.ASCII | re.IGNORECASE,
)
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}(?:[ T]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[-+]\d{2}:?\d{2})?)?", re.ASCII)
NUMBERS = "numbers with a decimal point"


@dataclass(frozen=True)
class Written:
    """A number as it is written: its value, the sign of its unit, and the mark between its thousands."""

    value: float
    unit: str = ""
    mark: str = ""
    three: bool = False
    """Whether exactly three decimals follow a point, which in amounts of money may be thousands."""


@dataclass(frozen=True)
class Slip:
    """The place of a value that does not fit into its column, what the column is, and what is allowed."""

    place: int
    column: str
    allowed: str


def written(text: str) -> Written | None:
    """The number that a text is; None where it is none."""
    if PLAIN.fullmatch(text):
        return Written(float(text))
    body, minus = text.strip(), False
    if body.startswith("(") and body.endswith(")"):
        body, minus = body[1:-1].strip(), True
    body, unit = _without_unit(body)
    if body[:1] in ("-", "+", "\u2212"):
        if minus:
            return None
        body, minus = body[1:].lstrip(), body[0] != "+"
        if not unit:
            body, unit = _without_unit(body)
    found = _MARKED.fullmatch(body)
    if not found and not (PLAIN.fullmatch(body) and body[0] not in "+-"):
        return None
    mark = found["mark"] if found else ""
    value = float(body.replace(mark, "") if mark else body)
    three = len(body.partition(".")[2]) == 3 and not mark
    return Written(-value if minus else value, unit, mark, three)


def _without_unit(text: str) -> tuple[str, str]:
    """The text without the sign of a unit before or behind it, and the sign."""
    for size in (1, 3):
        if _is_unit(text[:size]) and text[:1] != "%":
            return text[size:].lstrip(), text[:size]
        if _is_unit(text[-size:]):
            return text[:-size].rstrip(), text[-size:]
    return text, ""


def _is_unit(text: str) -> bool:
    return text == "%" or bool(_CODES.fullmatch(text)) or (len(text) == 1 and unicodedata.category(text) == "Sc")


def column_of_numbers(values: Sequence[str]) -> tuple[str, list[float]] | None:
    """How the numbers of a column are written, and they themselves; None where its texts are no such column."""
    found = [written(value) for value in values]
    if not found or not all(found) or slip_in(values):
        return None
    units = {each.unit for each in found if each}
    marks = {each.mark for each in found if each and each.mark}
    if len(units) != 1 or len(marks) > 1:
        return None
    return units.pop(), [each.value for each in found if each]


def slip_in(values: Sequence[str], counts: Sequence[int] = ()) -> Slip | None:
    """The value because of which a column, of dates or numbers otherwise, can be neither; None in a column of texts.

    `counts` are the rows that hold each of the values, one if they are not given.
    """
    if all(map(_ISO.fullmatch, values)):
        return None
    if (found := _fault(values, counts, _is_date)) >= 0:
        return Slip(found, "in a column of dates", "dates in ISO form, 2024-01-31, all of them")
    if all(map(_is_date, values)):
        place = next(place for place, value in enumerate(values) if not _ISO.fullmatch(value))
        return Slip(place, "in a column of dates", "dates in ISO form, 2024-01-31, which cannot be mistaken")
    numbers = [written(value) for value in values]
    commas = [place for place, value in enumerate(values) if numbers[place] is None and _has_comma(value)]
    if commas and all(number or place in commas for place, number in enumerate(numbers)):
        return Slip(commas[0], "in a column of numbers with commas", f"{NUMBERS}, and commas between thousands alone")
    if (found := _fault(values, counts, lambda value: bool(written(value) or _has_comma(value)))) >= 0:
        return Slip(found, "in a column of numbers", NUMBERS)
    if (found := _fault(values, counts, lambda value: value.casefold() in ("true", "false"))) >= 0:
        return Slip(found, "in a column of truth values", "true and false")
    if all(numbers):
        return _mixed([number for number in numbers if number])
    return _worded(values)


def _is_date(value: str) -> bool:
    return bool(_DATE.fullmatch(value)) or bool(_ISO.fullmatch(value))


def _has_comma(value: str) -> bool:
    """Whether a text is a number with a decimal comma, or thousands kept apart by points."""
    body = value.strip().removeprefix("(").removesuffix(")").lstrip("-+\u2212 ")
    return bool(_COMMA.fullmatch(_without_unit(body)[0].lstrip("-+\u2212 ")))


def _fault(values: Sequence[str], counts: Sequence[int], fits: Callable[[str], bool]) -> int:
    """The first of a few values, or of few rows, that do not fit among many that do; -1 where there is none.

    Words for no value are such among however few others.
    """
    wrong = [place for place, value in enumerate(values) if not fits(value)]
    if not wrong or len(wrong) == len(values):
        return -1
    rows, strange = (sum(counts), sum(counts[place] for place in wrong)) if counts else (0, 0)
    few = any(
        total > FEW and unfit <= (1 - MOST) * total for unfit, total in ((len(wrong), len(values)), (strange, rows))
    )
    return wrong[0] if few or all(_NO_VALUE.fullmatch(values[place]) for place in wrong) else -1


def _mixed(numbers: Sequence[Written]) -> Slip | None:
    """Two units or two marks in one column, and amounts that have three decimals or a thousand times as much."""
    for key, what in (("unit", "sign of a unit"), ("mark", "mark between thousands")):
        marks = [getattr(number, key) for number in numbers]
        counted = Counter(mark for mark in marks if mark or key == "unit")
        if len(counted) > 1:
            usual = counted.most_common(1)[0][0]
            other = next(place for place, mark in enumerate(marks) if mark in counted and mark != usual)
            shown = f"{usual!r}" if usual else "none"
            return Slip(other, f"where most values have the {what} {shown}", f"the same {what} in every value")
    if numbers[0].unit not in ("", "%") and any(number.three for number in numbers):
        place = next(place for place, number in enumerate(numbers) if number.three)
        return Slip(place, "in a column of amounts", "amounts whose point cannot be one between thousands")
    return None


def _worded(values: Sequence[str]) -> Slip | None:
    """Many numbers with the same word behind each, such as a unit; a few of them are categories."""
    found = [_WORDED.fullmatch(value) for value in values]
    words = {match["word"] for match in found if match}
    if len(values) > FEW and all(found) and len(words) == 1:
        return Slip(0, f"in a column of numbers with the word {words.pop()!r}", "the numbers alone")
    return None


def beside_numbers(values: Sequence[str]) -> Slip | None:
    """Many texts, nearly all of which hold a digit, are numbers with something beside them, or identifiers."""
    held = [place for place, value in enumerate(values) if any(map(str.isdecimal, value))]
    if len(values) <= FEW or len(held) < MOST * len(values) or all(map(PLAIN.fullmatch, values)):
        return None
    place = next((place for place in held if written(values[place]) is None), held[0])
    beside = "in a column of numbers with something beside them, such as a unit, or of identifiers"
    return Slip(place, beside, "plain numbers")


def all_iso(values: Sequence[str]) -> bool:
    """Whether all texts are dates in ISO form, with or without a time."""
    return bool(values) and all(map(_ISO.fullmatch, values))


def value_of(name: str) -> float | None:
    """The number that the name of a class stands for, a truth value 0 or 1; None where it stands for none."""
    if name.casefold() in ("true", "false"):
        return float(name.casefold() == "true")
    number = written(name)
    return number.value if number else None
