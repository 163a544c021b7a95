"""Define conditions, which change the passages, the order and the number of masks of a question.

    Condition(passages=5, gold=0)       # five passages; the first contains the answer
    Condition(closed_book=True)         # no passages
    gold_sweep(20, [0, 9, 19])          # "lost in the middle" (Liu et al. 2307.03172)

A condition is applied to a record and returns a record. Every random choice depends only on the seed, on the
id of the record and on the texts to choose from. The order of the records and of the pool has no effect. The
passages for a larger number of passages include the passages for a smaller number. `question_first` and
`extra_masks` do not change the passages: the template reads `question_first`, and the sampler gets the
`extra_masks`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

from ..errors import UsageError
from .pool import Pool, contradiction, ranked
from .record import Asks, Passage, Record

_AS_IS = "as-is"


@dataclass(frozen=True)
class Condition:
    """The form of every question: its passages, their order, and the number of masks for the answer.

    Args:
        passages (int): Number of passages, 1 or more; None (by default) keeps the record's passages.
            Distractors are taken first from the record, in order, and then from the gold passages of other
            records. No distractor contains a right answer.
        gold (int): Index of the gold passage, from 0. By default the gold passage keeps its index in the
            record or, if `passages` is given, the seed draws the index.
        noise (float): Share of the distractors, 0 to 1, that are replaced by noise: passages of other records
            that contain no content word of the question. None (by default) replaces no distractors.
        conflicts (int): Number of copies of the gold passage that state another record's answer; 0 by
            default. The number `passages` includes these copies; if `passages` is None, the copies are added
            to the record's passages.
        question_first (bool): Put the question before the passages; False by default.
        extra_masks (int): Masks in addition to the sampler's `length`; 0 by default.
        closed_book (bool): Ask without passages; False by default.
        seed (int): Seed of all choices; 0 by default.
    """

    passages: int | None = None
    gold: int | None = None
    noise: float | None = None
    conflicts: int = 0
    question_first: bool = False
    extra_masks: int = 0
    closed_book: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.passages is not None and self.passages < 1:
            raise UsageError(f"passages = {self.passages}", "Give 1 or more, or closed_book=True.")
        if self.noise is not None and not 0 <= self.noise <= 1:
            raise UsageError(f"noise = {self.noise}", "It is a share: give 0 to 1.")
        for name in ("gold", "conflicts", "extra_masks"):
            if (getattr(self, name) or 0) < 0:
                raise UsageError(f"{name} = {getattr(self, name)}", "Give 0 or more.")
        if self.gold is not None and self.passages is not None and self.gold >= self.passages:
            raise UsageError(
                f"gold = {self.gold}, but there are {self.passages} passages",
                "gold counts passages from 0.",
            )
        if self.passages is not None and self.conflicts >= self.passages:
            raise UsageError(
                f"conflicts = {self.conflicts} leave no place for the gold passage among "
                f"{self.passages}",
                f"Give passages={self.conflicts + 1} or more.",
            )
        about = [n for n in ("passages", "gold", "noise") if getattr(self, n) is not None]
        about += [n for n in ("conflicts", "question_first") if getattr(self, n)]
        if self.closed_book and about:
            raise UsageError(f"closed_book and {about[0]} cannot be combined", "Drop one of them.")

    @property
    def name(self) -> str:
        """The condition as text for `parse`, such as "passages=5,gold=0"; "as-is" if it changes nothing."""
        words = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                word = field.name.replace("_", "-")
                words.append(word if value is True else f"{word}={value}")
        return ",".join(words) or _AS_IS

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Parse a condition from text; the inverse of `name`.

        Args:
            text (str): Comma-separated settings, such as "passages=5,gold=0" or "closed-book"; "as-is" for no
                change.
        """
        flags = {f.name: f.type is bool for f in fields(cls)}  # the others are numbers
        names = ", ".join(n.replace("_", "-") + ("" if flags[n] else "=…") for n in flags)
        settings: dict[str, bool | int | float] = {}
        for word in [] if text.strip() == _AS_IS else text.split(","):
            key, _, value = (s.strip() for s in word.partition("="))
            key = key.replace("-", "_")
            try:
                if flags[key] != (not value):
                    raise ValueError
                number = float if key == "noise" else int
                settings[key] = True if flags[key] else number(value)
            except (KeyError, ValueError):
                raise UsageError(
                    f"unknown setting {word.strip()!r} in the condition {text!r}",
                    f"Write {_AS_IS}, or some of {names}, with commas between.",
                ) from None
        return cls(**settings)  # type: ignore[arg-type]  # each key got its own type above

    def apply(self, record: Record, pool: Sequence[Record] | Pool = ()) -> Record:
        """Apply the condition to a record.

        Args:
            record (Record): The record.
            pool (sequence of Record or Pool): Records from which other passages and answers are drawn. For
                many records, create the pool once: `Pool(records)`.

        Returns:
            The record with the passages that the condition describes.

        Raises:
            UsageError: If the record cannot be asked under the condition, or if the pool has too few
                passages.
        """
        self.require(record)
        if self.closed_book:
            return record.closed_book()
        if self.passages is self.gold is self.noise is None and not self.conflicts:
            return record
        passage_pool = pool if isinstance(pool, Pool) else Pool(pool)
        if record.gold is None:
            return record.with_passages(self._as_retrieved(record, passage_pool))
        gold = record.passages[record.gold]
        needed = {
            i: p for i, p in enumerate(record.passages) if p.is_required and i != record.gold
        }  # the other hop, or a second gold passage
        passages = self._distractors(record, passage_pool, 1 + len(needed))
        passages = self._noisy(record, passages, passage_pool)
        if self.passages is None:
            for i, passage in needed.items():  # ascending, so that each returns to its old place
                passages.insert(i - (i > record.gold), passage)
        else:
            passages = self._spread(record, passages, tuple(needed.values()), "needed")
        conflicts = contradiction(record, gold, self.conflicts, passage_pool, self.seed)
        passages = self._spread(record, passages, conflicts, "conflicts")
        passages.insert(self._place(record, record.gold, len(passages)), gold)
        return record.with_passages(passages)

    def require(self, record: Record) -> None:
        """Raise an error if the condition cannot apply to a record.

        Args:
            record (Record): The record. An error is raised for a record without the passages that the
                condition needs, and for a summary or continuation to which the condition does not apply.
        """
        if record.asks is Asks.CONTINUATION:
            if self != Condition(extra_masks=self.extra_masks, seed=self.seed):
                raise UsageError(
                    f"record {record.label} is a text to continue: {self.name!r} does not apply to it",
                    f"Use {_AS_IS}.",
                )
        elif record.asks is Asks.SUMMARY and self.closed_book:
            raise UsageError(
                f"record {record.label} asks for a summary of its passage, which closed-book leaves out",
                f"Use {_AS_IS}, or passages=….",
            )
        elif not record.passages and not self.closed_book:
            raise UsageError(
                f"record {record.label} has no passages, and {self.name!r} needs some",
                "Use closed_book=True for it, or add passages.",
            )

    def _as_retrieved(self, record: Record, pool: Pool) -> list[Passage]:
        """Return passages for a record without gold passage: first its own passages, then distractors."""
        settings = {"gold": self.gold is not None, "noise": self.noise, "conflicts": self.conflicts}
        for field in (name for name, value in settings.items() if value):
            raise UsageError(
                f"record {record.label} marks no passage as gold, and {field} needs one",
                "Mark it (isgold, or gold: index), or leave that option out.",
            )
        passages, count = list(record.passages), self.passages or len(record.passages)
        return passages[:count] + pool.distractors(record, count - len(passages), self.seed)

    def _distractors(self, record: Record, pool: Pool, required: int) -> list[Passage]:
        passages = [p for p in record.passages if not p.is_required]
        if self.passages is None:
            return passages
        count = self.passages - required - self.conflicts
        if count < 0:
            raise UsageError(
                f"record {record.label}: {required} passages are needed to answer and {self.conflicts} "
                f"are conflicts, more than passages={self.passages}",
                f"Give passages={required + self.conflicts} or more.",
            )
        passages = [p for p in passages if pool.may_distract(p, record)][:count]
        return passages + pool.distractors(record, count - len(passages), self.seed, passages)

    def _noisy(self, record: Record, passages: list[Passage], pool: Pool) -> list[Passage]:
        count = round((self.noise or 0) * len(passages))
        if not count:
            return passages
        noise = pool.irrelevant(record, count, self.seed, passages)
        places = ranked(range(len(passages)), str, f"noise {self.seed} {record.id}")[:count]
        replaced = dict(zip(places, noise, strict=True))
        return [replaced.get(i, passage) for i, passage in enumerate(passages)]

    def _spread(
        self, record: Record, passages: list[Passage], extra: Sequence[Passage], why: str
    ) -> list[Passage]:
        """Return `passages` with the extra passages inserted, at places drawn by the seed."""
        out = list(passages)
        for number, passage in enumerate(extra):
            out.insert(_draw(f"{why} {number} {self.seed} {record.id}", len(out) + 1), passage)
        return out

    def _place(self, record: Record, original_place: int, count: int) -> int:
        if self.gold is not None:
            if self.gold > count:
                raise UsageError(
                    f"record {record.label}: gold = {self.gold}, but there are {count + 1} passages",
                    "gold counts passages from 0; set passages=n for more of them.",
                )
            return self.gold
        if self.passages is None:
            return min(original_place, count)
        return _draw(f"gold {self.seed} {record.id}", count + 1)


