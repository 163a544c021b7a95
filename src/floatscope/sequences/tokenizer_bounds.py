"""Bound the work that a tokenizer can cause, before this process uses it.

A tokenizer.json is a small program: a chain of replacement rules, and regular expressions. Nine rules
that each replace one letter by ten turn four letters into 4 MB, and a regular expression can take minutes
for one word. The tokenizers library limits neither time nor memory, and aborts the process when memory
runs out. So a tokenizer is checked in three steps:

1. Check of the structure. `_growth` bounds the factor by which a rule can lengthen a text. A chain of
   rules that exceeds GROWTH is refused. The bound is valid for every text, including texts that a trial
   would not contain.
2. Check for known rules. Rules of known types and published regular expressions (`PUBLISHED`) take time
   proportional to the text. A tokenizer that contains nothing else, like most published ones, is used
   without a trial.
3. Trial. Any other tokenizer is loaded in the child process that also renders chat templates (`chat`),
   with limits on processor time and memory. There the tokenizer encodes and decodes every added token and
   texts of LENGTH characters; some of the texts are made of the tokenizer's own patterns and characters.
   The tokenizer is refused if the child reports an error or is killed. A trial proves nothing about
   other texts.

A file that has passed the check is remembered by its sha256 and not checked again in this process.
Tokenizers without a tokenizer.json (vocab.json, tokenizer.model, GGUF) are built by transformers from its
own parts; `require_bounded` checks such a tokenizer after it is built.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import ModelError
from .chat import ask

# largest factor by which all rules together may lengthen a text; below 300 in published tokenizers
GROWTH = 1000
LENGTH = 4_000  # characters per trial text
_LONGEST_TOKEN = 10_000  # characters; a few hundred in published tokenizers
_LARGEST_FILE = 100_000_000  # bytes; up to 35 million in published tokenizers
_MOST_RULES = 32
_CHARACTERS = 64  # largest number of characters from its expressions that are repeated in the trial
_REMEDY = "Copy its files again, or pass tokenizer=... to load."

# Regular expressions of Llama 3; of Qwen2, Qwen2.5, Qwen3 and derived models; of T5 and ALBERT.
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PUBLISHED = {_WORDS + r"\p{N}{1,3}" + _REST, _WORDS + r"\p{N}" + _REST, " {2,}"}

# Rule type → factor by which the rule can lengthen a text, in bytes. Unicode normalisation turns one
# character into at most 18 and is idempotent, so it is counted as 1.
_KNOWN = {
    **dict.fromkeys(("NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "Strip", "StripAccents"), 1),
    **dict.fromkeys(("BertNormalizer", "BertPreTokenizer", "Whitespace", "WhitespaceSplit"), 1),
    **dict.fromkeys(("Punctuation", "Digits", "UnicodeScripts", "CharDelimiterSplit", "Split"), 1),
    **dict.fromkeys(("Fuse", "ByteFallback", "BertProcessing", "RobertaProcessing"), 1),
    **dict.fromkeys(("ByteLevel", "WordPiece", "BPEDecoder", "CTC"), 2),
    "Metaspace": 4,
}
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_MODELS = ("BPE", "WordPiece", "WordLevel", "Unigram")
_passed: set[str] = set()


def require_bounded_files(folder: Path) -> None:
    """Raise ModelError if the tokenizer.json of a directory, if it has one, is not safe to use."""
    file = folder / "tokenizer.json"
    _require_no_other_file(folder / "tokenizer_config.json")
    if not file.is_file():
        return
    if file.stat().st_size > _LARGEST_FILE:
        raise ModelError(f"{file} is larger than any tokenizer.json", _REMEDY)
    content = file.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest in _passed:
        return
    try:
        raw = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"{file}: the tokenizer cannot be read ({error!s:.200})", _REMEDY
        ) from error
    if not _examine(raw, str(file)):
        _try(raw, file)
    _passed.add(digest)


def require_bounded(tokenizer: Any, name: str) -> None:
    """Raise ModelError if a tokenizer that transformers built without a tokenizer.json exceeds the bounds."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return
    parts = {part: getattr(backend, part) for part in _PARTS}
    raw = {key: json.loads(part.__getstate__()) for key, part in parts.items() if part is not None}
    _examine({**raw, "model": {"vocab": backend.get_vocab()}}, name)


def _require_no_other_file(config: Path) -> None:
    """Refuse a config that makes transformers read a file other than tokenizer.json."""
    try:
        named = config.is_file() and "fast_tokenizer_files" in json.loads(config.read_bytes())
    except (ValueError, TypeError, RecursionError):
        return  # not a valid config: transformers refuses it
    if named:
        raise ModelError(
            f"{config} names other tokenizer files (fast_tokenizer_files)",
            "Keep the right one as tokenizer.json, and remove the field.",
        )


