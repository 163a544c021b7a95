"""A sampler: a dataclass whose fields are its configuration and whose rule picks what to reveal.

Subclasses give `score` (reveal the k best), or override `select` (reveal by another rule), `revise`
(take tokens back) or `offered` (propose from fewer tokens). All of them honour blocks, temperature,
guidance, seeds, end tokens and early stop, which are handled here and in the loop. Samplers never touch
a network.
"""

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...errors import UsageError
from ...registry import SAMPLERS, Configured, Registry, described
from ...sequences.vocabulary import ModelFacts
from ..draw import check_seed


@dataclass(frozen=True, eq=False)
class Guess:
    """What the model proposes for a window of positions; each prompt decides within its own block."""

    token: Int[Tensor, "b w"]
    confidence: Float[Tensor, "b w"]  # p of that token, whatever was offered
    logits: Float[Tensor, "b w v"]  # float32, what was offered; all else, the mask too, at −inf
    in_block: Bool[Tensor, "b w"]
    masked: Bool[Tensor, "b w"]  # in the block, and may be revealed
    place: Int[Tensor, "b w"]  # index inside the block
    noise: Float[Tensor, "b w"]  # uniform, from each prompt's own generator
    held: Bool[Tensor, "b w"]  # proposes an end token that is to come last
    step: int = 0  # of the block's `steps`, where their number is fixed
    steps: int = 1
    block: int = 1  # places in a block; of a model's own, also those that the prompt fills
    # For a sampler that listens: attention between positions, and the share of the answer that is no mask.
    coupling: Float[Tensor, "b w w"] | None = None
    done: Float[Tensor, " b"] | None = None

    def of(self, prompts: list[int], step: int, steps: int) -> "Guess":
        """The same for some prompts of the batch."""
        tensors: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        part: dict[str, Any] = {
            name: t[prompts] for name, t in tensors.items() if isinstance(t, Tensor)
        }
        return replace(self, **part, step=step, steps=steps)

    @cached_property
    def log_p(self) -> Float[Tensor, "b w v"]:
        return self.logits.log_softmax(-1)


