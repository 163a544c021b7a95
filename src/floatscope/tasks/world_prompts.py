"""Turn an example of the synthetic world into a prompt with named parts.

The text has the layout on which the embedded pair was trained (`world.layout`). Passages are named as in the
rest of the package: "passage 1" is the passage with the label [1].
"""

from ..sequences.prompt import Part, Prompt
from .templates import from_one
from .world import Example


def prompt_of(example: Example) -> Prompt:
    """Turn an example into a prompt; the prompt's field `gold` names the gold passage of the example.

    Args:
        example (Example): An example of the synthetic world.
    """
    parts = tuple(Part(from_one(name), text) for name, text in example.parts())
    gold = None if example.gold is None else from_one(f"passage {example.gold}")
    return Prompt(parts, gold=gold, chat=False)
