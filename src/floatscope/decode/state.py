"""The state of a batch before a forward, and base classes of observers and edits. No model is run."""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..errors import UsageError
from ..models import attention_hook
from ..models.graphs import Part
from ..models.model import Model
from ..models.visibility import Visibility
from ..sequences.prompt import Encoded
from ..sequences.vocabulary import ModelFacts


@dataclass(frozen=True, eq=False)
class State:
    """A batch just before a forward, as passed to watchers. Created by `State.build`."""

    step: int
    prompts: Sequence[Encoded]  # all prompts of the batch
    active: Sequence[int]  # indices of prompts still being decoded; the tensors contain only these
    canvas: Int[Tensor, "b k"]  # all tokens so far, left-padded
    masked: Bool[Tensor, "b k"]
    visible: Visibility
    prompt_end: int  # column of the first generated position
    window: tuple[int, int]  # columns being decided: the blocks of all prompts
    predicting: tuple[int, int]  # first and past-the-end query row that predicts the window
    cached: bool  # a cache keeps the rows of earlier steps
    # With a cache: number of rows of this forward that are never recomputed (all in a causal model).
    settled: int | None = None
    blind: bool = False  # whether this is guidance's second forward, which sees no prompt
    approximate: bool = False  # a cache keeps rows of earlier steps that this step may skip
    # With an approximate cache: keys that this forward computes, the others being stale; None is all.
    fresh: Bool[Tensor, "b k"] | None = None
    # In a block model: the first column after each prompt's block, from which on nothing exists yet.
    ends: Sequence[int] | None = None

    @classmethod
    def build(
        cls,
        model: Model,
        prompts: Sequence[Encoded],
        canvas: Int[Tensor, "b k"],
        window: tuple[int, int],
        *,
        prompt_end: int,
        step: int = 0,
        active: Sequence[int] | None = None,
        new: int | None = None,
        visible: Visibility | None = None,
        predicting: tuple[int, int] | None = None,
        starts: Sequence[int] | None = None,
        ends: Sequence[int] | None = None,
        settled: int | None = None,
        rows: tuple[int, int] | None = None,
        approximate: bool = False,
        fresh: Bool[Tensor, "b k"] | None = None,
        room: int | None = None,
    ) -> "State":
        """Build the state from a left-padded canvas.

        A mask token inside a prompt is treated as text; only masks of the answer count as masked.

        Args:
            new: with a cache, the number of columns that this forward computes.
            starts, ends: columns where each prompt's block begins and ends, if prompts differ. A block
                may begin before the window, inside the prompt.
            rows, fresh: with an approximate cache, the range of computed columns and the columns that are
                replaced.
            room: number of columns of a cache of fixed size.
        """
        active = range(len(prompts)) if active is None else active
        size = canvas.shape[1]
        queries = size if new is None else new
        first = None
        if fresh is not None and rows is not None:
            first, queries = rows[0], rows[1] - rows[0]
        if visible is None:
            lengths = [len(prompts[b].ids) for b in active]
            padding, begin, end = (
                None if values is None else torch.tensor(list(values), device=canvas.device)
                for values in (
                    [prompt_end - n for n in lengths],
                    [window[0]] * len(lengths) if starts is None else starts,
                    ends,
                )
            )
            assert padding is not None
            visible = model.visibility(
                *(queries, size, padding),
                prompts=lengths,
                current=begin,
                end=end,
                first=first,
                room=room,
            )
        masked = canvas == (-1 if model.mask_id is None else model.mask_id)
        masked[:, :prompt_end] = False
        if visible.end is not None:
            masked &= visible.key_is_real[:, :size]
        offset = model.shift + visible.first_row  # from a position to the row that predicts it
        return cls(
            step=step,
            prompts=prompts,
            active=active,
            canvas=canvas,
            masked=masked,
            visible=visible,
            prompt_end=prompt_end,
            window=window,
            predicting=predicting or (window[0] - offset, window[1] - offset),
            cached=new is not None,
            settled=settled,
            ends=ends,
            approximate=approximate,
            fresh=fresh,
        )


