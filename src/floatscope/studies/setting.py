"""Define settings, which are ways to ask questions, and names that studies, plan and worker share."""

from dataclasses import dataclass

MAIN, KNOWN = "main", "known"  # whom questions are about
QUESTIONS, PROSE = "questions", "prose"  # what is traced
# Endings of the names of measures that read given texts instead of a decoding: the finished text of the model
# itself; the prompt with its gold answer, the same text for every model; five states of the decoding.
FINISHED, SAME, STATES = "-finished", "-same", "-states"
PAGE, SERVED = (
    "page",
    "served",
)  # scenes of a viewed example: for the report, and for `floatscope view`
TRACES = "traces"  # folder of a run for complete traces, if they are requested


@dataclass(frozen=True)
class Setting:
    """A setting: one way to ask the questions of a run.

    Args:
        name (str): Name of the setting.
        condition (str): Condition of the passages; "as-is" by default.
        intervention (str): Intervention while decoding; "" (by default) for none. `{first}` and `{last}` are
            replaced by the first and the last third of the model's layers.
        sampler (str): Sampler, for diffusion models only; "" (by default) is the sampler of the run.
        people (str): Whom the questions are about: MAIN (by default, the people in the data) or KNOWN (people
            that the embedded pair knows).
        questions (int): Number of questions; by default the number of the run.
        decides (bool): Whether a claim is decided on this setting; False by default. Settings on which no
            claim is decided may have fewer questions (`side_questions`).
        early_stop (bool): Stop at the end token (by default); False reveals every position.
    """

    name: str
    condition: str = "as-is"
    intervention: str = ""
    sampler: str = ""  # "" = the run's; others are for diffusion models alone
    people: str = MAIN
    questions: int | None = None  # how many are asked; None: the run's `questions`
    decides: bool = False  # a claim; others may be asked fewer questions (`side_questions`)
    early_stop: bool = True  # False: every position is revealed, also after an end token
