"""Study which heads an answer needs, and whether the retrieval heads are among these heads."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pandas as pd

from ...measures.result import Result
from ...stats.intervals import DIFFERENCES, SHARES
from ..anchored import names_of
from ..claim import Check, Claim, Number, format_number, format_value, lies_above
from ..evidence import Evidence
from ..experiments.base import Experiment
from ..experiments.head_ablation import COPY, EVIDENCE, MEAN, HeadAblation, heads_of, norms_of
from ..long_answers import no_answers, no_passages
from ..numbers import number, subtract_controls
from ..request import Request
from ..study import Shows, Study
from ..verdict import CAUSAL, MDM, Rule, judge, other_deltas, vary

KEY, RANKING = "head-ablation", "head-ranking"
NATS = 0.1  # the smallest effect that matters, in nats of log-probability
# Most degrees of freedom of the variance between sets of heads. Costs of heads are skewed: with those of
# all sets, randomly chosen heads count as more costly in 3 to 4 % of runs instead of 0.8 %.
FREE = 4
FLOOR = 0.1  # probability of a token of the answer, below which there is nothing to lose
LISTED = 0.05  # share of errors among the heads that are listed

NEEDED = Rule(
    "11",
    "A diffusion model needs its retrieval heads",
    "probability of a token of the gold answer (geometric mean over its tokens) that is lost with the "
    "strongest retrieval heads set to zero − with as many other heads of equal output norm, MDM, question "
    "by question; heads are chosen on other questions",
    delta=0.05,
    unit="points",
    untrained=True,
    holds="This diffusion model needs the heads that look at the answer's passage more than other heads.",
    refuted="This diffusion model needs the heads that look at the answer's passage no more than others.",
    family=CAUSAL,
    models=(MDM,),
)


class Ablation(Study):
    """The study `ablation`: whether a diffusion model needs its retrieval heads (claim 11)."""

    name = "ablation"
    options = ("heads",)
    question = "Which heads does an answer need, and are the retrieval heads among them?"
    rules = (NEEDED,)
    by_name = True
    makes = (RANKING,)
    method = """\
loss of a head = ln p of the gold answer per token, with all heads − with this head's output set to zero; one
        forward in which all of the answer is masked (causal model: each token after the ones before it)
p: Wilcoxon's signed-rank test of the losses over questions; q: Benjamini and Hochberg over a model's heads
retrieval heads: those with most attention on the gold passage while eight other questions are answered
        (evidence attention, RetrievalHeads), 10 or an eighth of a small model's heads (--set ablation.heads=)
matched heads: for each of them a head that is no retrieval head, near in output norm (mean of ‖W_O o‖ over
        all rows of those questions), in any layer; up to twenty sets, of which no two share a head
