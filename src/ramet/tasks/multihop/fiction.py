"""Invented worlds to ask about: people, towns, companies, ships and books that do not exist.

A world is a table of facts. Every entity has a page with its own facts only, so a question that follows facts from one
entity to the next needs one page per hop. A small grammar writes questions and parses them: every question it can write
about a world has one answer, at any depth, including the goals of clones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ramet.tasks.check import normalise
from ramet.tasks.dice import Dice
from ramet.tasks.multihop import fiction_more
from ramet.tasks.multihop.fiction_words import (
    ADJECTIVES,
    ENDS,
    FILLERS,
    KINDS,
    MIDDLES,
    NOUNS,
    PRODUCTS,
    STARTS,
    SUFFIXES,
    TABLE,
)

Facts = Mapping[str, Mapping[str, str]]  # by entity, by relation

FEWEST_PAGES, MOST_PAGES = 8, 4000  # more would exhaust the names of ships
LONGEST = 2000  # most characters of a goal


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A kind of fact: the kinds of entity and value, and the wordings of statements, questions and phrases."""

    kind: str
    value: str
    says: tuple[str, ...]
    asks: tuple[str, ...]
    phrases: tuple[str, ...]

    @property
    def years(self) -> tuple[int, int] | None:
        low, dash, high = self.value.partition("-")
        return (int(low), int(high)) if dash else None


def _read_table(table: str) -> Iterator[tuple[str, Relation]]:
    lines = table.strip().splitlines()
    for head, says, asked in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        name, _, kinds = head.partition(": ")
        kind, _, value = kinds.partition(" > ")
        asks, _, phrases = asked.partition("->")
        yield name, Relation(kind=kind, value=value, says=_ways(says), asks=_ways(asks), phrases=_ways(phrases))


def _ways(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split("|") if part.strip())


def _pattern(template: str) -> re.Pattern[str]:
    """A pattern for a question at the end of a normalised text."""
    before, _, after = template.partition("{}")
    return re.compile(f"(?:^| ){normalise(before)} (.+){' ' + normalise(after) if normalise(after) else ''}$")


class Grammar:
    """The relations of worlds, and the patterns by which their questions are parsed."""

    def __init__(
        self, relations: Mapping[str, Relation], *, compared: Iterable[str], per_kind: int | None = None
    ) -> None:
        self.relations = relations
        self.per_kind = per_kind  # relations that a world has for each kind of entity; None: all
        self.years = list(compared)
        self.asked = [(_pattern(ask), name) for name, relation in relations.items() for ask in relation.asks]
        self.named = [
            (normalise(template.partition("{}")[0]), name)
            for name, rel in relations.items()
            for template in rel.phrases
        ]
        self.compared = [
            (re.compile(rf"(?:^| )wh(?:o|ich) was {name} (earlier|later) (.+) or (.+)$"), name) for name in self.years
        ]

    def drawn(self, dice: Dice) -> dict[str, Relation]:
        """The relations of one world."""
        if self.per_kind is None:
            return dict(self.relations)
        kinds = dict.fromkeys(relation.kind for relation in self.relations.values())
        chosen = {
            name
            for kind in kinds
            for name in dice.sample([n for n, rel in self.relations.items() if rel.kind == kind], self.per_kind)
        }
        return {name: relation for name, relation in self.relations.items() if name in chosen}


def _more_relations(few: Mapping[str, Relation]) -> Iterator[tuple[str, Relation]]:
    """The same with more questions, then those of `fiction_more`."""
    for name, relation in few.items():
        yield name, replace(relation, asks=(*relation.asks, *fiction_more.ASKS.get(name, ())))
    for noun, kind, value in fiction_more.nouns():
        who = "Who" if value == "person" else f"Which {value}"
        asks = (f"{who} is the {noun} of {{}}?", f"{'Who' if who == 'Who' else 'What'} was the {noun} of {{}}?")
        says = (f"{{}} has {{}} as its {noun}.", f"{{}} chose {{}} as its {noun} long ago.")
        if kind == "person":
            says = (f"{{}} has {{}} as {noun}.", f"{{}} chose {{}} as {noun} long ago.")
        yield noun, Relation(kind=kind, value=value, says=says, asks=asks, phrases=(f"the {noun} of {{}}",))
    yield from _read_table(fiction_more.YEARS)


RELATIONS = dict(_read_table(TABLE))
YEARS = [name for name, relation in RELATIONS.items() if relation.years]
FEW = Grammar(RELATIONS, compared=YEARS)
MANY = Grammar(dict(_more_relations(RELATIONS)), compared=YEARS, per_kind=5)
GRAMMARS: Mapping[str, Grammar] = {"few": FEW, "many": MANY}
ALL = MANY.relations  # the first wording of a relation is the same in both


