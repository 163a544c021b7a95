"""Turn records into prompts that fit a model's context; an error names a record that does not fit.

The functions need no weights, so that a prompt that is too long can be found before the weights are read. The
command line checks only the longest records before it loads a model; `asking` checks all records before it
decodes answers.
"""

from collections.abc import Sequence

from ..decode.state import check_fits
from ..sequences.prompt import Encoded, encode
from ..sequences.vocabulary import ModelFacts
from .conditions import Condition
from .pool import Pool
from .record import Record
from .templates import Template

TRIED = 16  # records, by their number of characters
REMEDY = (
    "Use fewer passages (passages=N in the condition), a smaller length, or leave such records out "
    "with skip_bad (--skip-bad)."
)


def fitting(
    model: ModelFacts,
    record: Record,
    *,
    condition: Condition,
    template: Template,
    pool: Pool,
    length: int,
    added: int = 0,
) -> tuple[Record, Encoded]:
    """Apply the condition to the record, and return the changed record with its prompt.

    Raise UsageError if the prompt, `length` tokens of answer and `added` tokens do not fit into the model's
    context.
    """
    changed = condition.apply(record, pool)
    prompt = encode(model, template.prompt(changed, condition))
    check_fits(
        *(model, len(prompt.ids), length),
        where=f"record {record.label}: ",
        remedy=REMEDY,
        added=added,
    )
    return changed, prompt


def longest(records: Sequence[Record]) -> list[Record]:
    """Return the `TRIED` records with the most characters, in their original order."""
    size = [len(r.question) + sum(len(p.text) + len(p.title) for p in r.passages) for r in records]
    chosen = sorted(range(len(records)), key=lambda i: (-size[i], i))[:TRIED]
    return [records[i] for i in sorted(chosen)]
