"""Words of the synthetic world: invented names, and closed lists of ordinary values.

Names are built from syllables, so that a name has several tokens and cannot be known from natural text. Every
invented word belongs to one of two splits, decided by a checksum of its spelling: `train` words may occur in
training text, and `held` words never occur in training text. Both the first name and the surname of an unseen
person are held words. The lists of words are not drawn at random: they are the same on every machine.
"""

from __future__ import annotations

import random
import zlib
from functools import cache
from typing import Literal

Split = Literal["train", "held"]
HELD_ONE_IN = 6  # one invented word in six is kept out of all training text

ONSETS = "b br c ch d dr f g gr h j k kl l m n p pr qu r s st t th tr v w y z".split()
VOWELS = "a e i o u ae ei ia o a e i".split()
CODAS = "l n r s m nd rk ll st x th v d g ck rn lt".split()
SURNAME_ENDS = "ford well mar dale ick sen by ov ane ulf ett ard ish low ness ork".split()
PLACE_ENDS = "ton ham wick mouth stead borg vale mere holm ka ia os und ness port".split()
FIRST_ENDS = "a an el in is o us ette ra ia on ith".split()
PLACE_WORDS = ("Port", "Lower", "Upper", "Saint", "New", "Old")
FIRM_WORDS = ("Mills", "Press", "Foundry", "Shipping", "Bank", "Gardens", "Works", "Theatre")
THING_WORDS = ("lantern", "clock", "bell", "globe", "harp", "mirror", "statue", "compass")

POOL_SIZES = {
    "first": 1500,
    "surname": 4000,
    "place": 3000,
    "firm": 1500,
    "thing": 1500,
    "river": 1500,
}

PROFESSIONS = (
    *"baker carpenter glazier potter tailor weaver sailor surgeon librarian lawyer pilot painter "
    "sculptor teacher chemist printer plumber gardener fisherman barber butcher dentist judge "
    "musician nurse poet shepherd soldier translator cook farmer miner".split(),
    "clock maker",
    "bridge builder",
    "map maker",
    "ship builder",
    "stone cutter",
    "rope maker",
    "book binder",
    "horse trainer",
    "lighthouse keeper",
    "tax collector",
    "boat painter",
    "glass blower",
)
COLOURS = (
    *"red blue green yellow purple white black brown grey pink silver crimson scarlet violet "
    "turquoise gold".split(),
    "dark red",
    "pale blue",
    "dark green",
    "pale yellow",
    "pale grey",
    "bright pink",
)
ANIMALS = tuple("parrot dog cat goat horse rabbit turtle pigeon fox lizard mouse pony".split())
INSTRUMENTS = (
    *"cello flute piano violin trumpet guitar harp drum banjo lute bassoon clarinet trombone tuba "
    "fiddle mandolin".split(),
    "tin whistle",
    "French horn",
    "double bass",
    "church bells",
    "pan pipes",
    "pipe organ",
)
GOODS = (
    *"cheese pottery wool honey paper silk candles barrels knives carpets tobacco mustard "
    "marble coal copper lace".split(),
    "smoked fish",
    "glass beads",
    "leather boots",
    "silver spoons",
    "cider vinegar",
    "church organs",
    "wooden toys",
    "dried plums",
)
MATERIALS = tuple("bronze silver ivory marble oak brass copper iron glass jade pewter clay".split())

# Spellings that also occur in natural training text: they never name an unseen person.
ORDINARY = frozenset("Taman Texel Lisette Gavia Nansen Larsen Divin Wazir".split())


def split_of(word: str) -> Split:
    """Return the split of an invented word ("train" or "held"), which its spelling determines."""
    return "held" if zlib.crc32(word.encode()) % HELD_ONE_IN == 0 else "train"


def _spell(kind: str, rng: random.Random) -> str:
    syllables = 1 + (kind in ("firm", "thing", "river") or rng.random() < 0.08)
    stem = "".join(rng.choice(ONSETS) + rng.choice(VOWELS) for _ in range(syllables))
    stem += rng.choice(CODAS)
    if kind == "first":
        stem += rng.choice(FIRST_ENDS)
    elif kind == "surname":
        stem += rng.choice(SURNAME_ENDS)
    elif kind == "place":
        stem += rng.choice(PLACE_ENDS)
    elif kind == "river":
        stem += rng.choice(VOWELS[:5])
    return stem.capitalize()


@cache
def pool(kind: str, split: Split) -> tuple[str, ...]:
    """Return all words of one kind and split, in a fixed order. No word is in the pools of two kinds."""
    return _pools()[kind, split]


@cache
def _pools() -> dict[tuple[str, Split], tuple[str, ...]]:
    rng = random.Random("floatscope world names")
    used: set[str] = set()
    out: dict[tuple[str, Split], tuple[str, ...]] = {}
    for kind, size in POOL_SIZES.items():
        words: list[str] = []
        while len(words) < size:
            word = _spell(kind, rng)
            if word not in used:
                used.add(word)
                words.append(word)
        for split in ("train", "held"):
            out[kind, split] = tuple(w for w in words if split_of(w) == split and w not in ORDINARY)
    return out