@dataclass(frozen=True, slots=True)
class Chain:
    """Relations followed one after the other from an entity."""

    start: str
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Which of two comes earlier or later: each side ends in the year to compare."""

    sides: tuple[Chain, Chain]
    later: bool


Query = Chain | Comparison


class Fiction:
    """The facts of an invented world, and the questions about it.

    Example:
        world = Fiction({"The Pale Moth": {"author": "Orna Keld"}, "Orna Keld": {"born": "1901"}})
        world.accepted(world.understand("In which year was the author of The Pale Moth born?")) gives ("1901",)
    """

    def __init__(self, facts: Facts, grammar: Grammar = FEW) -> None:
        self.facts = facts
        self.grammar = grammar
        self._names = {normalise(name): name for name in facts}

    def walk(self, chain: Chain) -> tuple[str, ...]:
        """The start and every value along the chain; empty if a fact is missing."""
        places = [chain.start]
        for relation in chain.path:
            value = self.facts.get(places[-1], {}).get(relation)
            if value is None:
                return ()
            places.append(value)
        return tuple(places)

    def accepted(self, query: Query | None) -> tuple[str, ...]:
        """The answer and its other wordings; empty if the facts do not give one."""
        if query is None:
            return ()
        if isinstance(query, Chain):
            return self.walk(query)[-1:]
        walks = [self.walk(side) for side in query.sides]
        if not all(walks) or walks[0][-1] == walks[1][-1]:
            return ()
        second = (int(walks[0][-1]) > int(walks[1][-1])) != query.later
        name, side = walks[second][-2], query.sides[second]
        described = phrase(Chain(side.start, side.path[:-1]))
        return (name,) if described == name else (name, described)

    def understand(self, goal: str) -> Query | None:
        """The question in a text, if there is exactly one and this world can answer it.

        Text before the question and after its question mark is ignored.
        """
        asked = [piece for piece in goal.split("?")[:-1] if piece.strip()] or [goal]
        query = self._question(normalise(asked[0])) if len(asked) == 1 and len(goal) <= LONGEST else None
        return query if self.accepted(query) else None

    def _question(self, text: str) -> Query | None:
        for pattern, relation in self.grammar.compared:
            if match := pattern.search(text):
                left, right = self._resolve(match.group(2)), self._resolve(match.group(3))
                if left is not None and right is not None:
                    return Comparison((_more(left, relation), _more(right, relation)), match.group(1) == "later")
        for pattern, relation in self.grammar.asked:
            if match := pattern.search(text):
                inner = self._resolve(match.group(1))
                if inner is not None:
                    return _more(inner, relation)
        return None

    def _resolve(self, text: str) -> Chain | None:
        """The chain of a phrase such as `author of pale moth`."""
        if text in self._names:
            return Chain(self._names[text], ())
        for words, relation in self.grammar.named:
            if text.startswith(words + " "):
                inner = self._resolve(text[len(words) + 1 :])
                if inner is not None:
                    return _more(inner, relation)
        kind, _, name = text.partition(" ")  # "the book The Pale Moth"
        return Chain(self._names[name], ()) if kind in FILLERS and name in self._names else None


def _more(chain: Chain, relation: str) -> Chain:
    return Chain(chain.start, (*chain.path, relation))


# Wordings of facts and questions: the canonical ones, or random ones with dice.


def say(entity: str, relation: str, value: str) -> str:
    return ALL[relation].says[0].format(entity, value)


def phrase(chain: Chain, dice: Dice | None = None) -> str:
    """The phrase for the end of a chain: `the author of The Pale Moth`."""
    text = chain.start
    for relation in chain.path:
        text = _way(ALL[relation].phrases, dice).format(text)
    return text


def ask(query: Query, dice: Dice | None = None, grammar: Grammar = FEW) -> str:
    """The question as text; with dice, in one of the wordings of a grammar."""
    if isinstance(query, Chain):
        relations = ALL if dice is None else grammar.relations
        way = _way(relations[query.path[-1]].asks, dice)
        return way.format(phrase(Chain(query.start, query.path[:-1]), dice))
    # Always the canonical wording, because answers may repeat it.
    left, right = (phrase(Chain(side.start, side.path[:-1])) for side in query.sides)
    verb = query.sides[0].path[-1]
    who = "Who" if ALL[verb].kind == "person" else "Which"
    return f"{who} was {verb} {'later' if query.later else 'earlier'}, {left} or {right}?"


def _way(ways: Sequence[str], dice: Dice | None) -> str:
    return ways[0] if dice is None else dice.pick(ways)


# The generator.


def invent(dice: Dice, pages: int, grammar: Grammar = FEW) -> tuple[Facts, dict[str, str]]:
    """A world with this many entities: its facts, and a page for each, in random order."""
    relations = grammar.drawn(dice)
    names: dict[str, str] = {}  # to kinds
    taken: set[str] = set()
    for number in range(pages):
        kind = KINDS[number % len(KINDS)]
        names[_new(dice, kind, taken)] = kind
    facts = {name: _facts(dice, name, names, taken, relations) for name in dice.shuffled(list(names))}
    _place_capitals(dice, facts, names)
    return facts, {name: _page(dice, name, names[name], facts[name]) for name in facts}


def _new(dice: Dice, kind: str, taken: set[str]) -> str:
    """A name that is not taken."""
    while True:
        name = _name(dice, kind)
        if normalise(name) not in taken:
            taken.add(normalise(name))
            return name


def _name(dice: Dice, kind: str) -> str:
    if kind in NOUNS:
        return f"{'The ' if kind == 'book' else ''}{dice.pick(ADJECTIVES)} {dice.pick(NOUNS[kind])}"
    coined = dice.pick(STARTS) + dice.pick(MIDDLES) + dice.pick(ENDS[kind])
    if kind == "person":
        return f"{dice.pick(STARTS)}{dice.pick(ENDS['given'])} {coined}"
    return f"{coined} {dice.pick(SUFFIXES)}" if kind == "company" else coined


def _facts(
    dice: Dice, name: str, names: Mapping[str, str], taken: set[str], relations: Mapping[str, Relation]
) -> dict[str, str]:
    """Two to four facts about an entity."""
    known: dict[str, str] = {}
    wanted = dice.between(2, 4)
    others = {other: kind for other, kind in names.items() if other != name}
    for relation in dice.shuffled([key for key, rel in relations.items() if rel.kind == names[name]]):
        value = _value(dice, relations[relation], others, taken) if len(known) < wanted else None
        if value is not None:
            known[relation] = value
    return known


def _value(dice: Dice, relation: Relation, others: Mapping[str, str], taken: set[str]) -> str | None:
    """A value of the right kind; None if no entity fits."""
    if relation.years is not None:
        return str(dice.between(*relation.years))
    if relation.value == "product":
        return dice.pick(PRODUCTS)
    if relation.value == "river":
        return _new(dice, "river", taken)
    fitting = [other for other, kind in others.items() if kind == relation.value]
    return dice.pick(fitting) if fitting else None


def _place_capitals(dice: Dice, facts: Mapping[str, dict[str, str]], names: Mapping[str, str]) -> None:
    """Make facts consistent: a capital belongs to one province and lies in it."""
    provinces, towns = ([name for name in facts if names[name] == kind] for kind in ("province", "town"))
    for province, town in zip(provinces, dice.shuffled(towns), strict=False):
        if "capital" in facts[province]:
            facts[province]["capital"] = town
            if "province" in facts[town]:
                facts[town]["province"] = province


def _page(dice: Dice, name: str, kind: str, facts: Mapping[str, str]) -> str:
    """The facts and some filler, two to five sentences; the name comes first and sometimes again."""
    filler = dice.sample(FILLERS[kind].split("|"), dice.between(0, min(2, 5 - len(facts))))
    says = [dice.pick(ALL[relation].says).replace("{}", "{{}}", 1).format(value) for relation, value in facts.items()]
    short = dice.pick(("He", "She")) if kind == "person" else f"The {kind}"
    sentences = dice.shuffled([*says, *filler])
    return " ".join(
        sentence.format(name if not number or dice.chance(0.4) else short) for number, sentence in enumerate(sentences)
    )


def draw(fiction: Fiction, dice: Dice, hops: int, *, compare: bool) -> Query | None:
    """Draw a question that needs this many pages; None if the draw fails."""
    if not compare:
        return _draw_chain(fiction, dice, hops, tuple(fiction.grammar.relations))
    near = hops // 2 if hops % 2 == 0 or dice.chance(0.5) else hops - hops // 2
    left = _draw_chain(fiction, dice, near, tuple(fiction.grammar.years))
    right = left and _draw_chain(fiction, dice, hops - near, left.path[-1:])
    if left is None or right is None:
        return None
    walks = [set(fiction.walk(side)) for side in (left, right)]  # including the years, which must differ too
    return None if walks[0] & walks[1] else Comparison((left, right), dice.chance(0.5))


def _draw_chain(fiction: Fiction, dice: Dice, hops: int, last: Sequence[str]) -> Chain | None:
    """A chain that visits no page twice and ends with one of the `last` relations."""
    facts = fiction.facts
    places, path = [dice.pick(list(facts))], list[str]()
    while len(path) < hops:
        final = len(path) == hops - 1
        onward = [
            relation
            for relation, value in facts[places[-1]].items()
            if value not in places and (relation in last if final else value in facts)
        ]
        if not onward:
            return None
        path.append(dice.pick(onward))
        places.append(facts[places[-1]][path[-1]])
    return Chain(places[0], tuple(path)) if _takes_every_page(facts, places, path) else None


def _takes_every_page(facts: Facts, places: Sequence[str], path: Sequence[str]) -> bool:
    """Whether no earlier page names the answer, and other pages state all relations of the chain too."""
    if any(places[-1] in facts[place].values() for place in places[:-2]):
        return False
    apart = [known for name, known in facts.items() if name not in places]
    others = [[known[relation] for known in apart if relation in known] for relation in path]
    return all(others) and any(value != places[-1] for value in others[-1])
