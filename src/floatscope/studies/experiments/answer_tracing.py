"""Measure where and when the answer enters, by patching a corrupted run with residuals of a clean run.

Both runs read the same prompt, except that the passages of the corrupted run contain another answer of the
same length. Both runs follow the order in which the clean prompt is decoded, with the same tokens on the
canvas. Each step scores the tokens of the gold answer that the step reveals. The scores of all steps add up
to the answer's log-probability in this order. The effect of patching is reported as a share of the gap
between the two runs.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import xarray as xr

from ...measures.result import Result
from ...plots import Figure, headline, panels
from ...sequences.prompt import Encoded
from ...tasks.record import Record
from .base import Experiment, ExperimentContext, Unusable

if TYPE_CHECKING:
    from ...interventions.swapping import Swap

SPAN, GOLD, PASSAGES, QUESTION, TEMPLATE, ANSWER = GROUPS = (
    *("answer in the passage", "rest of the gold passage", "other passages"),
    *("question", "template", "rows of the answer"),
)
LAYERS = 12  # most layers that are patched, evenly over the depth


@dataclass(frozen=True)
class AnswerTracing(Experiment):
    """Measure how much of the gold answer's log-probability patching the residual restores, in nats.

    - `restored` (step, layer, group): effect of inserting the clean run's residual into the corrupted run,
      at the input of one layer, at the positions of one group, at one step
    - `gap` (step): log-probability in the clean run − in the corrupted run
    - `direct`: the part of the gap, over all steps, that remains if the answer can only pass directly from
      its tokens in the passage to the rows that write it: all other positions of the clean run are held at
      their corrupted values in all layers
    - `log_p`: log-probability of the gold answer in the clean run, per token
    - `tokens`: number of tokens of the gold answer

    For untrained weights the gap is almost zero, and `restored` and `direct` are not measured. A step that
    reveals no token of the answer has the value 0. In a causal model, each token of the answer is a step.
    """

    units: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("restored", "gap", "direct", "log_p"), "nats"),
        "tokens": "tokens",
    }

    def ask(self, context: ExperimentContext, index: int, prepared: Any) -> xr.Dataset:
        from ...interventions.swapping import CLEAN, Swap

        model = context.model
        right, wrong, answer = self._pair(context, index)
        masks = len(answer) if model.mask_id is None else context.length
        places = grouped(right, wrong, masks, model.shift)
        stride = -(-model.n_layers // LAYERS)
        layers = list(range(0, model.n_layers, stride))
        swaps = [
            Swap((layer,), places[name]) for layer in layers for name in GROUPS if places[name]
        ]
        ends = {*places[SPAN], *places[ANSWER]}
        clean_positions = tuple(
            p for positions in places.values() for p in positions if p not in ends
        )
        all_layers = tuple(range(model.n_layers))
        swaps = [*swaps, Swap(all_layers, clean_positions, into=CLEAN)] if context.trained else []
        steps = context.sampler.n_steps
        restored, gap = np.zeros((steps, len(layers), len(GROUPS))), np.zeros(steps)
        direct = clean = 0.0
        cells = [(a, b) for a in range(len(layers)) for b, g in enumerate(GROUPS) if places[g]]
        for step, canvas, revealed in _states(context, right, answer):
            score = self._scores(context, (right, wrong), canvas, revealed, swaps)
            gap[step] += score[0] - score[1]
            clean += score[0]
            if swaps:
                direct += score[-1] - score[1]
                for place, value in zip(cells, score[2:-1] - score[1], strict=True):
                    restored[step, *place] += value
            context.tick()
        scalars = {"log_p": clean / len(answer), "tokens": float(len(answer))}
        scalars |= {"direct": direct} if swaps else {}
        values: dict[str, Any] = {name: ((), value) for name, value in scalars.items()}
        values["gap"] = (("step",), gap)
        coords: dict[str, Any] = {"step": range(steps)}
        if swaps:
            values["restored"] = (("step", "layer", "group"), restored)
            coords |= {"layer": layers, "group": list(GROUPS)}
        return xr.Dataset(values, coords)

    def _pair(self, context: ExperimentContext, index: int) -> tuple[Encoded, Encoded, list[int]]:
        """Return the clean prompt, the corrupted prompt, and the token ids of the gold answer.

        The corrupted prompt has another question's answer of as many tokens in its passages. Raise `Unusable`
        if there is no such answer, or if the gold passage does not contain the answer literally.
        """
        record = context.record(index)
        if record.gold is None:
            raise Unusable("it marks no gold passage")
        answer = record.answers[0]
        if (
            corrupted(record, answer, answer + "x").passages[record.gold]
            == record.passages[record.gold]
        ):
            raise Unusable(f"its gold passage does not contain the answer {answer!r} literally")
        right = context.encoded(record)
        for other in context.records[index + 1 :] + context.records[:index]:
            text = other.answers[0]
            if text.lower() in (alias.lower() for alias in record.answers):
                continue
            wrong = context.encoded(corrupted(record, answer, text))
            if len(wrong.ids) == len(right.ids) and wrong.regions == right.regions:
                return right, wrong, list(context.masked(index, right).answer)
        raise Unusable("no other question has an answer of as many tokens")

    def _scores(
        self,
        context: ExperimentContext,
        prompts: tuple[Encoded, Encoded],
        canvas: list[int],
        revealed: dict[int, int],
        swaps: "Sequence[Swap]",
    ) -> np.ndarray:
        """Return ln p of the tokens revealed at a step: in clean run, corrupted run, and each swap."""
        import torch

        from ...decode.score import log_p
        from ...interventions.swapping import patched_each

        model, start = context.model, len(prompts[0].ids)
        rows = [start + place - model.shift for place in revealed]
        clean, wrong = ([*prompt.ids, *canvas] for prompt in prompts)
        logits = patched_each(model, clean, wrong, swaps, rows)
        target = torch.tensor([*revealed.values()], device=logits.device)
        with torch.inference_mode():
            p = log_p(model, logits, target.expand(logits.shape[:2])).double()
        scores: np.ndarray = p.sum(-1).cpu().numpy()
        return scores

    def plot(self, result: Result) -> Figure:
        """Draw the share of the gap that one patch restores: by layer and group, and by step and layer."""
        data = shares(result)
        style: Any = {"cmap": "PuOr_r", "vmin": -1, "vmax": 1, "aspect": "auto"}
        with panels(1, 3, width=2.9, height=2.5) as (figure, axes):
            where, *when = axes[0]
            image = where.imshow(data.sum("step").transpose("group", "layer"), **style)
            where.set_yticks(range(len(GROUPS)), GROUPS)
            where.set_title("where: all steps")
            for axis, group in zip(when, (SPAN, ANSWER), strict=True):
                axis.imshow(data.sel(group=group).transpose("step", "layer"), **style)
                axis.set(title=f"when: {group}", ylabel="step")
                axis.yaxis.get_major_locator().set_params(integer=True)
            for axis in axes[0]:
                ticks = slice(None, None, 1 + (data.sizes["layer"] > 8))
                axis.set_xticks(range(data.sizes["layer"])[ticks], data["layer"].values[ticks])
                axis.set_xlabel("layer")
            figure.colorbar(image, ax=when[-1], label="share of the gap")
            headline(figure, f"{result.model}, n = {result.n}: patched into the corrupted run")
        return figure


def shares(result: Result) -> xr.DataArray:
    """Return each patch's share of the total gap, (step, layer, group); both are means over questions."""
    return result["restored"] / float(result["gap"].sum())


