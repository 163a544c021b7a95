"""Ablation: which heads does an answer need, and are the retrieval heads among them?"""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pandas as pd

from ...measures.result import Result
from ...stats.intervals import DIFFERENCES
from ..anchored import by_prompt, names_of
from ..claim import Check, Claim, Number, above, said, short
from ..evidence import Evidence
from ..experiments.base import Experiment
from ..experiments.head_ablation import COPY, EVIDENCE, MEAN, HeadAblation, heads_of
from ..long_answers import no_answers, no_passages
from ..numbers import number
from ..request import Request
from ..study import Shows, Study
from ..verdict import CAUSAL, Rule, judge, other_deltas, vary

KEY, RANKING = "head-ablation", "head-ranking"
NATS = 0.1  # the smallest effect that matters, where it is told in log-probability
FLOOR = 0.1  # probability of a token of the answer, below which there is nothing to lose
LISTED = 0.05  # share of errors among the heads that are listed

NEEDED = Rule(
    11,
    "A diffusion model needs its retrieval heads",
    "probability of a token of the gold answer (geometric mean over its tokens) that is lost with the "
    "strongest retrieval heads set to zero − with as many random heads of the same layers, MDM, question by "
    "question; heads are chosen on other questions",
    delta=0.05,
    unit="points",
    untrained=True,
    holds="The answer needs the heads that look at its passage, more than other heads of their layers.",
    refuted="The answer needs the heads that look at its passage no more than other heads of their layers.",
    family=CAUSAL,
)