def _examine(raw: Any, name: str) -> bool:
    """Refuse rules that can lengthen a text beyond GROWTH; return whether all rules have known types."""
    try:
        rules = [rule for part in _PARTS for rule in _rules(raw.get(part))]
        before = _product(raw, _PARTS[:3])
        after = _product(raw, _PARTS[3:])
        tokens = _tokens(raw)
        recognised = raw["model"].get("type") in _MODELS and all(map(_is_known, rules))
        recognised &= bool(raw["model"].get("max_input_chars_per_word", 100) <= 1000)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, RecursionError):
        return False  # not a known form of tokenizer
    for growth, cause in ((before, "encoding"), (after, "decoding")):
        if growth > GROWTH:
            raise ModelError(
                f"{name}: {cause} can make a text {growth:.3g} times as long; at most {GROWTH} is allowed",
                _REMEDY,
            )
    longest = max(map(len, tokens), default=0)
    if longest > _LONGEST_TOKEN or len(rules) > _MOST_RULES:
        cause = (
            f"a token of {longest} characters" if len(rules) <= _MOST_RULES else "too many rules"
        )
        raise ModelError(f"{name}: its tokenizer has {cause}", _REMEDY)
    return recognised


def _rules(part: Any) -> Iterator[dict[str, Any]]:
    """Yield every rule of a part of a tokenizer, including the rules inside sequences."""
    if part is None:
        return
    if part["type"] != "Sequence":
        yield part
        return
    for name in ("normalizers", "pretokenizers", "processors", "decoders"):
        for inner in part.get(name, ()):
            yield from _rules(inner)


def _product(raw: dict[str, Any], parts: tuple[str, ...]) -> float:
    result = 1.0
    for part in parts:
        for rule in _rules(raw.get(part)):
            result *= _growth(rule)
    return result


def _growth(rule: dict[str, Any]) -> float:
    """Return an upper bound on the factor by which this rule lengthens a text."""
    if rule["type"] == "Replace":
        content, pattern = _bytes(rule["content"]), rule["pattern"].get("String")
        # A regular expression or an empty pattern may match between any two characters.
        return max(1.0, content / _bytes(pattern)) if pattern else 1.0 + content
    if rule["type"] == "Prepend":
        return 1.0 + _bytes(rule["prepend"])
    if rule["type"] == "Precompiled":
        return float(max(1, _longest_replacement(rule["precompiled_charsmap"])))
    if rule["type"] == "TemplateProcessing":
        single, two = (
            sum("Sequence" in piece for piece in rule[form]) for form in ("single", "pair")
        )
        return max(1.0, single, two / 2)
    return float(_KNOWN.get(rule["type"], 1))


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _longest_replacement(charsmap: str) -> int:
    """Return the length of the longest replacement in a SentencePiece character map, in bytes."""
    try:
        content = base64.b64decode(charsmap, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
    size = int.from_bytes(content[:4], "little")  # size of the trie, which precedes the texts
    if not content or 4 + size > len(content):
        raise ValueError("not a map of characters")
    return max(map(len, content[4 + size :].split(b"\0")))


def _is_known(rule: dict[str, Any]) -> bool:
    regex = rule.get("pattern", {}).get("Regex")
    bounded = ("Replace", "Prepend", "Precompiled", "TemplateProcessing")
    return (rule["type"] in _KNOWN or rule["type"] in bounded) and (
        regex is None or regex in PUBLISHED
    )


def _tokens(raw: dict[str, Any]) -> Iterator[str]:
    for token in raw["model"]["vocab"]:  # a Unigram vocabulary has pairs of token and score
        yield token if isinstance(token, str) else token[0]
    for token in raw.get("added_tokens") or ():
        yield token["content"]


def _try(raw: Any, file: Path) -> None:
    """Load and use the tokenizer in the bounded child process; raise ModelError if that fails."""
    reply = ask({"tokenizer": {"file": str(file.absolute()), "texts": _texts(raw)}})
    if reply is None:
        raise ModelError(
            f"{file}: the tokenizer takes too long or too much memory, and was stopped", _REMEDY
        )
    if reply[1] is not None:
        raise ModelError(f"{file}: the tokenizer cannot be read ({reply[1]})", _REMEDY)


def _texts(raw: Any) -> list[str]:
    """Return the trial texts: ordinary texts, and texts made of the tokenizer's own patterns."""
    units = ["The quick brown fox jumps over the lazy dog. ", "a", " ", "\n", "0", ".", "é漢🙂 "]
    patterns = list(_strings(raw.get(part) for part in _PARTS if isinstance(raw, dict)))
    units += patterns[:_MOST_RULES] + sorted(set("".join(patterns)))[:_CHARACTERS]
    return [(unit * (LENGTH // len(unit) + 1))[:LENGTH] + "§" for unit in units]


def _strings(content: Any) -> Iterator[str]:
    """Yield the strings in a tokenizer's rules: patterns to search for, and text to insert."""
    if isinstance(content, dict):
        for key, value in content.items():
            if (
                key in ("String", "Regex", "content", "prepend")
                and isinstance(value, str)
                and value
            ):
                yield value[:LENGTH]
            else:
                yield from _strings(value)
    elif not isinstance(content, str | int | float | None):
        for value in content:
            yield from _strings(value)