def lay_out(
    model: Model,
    prompts: Sequence[Encoded],
    n_new: int = 0,
    fill: int = 0,
    prompt_end: int | None = None,
) -> Int[Tensor, "b k"]:
    """Lay out prompts in one canvas, with padding on the left and `n_new` tokens `fill` after each prompt.

    The prompts end before the column `prompt_end`, by default the length of the longest prompt.
    """
    prompt_end = prompt_end or max(len(p.ids) for p in prompts)
    canvas = torch.full((len(prompts), prompt_end + n_new), fill)
    for b, prompt in enumerate(prompts):
        start = prompt_end - len(prompt.ids)
        canvas[b, :start] = 0
        canvas[b, start:prompt_end] = torch.tensor(prompt.ids, dtype=torch.long)
    return canvas.to(model.device)


def check_fits(
    model: ModelFacts, prompt: int, n_new: int, *, where: str = "", remedy: str = "", added: int = 0
) -> None:
    """Raise UsageError if `prompt`, `n_new` and `added` tokens together exceed the model's context."""
    over = prompt + n_new + added - model.context
    if over > 0:
        raise UsageError(
            f"{where}{prompt} prompt tokens and {n_new} after them exceed the context of "
            f"{model.context} of {model.name}",
            remedy or f"Shorten the prompt by {over} tokens, or generate fewer.",
        )


class Watcher:
    """Base class of observers of every forward and every decision of a decoding; it does nothing itself."""

    def forward(self, state: State) -> AbstractContextManager[object]:
        """Return a context manager that the loop enters around the forward of one step."""
        return nullcontext()

    def receive_decision(
        self, state: State, revealed: Bool[Tensor, "b w"], token: Int[Tensor, "b w"]
    ) -> None:
        """Receive the step's decision over the window: the revealed positions and their tokens."""

    def stepped(
        self, state: State, canvas: Int[Tensor, "b _"], confidence: Float[Tensor, "b w"]
    ) -> None:
        """Receive the canvas after the step and the probabilities of the proposals in the window.

        A watcher may raise an exception to end the decoding.
        """

    def part(self) -> Part | None:
        """Return the part of a recorded forward that does this watcher's work, or None without such work."""
        return None

    def trims(self) -> bool:
        """Tell whether the watcher ignores a surplus forward after the last step, so that one may be run."""
        return type(self) is Watcher


class Edit(Watcher):
    """Base class of watchers that change the model during a decoding, such as an intervention in force."""

    described = ""  # the intervention as typed text, which a trace stores
    cacheable = True  # may be combined with a diffusion model's cache, which skips rows

    def prepare(self, prompt: Encoded) -> Encoded:
        """Return the prompt as the edited model receives it."""
        return prompt

    def needs_preview(self, state: State) -> bool:
        """Tell whether `run_preview` must run an additional forward before the coming forward."""
        return False

    def run_preview(self, state: State) -> None:
        """Run the additional forward of the edit, with the earlier edits in force."""

    def overrule(self, state: State, canvas: Int[Tensor, "b s"]) -> Int[Tensor, "b s"]:
        """Return the canvas after the step, changed if the edit overrules the step's decision."""
        return canvas

    def same_forward(self, state: State) -> Hashable | None:
        """Return a key that is equal for forwards that the edit changes in the same way, whatever the tokens.

        Forwards with equal keys can share a recording. None means that every forward must be launched.
        """
        return None

    def report(self, prompt: int, steps: int) -> dict[str, float]:
        """Return numbers, by name, that describe the edit's effect on a prompt in the finished decoding."""
        return {}


def prepared(model: Model, prompt: Encoded) -> Encoded:
    """Return the prompt after all edits in force have changed it."""
    for edit in model.edits:
        prompt = edit.prepare(prompt)
    return prompt


def overruled(model: Model, state: State, canvas: Int[Tensor, "b s"]) -> Int[Tensor, "b s"]:
    """Return the canvas after the edits in force have overruled the step; the same object if no edit did."""
    for edit in model.edits:
        canvas = edit.overrule(state, canvas)
    return canvas


@contextmanager
def notify_edits(model: Model, state: State) -> Iterator[None]:
    """Run the preview forwards of the interventions in force, then notify them of the coming forward."""
    with attention_hook.lock_network(model.net):
        for place, edit in enumerate(model.edits):
            if edit.needs_preview(state):
                with notified(model.edits[:place], state):
                    edit.run_preview(state)
        with notified(model.edits, state):
            yield


@contextmanager
def notified(edits: Sequence[Edit], state: State) -> Iterator[None]:
    """Enter each edit's context manager for a forward, in order, while the `with` block runs."""
    with ExitStack() as stack:
        for edit in edits:
            stack.enter_context(edit.forward(state))
        yield
