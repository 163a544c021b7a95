"""What is traced and how questions are asked: the words that studies, plan and worker share."""

from dataclasses import dataclass

MAIN, KNOWN = "main", "known"  # whom questions are about
QUESTIONS, PROSE = "questions", "prose"  # what is traced


@dataclass(frozen=True)
class Setting:
    """One way to ask the questions. `{first}` and `{last}` stand for thirds of a model's layers."""

    name: str
    condition: str = "as-is"
    intervention: str = ""
    sampler: str = ""  # "" = the run's; others are for diffusion models alone
    people: str = MAIN
    early_stop: bool = True  # else every position is revealed, also behind an end token
