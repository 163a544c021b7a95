"""The text layout of a question prompt, as named parts.

Training, evaluation and the rest of the package build prompts from `prompt_parts`. Every part is tokenised
separately and the tokens are joined, so that part boundaries are token boundaries. Passage, question and
answer parts begin with a space (`LEAD`), so that a name has the same tokens at the start of a passage as
inside a sentence. The line breaks belong to the template parts.

    <bos>Passages:⏎[1] text⏎[2] text⏎Question: text⏎Answer: answer<eos><eos>…

A closed-book prompt contains the same question block, without passages:

    <bos>Question: text⏎Answer: answer<eos><eos>…

The tokenising code adds `<bos>`, which is always at position 0, and the answer slot. A causal model writes
the answer and <eos>. A diffusion model is given masks, and fills the positions after the answer with <eos>.
This module imports no tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence

LEAD = " "
INSTRUCTION = "Passages:\n"
LABEL = "[{i}]"  # counted from 1
BREAK = "\n"
QUESTION = "Question:"
ANSWER = "\nAnswer:"

Parts = list[tuple[str, str]]  # (name, text); names: template, passage i (from 0), question


def prompt_parts(question: str, passages: Sequence[str] = ()) -> Parts:
    """Return the parts of a prompt up to the answer slot; without passages, the prompt is closed-book.

    A character at offset k of passage i is at offset k + len(LEAD) in the part named "passage i".
    """
    return passage_parts(passages) + question_parts(question)


def passage_parts(passages: Sequence[str]) -> Parts:
    if not passages:
        return []
    parts: Parts = [("instruction", INSTRUCTION)]
    for i, text in enumerate(passages):
        parts.append(("template", LABEL.format(i=i + 1)))
        parts.append((f"passage {i}", LEAD + text))
        parts.append(("template", BREAK))
    return parts


def question_parts(question: str) -> Parts:
    return [("template", QUESTION), ("question", LEAD + question), ("template", ANSWER)]


def answer_part(answer: str) -> str:
    """Return the text of the answer slot, before <eos>."""
    return LEAD + answer
