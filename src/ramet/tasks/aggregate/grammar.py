"""Requests on eight topics, recognisable only by their words: a topic is a set of frames for two of its words.

Every sentence belongs to training or to evaluation, never both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from ramet.tasks.dice import Dice, in_eval

Grammar = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
GRAMMAR: Mapping[str, Grammar] = {
    "banking": (
        (
            "what is the {b} on my {a}",
            "there is a mistake in the {b} of my {a}",
            "send me the {b} for the {a} by post",
            "who do I call about the {b} of a {a}",
            "please change the {b} of my {a}",
            "explain how the {b} of a {a} is worked out",
        ),
        ("savings account", "credit card", "mortgage", "student loan", "joint account", "debit card", "overdraft"),
        ("interest rate", "monthly fee", "last statement", "spending limit", "standing order", "balance", "PIN code"),
    ),
    "cooking": (
        (
            "how much {b} goes into {a}",
            "my {a} turned out bland, should I add {b}",
            "can I make {a} without {b}",
            "which pan do I need for {a} with {b}",
            "how long does {a} simmer after I stir in {b}",
            "write down a recipe for {a} that uses {b}",
        ),
        ("lentil soup", "pancake batter", "mushroom risotto", "apple pie", "garlic bread", "fried rice", "goulash"),
        ("salt", "butter", "thyme", "cream", "paprika", "flour", "lemon juice"),
    ),
    "gardening": (
        (
            "should I use {b} on {a} this spring",
            "slugs keep eating {a} in spite of {b}",
            "when do I plant {a} if I have {b}",
            "do {a} grow better with {b}",
            "dig a bed for {a} and get {b} ready",
            "the leaves of {a} went yellow, would {b} do any good",
        ),
        ("the tulips", "my seedlings", "the rose bushes", "the hedges", "my dahlias", "the fruit trees", "the ferns"),
        ("compost", "mulch", "pruning shears", "a watering can", "a trellis", "bone meal", "a cold frame"),
    ),
    "health": (
        (
            "does a {a} call for {b}",
            "my doctor suggested {b} for the {a}",
            "how soon will {b} help against a {a}",
            "I have had a {a} for two weeks, do I need {b}",
            "what are the risks of {b} with a {a}",
            "remind me about {b} for my {a}",
        ),
        ("sore throat", "migraine", "stiff back", "fever", "skin rash", "sprained ankle", "cough"),
        ("ibuprofen", "an x-ray", "a prescription", "a blood test", "bed rest", "an ice pack", "antibiotics"),
    ),
    "music": (
        (
            "play a {b} with {a}",
            "find sheet music of a {b} for {a}",
            "which {b} should a beginner learn on the {a}",
            "record my {a} playing a {b}",
            "the {a} is out of tune in this {b}",
            "add a {b} with {a} to my playlist",
        ),
        ("piano", "cello", "guitar", "drums", "saxophone", "violin", "trumpet"),
        ("jazz standard", "lullaby", "folk song", "concerto", "ballad", "waltz", "blues riff"),
    ),
    "pets": (
        (
            "my {a} is afraid of the {b}",
            "how often does a {a} need a {b}",
            "which {b} is right for an old {a}",
            "can a {a} get used to a {b}",
            "teach my {a} to put up with the {b}",
            "the {a} has ruined its {b} again",
        ),
        ("puppy", "kitten", "hamster", "parrot", "rabbit", "guinea pig", "terrier"),
        ("leash", "chew toy", "food bowl", "litter box", "new cage", "flea collar", "grooming brush"),
    ),
    "travel": (
        (
            "book a {b} for my trip to {a}",
            "do I need a visa and a {b} to visit {a}",
            "what does a {b} in {a} cost in July",
            "cancel the {b} I reserved in {a}",
            "is a {b} the best way to see {a}",
            "how early must I be in {a} for my {b}",
        ),
        ("Lisbon", "Nairobi", "Kyoto", "Oslo", "Lima", "Prague", "Hanoi"),
        ("direct flight", "night train", "hostel bed", "rental car", "ferry ticket", "guided tour", "airport shuttle"),
    ),
    "weather": (
        (
            "will there be {b} {a}",
            "how likely is {b} {a}",
            "warn me if the forecast shows {b} {a}",
            "is the {b} supposed to clear up {a}",
            "what wind comes with the {b} {a}",
            "how many degrees do we get {a} after the {b}",
        ),
        ("tonight", "tomorrow morning", "on Saturday", "next week", "by noon", "this evening", "on Monday"),
        ("thunder", "heavy snow", "drizzle", "fog", "hail", "frost", "sleet"),
    ),
}


@lru_cache(maxsize=64)
def sentences(topic: str, *, held_out: bool) -> tuple[str, ...]:
    """Every sentence of a topic that is held out for evaluation (one in five), or every other one."""
    frames, ones, others = GRAMMAR[topic]
    made = [frame.format(a=a, b=b) for frame in frames for a in ones for b in others]
    return tuple(sentence for sentence in made if in_eval(sentence, one_in=5) == held_out)


def draw_lines(
    dice: Dice, number: int, topics: Sequence[str], users: int, *, held_out: bool
) -> tuple[list[str], list[int]]:
    """Requests of random dates and users, and the topic index of each. Some topics and users are more frequent."""
    ids = [str(dice.between(10_000, 99_999)) for _ in range(users)]
    topic_weights, user_weights = ([float(dice.between(1, 6)) for _ in names] for names in (topics, ids))
    lines: list[str] = []
    labels: list[int] = []
    for _ in range(number):
        label = dice.weighted(range(len(topics)), topic_weights)
        date = f"2024-{dice.between(1, 12):02}-{dice.between(1, 28):02}"
        sentence = dice.pick(sentences(topics[label], held_out=held_out))
        lines.append(f"Date: {date} || User: {dice.weighted(ids, user_weights)} || Instance: {sentence}")
        labels.append(label)
    return lines, labels
