"""Base classes of samplers: dataclasses whose fields are the settings and whose rule reveals positions.

Subclasses define `score` (the positions with the highest scores are revealed), or override `select` (to
reveal by another rule), `revise` (to remask tokens) or `offered` (to restrict the proposals). Blocks,
temperature, guidance, seeds, end tokens and early stop are implemented for all samplers, in this module
and in the loop. Samplers never run a network.
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
    """The model's proposals for a window of positions, which contains the current block of each prompt."""

    token: Int[Tensor, "b w"]
    confidence: Float[Tensor, "b w"]  # probability of the token over all tokens, offered or not
    # float32, of the offered tokens; −inf for all others and the mask
    logits: Float[Tensor, "b w v"]
    in_block: Bool[Tensor, "b w"]
    masked: Bool[Tensor, "b w"]  # masks in the block that may be revealed
    place: Int[Tensor, "b w"]  # index inside the block
    noise: Float[Tensor, "b w"]  # uniform, from the prompt's generator
    postponed: Bool[Tensor, "b w"]  # the proposal is an end token, to be revealed last
    step: int = 0  # step within the block, out of `steps` if that number is fixed
    steps: int = 1
    block: int = 1  # positions per block; in a model's own blocks including those of the prompt
    # For samplers that read attention: attention between positions, and the revealed share of the answer.
    coupling: Float[Tensor, "b w w"] | None = None
    decided_share: Float[Tensor, " b"] | None = None

    def select(self, prompts: list[int], step: int, steps: int) -> "Guess":
        """Return the proposals of some prompts of the batch, given by index, at a step of their blocks."""
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
    """Denoise `length` masks in `steps` steps, block by block.

    `no_eos` and `end_last` are LLaDA's options against answers that consist of end tokens (2502.09992,
    B.4), which LLaDA calls `logits_eos_inf` and `confidence_eos_eot_inf`. The published
    `confidence_eos_eot_inf` lowers the confidence of `<|endoftext|>` at temperature 0 only and does not
    affect random order; `end_last` has the same effect at every temperature and in every order.

    Args:
        length: number of tokens to generate, default 32.
        steps: number of denoising steps. None (default) is one per token. At most `length`, unless the
            sampler remasks tokens. Adaptive samplers take as many steps as they need and accept no
            number of steps.
        block_length: decode in blocks of this many positions, from left to right. It must divide
            `length`. None (default) is one block, or the model's own blocks if it was trained with
            blocks.
        temperature: at 0 (default) the arg-max is proposed; above 0 tokens are drawn from softmax(logits /
            temperature) in float64.
        cfg: scale of classifier-free guidance. Logits become u + (cfg + 1)·(c − u), where c is the
            prediction with the prompt and u the prediction with the prompt masked. 0 (default) is off;
            any other value doubles the forwards.
        seed: seed of all random draws, a whole number from 0 to 2^63 − 1. Each prompt has its own stream.
        stop_at_eos: stop once the answer has an end token with no mask before it, True by default.
        no_eos: never propose the end-of-sequence token; other end tokens, such as `<|eot_id|>`, are still
            proposed. False by default.
        end_last: reveal end tokens after all other positions. False by default.

    Example:
        ```python
        sampler = fs.samplers.Confidence(length=64, steps=32, block_length=16)
        decoding = model.generate("Where was Ada Lovelace born?", sampler)
        ```
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
    needs_blocks: ClassVar[bool] = False  # whether the rule is for block models only
    adaptive: ClassVar[bool] = False
    """Whether the sampler takes as many steps as its rule needs, without `steps`."""
    takes_back: ClassVar[bool] = False
    """Whether revealed tokens may be remasked; only then may steps exceed tokens."""
    causal_first: ClassVar[bool] = False
    """Whether the first step of a block reveals only its first position, predicted by the row before it."""

    @property
    def n_blocks(self) -> int:
        """Number of blocks that `block_length` divides the answer into."""
        return self.length // (self.block_length or self.length)

    @property
    def n_steps(self) -> int:
        """Number of denoising steps: `steps`, or one per token by default."""
        return self.length if self.steps is None else self.steps

    def check(self, model: ModelFacts) -> None:
        """Raise UsageError for an unsuitable model or invalid settings, before anything runs.

        Args:
            model (Model): the model to decode with.
        """
        if not model.is_diffusion:
            raise UsageError(
                f"{type(self).__name__} fills masks, and {model.name} is autoregressive",
                "Use Autoregressive(length=...); or, if it was trained to fill masks, load it with "
                "direction='bidirectional', shift= and mask_id=.",
            )
        if self.needs_blocks and model.block is None:
            raise UsageError(
                f"{type(self).__name__} is for block models, but {model.name} is {model.direction}",
                "Use another sampler; if it was trained in blocks, load it with direction='block-causal' "
                "and block=N.",
            )
        if model.block is not None and self.block_length not in (None, model.block):
            raise UsageError(
                f"{type(self).__name__}: block_length = {self.block_length}, but {model.name} "
                f"decodes in blocks of {model.block}",
                f"Leave block_length out to use the model's blocks. If it was trained with blocks of "
                f"{self.block_length}, load it with block={self.block_length}.",
            )
        if (self.no_eos or self.end_last) and not model.end_ids:
            raise UsageError(
                f"{type(self).__name__}: {model.name} has no end token to suppress",
                "Leave no_eos and end_last out.",
            )
        self.check_fields()

    def check_fields(self) -> None:
        """Raise UsageError for settings that are invalid for every model."""
        name = type(self).__name__
        if self.length < 1:
            raise UsageError(f"{name}: length = {self.length}", "Generate at least one token.")
        if self.steps is not None and self.steps < 1:
            raise UsageError(f"{name}: steps = {self.steps}", "Use at least one step.")
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
                "Every block takes at least one step: use more steps or longer blocks.",
            )
        if self.temperature < 0 or not math.isfinite(self.temperature):
            raise UsageError(f"{name}: temperature = {self.temperature}", "Use 0 or more.")
        if self.cfg < 0 or not math.isfinite(self.cfg):
            raise UsageError(f"{name}: cfg = {self.cfg}", "Use 0 (off) or more.")
        check_seed(self.seed)

    def listens_to(self, n_layers: int) -> frozenset[int] | None:
        """Return the layers whose attention between masks the rule reads (`Guess.coupling`), or None.

        Args:
            n_layers: number of layers of the model.
        """
        return None

    def max_steps(self, n_blocks: int) -> int:
        """Return the largest number of steps that a decoding can take.

        Args:
            n_blocks: number of blocks of the decoding.
        """
        return self.n_steps

    def quota(
        self, masked: Int[Tensor, " b"], width: int, step: int, steps: int
    ) -> Int[Tensor, " b"]:
        """Return how many positions of a block each prompt reveals at a step, shape (prompts,).

        The default divides the remaining masks evenly over the remaining steps, with larger shares first.

        Args:
            masked: masks left in the block, by prompt, shape (prompts,).
            width: number of positions that are decided in the block.
            step: step within the block, from 0.
            steps: number of steps of the block.
        """
        return -(-masked // (steps - step))

    def offered(self, logits: Float[Tensor, "b w v"]) -> Float[Tensor, "b w v"]:
        """Return the logits, with −∞ for tokens that must not be proposed. The default allows every token.

        Args:
            logits: logits of the window, shape (prompts, positions, vocabulary).
        """
        return logits

    def score(self, guess: Guess) -> Float[Tensor, "b w"]:
        """Score each position, shape (prompts, positions); higher scores are revealed earlier.

        Args:
            guess: the model's proposals for the window.
        """
        raise TypeError(f"{type(self).__name__} must define score, or override select")

    def select(self, guess: Guess, quota: Int[Tensor, " b"]) -> Bool[Tensor, "b w"]:
        """Choose the masked positions to reveal in this step; at least one position if `adaptive`.

        Args:
            guess: the model's proposals for the window.
            quota: number of positions to reveal, by prompt, shape (prompts,).

        Returns:
            A boolean tensor of shape (prompts, positions).
        """
        score = self.score(guess)
        shape = tuple(guess.masked.shape)
        if not isinstance(score, Tensor) or not score.is_floating_point():
            kind = score.dtype if isinstance(score, Tensor) else f"a {type(score).__name__}"
            raise UsageError(
                f"{type(self).__name__}.score returns {kind}, expected a floating-point tensor of shape "
                f"{shape}: prompts × positions",
                "Return one number for each position, such as guess.confidence.",
            )
        if score.shape != shape:
            raise UsageError(
                f"{type(self).__name__}.score returns shape {tuple(score.shape)}, expected {shape}: "
                "prompts × positions",
                "Return one number for each position, such as guess.confidence.",
            )
        return best(score.masked_fill(guess.postponed, -math.inf), guess.masked, quota)

    def revise(
        self, guess: Guess, revealed_as: Float[Tensor, "b w"], step: int, steps: int
    ) -> Bool[Tensor, "b w"]:
        """Choose the revealed positions to remask in this step. The default chooses no position.

        Args:
            guess: the model's proposals for the window.
            revealed_as: probability of each token when it was revealed, shape (prompts, positions).
            step: step within the block, from 0.
            steps: number of steps of the block.

        Returns:
            A boolean tensor of shape (prompts, positions).
        """
        return torch.zeros_like(guess.masked)

    def overwrite(self, guess: Guess) -> Bool[Tensor, "b w"]:
        """Choose the revealed positions to overwrite with proposed tokens. The default chooses no position.

        Args:
            guess: the model's proposals for the window.
        """
        return torch.zeros_like(guess.masked)

    def over(self, has_masks: bool, full: int, changed: bool) -> bool:
        """Tell whether an adaptive sampler has finished a block; by default once the block has no mask.

        Args:
            has_masks: whether the block still has masks.
            full: number of steps of this block that began without a mask.
            changed: whether the latest step changed a token.
        """
        return not has_masks

    def describe(self) -> str:
        """Return a Python call with `length`, `steps`, and every setting that is not the default."""
        return described(self, always=("length", "steps"))


def ranked(score: Float[Tensor, "b w"], among: Bool[Tensor, "b w"]) -> Int[Tensor, "b w"]:
    """Return each position's rank (0: highest score) among those in `among`; other positions come last."""
    order = score.masked_fill(~among, -math.inf).argsort(dim=-1, descending=True, stable=True)
    # A score of −inf ties with forbidden positions, which are moved behind it.
    order = order.gather(-1, (~among).gather(-1, order).to(torch.int8).argsort(dim=-1, stable=True))
    places = torch.arange(order.shape[-1], device=order.device).expand_as(order).contiguous()
    return torch.empty_like(order).scatter_(-1, order, places)


