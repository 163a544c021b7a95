"""The header of a GGUF file, walked once before other libraries read it.

Those trust its counts: a length that was damaged, or lies, sends them around a loop of 2^60 or past
the file's end. Here every count and every tensor is held against the file's size, and nothing is
kept but how much the file holds. Format: github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import math
import mmap
import struct
from pathlib import Path

from ..errors import ModelError, foreign
from .sizes import Held

_WIDTH = dict(zip(range(8), (1, 1, 2, 2, 4, 4, 4, 1), strict=True)) | {10: 8, 11: 8, 12: 8}
_U32, _STRING, _ARRAY = 4, 8, 9
_REMEDY = "The file is damaged or incomplete: fetch or copy it again."


def read(path: Path) -> Held:
    """What the file holds; ModelError where it does not hold what its header says."""
    with (
        foreign(ModelError, f"{path}: the GGUF header cannot be read", _REMEDY),
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        return _Walk(path, content).held()


class _Walk:
    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self.path, self.content, self.at, self.order = path, content, 0, "<"
        self.alignment = 32

    def held(self) -> Held:
        if self._bytes(4) != b"GGUF":
            raise self._wrong("expected the word GGUF at its beginning")
        version = self._number("I")
        if version & 0xFFFF == 0:  # written by a machine of the other byte order
            self.order, self.at = ">", 4
            version = self._number("I")
        if version not in (2, 3):
            raise self._wrong(f"version {version}, expected 2 or 3")
        tensors, fields = self._number("Q"), self._number("Q")
        for _ in range(fields):  # each takes bytes: the file's end stops a count that lies
            self._field()
        infos = [self._tensor() for _ in range(tensors)]
        start = -(-self.at // self.alignment) * self.alignment
        for name, _, offset, size in infos:
            if start + offset + size > len(self.content):
                raise self._wrong(f"tensor {name:.60} ends after the file does")
        return Held(tensors, sum(weights for _, weights, _, _ in infos))

    def _field(self) -> None:
        key, kind = self._string(), self._number("I")
        if key == b"general.alignment" and kind == _U32:
            self.alignment = self._number("I")
            if self.alignment not in [1 << n for n in range(20)]:
                raise self._wrong(f"alignment {self.alignment}, expected a power of two")
        else:
            self._skip(kind)

    def _skip(self, kind: int, depth: int = 0) -> None:
        if kind in _WIDTH:
            self._move(_WIDTH[kind])
        elif kind == _STRING:
            self._string()
        elif kind == _ARRAY and depth < 4:
            inner, count = self._number("I"), self._number("Q")
            if inner in _WIDTH:
                self._move(_WIDTH[inner] * count)
            else:
                for _ in range(count):
                    self._skip(inner, depth + 1)
        else:
            raise self._wrong(f"a value of type {kind}, which does not exist")

    def _tensor(self) -> tuple[str, int, int, int]:
        """Name, weights, offset, bytes."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        name, n_dims = self._string().decode("utf-8"), self._number("I")
        if n_dims > 4:
            raise self._wrong(f"tensor {name:.60} has {n_dims} dimensions, expected 4 at most")
        weights = math.prod(self._number("Q") for _ in range(n_dims))
        block, width = GGML_QUANT_SIZES[GGMLQuantizationType(self._number("I"))]
        return name, weights, self._number("Q"), -(-weights // block) * width

    def _string(self) -> bytes:
        return self._bytes(self._number("Q"))

    def _number(self, kind: str) -> int:
        size = struct.calcsize(kind)
        return int(struct.unpack(self.order + kind, self._bytes(size))[0])

    def _bytes(self, count: int) -> bytes:
        start = self.at
        self._move(count)
        return self.content[start : self.at]

    def _move(self, count: int) -> None:
        if self.at + count > len(self.content):
            raise self._wrong(f"{count} bytes expected at byte {self.at} of {len(self.content)}")
        self.at += count

    def _wrong(self, what: str) -> ModelError:
        return ModelError(f"{self.path} is no whole GGUF file: {what}", _REMEDY)
