"""The studies by name, and how many claims of each family they declare.

A rule asks here how many claims are judged together with it. So this file knows neither rules nor studies.
"""

from typing import Any

from ..registry import Registry

STUDIES: "Registry[Any]" = Registry(
    "study", "floatscope.studies.library", make=lambda study: study()
)


def claims_in(family: str) -> int:
    """Count the claims of a family that all registered studies declare, a plugin's included."""
    return len(
        {rule for study in STUDIES.values() for rule in study.rules if rule.family == family}
    )
