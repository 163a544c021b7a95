"""The child process that renders chat templates and tries tokenizers: JSON lines in and out, under limits.

It loads no model and no torch. Each request may use a few seconds of processor time and a little more
memory than the process used before; beyond that the operating system ends the process.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

# Of processor time: a real template takes milliseconds, the largest tokenizers half a second.
SECONDS = {"template": 2, "tokenizer": 3}
MEMORY = {"template": 512_000_000, "tokenizer": 1_000_000_000}  # bytes more than before
LENGTH = 1_000_000  # characters of a rendered chat beside its messages


def _limit(kind: str, value: int) -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limits
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
    """Return this process's address space in bytes, as the operating system counts it for its limit."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 4_000_000_000


def answer(line: bytes) -> tuple[str | None, str | None]:
    """Return the rendered text (empty for a tokenizer), or what is wrong."""
    try:
        ((kind, request),) = json.loads(line).items()
        _limit("RLIMIT_CPU", _used_seconds() + 1 + SECONDS[kind])
        _limit("RLIMIT_AS", _size() + MEMORY[kind])
        text = _KINDS[kind](**request)
    except BaseException as error:  # a panic of a Rust library is not an Exception
        message = next(iter(str(error).splitlines()), "")
        return None, f"{type(error).__name__}: {message}"[:300].removesuffix(": ")
    if len(text) > LENGTH + len(line):
        return None, f"{len(text)} characters, expected {LENGTH} at most"
    return text, None


def _render(**request: Any) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    return str(render_jinja_template(**request)[0][0])


def _try_tokenizer(file: str, texts: list[str]) -> str:
    """Encode and decode the texts and every added token."""
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
    os.environ["RAYON_NUM_THREADS"] = "1"  # threads take address space, which is limited
    import tokenizers  # before the limit on memory is taken
    import transformers.utils.chat_template_utils

    assert tokenizers
    assert transformers
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a panic writes to it, and is told as an answer
    for line in sys.stdin.buffer:
        sys.stdout.write(json.dumps(answer(line)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
