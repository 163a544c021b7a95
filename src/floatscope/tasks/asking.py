"""Ask a model every question of a task under one condition, and score the answers.

All questions are asked with the same template, number of masks and decoding budget, so that the answers can
be compared. `Answers` computes means and differences of the scores.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..decode import AnySampler, Autoregressive, Decoding, choose_sampler, decode
from ..decode.state import prepared
from ..errors import UsageError
from ..interventions import Intervention
from ..models import Model, attention_hook
from ..sequences.decoding import Progress
from ..sequences.prompt import Encoded
from .conditions import Condition
from .cut import was_cut
from .fitting import fitting
from .invalid_record import InvalidRecord
from .keeping import AnswerStore, asked_of
from .long_scores import distinct, grounded, rouge_l
from .pool import Pool
from .record import Asks, Record
from .scores import score
from .templates import PlainTemplate, Template, WorldTemplate


class NothingToAsk(UsageError):
    """Raised if every question was left out, so that no question can be asked."""


@dataclass(frozen=True, eq=False)
class Answered:
    """The scores and the decoding of each question, in order, and the questions that were left out."""

    sampler: AnySampler
    template: Template
    scored: list[dict[str, Any]]
    decodings: list[Decoding]
    left_out: list[InvalidRecord]


def default_template(records: Sequence[Record]) -> Template:
    """Return `WorldTemplate()` if all records are from the synthetic world, else `PlainTemplate()`."""
    of_world = all(record.known is not None for record in records)
    return WorldTemplate() if of_world else PlainTemplate()


@dataclass(frozen=True, eq=False)
class EvaluationSetup:
    """The settings of an evaluation; the fields are the parameters of `evaluate`."""

    model: Model
    sampler: AnySampler | None = None
    condition: Condition | None = None
    template: Template | None = None
    intervention: Intervention | None = None
    pool: Sequence[Record] | Pool | None = None
    batch_size: int = 8
    skip_bad: bool = False
    progress: Progress | None = None
    keep: AnswerStore | None = None


def ask(setup: EvaluationSetup, records: Sequence[Record]) -> Answered:
    """Decode and score an answer to every record.

    A record that cannot be asked raises UsageError. If `setup.skip_bad` is set, such records are left out and
    listed instead.
    """
    model, keep, batch_size = setup.model, setup.keep, setup.batch_size
    _require_records(model, records)
    if batch_size < 1:
        raise UsageError(f"batch_size = {batch_size}", "Use 1 or more.")
    condition = setup.condition or Condition()
    template = setup.template or default_template(records)
    chosen = budget(choose_sampler(model, setup.sampler), condition)
    chosen.check(model)
    questions, left_out = _prompts(setup, records, chosen, condition, template)
    order = sorted(range(len(questions)), key=lambda i: (len(questions[i][1].ids), i))
    decoded: dict[int, Decoding] = {}
    intervention = setup.intervention
    edit = intervention.describe() if intervention else ""
    facts = asked_of(model, chosen, condition.name, edit, batch_size) if keep else {}
    with intervention(model) if intervention else nullcontext():
        for number, start in enumerate(range(0, len(order), batch_size)):
            batch = order[start : start + batch_size]
            with attention_hook.lock_network(model.net):
                prompts = [prepared(model, questions[i][1]) for i in batch]
                decode_batch = partial(decode, model, prompts, chosen)
                answers = (
                    keep.batch(number, facts, prompts, decode_batch) if keep else decode_batch()
                )
            decoded.update(zip(batch, answers, strict=True))
            if setup.progress:
                setup.progress(len(decoded), len(questions))
    decodings = [decoded[i] for i in range(len(questions))]
    scored = [
        {
            "id": record.id,
            "question": record.question,
            "cluster": record.cluster or record.id,
            "answers": list(record.answers),
            "gold": record.gold,
            "prediction": decoding.text,
            **_scores(model, record, decoding),
            "steps": decoding.steps,
            "masks": chosen.length,
            "prompt_tokens": len(prompt.ids),
            "ended": decoding.ended,
            "cut": None
            if record.asks is Asks.CONTINUATION  # a continuation has no natural end
            else was_cut(decoding.answer_ids, model.end_ids),
            "known": record.known,
            **dict(sorted(decoding.info.items())),  # (stored answers come back in this order)
        }
        for (record, prompt), decoding in zip(questions, decodings, strict=True)
    ]
    return Answered(chosen, template, scored, decodings, left_out)


def _require_records(model: object, records: object) -> None:
    """Raise UsageError unless the model is loaded and `records` is a non-empty sequence of records."""
    if isinstance(model, str | Path):
        raise UsageError(
            f"the model is {model!r:.80}", f"Load it first: fs.load({str(model)!r:.80})."
        )
    if isinstance(records, str) or not isinstance(records, Sequence):
        raise UsageError(
            f"the records are {records!r:.80}: expected a list of records",
            "Read them first: fs.tasks.named_records('world:one', 20), or "
            "fs.tasks.read_records('questions.jsonl').records.",
        )
    for record in records:
        if not isinstance(record, Record):
            raise UsageError(
                f"a record is {record!r:.80}: expected an fs.tasks.Record",
                "Write fs.tasks.Record(id='1', question='Who?', answers=('Ada',)), or read a "
                "file: fs.tasks.read_records('questions.jsonl').records.",
            )
    if not records:
        raise UsageError("no records", "Give at least one question.")


def _scores(model: Model, record: Record, decoding: Decoding) -> dict[str, float | None]:
    """Return the scores of an answer by name; None for a score that does not apply to the record.

    A long answer also has scores that describe its text.
    """
    text, asks = decoding.text, record.asks
    right: dict[str, float | None] = {**score(text, record.answers)}
    if asks is Asks.WORDS:
        return right
    right = right | {"exact_match": None} if asks.has_answer else dict.fromkeys(right)
    content = [i for i in decoding.answer_ids if i not in model.special_ids]
    source = " ".join([record.question, *(passage.text for passage in record.passages)])
    text_scores = {
        "rouge_l": None if asks.has_answer else rouge_l(text, record.answers),
        "distinct_4": distinct(text),
        "grounded": grounded(text, source),
        "content_tokens": float(len(content)),
    }
    return right | {k: None if v is None or math.isnan(v) else v for k, v in text_scores.items()}


def budget(sampler: AnySampler, condition: Condition) -> AnySampler:
    """Return the sampler with the condition's extra masks, at the same number of tokens per step.

    An autoregressive sampler is returned unchanged.
    """
    extra = condition.extra_masks
    if not extra or isinstance(sampler, Autoregressive):
        return sampler  # an autoregressive model has no masks to be distracted by
    if sampler.block_length:
        raise UsageError(
            "extra masks do not fit into blocks", "Drop block_length, or use a longer length."
        )
    length = sampler.length + extra
    steps = None if sampler.steps is None else -(-sampler.steps * length // sampler.length)
    return replace(sampler, length=length, steps=steps)


def _prompts(
    setup: EvaluationSetup,
    records: Sequence[Record],
    sampler: AnySampler,
    condition: Condition,
    template: Template,
) -> tuple[list[tuple[Record, Encoded]], list[InvalidRecord]]:
    """Return (record, prompt) for every record that can be asked, and the records that are left out."""
    pool, intervention = setup.pool, setup.intervention
    passage_pool = pool if isinstance(pool, Pool) else Pool(records if pool is None else pool)
    questions, left_out = [], []
    for record in records:
        try:
            question = fitting(
                setup.model,
                record,
                condition=condition,
                template=template,
                pool=passage_pool,
                length=sampler.length,
                added=0 if intervention is None else intervention.adds,
            )
        except UsageError as error:
            if not setup.skip_bad:
                raise
            left_out.append(
                InvalidRecord(record.where or record.id, "", error.problem, error.remedy)
            )
            continue
        questions.append(question)
    if not questions:
        raise NothingToAsk(
            f"none of {len(records)} questions can be asked under {condition.name!r}; "
            f"the first: {left_out[0]}",
            "Choose another condition or other data.",
        )
    return questions, left_out