θ     = p without the matched heads (mean over sets) − p without the retrieval heads, question by question;
        p = exp(mean of ln p over the answer's tokens). The interval has the variance between sets in it, with
        4 degrees of freedom at most: retrieval heads must cost more than one set differs from another
control: the same with permuted weights, heads chosen by their own attention, several networks
not testable: no diffusion model; no gold passages; the right answer has less than 10 % a token to begin with
other choices: heads by strict copy score; outputs set to their mean over the other questions, not to zero;
        the loss in nats, which untrained weights, far below any guess, win and lose by chance"""

    shows: ClassVar[Shows] = {
        KEY: (
            "What the answer loses without each head",
            "Layer by head: log-probability of the gold answer lost without the head. Circles: heads that "
            "stand out; crosses: the retrieval heads.",
        )
    }

    def experiments(self, request: Request) -> dict[str, Experiment]:
        if no_answers(request) or no_passages(request):
            return {}
        return {KEY: HeadAblation(heads=request.heads, ranked=request.side_questions)}

    def claims(self, evidence: Evidence) -> list[Claim]:
        mdm, arm = evidence.mdm, evidence.arm
        result, controls = evidence.result(KEY, mdm), evidence.controls(KEY, mdm)
        bar = no_answers(evidence.request) or _bar(evidence, result)
        theta = _beyond(result, EVIDENCE, "MDM: retrieval − matched heads")
        untrained = _untrained(controls, EVIDENCE)
        of_arm = _beyond(evidence.result(KEY, arm), EVIDENCE, "ARM: retrieval − matched heads")
        chosen, matched = (
            _lost(result, name, f"MDM: without {words}")
            for name, words in (("chosen", "retrieval heads"), ("matched", "matched heads"))
        )
        variants = [*other_deltas(NEEDED, theta, untrained, bar)]
        for choice, words in (
            (COPY, "heads by strict copy score"),
            (MEAN, "outputs set to their mean instead of zero"),
        ):
            other = _untrained(controls, choice) or untrained  # it may copy nothing
            variants.append(vary(words, NEEDED, _beyond(result, choice, words), other, bar=bar))
        # Far below any guess, untrained log-probabilities go up and down by nats; probabilities do not.
        rule = replace(NEEDED, delta=NATS, unit="nats")
        words = f"loss in nats, δ = {format_value(NATS, 'nats')}"
        theta_nats, untrained_nats = (
            _beyond(result, EVIDENCE, words, "nats"),
            _untrained(controls, EVIDENCE, "nats"),
        )
        variants.append(vary(words, rule, theta_nats, untrained_nats, bar))
        sentence = ""
        if result is not None and chosen and matched:
            chosen_norm, matched_norm = norms_of(result)
            sentence = (
                f"Without its {len(heads_of(result))} retrieval heads the MDM's answer loses "
                f"{format_number(chosen)} per token; without as many other heads of equal output "
                f"norm, {format_number(matched)} (mean output norms "
                f"{format_value(chosen_norm)} and {format_value(matched_norm)})."
            )
        check = Check(
            "the autoregressive model needs its retrieval heads too",
            lies_above(of_arm, NEEDED.delta),
        )
        return [
            judge(
                NEEDED,
                self.name,
                theta,
                control=untrained,
                bar=bar,
                sentence=sentence,
                numbers=(chosen, matched, of_arm),
                checks=(check,) if arm else (),
                variants=tuple(variants),
            )
        ]

    def findings(self, evidence: Evidence) -> Iterator[str]:
        if why := no_answers(evidence.request) or no_passages(evidence.request):
            yield why
            return
        for model, result in evidence.results(KEY).items():
            table = ranking(result)
            listed = table[(table["q"] <= LISTED) & (table["loss"] > 0)]
            theta = _beyond(result, EVIDENCE, "")
            line = f"{model}: none of {len(table)} heads stands out by itself (q ≤ {LISTED})"
            if len(listed):
                top = listed.iloc[0]
                line = (
                    f"{model}: {len(listed)} of {len(table)} heads each make the answer less likely when "
                    f"removed (q ≤ {LISTED}), among them {int(listed['retrieval'].sum())} of the "
                    f"{len(heads_of(result))} retrieval heads; the largest loss is "
                    f"{format_value(top['loss'], 'nats')} per token "
                    f"[{format_value(top['low'])}, {format_value(top['high'])}], without head "
                    f"{top['head']} of layer {top['layer']}"
                )
            if theta:
                line += f"; the retrieval heads together cost {format_number(theta)} more than matched ones"
            yield f"{line}."

    def tables(self, evidence: Evidence) -> dict[str, pd.DataFrame]:
        frames = [
            ranking(result).assign(model=name) for name, result in evidence.results(KEY).items()
        ]
        return {RANKING: pd.concat(frames, ignore_index=True)} if frames else {}


def ranking(result: Result) -> pd.DataFrame:
    """Return a table of all heads, largest loss first: loss with interval (nats per token), p and q.

    The column `retrieval` says whether a head is one of the chosen retrieval heads.
    """
    data = result.data
    layers, heads = np.meshgrid(data["layer"].values, data["head"].values, indexing="ij")
    columns = {"layer": layers.ravel(), "head": heads.ravel()}
    for name, value in {"loss": "loss", "low": "loss_low", "high": "loss_high"}.items():
        columns[name] = data[value].transpose("layer", "head").values.ravel()
    for name in ("p", "q"):
        columns[name] = data[name].transpose("layer", "head").values.ravel()
    chosen = set(heads_of(result))
    columns["retrieval"] = np.array(
        [place in chosen for place in zip(columns["layer"], columns["head"], strict=True)]
    )
    table = pd.DataFrame(columns).sort_values("loss", ascending=False, kind="stable")
    table = table.reset_index(drop=True)
    table.insert(0, "rank", np.arange(1, len(table) + 1))
    table.insert(0, "model", result.model)
    return table


def _losses(
    result: Result | None, choice: str, unit: str = "points"
) -> tuple[dict[str, float], list[dict[str, float]]]:
    """Return the losses by question: without the chosen heads, and without each set of matched heads.

    With the unit "points", a loss is 1 − the probability of a token of the answer without the heads. With
    "nats", a loss is the decrease of the log-probability. Return {} and [] if no heads were chosen by
    `choice`.
    """
    if result is None or choice not in result.examples["choice"].values:
        return {}, []
    losses = result.examples[["chosen", "matched"]].sel(choice=choice)
    log_p = result.examples["log_p"].values
    sets = [losses["chosen"].values, *losses["matched"].transpose("draw", "example").values]
    if unit == "points":
        sets = [1 - np.exp(np.minimum(log_p - lost, 0.0)) for lost in sets]
    chosen, *matched = (dict(zip(names_of(result), lost.tolist(), strict=True)) for lost in sets)
    return chosen, matched


def _beyond(result: Result | None, choice: str, label: str, unit: str = "points") -> Number | None:
    """Return the loss without the chosen heads − the loss without matched heads, mean over questions.

    For the interval, the chosen heads are treated as one further draw from sets like the matched sets.
    """
    chosen, matched = _losses(result, choice, unit)
    bounds = SHARES if unit == "points" else None
    return subtract_controls(
        chosen, matched, label, unit, level=NEEDED.level, bounds=bounds, most_free=FREE
    )


def _untrained(controls: Sequence[Result], choice: str, unit: str = "points") -> Number | None:
    """Return the loss without the chosen heads − the loss without matched heads, for untrained networks.

    The interval is for one further untrained network, estimated from `controls`.
    """
    negative = []
    for result in controls:
        chosen, matched = _losses(result, choice, unit)
        negative.append({n: float(np.mean([o[n] for o in matched])) - x for n, x in chosen.items()})
    nothing = dict.fromkeys((name for losses in negative for name in losses), 0.0)
    estimate = subtract_controls(nothing, negative, "untrained MDM", unit, level=NEEDED.level)
    if estimate is None or unit != "points" or estimate.low is None or estimate.high is None:
        return estimate
    low, high = np.clip((estimate.low, estimate.high), *DIFFERENCES)
    return replace(estimate, low=float(low), high=float(high))


def _lost(result: Result | None, name: str, label: str) -> Number | None:
    if result is None:
        return None
    values = result.examples[name].sel(choice=EVIDENCE)
    by_question = values.mean("draw") if "draw" in values.dims else values
    return number(np.asarray(by_question.values, float), label, "nats")


def _bar(evidence: Evidence, result: Result | None) -> str:
    if why := no_passages(evidence.request):
        return why
    if evidence.mdm is None:
        return "There is no diffusion model in this run: add one with --model."
    if result is None:
        return "No question could be used: they need right answers and a passage marked as gold."
    p = float(np.exp(result.data["log_p"]))
    if p < FLOOR:
        return (
            f"The right answer has a probability of {format_value(p, '%')} per token with all "
            f"heads, less than {100 * FLOOR:.0f} %: ask questions that the model can answer."
        )
    return ""
