"""What an address holds, on a page that may have other models: by fingerprint, runs that can be made here."""

from collections.abc import Iterable
from typing import Any

from .host import ModelHost
from .messages import State, plain


def opened(state: State, hosts: Iterable[ModelHost]) -> dict[str, Any]:
    """Requests for `run`, None where the model is not here, and what is missing."""
    hosts = list(hosts)
    here = {host.facts.get("fingerprint"): host.id for host in hosts}
    waiting = [host.spec for host in hosts if host.state in ("loading", "restarting")]
    runs: list[dict[str, Any] | None] = []
    missing = []
    for one in state.runs:
        if one.fingerprint in here:
            wanted = {k: v for k, v in plain(one).items() if k not in ("fingerprint", "from")}
            runs.append({**wanted, "model": here[one.fingerprint]})
            continue
        runs.append(None)
        remedy = f"Start floatscope live --model {one.model}." if one.model else ""
        if waiting:
            remedy = f"Wait: {', '.join(waiting)} is still being loaded."
        named = one.model or one.fingerprint
        message = f"the link is of {named} ({one.fingerprint}), which is not loaded here"
        missing.append(
            {
                "fingerprint": one.fingerprint,
                "model": one.model,
                "message": message,
                "remedy": remedy,
            }
        )
    return {"runs": runs, "view": state.view, "missing": missing}
