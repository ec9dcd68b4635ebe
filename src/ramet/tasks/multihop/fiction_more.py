"""More relations for invented worlds, so that a question must be followed by its own words: `taskset.relations="many"`.

Each world has a few of them, drawn at random. Most are a noun (`the tutor of Orna Keld`), some are years with a verb.
"""

from __future__ import annotations

# By kinds of entity and value, the nouns: one relation each.
NOUNS = """
person > person: tutor, rival, doctor, patron, landlord, biographer, business partner, godmother, bodyguard, apprentice
person > town: place of burial, place of death, childhood home, favourite town
person > company: main customer, main lender, bank
person > book: favourite book, best known work
town > person: sheriff, bishop, oldest resident, patron saint, best known singer
town > town: sister town, nearest neighbour, nearest port
town > company: largest employer, bus operator, water supplier
province > person: chief judge, archbishop, most famous painter
province > town: largest town, oldest town, former capital
province > province: neighbour to the north, neighbour to the west
company > person: chief executive, chairman, treasurer, owner, chief engineer, lawyer
company > company: parent company, main supplier, main competitor, successor
company > town: site of the factory, place of registration
ship > person: first mate, cook, charterer, designer, sponsor
ship > company: operator, insurer, engine maker
ship > town: place of construction, destination
ship > ship: sister ship, replacement
book > person: translator, editor, illustrator, main character, narrator
book > book: sequel, model
book > town: place of printing, first place of sale
"""
# A year: the relation, the kind of entity and the years; the statements; the questions.
YEARS = """
died: person > 1960-1999
{} died in {}. | {} passed away in {}.
When did {} die? | In which year did {} die? ->
married: person > 1920-1959
{} married in {}. | {} got married in {}.
When did {} get married? | In which year did {} marry? ->
flooded: town > 1800-1899
{} was flooded in {}. | {} suffered a great flood in {}.
When was {} flooded? | In which year was {} flooded? ->
united: province > 1700-1799
{} was united in {}. | {} has been united since {}.
When was {} united? | In which year was {} united? ->
closed: company > 1990-2019
{} closed in {}. | {} was closed in {}.
When did {} close? | When was {} closed? ->
sank: ship > 2000-2019
{} sank in {}. | {} went down in {}.
When did {} sink? | In which year did {} go down? ->
banned: book > 2000-2019
{} was banned in {}. | {} has been banned since {}.
When was {} banned? | In which year was {} banned? ->
"""
# Further questions for relations that all worlds have.
ASKS = {
    "born": ("When was {} born?",),
    "settled": ("When was {} settled?",),
    "founded": ("When was {} founded?", "When was {} established?"),
    "launched": ("When was {} launched?",),
    "published": ("When was {} published?", "When did {} come out?"),
    "birthplace": ("Where was {} born?",),
    "employer": ("Who does {} work for?",),
    "province": ("In what province is {} located?", "Where is {} located?"),
    "author": ("Who was {} written by?",),
    "founder": ("Who was {} founded by?",),
    "captain": ("Who is in command of {}?",),
    "product": ("What does {} produce?",),
}


def nouns() -> list[tuple[str, str, str]]:
    """(noun, kind of entity, kind of value)."""
    found: list[tuple[str, str, str]] = []
    for line in NOUNS.strip().splitlines():
        kinds, _, listed = line.partition(": ")
        kind, _, value = kinds.partition(" > ")
        found += [(noun, kind, value) for noun in listed.split(", ")]
    return found