@dataclass(frozen=True)
class Sampler(Configured):
    """Denoise `length` masks in `steps` steps (one per step by default), block by block.

    `no_eos` and `end_last` are LLaDA's options against answers of end tokens alone (2502.09992, B.4):
    `logits_eos_inf`, the end-of-sequence token is never proposed (other end tokens are, such as
    `<|eot_id|>`); and `confidence_eos_eot_inf`, any end token may be proposed but is revealed last. In
    the published code the latter lowers `<|endoftext|>` at temperature 0 only and leaves random order
    alone; here it does the same at every temperature and in every order.
    """

    length: int = 32
    steps: int | None = None
    block_length: int | None = None
    temperature: float = 0.0
    cfg: float = 0.0
    seed: int = 0
    stop_at_eos: bool = True
    no_eos: bool = False
    end_last: bool = False
    registry: ClassVar[Registry[type]] = SAMPLERS
    needs_blocks: ClassVar[bool] = False  # its rule is for models that decode in blocks
    adaptive: ClassVar[bool] = False
    """It takes as many steps as its rule needs; `steps` is not used."""
    takes_back: ClassVar[bool] = False
    """Committed tokens may return to mask; only then can steps outnumber tokens."""
    causal_first: ClassVar[bool] = False
    """The first step of a block reveals its first position alone, as the row before it predicts it."""

    @property
    def n_blocks(self) -> int:
        return self.length // (self.block_length or self.length)

    @property
    def n_steps(self) -> int:
        return self.length if self.steps is None else self.steps

    def check(self, model: ModelFacts) -> None:
        """Refuse what cannot work, before anything runs."""
        if not model.is_diffusion:
            raise UsageError(
                f"{type(self).__name__} fills masks, and {model.name} is autoregressive",
                "Use Autoregressive(length=...); or, if it was trained to fill masks, load it with "
                "direction='bidirectional', shift= and mask_id=.",
            )
        if self.needs_blocks and model.block is None:
            raise UsageError(
                f"{type(self).__name__} decodes models in blocks, and {model.name} is {model.direction}",
                "Use another sampler; if it was trained in blocks, load it with direction='block-causal' "
                "and block=N.",
            )
        if model.block is not None and self.block_length not in (None, model.block):
            raise UsageError(
                f"{type(self).__name__}: block_length = {self.block_length}, and {model.name} decodes in "
                f"blocks of {model.block}",
                f"Leave block_length out: its blocks are the model's. If it was trained with blocks of "
                f"{self.block_length}, load it with block={self.block_length}.",
            )
        if (self.no_eos or self.end_last) and not model.end_ids:
            raise UsageError(
                f"{type(self).__name__}: {model.name} has no end token to suppress",
                "Leave no_eos and end_last out.",
            )
        self.check_fields()

    def check_fields(self) -> None:
        """The part of it that no model is needed for."""
        name = type(self).__name__
        if self.length < 1:
            raise UsageError(f"{name}: length = {self.length}", "Generate at least one token.")
        if self.steps is not None and self.steps < 1:
            raise UsageError(f"{name}: steps = {self.steps}", "Take at least one step.")
        block = self.block_length
        if block is not None and (block < 1 or self.length % block):
            raise UsageError(
                f"{name}: block_length = {block} does not divide length = {self.length}",
                f"Use a divisor of {self.length}.",
            )
        if self.n_steps > self.length and not self.takes_back:
            raise UsageError(
                f"{name}: {self.n_steps} steps for {self.length} tokens",
                "A step reveals at least one token: use steps ≤ length.",
            )
        if self.n_steps < self.n_blocks:
            raise UsageError(
                f"{name}: {self.n_steps} steps for {self.n_blocks} blocks",
                "Every block takes a step at least: use more steps or longer blocks.",
            )
        if self.temperature < 0 or not math.isfinite(self.temperature):
            raise UsageError(f"{name}: temperature = {self.temperature}", "Use 0 or more.")
        if self.cfg < 0 or not math.isfinite(self.cfg):
            raise UsageError(f"{name}: cfg = {self.cfg}", "Use 0 (off) or more.")
        check_seed(self.seed)

    def listens_to(self, n_layers: int) -> frozenset[int] | None:
        """Layers whose attention between the masks it decides by (`Guess.coupling`); None: it does not."""
        return None

    def most_steps(self, n_blocks: int) -> int:
        """The steps that a decoding of so many blocks can take."""
        return self.n_steps

    def quota(
        self, masked: Int[Tensor, " b"], width: int, step: int, steps: int
    ) -> Int[Tensor, " b"]:
        """How many of a block to reveal at `step` of `steps`: even over the rest, the remainder first."""
        return -(-masked // (steps - step))

    def offered(self, logits: Float[Tensor, "b w v"]) -> Float[Tensor, "b w v"]:
        """Logits with −inf where a token may not be proposed; here every token may."""
        return logits

    def score(self, guess: Guess) -> Float[Tensor, "b w"]:
        """Higher is revealed earlier."""
        raise TypeError(f"{type(self).__name__} must define score, or override select")

    def select(self, guess: Guess, quota: Int[Tensor, " b"]) -> Bool[Tensor, "b w"]:
        """Which masked positions to reveal now; at least one if `adaptive`."""
        score = self.score(guess)
        shape = tuple(guess.masked.shape)
        if not isinstance(score, Tensor) or not score.is_floating_point():
            kind = score.dtype if isinstance(score, Tensor) else f"a {type(score).__name__}"
            raise UsageError(
                f"{type(self).__name__}.score gives {kind}, expected a floating-point tensor of shape "
                f"{shape}: prompts × positions",
                "Return one number for each position, such as guess.confidence.",
            )
        if score.shape != shape:
            raise UsageError(
                f"{type(self).__name__}.score gives shape {tuple(score.shape)}, expected {shape}: "
                "prompts × positions",
                "Return one number for each position, such as guess.confidence.",
            )
        return best(score.masked_fill(guess.held, -math.inf), guess.masked, quota)

    def revise(
        self, guess: Guess, revealed_as: Float[Tensor, "b w"], step: int, steps: int
    ) -> Bool[Tensor, "b w"]:
        """Which committed positions return to mask now (`revealed_as`: their p when revealed)."""
        return torch.zeros_like(guess.masked)

    def overwrite(self, guess: Guess) -> Bool[Tensor, "b w"]:
        """Which committed positions take another token now: the one proposed there."""
        return torch.zeros_like(guess.masked)

    def over(self, left: bool, full: int, changed: bool) -> bool:
        """If `adaptive`: a block is done, with masks `left` or none; of its steps, so many began without
        any, and the last has changed a token or not."""
        return not left

    def describe(self) -> str:
        """The configuration as it was run."""
        return described(self, always=("length", "steps"))


def ranked(score: Float[Tensor, "b w"], among: Bool[Tensor, "b w"]) -> Int[Tensor, "b w"]:
    """Rank by falling score among the allowed; the first of equals wins, the others come last."""
    order = score.masked_fill(~among, -math.inf).argsort(dim=-1, descending=True, stable=True)
    # A score of −inf ties with the forbidden: move the forbidden behind it.
    order = order.gather(-1, (~among).gather(-1, order).to(torch.int8).argsort(dim=-1, stable=True))
    places = torch.arange(order.shape[-1], device=order.device).expand_as(order).contiguous()
    return torch.empty_like(order).scatter_(-1, order, places)


def best(
    score: Float[Tensor, "b w"], among: Bool[Tensor, "b w"], count: Int[Tensor, " b"]
) -> Bool[Tensor, "b w"]:
    """The `count` best of the allowed, prompt by prompt, without a loop or a sync."""
    return (ranked(score, among) < count[:, None]) & among


def sure_or_best(
    guess: Guess, p: Float[Tensor, "b w"], threshold: float, block_steps: int | None
) -> Bool[Tensor, "b w"]:
    """All masks with p above the threshold if they are as many as the schedule asks for; else that many,
    the surest. The schedule divides a whole block evenly over `block_steps`, one place each by default."""
    steps = block_steps or guess.block
    count = max(1, guess.block // steps + (guess.step < guess.block % steps))
    sure = guess.masked & (p > threshold)
    asked = torch.full((len(p),), count, device=p.device)
    return torch.where((sure.sum(-1) >= count)[:, None], sure, best(p, guess.masked, asked))


@dataclass(frozen=True)
class Adaptive(Sampler):
    """A sampler that reveals what is above a threshold, in as many steps as a block needs."""

    threshold: float = 0.9
    adaptive: ClassVar[bool] = True

    def check_fields(self) -> None:
        super().check_fields()
        check_blocks(self, threshold=self.threshold)


def check_blocks(sampler: "Sampler", **shares: float) -> None:
    """Of a sampler that takes as many steps as a block needs: thresholds, and no number of steps."""
    name = type(sampler).__name__
    for field, value in shares.items():
        if not 0 <= value <= 1:
            raise UsageError(f"{name}: {field} = {value}", "Use a probability.")
    if sampler.steps is not None:
        raise UsageError(f"{name} takes as many steps as it needs", "Leave steps out.")
    block_steps = getattr(sampler, "block_steps", None)
    if block_steps is not None and block_steps < 1:
        raise UsageError(f"{name}: block_steps = {block_steps}", "Use 1 or more.")


def by_chance(guess: Guess, chance: float) -> Bool[Tensor, "b w"]:
    """Each mask with probability `chance`, all that is left at the last step, which held ones wait for."""
    if guess.step == guess.steps - 1:
        return guess.masked
    return guess.masked & ~guess.held & (guess.noise < chance)
