"""The answer in one sentence: does attention float, in these models? Written from verdicts alone."""

from collections.abc import Iterable, Mapping

from .claim import Claim, said
from .verdict import HOLDS, REFUTED, UNDECIDED

# What claims 2, 3 and 4 say of a diffusion model's anchors.
_OVER = {"3": "over denoising steps", "4": "over layers", "2": "from prompt to prompt"}


def answer(claims: Iterable[Claim], mdm: str | None, arm: str | None) -> str:
    """Say where attention floats and where it rests; "" if no claim of this kind was tested."""
    by_number = {claim.number: claim for claim in claims}
    parts = []
    moves = {verdict: _over(by_number, verdict) for verdict in (HOLDS, REFUTED, UNDECIDED)}
    if mdm and any(moves.values()):
        told = []
        if moves[HOLDS]:
            told.append(f"attention moves {moves[HOLDS]}")
        if moves[REFUTED]:
            told.append(
                f"it does not {moves[REFUTED]}" if told else f"attention stays {moves[REFUTED]}"
            )
        if moves[UNDECIDED]:
            told.append(f"this run cannot tell whether it moves {moves[UNDECIDED]}")
        parts.append(f"in {mdm} {'; '.join(told)}")
    sink = by_number.get("1")
    if arm and sink and sink.verdict in (HOLDS, REFUTED):
        parts.append(
            f"{arm} {'rests' if sink.verdict == HOLDS else 'does not rest'} on its first token"
        )
    return f"Does attention float? {_capital('; '.join(parts))}." if parts else ""


def _over(claims: Mapping[str, Claim], verdict: str) -> str:
    """List what has this verdict: "over denoising steps (4 layers [3, 6]) and over layers"."""
    found = []
    for number, words in _OVER.items():
        claim = claims.get(number)
        if claim is None or claim.verdict != verdict:
            continue
        counted = number == "3" and claim.theta is not None
        found.append(f"{words} ({said(claim.theta)})" if counted and claim.theta else words)
    return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:] if not text.startswith(("pair/", "twin/")) else text
