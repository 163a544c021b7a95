"""Measure what the gold answer loses without each head, and without the strongest retrieval heads.

The loss is the decrease of the gold answer's log-probability per token, in one forward with the whole answer
masked (in a causal model: each token given the tokens before it). One forward computes the losses of many
heads (`interventions/branching.py`). Retrieval heads are chosen by their evidence attention, on questions on
which no head is removed. Retrieval heads are compared with as many other heads of similar output norm,
because removing a head with a large output costs much, whatever the head attends to.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import xarray as xr
from jaxtyping import Float

from ...measures.library.retrieval import RetrievalHeads
from ...measures.result import Result
from ...plots import Figure, headline, legend_above, panels
from ...stats.discoveries import q_values
from .base import Experiment, ExperimentContext, Unusable
from .masked_answer import MaskedAnswer

HEADS = 10  # removed together; for a small model an eighth of its heads
EVIDENCE, COPY, MEAN = (
    "evidence",
    "copy",
    "evidence, to the mean",
)  # how heads are chosen, and removed
NORMS = "output norms"  # by choice: of the chosen heads, and of each matched set
Heads = tuple[tuple[int, int], ...]
_LEAST_SETS = 2  # fewest matched sets from which the variance between sets is estimated
_TOGETHER = 64  # most heads in a forward, and between two reports of progress


@dataclass(frozen=True)
class HeadAblation(Experiment):
    """Measure the log-probability that the gold answer loses without each head, and without retrieval heads.

    - `loss` (layer, head): nats per token lost if the output of a head is set to zero. It is measured on
      trained models only, on the first `ranked` questions, because it takes most of the time and decides no
      claim
    - `chosen` (choice): nats per token lost if the strongest retrieval heads are removed together
    - `matched` (choice, draw): nats per token lost if as many other heads of similar output norm are removed.
      There are up to `draws` sets of such heads, and no head is in two sets: 8 sets for 10 of 96 heads
    - `log_p`: log-probability of the gold answer with all heads, per token

    Args:
        heads (int): Number of retrieval heads; by default 10, or an eighth of a small model's heads.
        draws (int): Largest number of matched sets; 20 by default.
        ranked (int): Number of questions for `loss`; all by default.
    """

    heads: int | None = None
    draws: int = 20
    ranked: int | None = None
    choice_questions: ClassVar[int] = 8
    units: ClassVar[dict[str, str]] = dict.fromkeys(("loss", "chosen", "matched", "log_p"), "nats")

    def prepare(self, context: ExperimentContext) -> "_Prepared":
        from ...interventions.head_outputs import HeadMeans

        model, traces, texts = context.model, [], []
        for index in range(context.questions, context.questions + self.choice_questions):
            context.tick()
            try:
                prompt = context.prompt(index)
                texts.append(list(context.masked(index, prompt).canvas))
            except Unusable:
                continue
            traces.append(model.trace(prompt, context.sampler, keep=("rows",)))
        if not traces:
            return _Prepared({}, {}, None)
        retrieval_scores = RetrievalHeads()(traces)
        n_heads = model.n_layers * model.n_heads
        size = min(self.heads or max(1, min(HEADS, n_heads // 8)), n_heads // 2)
        means = HeadMeans.of(model, texts)
        norm = means.norm.cpu().numpy()
        scores = {
            name: retrieval_scores[name].transpose("layer", "head").values
            for name in (EVIDENCE, COPY)
        }
        chosen = {n: strongest(s, size) for n, s in scores.items() if np.isfinite(s).any()}
        retrieval = {head for heads in chosen.values() for head in heads}
        rng = np.random.default_rng([context.seed, 17])
        sets = {
            name: [heads, *matched_sets(heads, norm, retrieval, self.draws, rng)]
            for name, heads in chosen.items()
        }
        norms = {name: [_mean(norm, heads) for heads in several] for name, several in sets.items()}
        return _Prepared(sets, norms, means)

    def ask(self, context: ExperimentContext, index: int, prepared: "_Prepared") -> xr.Dataset:
        sets = prepared.sets
        if EVIDENCE not in sets:
            raise Unusable("no question marks a gold passage by which heads could be chosen")
        n_sets = len(sets[EVIDENCE]) - 1  # the same for every choice
        if n_sets < _LEAST_SETS:
            raise Unusable("the model has too few other heads to compare the retrieval heads with")
        model = context.model
        answer = context.masked(index)
        where = {"layer": range(model.n_layers), "head": range(model.n_heads)}
        single_heads = [((layer, head),) for layer in where["layer"] for head in where["head"]]
        together = [heads for several in sets.values() for heads in several]
        ranks = context.trained and (self.ranked is None or index < self.ranked)
        lost, clean = self._lost(context, answer, [*together, *(single_heads if ranks else [])])
        choices: dict[str, np.ndarray] = {}
        for place, name in enumerate(sets):
            choices[name] = lost[place * (1 + n_sets) :][: 1 + n_sets]
        choices[MEAN], _ = self._lost(context, answer, sets[EVIDENCE], prepared.means)
        values = {
            "chosen": ("choice", [by_set[0] for by_set in choices.values()]),
            "matched": (("choice", "draw"), [by_set[1:] for by_set in choices.values()]),
            "log_p": ((), clean),
        }
        coords: dict[str, Any] = {"choice": list(choices), "draw": range(n_sets)}
        if context.trained:
            shape = (model.n_layers, model.n_heads)
            losses = lost[len(together) :] if ranks else np.full(len(single_heads), np.nan)
            values["loss"] = (("layer", "head"), losses.reshape(shape))
            coords |= {name: list(places) for name, places in where.items()}
        heads = {name: json.dumps(several[0]) for name, several in sets.items()}
        return xr.Dataset(values, coords, {**heads, NORMS: json.dumps(prepared.norms)})

    def _lost(
        self,
        context: ExperimentContext,
        answer: MaskedAnswer,
        sets: Sequence[Heads],
        means: Any = None,
    ) -> tuple[Float[np.ndarray, " n"], float]:
        """Return the nats per token lost without each set of heads, and ln p per token with all heads.

        With `means`, the outputs of the heads are set to these means instead of to zero.
        """
        from ...interventions.branching import ablated_each

        to: dict[str, Any] = {} if means is None else {"to": "mean", "reference": means}
        losses: list[float] = []
        clean = np.nan
        for start in range(0, len(sets), _TOGETHER):
            batch = [(), *sets[start : start + _TOGETHER]]
            logits = ablated_each(context.model, answer.canvas, batch, answer.rows, **to)
            clean, *without = answer.per_token(context.model, logits)
            losses += [clean - log_p for log_p in without]
            context.tick()
        return np.array(losses), float(clean)

    def summarise(self, examples: Sequence[xr.Dataset], model: str) -> Result:
        """Return the result over all questions, with p and q of each head's loss."""
        result = super().summarise(examples, model)
        if "loss" in result.data:
            p = paired_p(result.examples["loss"].transpose("example", "layer", "head").values)
            result.data["p"] = (("layer", "head"), p)
            result.data["q"] = (("layer", "head"), q_values(p))
        for name in (EVIDENCE, COPY, NORMS):
            if name in examples[0].attrs:
                result.data.attrs[name] = examples[0].attrs[name]
        return result

    def plot(self, result: Result) -> Figure:
        """Draw the map of losses: circles mark heads that stand out, crosses the retrieval heads."""
        from matplotlib.colors import SymLogNorm

        loss = result["loss"].transpose("head", "layer")
        top = max(float(np.nanmax(np.abs(loss))), 1e-6)
        with panels(1, 1, width=4.6, height=2.6) as (figure, axes):
            axis = axes[0][0]
            norm = SymLogNorm(top / 100, vmin=-top, vmax=top, base=10)
            image = axis.pcolormesh(loss["layer"], loss["head"], loss, cmap="PuOr_r", norm=norm)
            significant = np.argwhere((result["q"] <= 0.05).transpose("layer", "head").values)
            marks = {"q ≤ 0.05": (significant, "o"), "retrieval heads": (heads_of(result), "x")}
            for label, (places, mark) in marks.items():
                style: Any = {"color": "black", "markersize": 3.5, "linewidth": 0}
                style |= {"markerfacecolor": "none", "markeredgewidth": 0.8}
                points = np.array(places).reshape(-1, 2).T
                axis.plot(*points, mark, label=label, **style)
            axis.set(xlabel="layer", ylabel="head")
            for dimension in (axis.xaxis, axis.yaxis):
                dimension.get_major_locator().set_params(integer=True)
            figure.colorbar(image, ax=axis, label="loss (nats a token)")
            legend_above(axis)
            n = int(result.examples["loss"].notnull().all(["layer", "head"]).sum())
            headline(figure, f"{result.model}, n = {n}: without each head")
        return figure


