r"""The numbers in answers: one reader for all graders. Texts are parsed, never evaluated as code.

A number may have digits in groups (`1,234`, `1 234`, `1{,}234`, `1_234`, `1'234`, `1.234.567`), be a fraction (`5/2`,
`\frac{5}{2}`, `1 1/2`) or have an exponent (`1.5e3`, `10^{2}`). One of more than a thousand digits is not computed, and
counts as no number. A number of things is read, not the size of each: `15 4-packs` is 15.
"""

from __future__ import annotations

import re
from fractions import Fraction
from unicodedata import normalize

Number = int | Fraction

BOXED, MOST_BOXES = "\\boxed{", 20
BRACE = re.compile(r"[{}]")
JOINED = re.compile(r"\}[\s$]*(?:,|;|,?\s*(?:or|and)\b)[\s$]*$")  # what is between two boxes, with the end of the first
LONGEST = 20_000  # the last characters of an answer that are read
MOST_DIGITS = 1000  # of a number, and of a power of one
PLAIN = re.compile(r"-?\d{1,100}")
PLAIN_END = re.compile(r"(?:[A-Za-z] |[=:] ?|\n)(-?\d{1,100})\.?\Z")  # most answers: no more has to be read

# Digits in groups of three, of two and three (1,00,000), or without groups.
DIGITS = r"(?:(?<!\d[ ])\d{1,3}(?:(?:[ ]\d{3})+|(?:,\d\d){0,9}(?:,\d{3})+|(?:\.\d{3}){2,9}(?!\.\d))(?!\d)|\d++)"
DECIMAL = rf"(?:{DIGITS}(?:\.\d++)?|(?<!\d)\.\d++)"
# What each of several things measures: `100 ml` in `5 100 ml bottles`, `200` in `12 200-kilobyte videos`.
UNIT = r"(?:[mcdk]?[lgm]|mg|km|oz|lb|kg|[kMGT]B|[kM]?W)"
EACH = rf"\d++(?:-[A-Za-z]++|[ ]{UNIT}[ ](?!(?:is|was|has|as|plus|minus|times|less)\b)[a-z]+s)\b"
BRACES = r"\{(?:[^{}\n]|\{[^{}\n]{0,60}\}){0,60}\}"
POWER = rf"(?:{BRACES}|\{{\S*|\([-+]?\d+\)|[-+]?\d++|[A-Za-z])"
TOKEN = re.compile(
    rf"""
      \d+/(?:\d+/)+(?P<date>\d+)                                      # only its last part is read
    | (?<![\d.,])(?P<count>\d++)[ ]{EACH}                            # 5 100 ml bottles
    | \d++_(?:\d|\{{\d)\d*+\}}?                                        # 52_8, in another base: no number
    | (?P<bracket>\))?\^[ ]?{POWER}                                  # the exponent of a unit, or of a bracket
    | (?P<sign>(?<!\d)-(?:\\?[$£€])?)?(?:                             # -$5
        (?P<before>\d{{1,9}})?[ ]?\\[dtc]?frac[ ]*(?P<over>{BRACES}|\d)[ ]*(?P<under>{BRACES}|\d)
      | (?P<number>{DECIMAL})(?:
            [ ](?P<top>\d++)[ ]?/[ ]?(?P<bottom>\d++)(?![.,/]?\d)    # 1 1/2
          | [ ]?/[ ]?(?P<divisor>-?{DECIMAL})                        # 5/2
          | [eE](?P<e>[-+]?\d++)(?!\w)                               # 1.5e3
          | [ ]?(?:\\times|\\cdot|[×·*x])[ ]?10\^(?P<ten>{POWER})    # 1.5 * 10^3
          | (?:\^[ ]?|\*\*(?=\d))(?P<power>{POWER})                  # 10^2
        )?
      )
    """,
    re.VERBOSE,
)
GROUP = re.compile(r"(?<=\d)['_](?=\d{3}(?!\d))")
DEGREES = re.compile(r"\^ ?(?:\\circ\b|\{ ?\\circ ?\})")
GAP = re.compile(r"(?<== )- (?=[\d.\\])")
TEX_GAP = re.compile(r"(?<=\d)(?:\{,\}|,?\\!|\\[,;: ])(?=\d{3}(?!\d))")
DASH = re.compile("(?<![^\\s$({\\[=])[\u2012-\u2015](?=[\\d.\\\\])")
SIGNS = {
    **dict.fromkeys(map(ord, "\u2212\uff0d"), "-"),
    **dict.fromkeys(map(ord, "\u00a0\u2007\u2008\u2009\u200a\u202f"), " "),
    **dict.fromkeys(map(ord, "\u2044\u2215"), "/"),
}
RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
RAISED_RUN = re.compile("⁻?[⁰¹²³⁴-⁹]+")
PART = re.compile(r"(\d?)([¼-¾⅓-⅞])")


def last_number(text: str | None) -> Number | None:
    r"""The last number in the last box of a text, or else in the text; None if there is none that can be read.

    Boxes with different numbers that are joined by `or`, `and` or a comma count as none.

    Example:
        last_number("12 eggs, so $1,240.50.")       # Fraction(2481, 2)
        last_number(r"\boxed{73} after 12 steps")  # 73
    """
    if not text:
        return None
    if PLAIN.fullmatch(text):
        return int(text)
    text = text[-LONGEST:]
    if "\\" not in text and (end := PLAIN_END.search(text)):
        return int(end[1])
    text = _plain(text)
    found = [number for part in boxes(text) if (number := _last(part)) is not None] or [_last(text)]
    values = {None if number is None else _value(number) for number in found}
    return values.pop() if len(values) == 1 else None


