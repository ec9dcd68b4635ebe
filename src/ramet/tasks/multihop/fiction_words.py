"""The words of invented worlds: statements, questions, and syllables of names."""

from __future__ import annotations


def _words(text: str, between: str | None = None) -> tuple[str, ...]:
    return tuple(text.split(between))


# A relation is three lines: its name, the kinds of entity and value (for years, their range); the statements on pages;
# the questions, the canonical one first, and after the arrow the phrases for its value inside a longer question.
TABLE = """
birthplace: person > town
{} was born in {}. | {} is a native of {}.
In which town was {} born? | What is the birthplace of {}? -> the birthplace of {}
born: person > 1890-1929
{} was born in the year {}. | {} has lived since {}, the year of birth.
In which year was {} born? | What is the year of birth of {}? ->
employer: person > company
{} works for {}. | {} is employed by {}.
Which company does {} work for? | Which company employs {}? -> the company that employs {} | the employer of {}
heir: person > person
{} has named {} as heir. | {} leaves everything to {}, the only heir.
Who is the heir of {}? | Who was named heir by {}? -> the heir of {}
province: town > province
{} lies in the province of {}. | {} belongs to the province of {}.
In which province does {} lie? | Which province contains {}? -> the province that contains {}
mayor: town > person
{} has {} as its mayor. | {} elected {} as its mayor.
Who is the mayor of {}? | Who was elected mayor of {}? -> the mayor of {}
settled: town > 1100-1799
{} was settled in {}. | {} has been settled since {}.
In which year was {} settled? ->
river: town > river
{} lies on the river {}. | {} was built on the banks of the river {}.
On which river does {} lie? | Which river flows through {}? ->
capital: province > town
{} has {} as its capital. | {} is ruled from its capital, {}.
Which town is the capital of {}? | What is the capital of {}? -> the capital of {}
governor: province > person
{} is governed by {}. | {} has {} as its governor.
Who is the governor of {}? | Who governs {}? -> the governor of {}
founder: company > person
{} was founded by {}. | {} was the idea of its founder, {}.
Who founded {}? | Who is the founder of {}? -> the founder of {}
seat: company > town
{} is based in {}. | {} has its seat in {}.
In which town is {} based? | Where is {} based? -> the seat of {} | the home town of {}
founded: company > 1950-1989
{} was founded in {}. | {} has existed since {}, when it was founded.
In which year was {} founded? | What is the founding year of {}? ->
product: company > product
{} makes {}. | {} earns its money with {}.
What does {} make? | What is made by {}? ->
captain: ship > person
{} sails under captain {}. | {} has {} as its captain.
Who is the captain of {}? | Who commands {}? -> the captain of {}
builder: ship > company
{} was built by {}. | {} comes from the yards of {}.
Which company built {}? | Which company is the builder of {}? -> the company that built {} | the builder of {}
port: ship > town
{} has {} as its home port. | {} returns every winter to {}, its home port.
What is the home port of {}? | In which town is the home port of {}? -> the home port of {}
launched: ship > 1955-1999
{} was launched in {}. | {} has been at sea since its launch in {}.
In which year was {} launched? ->
author: book > person
{} was written by {}. | {} is a work of the author {}.
Who wrote {}? | Who is the author of {}? -> the author of {} | the writer of {}
publisher: book > company
{} was brought out by {}. | {} appeared with the publisher {}.
Which company published {}? -> the company that published {} | the publisher of {}
setting: book > town
{} is set in {}. | {} takes place in {}.
In which town is {} set? | Where is {} set? -> the setting of {}
published: book > 1950-1999
{} was published in {}. | {} was first published in {}.
In which year was {} published? ->
"""
FILLERS = {
    "person": "{} is fond of chess.|{} keeps bees.|{} never learned to swim.|{} plays the cello.|{} collects old maps.",
    "town": "{} has a market on Fridays.|{} is known for its windy winters.|{} has two bridges.|{} smells of bread.",
    "province": "{} is mostly forest.|{} has many lakes.|{} has few roads.|{} is famous for its cheese.",
    "company": "{} has a blue sign.|{} pays its staff weekly.|{} sponsors a choir.|{} owns a row of warehouses.",
    "ship": "{} carries a white funnel.|{} is slow but steady.|{} has a cat on board.|{} was painted green.",
    "book": "{} is rather short.|{} has a red cover.|{} is often given as a present.|{} begins with a storm.",
}
# What the pages of a world are about, in turn: the first eight hold two people, two towns and two companies.
KINDS = _words(
    "person town company book person ship company town province person town company book province ship person"
)

STARTS = _words("Bal Bren Cor Dal Dro El Fen Gar Hul Il Jor Kel Lor Mar Nev Or Pel Quen Ros Sel Tam Ul Ven Wil Yar Zan")
MIDDLES = _words("a ba da de do ga ka la le li ma mi na ne ni ra ro sa ta ti va ve vi zo")
ENDS = {
    "person": _words("bek dral gost holm keld lund mund nock pell rask sved thorn vask wold"),
    "given": _words("dan die ka lis mir na nis ra rin sa to via wyn"),
    "town": _words("berg bury fell gard ham haven mora moor stead wick"),
    "province": _words("land mark nia ria shire"),
    "company": _words("co dex lux max ner tex tra vox"),
    "river": _words("l m n r sk th x"),
}
SUFFIXES = _words("Brothers|Company|Group|and Sons|Union|Works", "|")
ADJECTIVES = _words(
    "Amber Bitter Broken Crimson Distant Early Empty Gentle Golden Hidden Hollow Idle Ivory Jolly Lonely Lucky Mellow "
    "Northern Pale Patient Quiet Restless Rusty Scarlet Silent Silver Sleepy Southern Stubborn Velvet"
)
NOUNS = {
    "book": _words(
        "Anchor Bell Candle Carpet Clock Door Feather Garden Harvest Island Key Ladder Lantern Letter Mirror Moth "
        "Needle Orchard Path Piano Ribbon Shadow Staircase Thimble Umbrella Valley Violin Well Window Winter"
    ),
    "ship": _words(
        "Badger Beaver Cormorant Crane Curlew Dolphin Eagle Falcon Fox Gannet Gull Hare Heron Kestrel Lynx Magpie "
        "Marten Otter Pelican Petrel Plover Puffin Raven Salmon Seal Skua Stork Swan Tern Walrus"
    ),
}
PRODUCTS = _words(
    "bicycle bells|brass buttons|candied fruit|copper kettles|door hinges|fishing nets|garden shears|glass beads|"
    "ink bottles|lamp oil|leather gloves|paper lanterns|pocket watches|roof tiles|sail cloth|soap|straw hats|tea sets|"
    "toy trains|umbrella stands|wool blankets|wooden spoons",
    "|",
)
