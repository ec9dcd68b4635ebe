"""Decompose questions over pages: the reference of a row, and a plan for every goal."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any, TypeVar, cast

from ramet.errors import ConfigError
from ramet.interfaces import View
from ramet.tasks.check import normalise
from ramet.tasks.dice import Dice
from ramet.tasks.multihop.evidences import comparison, evidence_steps, outline
from ramet.tasks.multihop.fiction import Chain, Comparison, Fiction, Query, ask, say
from ramet.types import Task

T = TypeVar("T")
Reference = dict[str, Any]

MENTION = re.compile(r"#(\d{1,9})(?!\d)")  # the answer of an earlier step
GAP = re.compile(r"\s+(?=[?,.]|'s\b)")
# The end of a sentence; initials and titles before a name are none.
SENTENCE = re.compile(r"(?<=[.!?])(?<!\b[A-Z]\.)(?<!\b(?:Mr|Dr|St|Jr|Sr)\.)(?<!\bMrs\.)\s+")
LONGEST_SENTENCE = 400  # characters
HELP = "According to the text, what is known about {} that helps to answer: {}"
# MuSiQue writes some sub-questions as `subject >> relation`; these do not read well as `What is the relation of`.
RELATION_ASKS = {
    "located in the administrative territorial entity": "In which place is {} located?",
    "shares border with": "What does {} share a border with?",
    "member of sports team": "Which sports team is {} a member of?",
    "member of political party": "Which political party is {} a member of?",
    "award received": "Which award did {} receive?",
    "has part": "What is a part of {}?",
}
PREPOSITION = re.compile(r"\b(?:after|at|by|in|of|on|to)$")
PERSON = re.compile("author|cast member|child|composer|creator|director|(fa|mo)ther|performer|producer|sibling|spouse")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A sub-question, the pages it needs, and its answer."""

    goal: str
    pages: tuple[str, ...]
    answer: str
    relations: tuple[str, ...] = ()  # that it follows, if they are known


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a question is answered: pages to read, or parts to delegate. Parts of one round run in parallel."""

    answer: str
    thought: str = ""
    reading: tuple[tuple[str, ...], ...] = ()
    rounds: tuple[tuple[Part, ...], ...] = ()
    outline: str = ""  # thought before the first round
    conclusion: str = ""  # thought after the parts are answered

    @property
    def pages(self) -> tuple[str, ...]:
        """All pages that it needs, each once."""
        return tuple(dict.fromkeys(page for pages in self.reading for page in pages))

    def thought_of(self, turn: int) -> str:
        """The thought before a round: the outline, then what is asked next."""
        if turn == 0 or not self.outline:
            return self.outline
        following = dict.fromkeys(relation for part in self.rounds[turn] for relation in part.relations)
        return f"Next: {', '.join(following)}."

    def delegates(self, view: View, *dice_seed: object, uniform: bool = False) -> bool:
        """Whether a node delegates the parts: a root always, a clone at random; in the uniform style both."""
        if sum(map(len, self.rounds)) < 2 or view.depth >= 3:
            return False
        return view.depth == 0 or uniform or Dice("deeper", *dice_seed, view.goal).chance(0.4)


Planner = Callable[[str], Plan]  # from a goal


def reference_of(task: Task) -> Reference:
    return cast(Reference, task.reference)


def planner(
    task: Task,
    fiction: Fiction | None,
    texts: Mapping[str, str],
    *,
    seed: int,
    help_goal: str = HELP,
    uniform: bool = False,
    one_hop: bool = False,
) -> Planner:
    """A plan for every goal of a task; `help_goal` is the goal of a clone without a sub-question.

    In the uniform style a chain is cut in the middle, and steps that are ready run in parallel. With `one_hop`, every
    part of a chain is one hop, so that the title of its page is known when the part is asked for.
    """
    if fiction is None:
        rounds = _row_rounds(task, texts, None if uniform else Dice("plan", task.id, seed), help_goal)
        return _row_planner(task, rounds)

    def plan(goal: str) -> Plan:
        query = fiction.understand(goal)
        if query is None:
            raise AssertionError(f"no question in {goal!r}")
        dice = None if uniform else Dice("plan", task.id, seed, goal)
        return _invented_plan(fiction, query, dice, one_hop=one_hop)

    return plan


# Invented worlds.


def _invented_plan(fiction: Fiction, query: Query, dice: Dice | None, *, one_hop: bool) -> Plan:
    sides = (query,) if isinstance(query, Chain) else query.sides
    walks = [fiction.walk(side) for side in sides]
    sentences = [say(*step) for side, walk in zip(sides, walks, strict=True) for step in _steps(side, walk)]
    conclusion = ""
    if isinstance(query, Comparison):
        listed = " ".join(f"{walk[-2]}: {walk[-1]}." for walk in walks)
        conclusion = f"{listed} {min(walk[-1] for walk in walks)} is earlier."
    return Plan(
        answer=fiction.accepted(query)[0],
        thought=" ".join([*sentences, conclusion]).strip(),
        reading=_abreast([walk[:-1] for walk in walks]),
        rounds=_abreast([_parts(fiction, side, dice, compared=len(sides) > 1, one_hop=one_hop) for side in sides]),
        outline=outline([side.path for side in sides]),
        conclusion=conclusion,
    )


def _steps(chain: Chain, walk: Sequence[str]) -> list[tuple[str, str, str]]:
    return [(a, relation, b) for relation, (a, b) in zip(chain.path, pairwise(walk), strict=True)]


def _parts(fiction: Fiction, chain: Chain, dice: Dice | None, *, compared: bool, one_hop: bool) -> list[Part]:
    walk, hops = fiction.walk(chain), len(chain.path)
    if one_hop:
        edges = list(range(hops + 1))
    else:
        edges = _halves(hops, compared=compared) if dice is None else _pieces(hops, dice, compared=compared)
    return [
        Part(goal=ask(Chain(walk[a], chain.path[a:b])), pages=walk[a:b], answer=walk[b], relations=chain.path[a:b])
        for a, b in pairwise(edges)
    ]


def _halves(hops: int, *, compared: bool) -> list[int]:
    """Two pieces. A year to compare is a separate piece: its owner is needed too."""
    return [0, hops] if hops < 2 else [0, hops - 1 if compared else hops // 2, hops]


def _pieces(hops: int, dice: Dice, *, compared: bool) -> list[int]:
    """Pieces of one to three hops. A year to compare is a separate piece: its owner is needed too."""
    edges = [0]
    while edges[-1] < hops:
        edge = min(hops, edges[-1] + dice.weighted((1, 2, 3), (6.0, 3.0, 1.0)))
        edges.append(hops - 1 if compared and edges[-1] < hops - 1 < edge else edge)
    if len(edges) == 2 and hops > 1:
        edges.insert(1, dice.between(1, hops - 1))
    return edges


def _abreast(columns: Sequence[Sequence[T]]) -> tuple[tuple[T, ...], ...]:
    """The first elements of all columns, then the second ones, and so on."""
    return tuple(tuple(item for item in row if item is not None) for row in zip_longest(*columns))


# Rows of data files.


def row_reference(row: Mapping[str, Any], where: str) -> Reference:
    """The reference of a row: the answer, and the steps of its decomposition or evidences, or the supporting titles."""
    aliases: object = row.get("aliases") or []
    if not _are(aliases, str):
        raise ConfigError(f"{where}: field 'aliases' must be a list of texts")
    reference: Reference = {"answer": row["answer"], "aliases": aliases}
    if row["meta"].get("decomposition") is not None:
        titles = [entry["title"] for entry in row["context"]]
        steps = _decomposition(row["meta"]["decomposition"], titles, where)
        return reference | {"hops": len(steps), "steps": steps}
    supporting = list(dict.fromkeys(entry["title"] for entry in row["context"] if entry.get("supporting") is True))
    if not supporting:
        raise ConfigError(f"{where}: field 'context' marks no entry as supporting")
    steps = evidence_steps(row, where)
    if steps is not None:
        return reference | {
            "hops": len(steps),
            "steps": _asked(steps),
            "compared": not steps[-1]["after"] or len(steps) > 2,
        }
    return reference | {"hops": len(supporting), "supporting": supporting}


def _are(values: object, kind: type) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in cast(list[object], values))


def _decomposition(entries: object, titles: Sequence[str], where: str) -> list[Reference]:
    """Steps with the answers of earlier steps filled in; `after` lists those steps."""
    field = f"{where}: field 'meta.decomposition'"
    if not _are(entries, dict) or not entries:
        raise ConfigError(f"{field} must be a list of steps")
    steps: list[Reference] = []
    for number, entry in enumerate(cast(list[Reference], entries), start=1):
        if not _are([entry.get(name) for name in ("question", "answer", "title")], str):
            raise ConfigError(f"{field}, step {number}: question, answer and title must be texts")
        after = [int(mention) - 1 for mention in MENTION.findall(entry["question"])]
        if entry["title"] not in titles or not all(0 <= earlier < number - 1 for earlier in after):
            raise ConfigError(
                f"{field}, step {number}: the title must be in the context, and # must name an earlier step"
            )
        written = _filled(entry["question"], [step["answer"] for step in steps])
        steps.append(
            {"goal": _spelled(written), "written": written, "answer": entry["answer"], "title": entry["title"]}
            | {"after": after}
        )
    return steps


def _asked(steps: Sequence[Reference]) -> list[Reference]:
    """Steps of evidences with their questions. The page that a value leads to is another name for it."""
    names = {before: step["title"].partition(" (")[0] for step in steps for before in step["after"]}
    asked: list[Reference] = []
    for number, step in enumerate(steps):
        written = f"{step['title']} >> {step['relation']}"
        aliases = [names[number]] if number in names else []
        asked.append(step | {"goal": _spelled(written), "written": written, "aliases": aliases})
    return asked


def _filled(question: str, answers: Sequence[str]) -> str:
    return GAP.sub("", MENTION.sub(lambda mention: answers[int(mention.group(1)) - 1], question)).strip()


def _spelled(question: str) -> str:
    """Spell out `Laura Knight >> spouse` as a question."""
    subject, arrow, relation = (part.strip() for part in question.partition(">>"))
    if not arrow:
        return question
    if relation in RELATION_ASKS:
        return RELATION_ASKS[relation].format(subject)
    if PREPOSITION.search(relation):
        return f"What is {subject} {relation}?"
    return f"{'Who' if PERSON.fullmatch(relation) else 'What'} is the {relation} of {subject}?"


def row_accepts(goal: str, question: str, reference: Reference) -> tuple[str, ...]:
    """The accepted answers to a clone's goal, if it is the question or contains exactly one step; else none."""
    text, whole = normalise(goal), normalise(question)
    final = (reference["answer"], *reference["aliases"])
    if text == whole:
        return final
    if whole in text:  # the goal is about the question
        return ()
    steps: list[Reference] = reference.get("steps", [])
    forms = [(normalise(step[form]), number) for number, step in enumerate(steps) for form in ("goal", "written")]
    contained = [(form, number) for form, number in forms if f" {form} " in f" {text} "]
    longest = {
        number for form, number in contained if not any(form != other and form in other for other, _ in contained)
    }
    if len(longest) != 1:
        return ()
    number = longest.pop()
    if number == len(steps) - 1 and not reference.get("compared"):
        return final
    return (steps[number]["answer"], *steps[number].get("aliases", []))


