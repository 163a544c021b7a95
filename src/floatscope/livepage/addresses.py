"""Open the state in a page's address on a page with other models, which are matched by fingerprint."""

import shlex
from collections.abc import Iterable
from typing import Any

from .host import ModelHost
from .messages import State, StateRun, plain


def opened(state: State, hosts: Iterable[ModelHost]) -> dict[str, Any]:
    """Return requests for `run`, None for models that are missing, and notices of what is missing.

    `state` has been checked and has a value for every field that a page reads.
    """
    hosts = list(hosts)
    loaded_ids = {
        host.facts["fingerprint"]: host.id for host in hosts if "fingerprint" in host.facts
    }
    waiting = [host.spec for host in hosts if host.state in ("loading", "restarting")]
    checked = [{"sampler": None, "from": None, **plain(run)} for run in state.runs]
    requests: list[dict[str, Any] | None] = []
    missing = []
    for i, run in enumerate(state.runs):
        if run.fingerprint in loaded_ids:
            names = ("prompt", "sampler", "touches")
            request = {name: checked[i][name] for name in names}
            requests.append({**request, "model": loaded_ids[run.fingerprint]})
        else:
            requests.append(None)
            missing.append(_missing(i, run))
    checked_state = {"v": 1, "runs": checked, "view": plain(state.view)}
    return {"runs": requests, "state": checked_state, "missing": missing, "waiting": waiting}


def _missing(i: int, run: StateRun) -> dict[str, Any]:
    """Say which model a run needs, and the command that loads it. The link may be a stranger's: quote it."""
    fingerprint = run.fingerprint if run.fingerprint.isprintable() else ascii(run.fingerprint)
    model = run.model if run.model.isprintable() else ascii(run.model)
    named = f"{model} ({fingerprint})" if model else fingerprint
    remedy = "Start floatscope live with that model, and paste the link there."
    if run.model and run.model.isprintable():
        command = f"floatscope live --model {shlex.quote(run.model)}"
        remedy = f"Start {command} where that model is, and paste the link there."
    return {
        "run": i,
        "fingerprint": run.fingerprint,
        "model": run.model,
        "message": f"The link asks for {named}, which is not loaded here.",
        "remedy": remedy,
    }