def corrupted(record: Record, right: str, wrong: str) -> Record:
    """Return a record with the answer `right` replaced by `wrong` wherever passages contain it as words."""
    pattern = re.compile(rf"(?<!\w){re.escape(right)}(?!\w)")
    passages = (
        replace(passage, text=pattern.sub(lambda _: wrong, passage.text))
        for passage in record.passages
    )
    return record.with_passages(tuple(passages))


def grouped(right: Encoded, wrong: Encoded, answer: int, shift: int) -> dict[str, tuple[int, ...]]:
    """Return the positions of prompt and answer by group; the prompts differ in the positions of SPAN.

    Args:
        right: The clean prompt.
        wrong: The corrupted prompt.
        answer: Number of positions after the prompt.
        shift: Number of positions by which the row that predicts a position lies before it: 0 or 1.
    """
    start = len(right.ids)
    groups: dict[str, list[int]] = {name: [] for name in GROUPS}
    for position, (right_id, wrong_id, region) in enumerate(
        zip(right.ids, wrong.ids, right.regions, strict=True)
    ):
        if position >= start - shift:
            name = ANSWER
        elif right_id != wrong_id:
            name = SPAN
        elif region == right.gold:
            name = GOLD
        elif region.startswith("passage "):
            name = PASSAGES
        else:
            name = QUESTION if region == "question" else TEMPLATE
        groups[name].append(position)
    groups[ANSWER] += range(start, start + answer)
    return {name: tuple(places) for name, places in groups.items()}


def _states(
    context: ExperimentContext, prompt: Encoded, answer: list[int]
) -> list[tuple[int, list[int], dict[int, int]]]:
    """Return, for each step that reveals gold tokens, its index, its canvas and the revealed tokens.

    The canvas begins after the prompt, and the revealed tokens are given by place on the canvas. Steps are in
    the order in which the prompt is decoded. The canvas has the gold answer at the place where the decoding
    wrote it or, if the decoding did not write it, at the beginning. Other places have the decoded tokens. A
    place that the decoding left masked is revealed at the last step. In a causal model, each token of the
    answer is a step.
    """
    model = context.model
    if model.mask_id is None:
        return [(i, answer, {i: token}) for i, token in enumerate(answer)]
    decoding = model.generate(prompt, context.sampler)
    change, final = decoding.change[:, len(prompt.ids) :], decoding.answer_ids
    starts = range(len(final) - len(answer) + 1)
    start = next((s for s in starts if final[s : s + len(answer)] == answer), 0)
    gold = {start + i: token for i, token in enumerate(answer)}
    last = context.sampler.n_steps - 1
    when = [
        int(steps[-1]) if len(steps := np.flatnonzero(changes == 1)) else last
        for changes in change.T
    ]
    tokens = [gold.get(place, token) for place, token in enumerate(final)]
    states = []
    for step in sorted({when[place] for place in gold}):
        canvas = [t if w < step else model.mask_id for t, w in zip(tokens, when, strict=True)]
        revealed = {place: token for place, token in gold.items() if when[place] == step}
        states.append((step, canvas, revealed))
    return states
