"""Count and read the token frequencies of a corpus: a .npy file with one share per token.

The name "pair" selects the frequencies of the embedded pair of models. These frequencies are part of the
package and are verified by checksum.
"""

import gzip
import hashlib
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from jaxtyping import Float

from ..errors import UsageError
from ..sequences.decoding import Progress
from ..untrusted import read_bytes

PAIR = Path(__file__).parents[1] / "models" / "embedded" / "frequencies.npy"
DIGEST = "d87233f27b22801be4600df967883560c863e1c3fd16c42534c852b271601de0"  # sha256
_OPEN: dict[str, Callable[..., IO[str]]] = {".gz": gzip.open, ".xz": lzma.open}
_BATCH = 512  # number of texts tokenised together


@lru_cache(maxsize=4)
def read_frequencies(path: str) -> Float[np.ndarray, " v"]:
    """Read a frequencies file; cached, because samplers need it at every step."""
    try:
        if path == "pair":
            return np.asarray(np.load(_of_the_pair(), allow_pickle=False), dtype=np.float64)
        content = io.BytesIO(read_bytes(path))  # at most a few MB, whatever the header declares
        return np.asarray(np.load(content, allow_pickle=False), dtype=np.float64)
    except (OSError, ValueError, TypeError, EOFError, MemoryError) as error:
        raise UsageError(
            f"token frequencies cannot be read from {path} ({error})",
            "Give a .npy file with one share per token.",
        ) from error


def _of_the_pair() -> io.BytesIO:
    content = PAIR.read_bytes()
    if hashlib.sha256(content).hexdigest() != DIGEST:
        raise UsageError(
            f"{PAIR} is damaged",
            "Install floatscope again: pip install --force-reinstall floatscope.",
        )
    return io.BytesIO(content)


def count(
    tokenizer: Any,
    texts: Iterable[str],
    vocab_size: int,
    progress: Progress | None = None,
) -> Float[np.ndarray, " v"]:
    """Return each token's share of a corpus; call `progress` with the numbers of counted texts and tokens."""
    total = np.zeros(vocab_size, dtype=np.int64)
    n_texts = 0
    for batch in _batches(texts):
        for ids in tokenizer(batch, add_special_tokens=False, split_special_tokens=True)[
            "input_ids"
        ]:
            total += np.bincount(ids, minlength=vocab_size)[:vocab_size]
        n_texts += len(batch)
        if progress:
            progress(n_texts, int(total.sum()))
    if not total.any():
        raise UsageError("the corpus contains no tokens", "Give files with text.")
    return np.asarray((total / total.sum()).astype(np.float32), np.float64)


def corpus_texts(paths: Iterable[str | Path]) -> Iterator[str]:
    """Yield texts from plain text (one per paragraph) and JSONL files (field `text`), also .gz or .xz."""
    for path in map(Path, paths):
        kind = path.with_suffix("").suffix if path.suffix in _OPEN else path.suffix
        opener = _OPEN.get(path.suffix, open)
        try:
            with opener(path, "rt", encoding="utf-8") as file:
                yield from _json_lines(path, file) if kind == ".jsonl" else _paragraphs(file)
        except (OSError, EOFError, UnicodeDecodeError, lzma.LZMAError, zlib.error) as error:
            raise UsageError(f"{path} cannot be read ({error})", "Check the file.") from error


def _paragraphs(file: Iterable[str]) -> Iterator[str]:
    lines: list[str] = []
    for line in file:
        lines.append(line)
        if not line.strip():
            yield "".join(lines)
            lines = []
    if lines:
        yield "".join(lines)


def _json_lines(path: Path, file: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(file, 1):
        try:
            text = json.loads(line)["text"] if line.strip() else ""
            str(text).encode("utf-8")  # half a surrogate pair is not valid text
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UsageError(
                f"{path}, line {number}: expected a JSON object with a `text` field",
                "Correct the line.",
            ) from error
        if not isinstance(text, str):
            raise UsageError(
                f"{path}, line {number}: expected text in `text`, got {type(text).__name__}",
                "Correct the line.",
            )
        if text:
            yield text


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for text in texts:
        batch.append(text)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
