"""A chat template applied, in a process of its own that is bounded in time and memory.

A template is a program that comes with a checkpoint. transformers' sandbox keeps it away from Python's
insides, but lets it loop for ever or fill the memory, which nothing inside a process can stop. So one
child process renders, with transformers' own function, and the system ends it at its limits. It is
started at the first use, answers a line of JSON with a line of JSON, and ends with this process.
The child's part is `chat_process`. The same child tries tokenizers for `tokenizer_bounds`.
"""

import atexit
import json
import os
import subprocess
import sys
import threading
from typing import Any

from ..children import child_environment
from ..errors import FloatscopeError, ModelError, foreign

_REMEDY = "Correct the template, or use chat=False: Prompt.plain(text, chat=False)."
_child: subprocess.Popen[bytes] | None = None
_owner = 0  # a forked process must not talk to its parent's child
_one_at_a_time = threading.Lock()


def rendered(
    tokenizer: Any,
    messages: list[dict[str, str]],
    name: str,
    *,
    answer: bool = True,
    **arguments: Any,
) -> str:
    """The chat as text. `answer`: an assistant's turn is opened; else the last message goes on.

    `arguments` are variables of the template, such as `enable_thinking`.
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
    """Ask the child: its text and what is wrong; None if it was stopped at its limits."""
    line = json.dumps(request).encode() + b"\n"
    with _one_at_a_time:
        reply = _exchange(line)
    return tuple(json.loads(reply)) if reply else None


def _exchange(line: bytes) -> bytes:
    """One line back, or nothing: then the child has been ended."""
    child = _running()
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(line)
        child.stdin.flush()
        reply = child.stdout.readline()
    except BrokenPipeError:
        reply = b""
    except BaseException:  # Ctrl-C: the answer would be taken for the next one's
        _stop()
        raise
    if not reply.endswith(b"\n"):
        _stop()
        return b""
    return reply


def _running() -> subprocess.Popen[bytes]:
    global _child, _owner
    if _child is None or _owner != os.getpid():
        command = [sys.executable, "-m", "floatscope.sequences.chat_process"]
        try:
            _child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=child_environment(),
                start_new_session=True,  # Ctrl-C is for this process; the child ends with its input
            )
        except OSError as error:
            raise FloatscopeError(
                f"no process can be started to apply a chat template ({error})", _REMEDY
            ) from error
        _owner = os.getpid()
    return _child


def _stop() -> None:
    global _child
    if _child is not None and _owner == os.getpid():
        _child.kill()
        _child.communicate()
    _child = None


atexit.register(_stop)
