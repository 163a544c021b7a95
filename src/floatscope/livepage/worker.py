"""Run the worker that holds a model: receive jobs, run them one at a time, and send events.

Messages are lines of JSON, sent through a pipe in both directions. A job that is cancelled is ended between
two steps. Errors are sent with a remedy, and the worker then waits for the next job. If the worker dies,
`host` starts another worker.
"""

import gc
import json
import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from typing import Any

from ..children import ChildProcess, ChildThread
from ..errors import FloatscopeError, is_out_of_memory
from .prompts import layout_of

Job = dict[str, Any]
CANCEL = "cancel"  # the number of a job
END = "end"  # nobody listens any more
SHARE = "share"  # how many models are at work on this machine


class Cancelled(Exception):
    """Raised inside a job that the server has cancelled."""


class _Ended(Exception):
    """Raised inside a job when the server ends the worker."""


def encoded(message: Mapping[str, Any]) -> bytes:
    """Encode a message as the bytes of compact JSON, on one line."""
    return json.dumps(message, allow_nan=False, separators=(",", ":")).encode()


def worker_process(spec: str, options: dict[str, Any]) -> ChildProcess:
    """Return a process, not yet started, that loads a model and runs jobs on it."""
    # Threads of a matrix product that wait for one another sleep soon. By libgomp's default they spin for
    # milliseconds, so that beside other work on the machine a step took ten times as long.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    return ChildProcess(_load_and_work, (spec, options), preload=f"{__package__}.jobs")


def worker_thread(model: Any, layout: str) -> ChildThread:
    """Return a thread, not yet started, that runs jobs on a model of this process."""
    return ChildThread(work, (lambda: model, layout))


def _load_and_work(pipe: Connection, spec: str, options: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")

    def load() -> Any:
        from transformers.utils import logging

        from ..instrument import load
        from ..registry import load_plugin

        logging.set_verbosity_error()  # what matters is said on the page
        settings = dict(options)
        for plugin in settings.pop("plugins", ()):
            load_plugin(plugin)
        model = load(spec, **settings)
        # What is imported and loaded stays: a look through all of it for garbage takes 0.3 s in mid-run.
        gc.collect()
        gc.freeze()
        return model

    work(pipe, load, layout_of(spec))
    os._exit(0)  # threads of libraries do not hold it up


def work(pipe: Connection, load: Callable[[], Any], layout: str) -> None:
    """Load a model and run jobs on it until the pipe is closed.

    Args:
        pipe (Connection): The pipe through which jobs are received and events are sent, as bytes of JSON.
        load (callable): A function without arguments that returns the model.
        layout (str): The model's layout of questions: "world" or "plain".
    """
    with suppress(EOFError, OSError, _Ended), closing(pipe):  # nobody listens any more
        try:
            from . import jobs

            model = load()
            facts = jobs.facts(model, layout)
        except BaseException as error:
            pipe.send(encoded({"event": "failed", **error_message(error)}))
            return
        pipe.send(encoded({"event": "ready", "facts": facts}))
        while True:
            job: Job = json.loads(pipe.recv())
            if END in job:
                return
            if "kind" in job:  # what else there may be is for a job that has ended meanwhile
                _do(pipe, model, job)


def _do(pipe: Connection, model: Any, job: Job) -> None:
    from . import jobs

    number = job["job"]

    def tell(message: Mapping[str, Any]) -> None:
        pipe.send(encoded({**message, "job": number}))
        while pipe.poll():
            heard = json.loads(pipe.recv())
            jobs.share_cores(heard.get(SHARE))
            if heard.get(CANCEL) == number:
                raise Cancelled
            if END in heard:
                raise _Ended

    jobs.share_cores(job.get(SHARE))
    try:
        answer = jobs.JOBS[job["kind"]](model, job, tell)
    except Cancelled:
        answer = {"event": "cancelled"}
    except _Ended:
        raise
    except BaseException as error:
        answer = {"event": "error", **error_message(error)}
        if not isinstance(error, Exception):
            pipe.send(encoded({**answer, "job": number}))
            raise
    pipe.send(encoded({**answer, "job": number}))


def error_message(error: BaseException) -> dict[str, Any]:
    """Convert an exception to kind, message and remedy for the page, without a traceback."""
    if is_out_of_memory(error):
        return {"error": memory_error(f"out of memory: {_line(error)}")}
    if isinstance(error, FloatscopeError):
        return {"error": {"kind": "usage", "message": error.problem, "remedy": error.remedy}}
    return {
        "error": {
            "kind": "internal",
            "message": f"{type(error).__name__}: {_line(error)}".removesuffix(": "),
            "remedy": "The model is still there: try again, or another prompt or sampler.",
        }
    }


def memory_error(message: str) -> dict[str, str]:
    remedy = (
        "Lower the length, use fewer or shorter passages, or a smaller model or dtype "
        "(--model MODEL,dtype=bfloat16); close what else uses memory."
    )
    return {"kind": "memory", "message": message, "remedy": remedy}


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300].encode("utf-8", "replace").decode()
