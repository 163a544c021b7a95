"""The process that applies chat templates for `chat`: JSON lines in, JSON lines out, under limits.

It loads no model and no torch. Each template may take a few seconds of processor time and a little
more memory than the process has at its start; the system ends it beyond that.
"""

import json
import os
import sys
from typing import Any

SECONDS = 2  # of processor time for a template; a real one takes milliseconds
MEMORY = 512_000_000  # bytes more than at the start
LENGTH = 1_000_000  # characters of a rendered chat beside its messages


def _limit(kind: str, value: int) -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return
    number = getattr(resource, kind)
    resource.setrlimit(number, (value, resource.getrlimit(number)[1]))


def _used_seconds() -> int:
    times = os.times()
    return int(times.user + times.system)


def _size() -> int:
    """Of this process's memory, as the system counts it for its limit."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 4_000_000_000


def answer(line: bytes) -> tuple[str | None, str | None]:
    """The rendered text, or what is wrong."""
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        request: dict[str, Any] = json.loads(line)
        text = render_jinja_template(**request)[0][0]
    except Exception as error:
        said = next(iter(str(error).splitlines()), "")
        return None, f"{type(error).__name__}: {said}"[:300].removesuffix(": ")
    if len(text) > LENGTH + len(line):
        return None, f"{len(text)} characters, expected {LENGTH} at most"
    return text, None


def main() -> None:
    _limit("RLIMIT_CPU", 60)
    import transformers.utils.chat_template_utils  # before the limit on memory is taken

    assert transformers
    _limit("RLIMIT_AS", _size() + MEMORY)
    for line in sys.stdin.buffer:
        _limit("RLIMIT_CPU", _used_seconds() + 1 + SECONDS)
        sys.stdout.write(json.dumps(answer(line)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
