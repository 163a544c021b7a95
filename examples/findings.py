"""Two studies of one's own: the settings of docs/explanation/findings.md that the built-in studies lack.

`runs/findings.sh` runs them beside `knowledge`, `robustness` and `decoding`; a plugin is all this is:

    floatscope study knowledge pair-conditions --plugin examples/findings.py --model pair/mdm …
    python examples/findings_table.py DIR        # the tables of the docs, from such runs
"""

from dataclasses import dataclass

import floatscope as fs
from floatscope.decode.presets import presets
from floatscope.studies import Setting

# The rule of the published answers: chosen at every step, from all keys, by a mean over those who see it.
PUBLISHED = "by=received,viewers=0,keys=all,hold=false"
CONTROLS = {"chosen": "", "random": ",control=random", "matched": ",control=matched"}


@fs.register
class PairConditions(fs.Study):
    """Every setting asks the same questions with the same template, masks and steps."""

    name = "pair-conditions"
    question = "What do noise, conflicts, order and further interventions do?"
    method = "right: an answer is contained in what was said; differences are paired by question"

    def settings(self, request):
        conditions = {f"gold-{place}": f"gold={place}" for place in range(1, 8) if place != 4}
        conditions |= {f"passages/{n}": f"passages={n}" for n in (1, 3, 6, 15)}
        conditions |= {f"noise/{share}": f"noise={share}" for share in (0.5, 1.0)}
        conditions |= {f"conflicts/{n}": f"conflicts={n}" for n in (1, 3)}
        conditions |= {"question-first": "question-first"}
        conditions |= {f"extra-masks/{n}": f"extra-masks={n}" for n in (10, 30)}
        changes = {}
        # Of each head the strongest keys; of those, real sinks alone; and the strongest of the head mean.
        kinds = {"head": "", "sink": ",rule=excess(3)", "mean": ",per_head=false"}
        for kind, how in kinds.items():
            for k in (1, 5, 10):
                for name, control in CONTROLS.items():
                    text = f"mask-columns,k={k},{PUBLISHED}{how}{control},seed={request.seed}"
                    changes[f"sinks/{kind}/{k}/{name}"] = text
        for where in ("first", "last"):
            for name, control in CONTROLS.items():
                text = f"mask-tokens,regions=gold,layers={{{where}}}{control},seed={request.seed}"
                changes[f"gold-passage/{where}/{name}"] = text
            text = f"mask-tokens,classes=structural,layers={{{where}}}"
            changes[f"structural/{where}/chosen"] = text
        changes |= {"sink-token": "sink-token"}
        changes |= {f"boost/{s}": f"boost-dynamics,strength={s}" for s in (0.1, 1.0)}
        return [
            *(Setting(name, condition) for name, condition in conditions.items()),
            *(Setting(name, request.asked_as, change) for name, change in changes.items()),
        ]


def fixed(base, name, **settings):
    """A sampler with settings that a run's own number of steps does not change."""

    def __post_init__(self):
        for field, value in settings.items():
            object.__setattr__(self, field, value)

    body = {"__doc__": base.__doc__, "__post_init__": __post_init__, "name": name}
    fs.register(dataclass(frozen=True)(type(base.__name__, (base,), body)))
    return name


SAMPLERS = (
    fixed(fs.Confidence, "confidence, blocks of 2", block_length=2),
    fixed(fs.Confidence, "confidence, 5 steps", steps=5),
    fixed(fs.Confidence, "confidence, 2 steps", steps=2),
    fixed(fs.samplers.Random, "random, 2 steps", steps=2),
)


@fs.register
class PairSamplers(fs.Study):
    """Beside `decoding`, which asks two samplers: all others, fewer steps, and shorter blocks."""

    name = "pair-samplers"
    question = "What do other samplers, fewer steps and shorter blocks cost?"
    method = "as in `decoding`"

    def settings(self, request):
        others = [
            name
            for name in presets(request.length, request.steps)
            if name not in ("confidence", "position-calibrated")
        ]
        return [
            *(
                Setting(f"sampler-{name}", request.asked_as, sampler=name, early_stop=False)
                for name in others
            ),
            *(Setting(f"sampler-{name}", request.asked_as, sampler=name) for name in SAMPLERS),
        ]