def _row_rounds(
    task: Task, texts: Mapping[str, str], dice: Dice | None, help_goal: str
) -> tuple[tuple[Part, ...], ...]:
    reference = reference_of(task)
    return _step_rounds(reference, dice) if "steps" in reference else _page_rounds(task, texts, help_goal)


def _row_planner(task: Task, rounds: tuple[tuple[Part, ...], ...]) -> Planner:
    reference = reference_of(task)
    parts = {part.goal: part for parts in rounds for part in parts}
    sentences = [f"{part.goal} {part.answer}" if "steps" in reference else part.answer for part in parts.values()]
    reading = tuple(tuple(dict.fromkeys(page for part in parts for page in part.pages)) for parts in rounds)
    conclusion = comparison(reference["steps"], reference["answer"]) if reference.get("compared") else ""
    whole = Plan(
        answer=reference["answer"],
        thought=" ".join([*sentences, conclusion]).strip(),
        reading=reading,
        rounds=rounds,
        outline=_row_outline(reference),
        conclusion=conclusion,
    )

    def plan(goal: str) -> Plan:
        if goal == task.question:
            return whole
        return Plan(answer=parts[goal].answer, reading=(parts[goal].pages,))

    return plan


def _row_outline(reference: Reference) -> str:
    """The relations of the steps, if all are known."""
    steps: list[Reference] = reference.get("steps", [])
    if not steps or not all("relation" in step for step in steps):
        return ""
    relations = [step["relation"] for step in steps]
    return outline([relations[0::2], relations[1::2]] if reference["compared"] else [relations])


