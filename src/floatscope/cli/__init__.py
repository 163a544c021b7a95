"""The command line: parse options, call the library, and print the results.

Exit codes: 0 done; 1 a bug or an unexpected failure; 2 wrong usage (option, prompt, sampler, data); 3 a model
that cannot be loaded or fails its self-check; 4 a trace that cannot be written or read; 5 a capture that
missed a layer; 6 a run that cannot start, write or continue; 130 interrupted.
"""

import atexit
import gc
import os
import sys
from contextlib import chdir
from tempfile import TemporaryDirectory

from rich.markup import escape

from ..engine.interrupt import interrupt_once
from ..errors import FloatscopeError
from . import compare, evaluate, frequencies, lists, live, report, study, trace, verify
from .app import Interrupted, app, err


def _import_matplotlib_elsewhere() -> None:
    """Import matplotlib without the untrusted `matplotlibrc` of the working directory."""
    with TemporaryDirectory() as empty, chdir(empty):
        import matplotlib


def main() -> None:
    """Run the command line; print an error that the user can fix as one line, and exit with its code."""
    # No window is opened; and `!floatscope` inherits the notebook's backend, of another environment.
    os.environ["MPLBACKEND"] = "agg"
    if os.path.lexists("matplotlibrc"):
        _import_matplotlib_elsewhere()
    # At exit the interpreter collects garbage in every imported module: with torch, for a second.
    atexit.register(gc.freeze)
    with interrupt_once(to_the_end=True):
        try:
            app()
        except FloatscopeError as error:
            err.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
            sys.exit(error.exit_code)
        except Interrupted as interrupt:
            err.print(escape(str(interrupt)), soft_wrap=True)
            sys.exit(130)
