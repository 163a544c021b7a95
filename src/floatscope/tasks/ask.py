"""From an example of the synthetic world to a Prompt with named parts.

The text is the world's own layout, the one the embedded pair was trained on. Passages are named as
everywhere in the package: "passage 1" is the one labelled [1].
"""

from ..prompt import Part, Prompt
from .world import Example

_PASSAGE = "passage "


def prompt_of(example: Example) -> Prompt:
    """The example as a prompt; its gold passage is the prompt's `gold`."""
    parts = tuple(Part(_name(name), text) for name, text in example.parts())
    gold = None if example.gold is None else _name(f"{_PASSAGE}{example.gold}")
    return Prompt(parts, gold=gold, chat=False)


def _name(name: str) -> str:
    """The world counts passages from 0, people from 1."""
    if name.startswith(_PASSAGE):
        return f"{_PASSAGE}{int(name.removeprefix(_PASSAGE)) + 1}"
    return name
