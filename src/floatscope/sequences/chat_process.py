"""A child process with resource limits that renders chat templates and tests tokenizers over JSON lines.

The process loads neither a model nor torch. Each request may use a few seconds of processor time and a
limited amount of additional memory. The operating system kills the process if it exceeds a limit.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

# Limits of processor time. A real template takes milliseconds, the largest tokenizers half a second.
SECONDS = {"template": 2, "tokenizer": 3}
MEMORY = {"template": 512_000_000, "tokenizer": 1_000_000_000}  # additional bytes
LENGTH = 1_000_000  # characters of a rendered chat beside its messages


def _limit(kind: str, value: int) -> None:
    try:
        import resource
    except ImportError:  # Windows does not have these limits
        return
    number = getattr(resource, kind)
    ceiling = resource.getrlimit(number)[1]
    resource.setrlimit(
        number, (value if ceiling == resource.RLIM_INFINITY else min(value, ceiling), ceiling)
    )


def _used_seconds() -> int:
    times = os.times()
    return int(times.user + times.system)


def _size() -> int:
    """Return the size of this process's address space in bytes, as counted for RLIMIT_AS."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 4_000_000_000


def answer(line: bytes) -> tuple[str | None, str | None]:
    """Return the rendered text (empty for a tokenizer) and an error message; one of them is None."""
    try:
        ((kind, request),) = json.loads(line).items()
        _limit("RLIMIT_CPU", _used_seconds() + 1 + SECONDS[kind])
        _limit("RLIMIT_AS", _size() + MEMORY[kind])
        text = _KINDS[kind](**request)
    except BaseException as error:  # a panic in a Rust library is not an Exception
        message = next(iter(str(error).splitlines()), "")
        return None, f"{type(error).__name__}: {message}"[:300].removesuffix(": ")
    if len(text) > LENGTH + len(line):
        return None, f"{len(text)} characters, expected {LENGTH} at most"
    return text, None


def _render(**request: Any) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    return str(render_jinja_template(**request)[0][0])


def _try_tokenizer(file: str, texts: list[str]) -> str:
    """Encode and decode the texts and every added token with the tokenizer of a file; return ""."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(file)
    tokenizer.no_padding()  # as transformers does before each text
    tokenizer.no_truncation()
    added = tokenizer.get_added_tokens_decoder()
    for text in (*texts, "".join(token.content for token in added.values())[: len(texts[0])]):
        tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False)
    for token in added:
        tokenizer.decode([token], skip_special_tokens=False)
    return ""


_KINDS: dict[str, Callable[..., str]] = {"template": _render, "tokenizer": _try_tokenizer}


def main() -> None:
    _limit("RLIMIT_CPU", 60)
    os.environ["RAYON_NUM_THREADS"] = "1"  # threads use address space, which is limited
    import tokenizers  # imported before the memory limit is computed
    import transformers.utils.chat_template_utils

    assert tokenizers
    assert transformers
    # hide panic messages on stderr: they are returned in the answer
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for line in sys.stdin.buffer:
        sys.stdout.write(json.dumps(answer(line)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