def only_number(text: str) -> Number | None:
    """The number that a text consists of, but for marks around it and a full stop; None for any other text.

    Example:
        only_number("**1,200**.")  # 1200
        only_number("12 apples")   # None
    """
    if PLAIN.fullmatch(text):
        return int(text)
    if len(text) > 2 * MOST_DIGITS:
        return None
    text = _plain(text).strip().strip("*`").removesuffix(".").strip("*`$ ")
    match = TOKEN.fullmatch(text)
    return None if match is None or match["date"] or match["count"] or _is_exponent(match) else _value(match)


def same_number(answer: str | None, wanted: str) -> float:
    """1 if the last number of the answer equals the last number of `wanted`."""
    given = last_number(answer)
    return float(given is not None and given == last_number(wanted))


def plain_signs(text: str) -> str:
    """The text with ASCII minus signs, spaces, fractions and exponents, and without gaps of TeX between digits.

    A dash is a minus sign at the beginning of a number, not between words or numbers.

    Example:
        plain_signs("\N{EN DASH}5 m², 1{,}024")  # "-5 m^{2}, 1,024"
    """
    if "\\" in text or "{" in text:
        text = TEX_GAP.sub(",", text)
    if text.isascii():
        return text
    text = DASH.sub("-", text)
    text = PART.sub(lambda found: (found[1] and found[1] + " ") + normalize("NFKC", found[2]), text).translate(SIGNS)
    return RAISED_RUN.sub(lambda found: f"^{{{found[0].translate(RAISED)}}}", text)


def boxed(text: str) -> str | None:
    r"""The contents of the last \boxed{}, or None; of several that are joined by `or`, `and` or a comma, of all.

    Example:
        boxed(r"First \boxed{4}. No: \boxed{5} or \boxed{6}")  # "5, 6"
    """
    return ", ".join(inside) if (inside := boxes(text)) else None


def boxes(text: str) -> list[str]:
    """The contents of the last box and of those joined to it; one that is cut off ends with the text."""
    inside: dict[str, None] = {}
    start = text.rfind(BOXED)
    while start >= 0 and len(inside) < MOST_BOXES:
        end = _end(text, start + len(BOXED))
        inside[text[start + len(BOXED) : end]] = None
        before = JOINED.search(text, max(0, start - 40), start)
        place = -1 if before is None else text.rfind(BOXED, 0, start)
        start = place if before is not None and place >= 0 and _end(text, place + len(BOXED)) == before.start() else -1
    return [*inside][::-1]


def _end(text: str, start: int) -> int:
    """The place of the brace that closes one before `start`, or of the end of the text."""
    depth = 1
    for brace in BRACE.finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.start()
    return len(text)


# Values.


def _plain(text: str) -> str:
    """The text with plain signs, groups of digits and degrees, and a minus sign at its number."""
    return GAP.sub("-", DEGREES.sub("°", GROUP.sub(",", plain_signs(text))))


def _last(text: str) -> re.Match[str] | None:
    """The last number of a text, without exponents of units."""
    found = None
    for match in TOKEN.finditer(text):
        if not _is_exponent(match):
            found = match
    return found


def _is_exponent(match: re.Match[str]) -> bool:
    return match.lastgroup is None


def _value(match: re.Match[str]) -> Number | None:
    """The value of a number; None for one that is too long, and for a formula."""
    if match["date"] or match["count"]:
        return _decimal(match["date"] or match["count"])
    if match["bracket"] or match.string.startswith("^", match.end()):
        return None
    value = _fraction(match) if match["number"] is None else _scaled(match)
    return None if value is None else -value if match["sign"] else value


def _scaled(match: re.Match[str]) -> Number | None:
    """The value of digits with what follows them."""
    number, kind = match["number"], match.lastgroup
    if kind == "bottom":
        whole, rest = _decimal(number), _ratio(_decimal(match["top"]), _decimal(match["bottom"]))
        if isinstance(whole, int) and rest is not None and rest < 1:
            return whole + rest
        return rest
    if kind == "divisor":
        return _ratio(_decimal(number), _decimal(match["divisor"]))
    if kind in ("e", "ten"):
        ten, value = _power("10", match[kind]), _decimal(number)
        return None if ten is None or value is None else ten * value
    return _power(number, match["power"]) if kind == "power" else _decimal(number)


def _fraction(match: re.Match[str]) -> Number | None:
    r"""The value of `\frac{}{}`, with a whole number before it."""
    over, under = (only_number(match[side].strip("{}")) for side in ("over", "under"))
    rest = _ratio(over, under)
    return None if rest is None else rest + int(match["before"] or 0)


def _decimal(text: str) -> Number | None:
    """The value of digits with a point, a sign and groups."""
    if len(text) > MOST_DIGITS:
        return None
    text = text.replace(",", "").replace(" ", "")
    text = text.replace(".", "") if text.count(".") > 1 else text  # 1.234.567
    return Fraction(text) if "." in text else int(text)


def _ratio(above: Number | None, below: Number | None) -> Fraction | None:
    return Fraction(above) / below if above is not None and below else None


def _power(base: str, exponent: str) -> Number | None:
    """A power with a whole number as its exponent, if it is not too long."""
    exponent = exponent.strip("{()} ")
    if not re.fullmatch(r"[-+]?\d{1,4}", exponent) or len(base) * abs(int(exponent)) > 2 * MOST_DIGITS:
        return None
    value = _decimal(base)
    if value is None or (not value and int(exponent) < 0):
        return None
    return Fraction(value) ** int(exponent)