@dataclass(frozen=True, eq=False)
class _Prepared:
    sets: dict[str, list[Heads]]  # by choice: the chosen heads, then sets of as many others
    norms: dict[str, list[float]]  # the mean output norm of each set
    means: Any  # mean output of each head over the questions by which heads were chosen


def strongest(score: Float[np.ndarray, "l h"], size: int) -> Heads:
    """Return the `size` heads with the highest scores as (layer, head), the highest first."""
    order = np.argsort(-np.nan_to_num(score, nan=-1.0), axis=None, kind="stable")[:size]
    places = (np.unravel_index(place, score.shape) for place in order)
    return tuple((int(layer), int(head)) for layer, head in places)


def matched_sets(
    chosen: Heads,
    norm: Float[np.ndarray, "l h"],
    retrieval: Collection[tuple[int, int]],
    max_sets: int,
    rng: np.random.Generator,
) -> list[Heads]:
    """Draw sets of other heads whose output norms are near those of the chosen heads.

    In each round, every chosen head, in random order, takes the unused head with the nearest norm. The heads
    taken for each chosen head are then distributed over the sets at random. No head is in two sets, because
    sets with common heads would differ less from each other than from the chosen heads.

    Args:
        chosen: The heads to match.
        norm: Output norm of every head.
        retrieval: Heads that no set may contain.
        max_sets: Largest number of sets; there are fewer if the model has too few heads.
        rng: Random generator.
    """
    places = ((int(layer), int(head)) for layer, head in np.ndindex(*norm.shape))
    free = [place for place in places if place not in retrieval]
    n_sets = min(max_sets, len(free) // len(chosen))
    near: list[Heads] = [() for _ in chosen]
    for _ in range(n_sets):
        for index in rng.permutation(len(chosen)):
            size = norm[chosen[index]]
            nearest = min(free, key=lambda place: abs(norm[place] - size))
            free.remove(nearest)
            near[index] += (nearest,)
    dealt = [[heads[i] for i in rng.permutation(n_sets)] for heads in near]
    return [tuple(heads) for heads in zip(*dealt, strict=True)]


def _mean(norm: Float[np.ndarray, "l h"], heads: Heads) -> float:
    return float(np.mean([norm[place] for place in heads])) if heads else np.nan


def heads_of(result: Result, choice: str = EVIDENCE) -> list[tuple[int, int]]:
    """Return the heads that were chosen for removal as (layer, head), strongest first."""
    return [(int(layer), int(head)) for layer, head in json.loads(result.data.attrs[choice])]


def norms_of(result: Result, choice: str = EVIDENCE) -> tuple[float, float]:
    """Return the mean output norm of the chosen heads, and the mean output norm of the matched heads."""
    chosen_norm, *matched_norms = json.loads(result.data.attrs[NORMS])[choice]
    return chosen_norm, float(np.mean(matched_norms))


def paired_p(loss: Float[np.ndarray, "n l h"]) -> Float[np.ndarray, "l h"]:
    """Return each head's p-value for a loss other than zero: Wilcoxon's signed-rank test over questions.

    The test uses ranks because losses are skewed: without ranks, a single question could give a head a small
    p-value. If all losses of a head are zero, the p-value is 1.
    """
    from scipy import stats

    flat = loss.reshape(len(loss), -1)
    flat = flat[~np.isnan(flat).any(1)]  # questions on which every head was removed
    p = np.ones(flat.shape[1])
    moved = (flat != 0).any(0)
    if len(flat) > 1 and moved.any():
        p[moved] = stats.wilcoxon(flat[:, moved], axis=0, zero_method="zsplit").pvalue
    return p.reshape(loss.shape[1:])
