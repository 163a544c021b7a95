"""Turn the state in a page's address into requests for runs on this page.

Each run of the state is assigned to the loaded model with the same fingerprint.
"""

import shlex
from collections.abc import Iterable
from typing import Any

from .host import ModelHost
from .messages import State, StateRun, plain


def opened(state: State, hosts: Iterable[ModelHost]) -> dict[str, Any]:
    """Return a request for each run of `state`, and notices of models that are missing.

    The result has the keys `runs` (one request per run; None if the model of the run is missing), `state`
    (with a value for every field that the page reads), `missing` (notices) and `waiting` (specs of models
    that are still loading).
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
    """Return a notice of the model that run `i` needs, with the command that loads the model.

    The texts in a link may come from a stranger. The notice therefore escapes characters that cannot be
    printed, and the command quotes the name of the model.
    """
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
