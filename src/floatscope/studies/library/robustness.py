"""Robustness: does a model need its anchors, and its structure?"""

import numpy as np

from ..claim import Check, Claim, Number, above, below, said, short
from ..draw import Picture, of_answers
from ..evidence import Evidence
from ..long_answers import no_answers
from ..numbers import number
from ..request import Request
from ..setting import Setting
from ..study import Study
from ..verdict import LEVEL, Rule, judge, other_deltas, vary
from .knowledge import WITH

CONTROLS = ("mass", "random", "matched")
KINDS = {"anchors": "", **{name: f",control={name}" for name in CONTROLS}}
FIRST = "position-0"
MARKUP = "mask-tokens:classes=special|whitespace|punctuation|template"
BREAKS, TOUCHES = -0.25, -0.10  # difference from a control, in shares
ALIKE = 0.8  # a control that hides less of what the anchors hide is none of equal mass
ROOM = 0.25  # a model that answers less than this has nothing to lose

NEEDED = Rule(
    8,
    "Masking sinks breaks autoregressive models and hardly touches diffusion models",
    "share right that the ARM loses − that the MDM loses, with anchors hidden instead of other columns "
    "that hold as much attention, question by question",
    delta=0.1,
    unit="points",
    holds="The causal model needs its anchors more than the diffusion model does.",
    refuted="The causal model needs its anchors no more than the diffusion model does.",
)


class Robustness(Study):
    name = "robustness"
    question = "Does a model need its anchors, and its structure?"
    rules = (NEEDED,)
    method = """\
anchors: the k keys of the prompt with the highest lift, of those that a quarter of the rows see, per head
         and layer, as they are in a first forward without any mask; hidden from all rows at every step
         (2510.15731 chooses anew at every step, from all keys, by a mean over the rows that see each)
controls: other keys that hold as much of that head's attention (as many as it takes); as many at random;
         and the nearest that are not anchors; each drawn once per prompt and held
position 0: the first token alone is hidden
structure: special tokens, whitespace, punctuation and template are hidden in the first or the last third
         of the layers, against random and nearest columns
difference = share right with anchors hidden − with a control's columns hidden, paired by question
In the claim loss = control of equal mass − anchors, at the largest k."""

    def settings(self, request: Request) -> list[Setting]:
        if no_answers(request):
            return []
        settings = [Setting(WITH, request.asked_as, decides=True)]
        for k in request.columns:
            for kind, control in KINDS.items():
                text = f"mask-columns:k={k}{control},seed={request.seed}"
                decides = k == request.columns[-1] and kind in ("anchors", "mass")
                settings.append(Setting(_named(k, kind), request.asked_as, text, decides=decides))
        settings.append(Setting(FIRST, request.asked_as, "mask-tokens:positions=0"))
        for where in ("first", "last"):
            for kind in ("anchors", "random", "matched"):
                text = f"{MARKUP},layers={{{where}}}{KINDS[kind]},seed={request.seed}"
                name = f"structure-{where}-{'chosen' if kind == 'anchors' else kind}"
                settings.append(Setting(name, request.asked_as, text))
        return settings

    def claims(self, evidence: Evidence) -> list[Claim]:
        k = evidence.request.columns[-1]
        basic = self._bar(evidence, k)
        bar = basic or _unequal(evidence, k)
        theta = _more_lost(evidence, _named(k, "anchors"), _named(k, "mass"), LEVEL)
        variants = [*other_deltas(NEEDED, theta, bar=bar)]
        for n in evidence.request.columns[:-1]:
            one = _more_lost(evidence, _named(n, "anchors"), _named(n, "mass"), LEVEL)
            variants.append(vary(f"k = {n}", NEEDED, one, bar=basic or _unequal(evidence, n)))
        for label, setting, base in (
            ("against as many random columns", _named(k, "anchors"), _named(k, "random")),
            ("against the nearest columns", _named(k, "anchors"), _named(k, "matched")),
            ("position 0 alone, against no mask", FIRST, WITH),
        ):
            variants.append(
                vary(label, NEEDED, _more_lost(evidence, setting, base, LEVEL), bar=basic)
            )
        losses = {
            kind: evidence.apart(
                _named(k, "anchors"),
                _named(k, "mass"),
                model,
                f"{kind}, k = {k}: anchors hidden − as much attention elsewhere",
            )
            for kind, model in (("ARM", evidence.arm), ("MDM", evidence.mdm))
        }
        arm, mdm = losses["ARM"], losses["MDM"]
        sentence = ""
        if arm and mdm:
            sentence = (
                f"With {k} anchors hidden instead of columns that hold as much attention, the share right "
                f"changes by {said(arm)} in the ARM and by {said(mdm)} in the MDM."
            )
        return [
            judge(
                NEEDED,
                self.name,
                theta,
                bar=bar,
                sentence=sentence,
                numbers=(arm, mdm),
                checks=(
                    Check(
                        f"the ARM loses more than {-100 * BREAKS:.0f} points", below(arm, BREAKS)
                    ),
                    Check(f"the MDM loses less than {-100 * TOUCHES:.0f}", above(mdm, TOUCHES)),
                ),
                variants=tuple(variants),
            )
        ]

    def _bar(self, evidence: Evidence, k: int) -> str:
        """Why this run cannot tell who needs its anchors."""
        if bar := no_answers(evidence.request):
            return bar
        for kind, model in (("ARM", evidence.arm), ("MDM", evidence.mdm)):
            name = "causal" if kind == "ARM" else "diffusion"
            base = evidence.right(WITH, model)
            if model is None or base is None:
                return f"No {name} model was asked: add one with --model."
            if not above(base, ROOM):
                return (
                    f"The {name} model answers {said(base)} without any mask, and has too little to "
                    f"lose: ask questions of which it answers more than {100 * ROOM:.0f} %."
                )
            if evidence.answers(_named(k, "mass"), model) is None:
                return (
                    f"The {name} model was not asked with {k} columns hidden: its prompts are too "
                    "short, or the run is of an earlier version. Lower --columns, or run it anew."
                )
        return evidence.cut_off((WITH,), evidence.arm, evidence.mdm)

    def findings(self, evidence: Evidence) -> list[str]:
        lines = []
        k = evidence.request.columns[-1]
        for model in evidence.models:
            hidden = {
                name: share
                for name, setting in {
                    f"{k} anchors": _named(k, "anchors"),
                    "the control of equal mass": _named(k, "mass"),
                    "random columns": _named(k, "random"),
                    "the nearest columns": _named(k, "matched"),
                    "position 0 alone": FIRST,
                }.items()
                if (share := evidence.hidden(setting, model)) is not None
            }
            if hidden:
                said_of = [
                    f"{name} {100 * share:.0f} % ({columns:.0f} columns)"
                    for name, (share, columns) in hidden.items()
                ]
                lines.append(f"{model}: of a head's attention, hidden are: {', '.join(said_of)}.")
            parts = []
            for where in ("first", "last"):
                random, matched = (
                    evidence.apart(f"structure-{where}-chosen", f"structure-{where}-{c}", model)
                    for c in ("random", "matched")
                )
                if random and matched:
                    parts.append(
                        f"in the {where} third of the layers by {said(random)} (against the tokens "
                        f"beside it: {said(matched)})"
                    )
            if parts:
                lines.append(
                    f"{model}: hiding structure instead of random columns changes the share right "
                    + ", ".join(parts)
                    + "."
                )
        return lines

    def figures(self, evidence: Evidence) -> list[Picture]:
        names = [s.name for s in self.settings(evidence.request)]
        if not names:
            return []
        alt = "Share of right answers with columns hidden, for every model, with 95 % intervals."
        return [of_answers(evidence, names, "robustness", "Right answers with columns hidden", alt)]


