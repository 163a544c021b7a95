"""From an example of the synthetic world to a Prompt with named parts.

The text is the world's own layout, the one the embedded pair was trained on. Passages are named as
everywhere in the package: "passage 1" is the one labelled [1].
"""

from ..sequences.prompt import Part, Prompt
from .templates import from_one
from .world import Example


def prompt_of(example: Example) -> Prompt:
    """The example as a prompt; its gold passage is the prompt's `gold`."""
    parts = tuple(Part(from_one(name), text) for name, text in example.parts())
    gold = None if example.gold is None else from_one(f"passage {example.gold}")
    return Prompt(parts, gold=gold, chat=False)