class Ablation(Study):
    name = "ablation"
    question = "Which heads does an answer need, and are the retrieval heads among them?"
    rules = (NEEDED,)
    by_name = True
    makes = (RANKING,)
    method = """\
loss of a head = ln p of the gold answer per token, with all heads − with this head's output set to zero; one
        forward in which all of the answer is masked (causal model: each token after the ones before it)
p: Wilcoxon's signed-rank test of the losses over questions; q: Benjamini and Hochberg over a model's heads
retrieval heads: those with most attention on the gold passage while eight other questions are answered
        (evidence attention, RetrievalHeads), 10 or an eighth of a small model's heads (--heads), at most half
        of a layer's
θ     = p without as many random other heads of the same layers (mean of ln p over five draws) − p without
        the retrieval heads together, question by question; p = exp(mean of ln p over the answer's tokens)
control: the same with permuted weights, heads chosen by their own attention
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
        result, control = evidence.result(KEY, mdm), evidence.control(KEY, mdm)
        bar = no_answers(evidence.request) or _bar(evidence, result)
        level = NEEDED.level
        theta, untrained = (
            _in_points(one, EVIDENCE, label, level)
            for one, label in (
                (result, "MDM: retrieval − random heads"),
                (control, "untrained MDM"),
            )
        )
        of_arm = _in_points(
            evidence.result(KEY, arm), EVIDENCE, "ARM: retrieval − random heads", 0.95
        )
        chosen, random = (
            _lost(result, name, f"MDM: without {words}")
            for name, words in (("chosen", "retrieval heads"), ("random", "random heads"))
        )
        variants = [*other_deltas(NEEDED, theta, untrained, bar)]
        for choice, words in (
            (COPY, "heads by strict copy score"),
            (MEAN, "outputs set to their mean instead of zero"),
        ):
            other = _in_points(control, choice, words, level) or untrained  # it may copy nothing
            one = _in_points(result, choice, words, level)
            variants.append(vary(words, NEEDED, one, other, bar=bar))
        # Far below any guess, untrained log-probabilities go up and down by nats; probabilities do not.
        rule = replace(NEEDED, delta=NATS, unit="nats")
        here, there = (_beyond(one, EVIDENCE, "", level) for one in (result, control))
        variants.append(vary(f"loss in nats, δ = {short(NATS, 'nats')}", rule, here, there, bar))
        sentence = ""
        if result is not None and chosen and random:
            sentence = (
                f"Without its {len(heads_of(result))} retrieval heads the MDM's answer loses "
                f"{said(chosen)} a token, without as many others of the same layers {said(random)}."
            )
        check = Check("so does the autoregressive model", above(of_arm, NEEDED.delta))
        return [
            judge(
                NEEDED,
                self.name,
                theta,
                control=untrained,
                bar=bar,
                sentence=sentence,
                numbers=(chosen, random, of_arm),
                checks=(check,) if arm else (),
                variants=tuple(variants),
            )
        ]

    def findings(self, evidence: Evidence) -> list[str]:
        if why := no_answers(evidence.request) or no_passages(evidence.request):
            return [why]
        lines = []
        for model, result in evidence.results(KEY).items():
            table = ranking(result)
            found = table[(table["q"] <= LISTED) & (table["loss"] > 0)]
            theta = _in_points(result, EVIDENCE, "", 0.95)
            line = f"{model}: none of {len(table)} heads stands out by itself (q ≤ {LISTED})"
            if len(found):
                most = found.iloc[0]
                line = (
                    f"{model}: without one of {len(found)} of {len(table)} heads the answer is less likely "
                    f"(q ≤ {LISTED}), {int(found['retrieval'].sum())} of the {len(heads_of(result))} "
                    f"retrieval heads among them; it loses most, {short(most['loss'], 'nats')} a token "
                    f"[{short(most['low'])}, {short(most['high'])}], without head {most['head']} of layer "
                    f"{most['layer']}"
                )
            if theta:
                line += f"; the retrieval heads together cost {said(theta)} more than random ones"
            lines.append(f"{line}.")
        return lines

    def tables(self, evidence: Evidence) -> dict[str, pd.DataFrame]:
        frames = [ranking(one).assign(model=name) for name, one in evidence.results(KEY).items()]
        return {RANKING: pd.concat(frames, ignore_index=True)} if frames else {}


def ranking(result: Result) -> pd.DataFrame:
    """Every head, the most needed first: its loss with interval, p and q."""
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


def _choices(result: Result | None, name: str, choice: str) -> np.ndarray | None:
    if result is None or choice not in result.examples["choice"].values:
        return None
    values = result.examples[name].sel(choice=choice).values
    return by_prompt(np.asarray(values, float), names_of(result))


def _beyond(result: Result | None, choice: str, label: str, level: float) -> Number | None:
    chosen, random = (_choices(result, name, choice) for name in ("chosen", "random"))
    if chosen is None or random is None:
        return None
    return number(chosen - random, label, "nats", level=level, null=0.0)


def _in_points(result: Result | None, choice: str, label: str, level: float) -> Number | None:
    """Probability of a token of the answer that is lost, beyond what random heads cost."""
    chosen, random = (_choices(result, name, choice) for name in ("chosen", "random"))
    if result is None or chosen is None or random is None:
        return None
    log_p = by_prompt(np.asarray(result.examples["log_p"].values, float), names_of(result))
    lost = np.exp(log_p - random) - np.exp(log_p - chosen)
    return number(lost, label, "points", level=level, null=0.0, bounds=DIFFERENCES)


def _lost(result: Result | None, name: str, label: str) -> Number | None:
    values = _choices(result, name, EVIDENCE)
    return None if values is None else number(values, label, "nats")


def _bar(evidence: Evidence, result: Result | None) -> str:
    if why := no_passages(evidence.request):
        return why
    if evidence.mdm is None:
        return "There is no diffusion model in this run: add one with --model."
    if result is None:
        return "No question could be used: it takes answers, and passages of which one is marked as gold."
    p = float(np.exp(result.data["log_p"]))
    if p < FLOOR:
        return (
            f"The right answer has {short(p, '%')} a token before anything is taken away, less than "
            f"{100 * FLOOR:.0f} %: ask what the model can answer."
        )
    return ""
