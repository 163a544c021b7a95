"""Read tokenizers from vocabulary files of checkpoints without a tokenizer.json: vocab.txt, spiece.model.

BERT and DistilBERT publish a WordPiece vocabulary, one token per line; ALBERT publishes a SentencePiece
unigram model. The tokenizers are classes of transformers. transformers reads SentencePiece files with the
package sentencepiece; this module reads the necessary fields without that package.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import transformers

from ..errors import ModelError

_WORDS, _PIECES = "vocab.txt", "spiece.model"
# Files with further settings; the last file with a setting takes precedence.
SETTINGS = ("special_tokens_map.json", "tokenizer_config.json", "added_tokens.json")
# bytes; 760 thousand in ALBERT's file, 5 million in a vocabulary of 250 thousand pieces
_LIMIT = 20_000_000
_COPY = "Copy it again, or pass tokenizer=... to load."
_CAPITAL = re.compile("[A-Z]")
_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_TAKEN = {
    "BertTokenizer": ("do_lower_case", "tokenize_chinese_chars", "strip_accents"),
    "AlbertTokenizer": ("do_lower_case", "keep_accents"),
}


def vocabulary_of(path: Path) -> Path | None:
    """Return the path of a checkpoint's vocab.txt or spiece.model; None if there is neither."""
    return next((path / name for name in (_WORDS, _PIECES) if (path / name).exists()), None)


def read_tokenizer(file: Path, kind: str, settings: Mapping[str, dict[str, Any]]) -> Any:
    """Build a tokenizer of transformers' class `kind`; `settings` has the objects of SETTINGS, by file."""
    if file.stat().st_size > _LIMIT:
        raise ModelError(f"{file} is larger than any {file.name}", _COPY)
    config = settings[SETTINGS[0]] | settings[SETTINGS[1]]
    options = {name: config[name] for name in _TAKEN.get(kind, ()) if name in config}
    options |= {
        f"{name}_token": config[f"{name}_token"] for name in _TOKENS if f"{name}_token" in config
    }
    options = {k: v.get("content") if isinstance(v, dict) else v for k, v in options.items()}
    if kind == "BertTokenizer" and file.name == _WORDS:
        lines = file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        vocab = {token: number for number, token in enumerate(lines)}
        if "do_lower_case" not in config:  # a vocabulary with capital letters is case-sensitive
            options["do_lower_case"] = not any(_CAPITAL.search(t) for t in vocab if t[:1] != "[")
        tokenizer, tokens = transformers.BertTokenizer(vocab=vocab, **options), dict(vocab)
    elif kind == "AlbertTokenizer" and file.name == _PIECES:
        tokenizer, tokens = _albert(file, options)
    else:
        raise ModelError(
            f"{file} cannot be read by a {kind}",
            "Save the tokenizer as tokenizer.json, or pass tokenizer=... to load.",
        )
    added = {str(t): i for t, i in settings[SETTINGS[2]].items()}
    listed = config.get("added_tokens_decoder") or {}
    added |= {token_info["content"]: int(number) for number, token_info in listed.items()}
    for token, number in sorted(added.items(), key=lambda item: item[1]):
        tokens.setdefault(token, number)
        tokenizer.add_tokens([token])
    number_of = tokenizer.backend_tokenizer.token_to_id
    named = (*tokenizer.all_special_tokens, *added)
    wrong = [token for token in named if number_of(token) != tokens.get(token)]
    # transformers would give a missing token a new id, which the network was not trained with
    if wrong:
        raise ModelError(
            f"{file} does not contain {', '.join(f'{t:.40}' for t in wrong[:5])}, which its tokenizer names",
            "Name existing tokens in special_tokens_map.json, or pass tokenizer=... to load.",
        )
    return tokenizer


def _albert(file: Path, options: dict[str, Any]) -> tuple[Any, dict[str, int]]:
    pieces, unknown, characters = _sentencepiece(file)
    tokens = {piece: number for number, (piece, _) in enumerate(pieces)}
    fixed = {"cls_token": "[CLS]", "sep_token": "[SEP]"}  # the class adds these around a text
    if unknown != 1 or len(pieces) < 2 or any(options.get(k, v) != v for k, v in fixed.items()):
        raise ModelError(
            f"{file}: unlike ALBERT's, where piece 1 is the unknown token and {fixed} are added "
            "around a text",
            "Save the tokenizer as tokenizer.json, or pass tokenizer=... to load.",
        )
    for token in fixed.values():
        if token not in tokens:
            raise ModelError(f"{file} does not contain {token}", _COPY)
    # ALBERT splits "9," into 9 and a comma: such a piece scores less than its parts, as in its
    # tokenizer.json.
    scores = [(p, s - 100 * (p[-1:] == "," and p[-2:-1].isdigit())) for p, s in pieces]
    options = {**options, "_spm_precompiled_charsmap": characters or None}
    return transformers.AlbertTokenizer(vocab=scores, **options), tokens


def _sentencepiece(file: Path) -> tuple[list[tuple[str, float]], int, bytes]:
    """Return a SentencePiece model's pieces with scores, the unknown piece's index, and its normaliser."""
    pieces: list[tuple[str, float]] = []
    unknown, characters, unigram = 0, b"", True
    try:
        for number, value in _fields(file.read_bytes()):
            inner = dict(_fields(value)) if number in (1, 2, 3) and isinstance(value, bytes) else {}
            if number == 1:
                (score,) = struct.unpack("<f", inner.get(2, bytes(4)))
                pieces.append((inner[1].decode("utf-8"), score))
            elif number == 2:
                unigram, unknown = inner.get(3, 1) == 1, inner.get(40, 0)
            elif number == 3:
                characters = inner.get(2, b"")
    except (KeyError, ValueError, IndexError, AttributeError, TypeError, struct.error) as error:
        raise ModelError(f"{file} is not a SentencePiece model", _COPY) from error
    if not unigram:
        raise ModelError(f"{file} is not a unigram model, as ALBERT's is", _COPY)
    return pieces, unknown, characters


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value (int or bytes) of each field of a protocol buffer message."""
    offset = 0
    while offset < len(data):
        key, offset = _varint(data, offset)
        if key & 7 == 0:
            value, offset = _varint(data, offset)
            yield key >> 3, value
            continue
        if key & 7 == 2:
            size, offset = _varint(data, offset)
        else:
            size = {1: 8, 5: 4}[key & 7]
        if offset + size > len(data):
            raise ValueError("the file ends inside a field")
        yield key >> 3, data[offset : offset + size]
        offset += size


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[offset]
        value |= (byte & 127) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 128:
            return value, offset
        if shift > 63:
            raise ValueError("a number is too long")
