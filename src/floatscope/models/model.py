"""A loaded model: a transformers network, its tokenizer, and the facts that decoding needs.

The model computes logits for positions from token ids, and is independent of samplers, statistics and
traces. The public `floatscope.Model` adds `generate` and `trace`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from ..errors import ModelError, foreign
from . import attention_hook, parts
from .devices import devices
from .family import Direction, Family, Grid
from .fingerprint import fingerprint, settings_fingerprint
from .graphs import allowed
from .visibility import Visibility


@dataclass(eq=False, repr=False)
class Model:
    """A network, its tokenizer, and facts needed for decoding. `floatscope.Model` documents the fields."""

    name: str
    net: PreTrainedModel
    tokenizer: Any  # a transformers tokenizer, or None if prompts are given as ids
    family: Family
    direction: Direction
    block: int | None  # block length of a model that decodes in blocks
    shift: int  # the row that predicts position i is i − shift
    mask_id: int | None
    end_ids: tuple[int, ...]
    chat: bool = False  # prompts are wrapped in the tokenizer's chat template
    grid: Grid = Grid.START  # where the model's blocks begin
    edits: list[Any] = field(default_factory=list)  # interventions in force, outermost first
    # On CUDA: record forwards and replay them if Python takes longer to launch a forward than the GPU
    # takes to run it. "always" also replays other forwards, for a process whose other threads need
    # Python's lock.
    graphs: bool | Literal["always"] = field(default_factory=allowed)

    @property
    def device(self) -> torch.device:
        """Device of the first parameter."""
        return next(self.net.parameters()).device

    @cached_property
    def on_one_device(self) -> bool:
        """Whether all parameters are on the same device."""
        return len(devices(self.net)) == 1

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the parameters."""
        return next(self.net.parameters()).dtype

    @property
    def context(self) -> int:
        """Longest sequence, in tokens, that the model supports."""
        return self.family.context(self.net.config)

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return int(self.net.config.num_hidden_layers)

    @property
    def n_heads(self) -> int:
        """Number of attention heads per layer."""
        return int(self.net.config.num_attention_heads)

    @cached_property
    def n_experts(self) -> int:
        """Number of experts per layer; 0 for a model without experts."""
        gates = parts.routers(self.net).values()
        return max((len(gate.weight) for gate in gates), default=0)  # type: ignore[arg-type]

    @cached_property
    def reaches(self) -> tuple[int | None, ...]:
        """Number of positions that a row sees to either side, by layer; None: limited by direction only."""
        return self.family.reaches(self.net.config) or (None,) * self.n_layers

    @property
    def vocab_size(self) -> int:
        """Number of vocabulary entries."""
        return int(self.net.config.vocab_size)

    @cached_property
    def n_parameters(self) -> int:
        """Number of parameters."""
        return sum(p.numel() for p in self.net.parameters())

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the weights as loaded; another dtype gives another hash."""
        return fingerprint(self.net)

    @cached_property
    def settings_fingerprint(self) -> str:
        """Hash of all but the weights that determines results: architecture, tokenizer, template, mask."""
        facts = (
            *(self.family.name, self.direction, self.grid, self.block),
            *(self.shift, self.mask_id, self.end_ids, self.chat),
        )
        return settings_fingerprint(facts, self.net.config, self.tokenizer)

    @property
    def facts(self) -> dict[str, Any]:
        """JSON-compatible facts about the model, for traces, runs and pages."""
        return {
            "model": self.name,
            "family": self.family.name,
            "fingerprint": self.fingerprint,
            "direction": str(self.direction),
            "block_size": self.block or 0,
            "shift": self.shift,
            "mask_id": -1 if self.mask_id is None else self.mask_id,
            "end_ids": list(self.end_ids),
            "width": int(self.net.config.hidden_size),
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": self.device.type,
            "layers": self.n_layers,
            "heads": self.n_heads,
            "parameters": self.n_parameters,
        }

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Token ids of special tokens: mask, end tokens, and those of the tokenizer."""
        ids = set(self.end_ids)
        if self.mask_id is not None:
            ids.add(self.mask_id)
        if self.tokenizer is not None:
            ids.update(self.tokenizer.all_special_ids)
            ids.update(i for i, t in self.tokenizer.added_tokens_decoder.items() if t.special)
        return frozenset(ids)

    @property
    def template_arguments(self) -> dict[str, Any]:
        """Variables for the chat template, in addition to the messages."""
        return self.family.template_arguments

    @property
    def is_diffusion(self) -> bool:
        """Whether the model fills masks; otherwise it is autoregressive."""
        return self.mask_id is not None

    def __repr__(self) -> str:
        size = self.n_parameters
        scale, unit = (1e9, "B") if size >= 1e9 else (1e6, "M") if size >= 1e6 else (1e3, "k")
        facts = [
            f"{self.family.name}, {size / scale:.3g}{unit} parameters",
            f"{self.n_layers} layers × {self.n_heads} heads",
            str(self.direction) + (f" ({self.block}, {self.grid})" if self.block else ""),
            f"context {self.context}",
            f"mask {self.mask_id}, shift {self.shift}" if self.is_diffusion else "no mask",
            f"{str(self.dtype).removeprefix('torch.')} on {self.device}",
        ]
        return f"<floatscope.Model {self.name}: {'; '.join(facts)}>"

    def visibility(
        self,
        queries: int,
        keys: int,
        padding: Int[Tensor, " b"],
        *,
        prompts: Sequence[int] | None = None,
        current: Int[Tensor, " b"] | None = None,
        end: Int[Tensor, " b"] | None = None,
        first: int | None = None,
        room: int | None = None,
    ) -> Visibility:
        """Return the Visibility of a forward, which states which rows see which keys.

        Args:
            queries: number of rows.
            keys: number of columns.
            padding: empty columns on the left, by prompt.
            prompts: prompt lengths, needed by a padded grid.
            current, end, first: columns, as in Visibility. Without `current`, all blocks of an active-block
                model count as finished.
            room: number of columns of a cache of fixed size, of which `keys` are filled by this forward.
        """
        offset = None
        if self.block is not None and self.grid is Grid.PADDED and prompts is not None:
            lacking = [self.grid.offset(self.block, n) for n in prompts]
            offset = torch.tensor(lacking, device=padding.device)
        if self.direction is not Direction.ACTIVE_BLOCK:
            current = None
        if room is not None:
            first, device = keys - queries, padding.device
            positions = torch.arange(first, keys, device=device)
            n_filled = torch.full((), keys, device=device)
            rule = (self.direction, self.block, padding, queries, room)
            return Visibility(*rule, offset, current, end, first, None, positions, n_filled)
        rule = (self.direction, self.block, padding, queries, keys)
        return Visibility(*rule, offset, current, end, first)

    @torch.inference_mode()
    def forward(
        self,
        ids: Int[Tensor, "b q"],
        rows: Int[Tensor, " r"],
        visible: Visibility,
        cache: DynamicCache | None = None,
    ) -> Float[Tensor, "n r v"]:
        """Return the logits of the given rows, as the network computes them (not shifted).

        The result has one entry per text, unless hooks add entries (`interventions/branching.py`).
        """
        with (
            attention_hook.lock_network(self.net),
            attention_hook.eval_mode(self.net),
            attention_hook.enable(self.net),
        ):
            output = self.net(
                input_ids=ids,
                attention_mask=visible.mask,
                position_ids=visible.position_ids,
                past_key_values=cache,
                use_cache=cache is not None,
                is_causal=visible.is_causal,
                # An index on the CPU can select rows on any device.
                logits_to_keep=rows if self.on_one_device else rows.cpu(),
            )
        logits: Tensor = output.logits
        return logits

    def predict(
        self,
        canvas: Int[Tensor, "b s"],
        start: int,
        stop: int,
        visible: Visibility,
        cache: DynamicCache | None = None,
    ) -> Float[Tensor, "b w v"]:
        """Return the logits for positions start … stop − 1, from the rows that predict them.

        With a cache, only rows that are not in it are computed.
        """
        rows = torch.arange(start, stop, device=canvas.device) - self.shift - visible.first_row
        return self.forward(canvas[:, visible.rows], rows.clamp(min=0), visible, cache)

    def logits(self, ids: Int[Tensor, "b s"]) -> Float[Tensor, "b s v"]:
        """Return the logits of every row for a batch without padding, not shifted."""
        padding = torch.zeros(len(ids), dtype=torch.long, device=ids.device)
        positions = torch.arange(ids.shape[1], device=ids.device)
        return self.forward(ids, positions, self.visibility(ids.shape[1], ids.shape[1], padding))

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token, or its id in angle brackets without a tokenizer.

        NUL characters are escaped, because an array of texts would drop them at the end of a text.
        """
        if self.tokenizer is None:
            return [f"<{i}>" if i >= 0 else "" for i in ids]
        with foreign(ModelError, f"the tokenizer of {self.name} fails", "Copy its files again."):
            texts = [self.tokenizer.decode([i]) if i >= 0 else "" for i in ids]
        return [text.replace("\0", r"\x00") for text in texts]

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of an answer, up to its end token and without special tokens."""
        answer: list[int] = []
        for i in ids:
            if i in self.end_ids:
                break
            answer.append(i)
        if self.tokenizer is None:
            return self.raw_text(answer)
        return self.raw_text([i for i in answer if i not in self.special_ids])

    def raw_text(self, ids: Sequence[int]) -> str:
        """Return the text of all tokens, including special tokens, or the ids if there is no tokenizer."""
        if self.tokenizer is None:
            return " ".join(map(str, ids))
        with foreign(ModelError, f"the tokenizer of {self.name} fails", "Copy its files again."):
            text: str = self.tokenizer.decode(list(ids))
        return text
