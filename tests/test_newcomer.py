"""A newcomer with a checkpoint of their own: from an error to a run that somebody else repeats elsewhere.

Every command is a process of its own, in an environment of its own: a new virtual environment in which the
package lies as a wheel would put it, without the repository around it (what it depends on is this
environment's, by a .pth file: installing it again takes minutes); an empty home, an empty folder to work
in, and of all variables those that are set below. The command that needs no torch is started by its script;
the others come from a process of that environment that has imported what commands need and becomes each of
them (attacks/test_evaluate.py has one that starts from nothing).
"""

import json
import os
import shlex
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path
from types import SimpleNamespace

import adapted
import pytest

import floatscope as fs

PACKAGE = Path(fs.__file__).parent
OURS = f"ours=adapted,{adapted.SETTINGS}"


@pytest.fixture(scope="module")
def type_in(tmp_path_factory):
    """Runs a line in a folder, by its script or imported already, and gives what it printed; it must end
    well."""
    home, root = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("fresh") / "env"
    venv.create(root, symlinks=True)
    inside = {"base": str(root), "platbase": str(root)}
    packages, scripts = (
        Path(sysconfig.get_path(name, "venv", vars=inside)) for name in ("purelib", "scripts")
    )
    shutil.copytree(PACKAGE, packages / PACKAGE.name, copy_function=_linked)
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    command = scripts / "floatscope"
    command.write_text(f"#!{scripts / 'python'}\nfrom floatscope.cli import main\n\nmain()\n")
    command.chmod(0o755)
    around = {"PATH": f"{scripts}:/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8"}
    around["OMP_NUM_THREADS"] = "1"  # other tests run beside this one
    around["MPLBACKEND"] = (
        "module://of.a.notebook"  # as `!floatscope` gets it, from another environment
    )

    def run(line, folder):
        done = subprocess.run(
            line, shell=True, cwd=folder, env=around, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert str(packages) in run("python -c 'import floatscope; print(floatscope.__file__)'", home)
    with subprocess.Popen(
        [scripts / "python", "-c", COMMANDS],
        cwd=home,
        env=around,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:

        def run_imported(line, folder):
            said = home / "said.txt"
            said.unlink(missing_ok=True)
            print(json.dumps([str(folder), str(said), *shlex.split(line)]), file=server.stdin)
            server.stdin.flush()
            code = server.stdout.readline().strip()
            assert code == "0", said.read_text()
            return said.read_text()

        yield SimpleNamespace(script=run, imported=run_imported)
        server.stdin.close()


# Becomes `floatscope …`, again and again: a line is a folder, a file for what is said, and the words typed.
# What is imported is left out of garbage collection, and not taken apart when a command has ended: both would
# go through all of it again, and copy its pages.
COMMANDS = """
import atexit, gc, json, os, sys
import matplotlib.pyplot, scipy.stats
import floatscope.report.build, floatscope.studies.worker
from floatscope.cli import main
from floatscope.measures import MEASURES
from floatscope.studies import STUDIES

for registry in (MEASURES, STUDIES):
    list(registry.values())  # each is imported when it is looked up
gc.collect()
gc.freeze()
for line in sys.stdin:
    folder, said, *sys.argv = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(folder)
        file = os.open(said, os.O_WRONLY | os.O_CREAT)
        for stream in (1, 2):
            os.dup2(file, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        code = 70  # a command ends by itself
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def _linked(source, target):
    """The same file under another name, where the disk allows it: weights are not copied."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@pytest.fixture(scope="module")
def project(cut_pair, tmp_path_factory):
    """What somebody has: weights of their own, and some questions."""
    folder = tmp_path_factory.mktemp("work") / "project"
    adapted.written(cut_pair["pair/mdm"], folder / "adapted")
    rows = [
        {
            "question": f"Where was {name} born?",
            "answers": [place],
            "passages": [f"{name} was born in {place}.", "Milo Quist was born in Garlen."],
            "gold": 0,
        }
        for name, place in (("Tara Voss", "Ostrel"), ("Ira Dahl", "Kettin"), ("Odo Lenz", "Varn"))
    ]
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("", "unknown architecture None: its config.json names none.*family=Llama"),
        (
            ",family=Llama,direction=bidirectional",
            "no mask id.*mask_id into floatscope.json.*,mask_id=",
        ),
    ],
)
def test_what_is_missing_is_said(cut_pair, tmp_path, settings, says):
    path = adapted.written(cut_pair["pair/mdm"], tmp_path / "adapted")
    with pytest.raises(fs.ModelError, match=says):
        fs.load(f"{path}{settings}")


def test_a_sampler_that_does_not_fit_says_how_to_load_an_adapted_model(cut_pair, tmp_path):
    path = adapted.written(cut_pair["pair/mdm"], tmp_path / "adapted")
    causal = fs.load(f"{path},family=Llama")
    with pytest.raises(fs.UsageError, match="trained to fill masks, load it with direction="):
        causal.generate("Who?", fs.Confidence(length=4))
    ours = fs.load(f"{path},{adapted.SETTINGS}")
    assert "bidirectional" in repr(ours) and "mask 3, shift 0" in repr(ours)
    theirs = fs.load(cut_pair["pair/mdm"])
    assert ours.fingerprint == theirs.fingerprint
    prompt = "Where was Tara Voss born?"
    same = (model.generate(prompt, fs.Confidence(length=4)).canvas for model in (ours, theirs))
    assert (next(same) == next(same)).all()


def produced(run):
    files = [*run.glob("shards/*"), *run.glob("results/*"), run / "summary.json"]
    assert len(files) > 10
    return {str(file.relative_to(run)): file.read_bytes() for file in files}


def test_from_an_adapted_checkpoint_to_a_run_that_is_repeated_elsewhere(type_in, project):
    few = "--data questions.jsonl --length 6"
    said = type_in.imported(
        f"floatscope evaluate --model '{OURS}' {few} --out answers --format jsonl", project
    )
    assert (
        "ours" in said
        and len((project / "answers" / "answers.jsonl").read_text().splitlines()) == 3
    )

    small = "--limit 2 --questions 3 --steps 3 --workers 1 --out run"
    said = type_in.imported(
        f"floatscope study structure knowledge --model '{OURS}' {few} {small}", project
    )
    assert "What was found" in said
    type_in.script("floatscope report run --tables csv", project)
    page, before = (project / "run" / "report.html").read_bytes(), produced(project / "run")
    assert str(project.parent).encode() not in page

    place = project.parent / "elsewhere" / "thesis"
    place.parent.mkdir()
    project.rename(place)
    type_in.imported("floatscope study --config run/run.json --out again --workers 1", place)
    assert produced(place / "again") == before
    assert (place / "again" / "report.html").read_bytes() == page
    said = type_in.imported("floatscope verify run --shards 2", place)
    assert said.count("byte for byte") == 2