def best(
    score: Float[Tensor, "b w"], among: Bool[Tensor, "b w"], count: Int[Tensor, " b"]
) -> Bool[Tensor, "b w"]:
    """Choose the `count` highest-scoring allowed positions of each prompt, without waiting for the device."""
    return (ranked(score, among) < count[:, None]) & among


def sure_or_best(
    guess: Guess, p: Float[Tensor, "b w"], threshold: float, block_steps: int | None
) -> Bool[Tensor, "b w"]:
    """Choose all masks with p > threshold, or the most confident masks if the schedule requires more.

    The schedule requires the same number of positions at each of `block_steps` steps of a whole block, by
    default one position per step.
    """
    steps = block_steps or guess.block
    count = max(1, guess.block // steps + (guess.step < guess.block % steps))
    sure = guess.masked & (p > threshold)
    counts = torch.full((len(p),), count, device=p.device)
    return torch.where((sure.sum(-1) >= count)[:, None], sure, best(p, guess.masked, counts))


@dataclass(frozen=True)
class Adaptive(Sampler):
    """A sampler that reveals positions above a threshold, in as many steps as a block needs."""

    threshold: float = 0.9
    adaptive: ClassVar[bool] = True

    def check_fields(self) -> None:
        super().check_fields()
        check_blocks(self, threshold=self.threshold)


def check_blocks(sampler: "Sampler", **shares: float) -> None:
    """Check the fields of an adaptive sampler: shares from 0 to 1, `steps` unset, `block_steps` ≥ 1."""
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
    """Choose each mask with probability `chance`, but no postponed mask; choose all at the last step."""
    if guess.step == guess.steps - 1:
        return guess.masked
    return guess.masked & ~guess.postponed & (guess.noise < chance)
