"""Apply chat templates in a child process with limits on time and memory.

A template is a program inside a checkpoint. transformers' sandbox protects Python's internals, but it
does not stop endless loops and does not limit memory, and limits on time and memory cannot be enforced on
a part of a process. So a child process (`chat_process`) renders the template with transformers' own
function, and the operating system kills it at its limits. The same child process tests tokenizers for
`tokenizer_bounds`.
"""

import atexit
import json
from typing import Any

from ..children import LineProcess
from ..errors import FloatscopeError, ModelError, foreign

_REMEDY = "Correct the template, or use chat=False: Prompt.plain(text, chat=False)."
_child = LineProcess("floatscope.sequences.chat_process")
atexit.register(_child.stop)


def rendered(
    tokenizer: Any,
    messages: list[dict[str, str]],
    name: str,
    *,
    answer: bool = True,
    **arguments: Any,
) -> str:
    """Return a chat as text, rendered with the tokenizer's chat template.

    Args:
        tokenizer (PreTrainedTokenizer): tokenizer whose chat template is applied.
        messages (list of dict): messages of the chat, each with "role" and "content".
        name (str): name of the model, for errors.
        answer (bool): add the beginning of an assistant's turn (default); if False, continue the last
            message.
        **arguments: variables for the template, such as `enable_thinking`.
    """
    with foreign(ModelError, f"{name}: its chat template cannot be read", _REMEDY):
        request = {
            **tokenizer.special_tokens_map,
            **arguments,
            "chat_template": tokenizer.get_chat_template(),
            "conversations": [messages],
            "add_generation_prompt": answer,
            "continue_final_message": not answer,
        }
    reply = ask({"template": request})
    if reply is None:
        raise ModelError(
            f"{name}: its chat template takes too long or too much memory, and was stopped", _REMEDY
        )
    text, problem = reply
    if problem is not None:
        raise ModelError(f"{name}: its chat template cannot be rendered ({problem})", _REMEDY)
    return str(text)


def ask(request: dict[str, Any]) -> tuple[str | None, str | None] | None:
    """Send a request to the child process and return its answer.

    Args:
        request (dict): one of `{"template": {...}}` and `{"tokenizer": {...}}`.

    Returns:
        A pair (text, problem), in which text or problem is None; or None if the child process was killed at
        its limits.
    """
    try:
        reply = _child.ask(json.dumps(request).encode() + b"\n")
    except OSError as error:
        raise FloatscopeError(
            f"no process can be started to apply a chat template ({error})", _REMEDY
        ) from error
    return tuple(json.loads(reply)) if reply else None