def _step_rounds(reference: Reference, dice: Dice | None) -> tuple[tuple[Part, ...], ...]:
    """The steps one by one, or all steps that are ready in parallel."""
    steps: list[Reference] = reference["steps"]
    together = dice is None or dice.chance(0.5)
    done: list[int] = []
    rounds: list[tuple[Part, ...]] = []
    while len(done) < len(steps):
        ready = [
            i for i, step in enumerate(steps) if i not in done and all(earlier in done for earlier in step["after"])
        ]
        ready = ready if together else ready[:1]
        rounds.append(
            tuple(
                Part(
                    goal=steps[i]["goal"],
                    pages=(steps[i]["title"],),
                    answer=steps[i]["answer"],
                    relations=(steps[i]["relation"],) if "relation" in steps[i] else (),
                )
                for i in ready
            )
        )
        done += ready
    return tuple(rounds)


def _page_rounds(task: Task, texts: Mapping[str, str], help_goal: str) -> tuple[tuple[Part, ...], ...]:
    """The pages that the question names, then the other pages."""
    reference = reference_of(task)
    titles: list[str] = reference["supporting"]
    named: list[Part] = []
    others: list[Part] = []
    for title in titles:
        names = [name.partition(" (")[0] for name in titles if name != title]
        answer = key_sentence(texts[title], task.question, reference["answer"], names)
        part = Part(goal=help_goal.format(title, task.question), pages=(title,), answer=answer)
        mentioned = normalise(title.partition(" (")[0]) in normalise(task.question)
        (named if mentioned else others).append(part)
    return tuple(tuple(parts) for parts in (named, others) if parts)


def key_sentence(text: str, question: str, answer: str, names: Sequence[str] = ()) -> str:
    """The most helpful sentence: one with the answer, else with the name of another page, else with words in common."""
    asked = set(normalise(question).split())
    worths = [(normalise(answer), 100), *((normalise(name), 50) for name in names)]

    def worth(sentence: str) -> int:
        words = normalise(sentence)
        known = max(value if f" {name} " in f" {words} " else 0 for name, value in worths)
        return known + len(asked.intersection(words.split()))

    sentences = [sentence for sentence in SENTENCE.split(" ".join(text.split())) if sentence]
    return max(sentences, key=worth, default="Nothing.")[:LONGEST_SENTENCE]
