"""Define a console that prints control characters as escapes instead of sending them to the terminal.

Names, paths and texts come from files that others wrote. A control character in such a text could clear the
screen, overwrite a printed line, or reverse the direction of text.
"""

import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

# Control characters except tab and line feed, marks of direction and width, halves of surrogate pairs, tags.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


def spelled(text: str) -> str:
    r"""Replace control characters and invisible marks by their escapes: \x1b, \u202e."""
    return _UNSEEN.sub(lambda c: c[0].encode("unicode_escape").decode("ascii"), text)


class SafeConsole(Console):
    """A Rich console in which text cannot control the terminal and `:bomb:` does not become an emoji."""

    def __init__(self, **options: Any) -> None:
        super().__init__(emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(spelled(text), **options)  # before widths are measured

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):  # text that was passed as a Text
            yield segment if segment.control else segment._replace(text=spelled(segment.text))
