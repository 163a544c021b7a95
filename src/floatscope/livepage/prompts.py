"""Convert a prompt message of the page to a Prompt, or to Python code that creates the Prompt.

This module needs neither a model nor torch. The embedded pair was trained on one layout of questions
(`tasks.world.layout`), and prompts for the pair have this layout. Prompts for any other model have the layout
of `Prompt.rag`.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from ..errors import UsageError
from ..models.pair import PAIR
from ..models.spec import ModelSpec
from ..sequences.prompt import Part, Prompt
from ..tasks.templates import from_one
from ..tasks.world import LEVELS, World
from ..tasks.world.layout import prompt_parts

# Without blocks and temperature, long texts of a small diffusion model repeat themselves.
CONTINUATION = {"length": 64, "steps": 64, "block_length": 8, "temperature": 0.7}
AUTO, PLAIN, WORLD = "auto", "plain", "world"


def layout_of(spec: str) -> str:
    """Return the layout of questions for a model's spec: "world" for the embedded pair, else "plain"."""
    return WORLD if ModelSpec.from_value(spec).where in PAIR else PLAIN


def settled(prompt: Mapping[str, Any], layout: str) -> dict[str, Any]:
    """Return the prompt message with "auto" replaced by a layout; plain text loses the field `layout`.

    `layout` is the layout of questions of the model. In a prompt with an instruction or a chat form, "auto"
    always becomes "plain".
    """
    if prompt.get("text") is not None:
        return {key: value for key, value in prompt.items() if key != "layout"}
    chosen = prompt.get("layout", AUTO)
    if chosen == AUTO:
        allows_own_layout = not (prompt.get("instruction") or prompt.get("chat"))
        chosen = WORLD if layout == WORLD and allows_own_layout else PLAIN
    return {**prompt, "layout": chosen}


def prompt_of(message: Mapping[str, Any]) -> Prompt:
    """Convert a prompt message that `settled` returned to a Prompt."""
    chat = message.get("chat")
    if message.get("text") is not None:
        return Prompt.plain(message["text"], chat=chat)
    question, passages, gold = message["question"], message.get("passages", []), message.get("gold")
    if message.get("layout") != WORLD:
        instruction = (
            {} if message.get("instruction") is None else {"instruction": message["instruction"]}
        )
        return Prompt.rag(question, passages, gold=gold, chat=chat, **instruction)
    if not question.strip():
        raise UsageError("the question is empty", "Give one.")
    if gold is not None and gold >= len(passages):
        raise UsageError(
            f"gold = {gold}, but there are {len(passages)} passages", "gold counts passages from 0."
        )
    parts = tuple(Part(from_one(name), text) for name, text in prompt_parts(question, passages))
    return Prompt(parts, None if gold is None else f"passage {gold + 1}", False)


def code_of(message: Mapping[str, Any]) -> str:
    """Return Python code that creates the prompt, after `import floatscope as fs`."""
    chat = message.get("chat")
    last = "" if chat is None else f", chat={chat}"
    if message.get("text") is not None:
        return f"prompt = fs.Prompt.plain({message['text']!r}{last})"
    if message.get("layout") == WORLD:
        prompt = prompt_of(message)
        parts = "\n".join(f"        fs.Part({p.name!r}, {p.text!r})," for p in prompt.parts)
        return f"prompt = fs.Prompt(\n    (\n{parts}\n    ),\n    gold={prompt.gold!r},\n    chat=False,\n)"
    passages = "".join(f"\n        {text!r}," for text in message.get("passages", []))
    lines = [f"    {message['question']!r},", f"    [{passages}\n    ]," if passages else "    [],"]
    for name in ("gold", "instruction", "chat"):
        if message.get(name) is not None:
            lines.append(f"    {name}={message[name]!r},")
    return "prompt = fs.Prompt.rag(\n" + "\n".join(lines) + "\n)"


@cache
def examples() -> list[dict[str, Any]]:
    """Return example prompts: questions of the synthetic world, and a text to continue."""
    shown = []
    for level, title in (("nine", "nine passages"), ("three", "three passages")):
        (example,) = World().examples(LEVELS[level], 1, seed=3)
        passages = [passage.text for passage in example.passages]
        prompt = {"question": example.question, "passages": passages, "gold": example.gold}
        shown.append({"title": f"A question with {title}", "prompt": prompt})
    text = "The old lighthouse keeper climbed the stairs every evening to"
    prompt = {"text": text, "chat": False}  # it goes on where the text ends
    return [*shown, {"title": "A text to continue", "prompt": prompt, "settings": CONTINUATION}]
