"""Read the header of a GGUF file: its plain values, and the position of each tensor.

A damaged or forged length would make an unchecked reader loop 2^60 times or read past the end of the
file. This module checks every count and every tensor against the file's size, and keeps only the length
of a list. Format: github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import math
import mmap
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ModelError, foreign
from .sizes import TensorCounts

_PLAIN = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_REMEDY = "The file is damaged or incomplete: download or copy it again."


@dataclass(frozen=True)
class Place:
    """A tensor in a GGUF file: its shape in torch's order, its type number, its start and size in bytes."""

    shape: tuple[int, ...]
    kind: int
    start: int
    size: int


@dataclass(frozen=True)
class Header:
    """The plain values and tensor positions of a GGUF file."""

    fields: dict[str, Any]  # the value of a list is its length
    tensors: dict[str, Place]

    @property
    def tensor_counts(self) -> TensorCounts:
        """Number of tensors and weights in the file."""
        return TensorCounts(
            frozenset(self.tensors), sum(math.prod(t.shape) for t in self.tensors.values())
        )


def read(path: Path) -> Header:
    """Read the header of a GGUF file; raise ModelError if the file does not contain what it declares."""
    with (
        foreign(ModelError, f"{path}: the GGUF header cannot be read", _REMEDY),
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        return _Walk(path, content).header()


class _Walk:
    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self.path, self.content, self.offset = path, content, 0

    def header(self) -> Header:
        if self._bytes(4) != b"GGUF":
            raise self._wrong("expected GGUF as its first four bytes")
        if (version := self._plain("I")) not in (2, 3):
            raise self._wrong(f"version {version}, expected 2 or 3")
        n_tensors, n_fields = self._plain("Q"), self._plain("Q")
        # Each entry takes bytes, so a false count ends at the end of the file.
        pairs = [(self._string(), self._value(self._plain("I"))) for _ in range(n_fields)]
        fields = self._require_unique("field", pairs)
        alignment = fields.get("general.alignment", 32)
        if alignment not in [1 << n for n in range(20)]:
            raise self._wrong(f"alignment {alignment}, expected a power of two")
        places = [self._tensor() for _ in range(n_tensors)]
        start = -(-self.offset // alignment) * alignment
        tensors = {}
        for name, place in self._require_unique("tensor", places).items():
            tensors[name] = Place(place.shape, place.kind, start + place.start, place.size)
            if tensors[name].start + place.size > len(self.content):
                raise self._wrong(f"tensor {name:.60} ends after the file does")
        if sum(place.size for place in tensors.values()) > len(self.content):
            raise self._wrong("its tensors are larger in total than the file")
        return Header(fields, tensors)

    def _value(self, kind: int, depth: int = 0) -> Any:
        if kind in _PLAIN:
            return self._plain(_PLAIN[kind])
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY or depth == 4:
            raise self._wrong(f"a value of type {kind}, which does not exist")
        inner, count = self._plain("I"), self._plain("Q")
        if inner in _PLAIN:
            self._move(struct.calcsize(_PLAIN[inner]) * count)
        elif inner == _STRING:
            for _ in range(count):
                self._move(self._plain("Q"))
        else:
            for _ in range(count):
                self._value(inner, depth + 1)
        return count

    def _tensor(self) -> tuple[str, Place]:
        """Read a tensor's name and position; its start is relative to the end of the header."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        name, n_dims = self._string(), self._plain("I")
        if n_dims > 4:
            raise self._wrong(f"tensor {name:.60} has {n_dims} dimensions, expected 4 at most")
        # stored with the last dimension first
        shape = tuple(self._plain("Q") for _ in range(n_dims))[::-1]
        kind = self._plain("I")
        block, width = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        if math.prod(shape[-1:]) % block:
            raise self._wrong(f"tensor {name:.60} has rows of {shape[-1]}, in blocks of {block}")
        return name, Place(shape, kind, self._plain("Q"), math.prod(shape) // block * width)

    def _require_unique(self, kind: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for name, count in Counter(name for name, _ in pairs).most_common(1):
            if count > 1:
                raise self._wrong(f"{kind} {name:.60} {count} times")
        return dict(pairs)

    def _string(self) -> str:
        return self._bytes(self._plain("Q")).decode("utf-8")

    def _plain(self, code: str) -> Any:
        start = self.offset
        self._move(struct.calcsize(code))
        return struct.unpack_from("<" + code, self.content, start)[0]

    def _bytes(self, count: int) -> bytes:
        start = self.offset
        self._move(count)
        return self.content[start : self.offset]

    def _move(self, count: int) -> None:
        if self.offset + count > len(self.content):
            raise self._wrong(
                f"{count} bytes expected at byte {self.offset} of {len(self.content)}"
            )
        self.offset += count

    def _wrong(self, problem: str) -> ModelError:
        return ModelError(f"{self.path} is not a complete GGUF file: {problem}", _REMEDY)
