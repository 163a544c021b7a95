"""The processes of a test run are forked from one that has imported what all of them need.

torch, transformers and our own package with its checks take eight seconds to import, in each of them again.
xdist starts a process by whatever it is told is Python: this file, which hands its streams to the one that
forks, and ends when the fork has ended.
"""

import functools
import gc
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from multiprocessing import forkserver
from pathlib import Path


def start(config):
    """Have xdist's processes forked, until the function that is returned is called."""
    place = tempfile.TemporaryDirectory(prefix="forked-")
    address = str(Path(place.name) / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import forked; "
        command = [sys.executable, "-c", f"{code}forked.serve({listener.fileno()})"]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
    python = f"popen//python='{sys.executable}' '{__file__}' '{address}'"
    config.option.tx = [python] * len(config.option.tx)

    def end():
        server.communicate()  # its input ends
        place.cleanup()

    return end


def worker_server():
    """The server that workers of runs come from imports what studies need, whoever asks for it first."""
    multiprocessing.set_forkserver_preload(["floatscope.studies.worker"])
    forkserver.set_forkserver_preload = lambda modules: None


@functools.cache
def imported():
    """Shapes in annotations are checked, of whatever is imported from here on; once, if called again."""
    import torch
    import typechecker  # noqa: F401 (says what the hook puts before a function)
    from jaxtyping import install_import_hook

    install_import_hook("floatscope", "typechecker.check")
    torch.set_num_threads(1)  # several test processes share two cores


def serve(listening):
    """One fork for each that asks, until the input ends."""
    worker_server()
    forkserver.ensure_running()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the tests hear it, and end
    gc.disable()  # or the pages of what was imported would be written to, and be copied
    imported()
    import hypothesis  # noqa: F401
    import matplotlib.backends.backend_pdf
    import matplotlib.backends.backend_svg
    import matplotlib.pyplot  # noqa: F401
    import pytest  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch._dynamo  # noqa: F401

    import floatscope.cli.app
    import floatscope.livepage.serve
    import floatscope.models.loading
    import floatscope.models.tiny
    import floatscope.report.paper
    import floatscope.studies.worker  # noqa: F401
    from floatscope.decode import SAMPLERS
    from floatscope.interventions import INTERVENTIONS
    from floatscope.measures import MEASURES
    from floatscope.models import FAMILIES
    from floatscope.studies import STUDIES

    for registry in (SAMPLERS, FAMILIES, INTERVENTIONS, MEASURES, STUDIES):
        list(registry.values())  # each is imported when it is looked up

    gc.freeze()
    listener, forks = socket.socket(fileno=listening), []
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            break
        asking, _ = listener.accept()
        _, streams, _, _ = socket.recv_fds(asking, 1, 3)
        forks.append(os.fork())
        if forks[-1] == 0:
            listener.close()
            for at, stream in enumerate(streams):
                os.dup2(stream, at)
                os.close(stream)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            forkserver._forkserver.ensure_running = lambda: (
                None
            )  # it is, and no child of this process
            exec(eval(sys.stdin.readline()), {"__name__": "__main__"})  # as execnet has Python do
            sys.exit()
        asking.close()
        for stream in streams:
            os.close(stream)
    for process in (*forks, forkserver._forkserver._forkserver_pid):
        os.kill(process, signal.SIGKILL)  # xdist has waited for those that end by themselves
        os.waitpid(process, 0)


if __name__ == "__main__":
    with socket.socket(socket.AF_UNIX) as server:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        server.connect(sys.argv[1])
        socket.send_fds(server, [b"."], [0, 1, 2])
        server.recv(1)