def gold_sweep(n_passages: int, positions: Iterable[int], *, seed: int = 0) -> list[Condition]:
    """Return one condition per position of the gold passage; all other settings are equal.

    Args:
        n_passages (int): Number of passages.
        positions (iterable of int): Indices of the gold passage, from 0.
        seed (int): Seed of all choices; 0 by default.
    """
    return [Condition(passages=n_passages, gold=place, seed=seed) for place in positions]


def passage_counts(
    counts: Iterable[int], *, gold: int | None = None, seed: int = 0
) -> list[Condition]:
    """Return one condition per number of passages; all other settings are equal.

    Args:
        counts (iterable of int): Numbers of passages; 0 asks without passages (closed book).
        gold (int): Index of the gold passage, from 0; by default the seed draws the index.
        seed (int): Seed of all choices; 0 by default.
    """
    return [
        Condition(passages=n, gold=gold, seed=seed) if n else Condition(closed_book=True, seed=seed)
        for n in counts
    ]


def noise_sweep(
    n_passages: int, shares: Iterable[float], *, gold: int | None = None, seed: int = 0
) -> list[Condition]:
    """Return one condition per share of noise among the distractors; all other settings are equal.

    Args:
        n_passages (int): Number of passages.
        shares (iterable of float): Shares of the distractors that are noise, 0 to 1.
        gold (int): Index of the gold passage, from 0; by default the seed draws the index.
        seed (int): Seed of all choices; 0 by default.
    """
    return [Condition(passages=n_passages, gold=gold, noise=s, seed=seed) for s in shares]


def _draw(key: str, n: int) -> int:
    """Return a whole number from 0 to n − 1 that a hash of the key determines."""
    return ranked(range(n), str, key)[0]


def condition_of(text: str, seed: int) -> Condition:
    """Parse a condition, and set its seed to `seed` unless the text contains a seed."""
    condition = Condition.parse(text)
    return condition if "seed=" in text else replace(condition, seed=seed)