def _named(k: int, kind: str) -> str:
    """Not "mask-5-anchors": in earlier runs those were chosen by another rule, at every step."""
    return f"columns-{k}-{kind}"


def _unequal(evidence: Evidence, k: int) -> str:
    """Where no other columns hold what the anchors hold, there is no control of equal mass."""
    for name, model in (("causal", evidence.arm), ("diffusion", evidence.mdm)):
        anchors, mass = (evidence.hidden(_named(k, kind), model) for kind in ("anchors", "mass"))
        if anchors and mass and mass[0] < ALIKE * anchors[0]:
            return (
                f"In the {name} model {k} anchors hold {short(anchors[0], '%')} of a head's attention, "
                f"and no other columns do: hiding {mass[1]:.0f} of them hides {short(mass[0], '%')}. "
                "There is nothing of equal mass to compare with; the other controls stand below."
            )
    return ""


def _more_lost(evidence: Evidence, setting: str, base: str, level: float) -> Number | None:
    """What the ARM loses beyond the MDM, over questions that both were asked."""
    arm, mdm = (evidence.gap_by_id(setting, base, model) for model in (evidence.arm, evidence.mdm))
    both = [name for name in arm if name in mdm]
    more = np.array([mdm[name] - arm[name] for name in both])
    label = "lost with anchors hidden, ARM − MDM"
    return number(more, label, "points", level=level, null=0.0, bounds=(-2, 2)) if both else None
