"""What is traced and how questions are asked: the words that studies, plan and worker share."""

from dataclasses import dataclass

MAIN, KNOWN = "main", "known"  # whom questions are about
QUESTIONS, PROSE = "questions", "prose"  # what is traced
# How a measure's name ends that looks at given texts instead of a decoding: the finished text of the model
# itself; the prompt with its gold answer, the same text for every model; five states of the decoding.
FINISHED, SAME, STATES = "-finished", "-same", "-states"
PAGE, SERVED = (
    "page",
    "served",
)  # scenes of a viewed example: for the report, and for `floatscope view`
TRACES = "traces"  # the folder of a run in which whole traces are kept, where they are asked for


@dataclass(frozen=True)
class Setting:
    """One way to ask the questions. `{first}` and `{last}` stand for thirds of a model's layers."""

    name: str
    condition: str = "as-is"
    intervention: str = ""
    sampler: str = ""  # "" = the run's; others are for diffusion models alone
    people: str = MAIN
    questions: int | None = None  # how many are asked; None: the run's `questions`
    decides: bool = False  # a claim; others may be asked fewer questions (`side_questions`)
    early_stop: bool = True  # else every position is revealed, also behind an end token
