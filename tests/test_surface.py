"""The public surface: names, commands and options, lists, errors. Nothing disappears from it."""

import json
import re
import subprocess
import sys
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.main import get_command

import floatscope as fs
from floatscope.cli.app import app
from floatscope.cli.outlines import outlines
from floatscope.models import FAMILIES, Direction, special, tiny
from floatscope.registry import INTERVENTIONS, MEASURES, SAMPLERS, STUDIES
from floatscope.statistics import STATISTICS

ROOT = Path(__file__).parent.parent
NAMESPACES = "samplers measures interventions anchors studies tasks statistics".split()
COMMANDS = get_command(app).commands

# What the README's tables name. A name leaves this list only when its capability is given up.
CAPABILITIES = {
    "families": """LLaDA Dream Llama Qwen2 Qwen3 LLaDA-MoE RND1 LLaDA2 SDAR SDAR-MoE Fast-dLLM Nemotron
        A2D-Qwen3 A2D-Qwen2 A2D-Llama BERT RoBERTa ALBERT DistilBERT ModernBERT""",
    "statistics": """mass groups head_mean entropy entropy_mean flow rollout qk value_norm residual_norm
        rows massive lens kv_drift experts""",
    "samplers": """Confidence Entropy Margin Random Threshold EntropyBound AttentionGuided
        PositionCalibrated Dream ReMDM Remask LLaDA2 LLaDA2Edit SDAR FastDLLM2 Nemotron Autoregressive""",
    "measures": """Absorption Drift Dispersion StrongestKey Movement Geometry KindsOfKey Structure
        RegionFlow Rollout RetrievalHeads ExtremeTokens Dormancy Dynamics DecodingOrder AttentionEntropy
        Agreement Foresight LogitLens MassiveActivations KVDrift ExpertRouting""",
    "interventions": """MaskColumns WeakenColumns MaskTokens CutEdges MaskValues SinkToken BoostDynamics
        AblateHeads Patch ForceToken Remasked""",
    "studies": """floating movement geometry structure flow retrieval knowledge robustness decoding
        dormancy ablation tracing lens""",
    "commands": """compare demo evaluate frequencies interventions live measures models report studies
        study trace verify view""",
}


# Names --------------------------------------------------------------------------------------------


def test_the_top_lists_at_most_forty_names_and_each_is_public():
    assert dir(fs) == sorted(fs.__all__) and len(dir(fs)) <= 40
    assert set(NAMESPACES) <= set(dir(fs))
    assert not [name for name in dir(fs) if name.startswith("_")]


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_a_namespace_lists_what_it_gives(namespace):
    module = getattr(fs, namespace)
    assert dir(module) == sorted(module.__all__)
    assert all(getattr(module, name) is not None for name in dir(module))


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("fs.laod", "Did you mean floatscope.load?"),
        ("fs.Absorption", "Absorption is floatscope.measures.Absorption"),
        ("fs.STATISTICS", "STATISTICS is floatscope.statistics.STATISTICS"),
        ("fs.absorbtion", "Did you mean floatscope.measures.Absorption?"),
        ("fs.measures.Absorbtion", "Did you mean floatscope.measures.Absorption?"),
        ("fs.samplers.margin", "Did you mean floatscope.samplers.Margin?"),
        ("fs.quetzal", "dir(floatscope) lists its names."),
    ],
)
def test_a_misspelt_name_says_which_was_meant_or_where_it_is(expression, says):
    with pytest.raises(AttributeError, match=re.escape(says)):
        eval(expression)


def test_readme_and_registries_hold_every_capability():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    held = {
        "families": [family.name for family in FAMILIES.values()],
        "statistics": STATISTICS.builtin,
        "samplers": [cls.__name__ for cls in SAMPLERS.values()],
        "measures": [cls.__name__ for cls in MEASURES.values()],
        "interventions": [cls.__name__ for cls in INTERVENTIONS.values()],
        "studies": STUDIES.builtin,
        "commands": list(COMMANDS),
    }
    for kind, names in CAPABILITIES.items():
        assert set(names.split()) <= set(held[kind]), kind
        if kind != "commands":
            shown = [f"| {name} |" if kind == "families" else f"`{name}`" for name in names.split()]
            assert [name for name in shown if name not in readme] == [], kind
    for kind in ("samplers", "measures", "interventions"):
        assert set(CAPABILITIES[kind].split()) <= set(dir(getattr(fs, kind)))


# The command line ---------------------------------------------------------------------------------


def test_long_commands_stay_within_their_number_of_options():
    counts = {name: len(command.params) for name, command in COMMANDS.items()}
    assert counts["study"] <= 30 and counts["trace"] <= 27


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_shows_every_option_in_full_at_80_columns(ended, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = ended(command, "--help").stdout
    assert max(map(len, shown.splitlines())) <= 80
    for option in COMMANDS[command].params:
        if option.param_type_name == "option":
            assert all(
                re.search(rf"{name}\b", shown) for name in [*option.opts, *option.secondary_opts]
            )


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("stduy", "Did you mean 'study'?"),
        ("study --modle x", "--model"),
        ("study floatin --model pair/mdm", "Did you mean 'floating'?"),
        ("study --model pair/mdn", "Did you mean 'pair/mdm'?"),
        ("evaluate --model pair/mdn --data world:one", "Did you mean 'pair/mdm'?"),
        ("study --model pair/mdm --set ablation.haeds=3", "Did you mean 'heads'?"),
        ("study --model pair/mdm --set heads=3", "Write ablation.heads=3."),
        ("study --model pair/mdm --set limit=3", "Write --limit."),
        ("study --model pair/mdm --set shrad=3", "Did you mean 'shard'?"),
        ("study --model pair/mdm --engine local,patince=90", "Did you mean 'patience'?"),
        ("trace --model pair/mdm,famly=Llama --prompt x", "Did you mean 'family'?"),
        ("trace --model pair/mdm,family=Lama --prompt x", "Did you mean 'llama'?"),
        ("trace --model pair/mdm --prompt x --measure absorbtion", "Did you mean 'absorption'?"),
        ("trace --model pair/mdm --prompt x --sampler confidenc", "Did you mean 'confidence'?"),
        ("trace --model pair/mdm --prompt x --sampler confidence,tempreture=1", "'temperature'?"),
        (
            "trace --model pair/mdm --prompt x --intervene mask-colums",
            "Did you mean 'mask-columns'?",
        ),
        ("trace --model pair/mdm --prompt x --mask-id 4", "--model MODEL,mask_id=VALUE"),
        ("trace --model pair/mdm --prompt x --cfg 2", "--sampler SAMPLER,cfg=VALUE"),
        (
            "trace --model pair/mdm --prompt x --length 8 --sampler length=4",
            "2 different values: 4, 8",
        ),
    ],
)
def test_what_is_misspelt_or_misplaced_says_what_was_meant(ended, command, says):
    done = ended(*command.split())
    assert done.returncode in (2, 3) and "Traceback" not in done.stderr
    assert says in " ".join(done.stderr.split())


LIGHT = """
import sys
from floatscope.cli import main
for words in {commands!r}:
    sys.argv = ["floatscope", *words.split()]
    try:
        main()
    except SystemExit:
        pass
    libraries = {{"torch", "transformers"}}
    if words in ("--help", "models", "measures", "interventions"):
        libraries |= {{"numpy", "pandas", "xarray"}}
    heavy = libraries & sys.modules.keys()
    assert not heavy, (words, heavy)
"""


def test_lists_and_refusals_import_neither_torch_nor_transformers():
    commands = [
        "--help",
        "models",
        "measures",
        "interventions",
        "study --model pair/mdn",
        "studies",
    ]
    code = LIGHT.format(commands=commands)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "pair/mdm" in done.stderr


@pytest.mark.parametrize("registry", [SAMPLERS, MEASURES, INTERVENTIONS], ids=lambda r: r.kind)
def test_what_a_list_reads_from_source_is_what_the_classes_say(registry):
    for name, outline in outlines(registry).items():
        cls = registry[name]
        assert outline.summary == cls.__doc__.strip().splitlines()[0]
        assert list(outline.fields) == [field.name for field in fields(cls)]
        for field in fields(cls):
            if field.default is not MISSING and not outline.fields[field.name].isupper():
                assert outline.fields[field.name] == str(field.default)


def test_trace_takes_an_intervention_and_a_sampler_s_settings(ended, checkpoints, tmp_path):
    out = tmp_path / "t.zarr"
    done = ended(
        "trace", "--model", checkpoints["LLaDA"], "--prompt", "Hello there", "--steps", 4,
        "--sampler", "length=8,block_length=4", "--intervene", "mask-columns,k=2", "--out", out,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    trace = fs.Trace.load(out)
    assert trace.interventions[0].startswith("MaskColumns(k=2")
    assert "length=8" in trace.info["sampler"] and "block_length=4" in trace.info["sampler"]


def test_a_dtype_can_be_part_of_the_model(checkpoints):
    model = fs.load(f"{checkpoints['LLaDA']},dtype=bfloat16,device=cpu")
    assert model.dtype == torch.bfloat16
    assert fs.load(f"{checkpoints['LLaDA']},dtype=bfloat16", dtype="float32").dtype == torch.float32


# Errors -------------------------------------------------------------------------------------------


def test_a_measure_that_returns_no_dataset_says_what_to_return(models):
    @dataclass(frozen=True)
    class Number(fs.Measure):
        """A plain number."""

        def compute(self, trace):
            return 1.0

    trace = models["LLaDA"].trace("Hello", fs.Confidence(length=4))
    with pytest.raises(
        fs.UsageError, match=r"gave a float, not an xarray Dataset\. Return xr\.Data"
    ):
        Number()(trace)


def test_an_ordinary_token_as_mask_is_warned_of():
    tokenizer = SimpleNamespace(
        mask_token_id=None,
        added_tokens_decoder={7: "<|pad|>"},
        get_added_vocab=lambda: {"<|pad|>": 7},
        convert_ids_to_tokens=lambda token: {5: "Hello", 7: "<|pad|>"}[token],
    )
    config = SimpleNamespace(vocab_size=10)
    asked = (FAMILIES["llama"], Direction.BIDIRECTIONAL, config, tokenizer)
    with pytest.warns(UserWarning, match=r"mask_id = 5 is the ordinary token 'Hello'.*mask_id=…"):
        assert special.mask_id(*asked, 5) == 5
    assert special.mask_id(*asked, 7) == 7  # without a warning
    assert special.mask_id(*asked, 5, override=True) == 5


def test_task_records_are_no_prompts_and_no_traces(models):
    records = fs.tasks.world_records("world:one", 2)
    with pytest.raises(fs.UsageError, match=r"fs\.evaluate\(model, records\)"):
        models["LLaDA"].trace(records)
    assert models["LLaDA"].encode(fs.tasks.PlainTemplate().prompt(records[0]))


# Calls that no type checker of ours has seen, so they run in a process without one: all in the same.
WRONG_CALLS = {
    "fs.Trace([1])": "not a list. Record one with model.trace",
    "fs.Prompt(3)": "the parts of a prompt are 3: expected text, or Part objects",
    "fs.Prompt([fs.Part('question', 3)])": "part 'question' holds 3: expected text",
    "fs.Prompt.rag('q?', 'passage')": "expected a list of texts. Write Prompt.rag(question, [passage])",
    "fs.evaluate(model, 'world:one')": "expected a list of records. Read them first: fs.tasks.named_records",
    "fs.evaluate(model, ['Who?'])": "expected an fs.tasks.Record",
    "fs.evaluate('pair/mdm', records)": "Load it first: fs.load('pair/mdm')",
    "fs.evaluate(model, records, 'margin')": "Write fs.samplers.Margin(length=32)",
    "model.trace('hi', 'confidence')": "Write fs.samplers.Confidence(length=32)",
    "model.trace('hi', fs.Confidence)": "Write fs.samplers.Confidence(length=32)",
    "model.generate('hi', 3)": "the sampler is 3: expected a sampler",
    "model.generate('hi', length=16)": "model.generate(prompt, fs.samplers.Confidence(length=16))",
    "model.generate('hi', keep=['mass'])": "model.trace has it. generate takes batch_size",
    "model.trace('hi', lenght=16)": "Did you mean 'length', a setting of the sampler?",
    "model.trace('hi', batchsize=1)": "trace has no option 'batchsize'. Did you mean 'batch_size'?",
    "model.read('hi', layer=1)": "read has no option 'layer'. Did you mean 'layers'?",
    "model.trace('hi', keep='mas')": "no statistic 'mas'. Did you mean 'mass'?",
    "fs.Confidence(lenght=16)": "Confidence has no setting 'lenght'. Did you mean 'length'?",
    "fs.measures.Absorption(ruel=1)": "Did you mean 'rule'?",
    "fs.interventions.MaskColumns(n=1)": "MaskColumns has no setting 'n'. It has:",
    "fs.compare(1, 2)": "compare takes results, not 1",
    "model.trace('hi', ScoreOf(1))": "score returns a int, expected a floating-point tensor",
    "model.trace('hi', ScoreOf(numpy.ones(4)))": "score returns a ndarray, expected a floating-point tensor",
    "model.trace('hi', ScoreOf(torch.ones(1, 32, dtype=int)))": "score returns torch.int64",
    "ValueOf(['a'], 'layer')(trace)": "'x' as <U1: expected numbers",
    "ValueOf([1.0, 2.0], 'layer')(trace)": "'x' for 2 layers, but the trace has",
    "ValueOf([1.0], 'example')(trace)": "'x' with a dimension 'example'",
    "fs.load('pair/mdn')": "no such model: pair/mdn. Did you mean 'pair/mdm'?",
}
RUN_WRONG_CALLS = """
import json, numpy, torch, xarray
from dataclasses import dataclass
import floatscope as fs

@dataclass(frozen=True)
class ScoreOf(fs.Sampler):
    given: object = None
    def __init__(self, given):
        super().__init__()
        object.__setattr__(self, "given", given)
    def score(self, guess):
        return self.given

@dataclass(frozen=True)
class ValueOf(fs.Measure):
    given: object
    dim: str
    def compute(self, trace):
        return xarray.Dataset({"x": (self.dim, self.given)})

model = fs.load("pair/mdm", check=False)
records = fs.tasks.named_records("world:one", 1)
trace = model.trace("hi", fs.Confidence(length=2), keep=["mass"])
messages = {}
for call in CALLS:
    try:
        eval(call)
        messages[call] = "no error"
    except Exception as error:
        messages[call] = f"{type(error).__name__}: {error}"
print(json.dumps(messages))
"""


@cache
def messages_of_wrong_calls():
    code = f"CALLS = {list(WRONG_CALLS)!r}\n{RUN_WRONG_CALLS}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("call", WRONG_CALLS)
def test_a_wrong_call_says_what_to_write(call):
    message = messages_of_wrong_calls()[call]
    assert message.startswith(("UsageError", "ModelError", "TraceError"))
    assert WRONG_CALLS[call] in message


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9e9")],
)
def test_too_little_memory_has_a_remedy(ended, models, monkeypatch, error):
    def full(*args, **options):
        raise error

    model = models["LLaDA"]
    hook = model.net.register_forward_pre_hook(full)
    with pytest.raises(fs.RunError, match=r"out of memory: .*batch_size"):
        model.trace("Hello", fs.Confidence(length=4))
    hook.remove()
    monkeypatch.setattr("floatscope.models.load", full)
    done = ended("trace", "--model", "pair/mdm", "--prompt", "x")
    assert done.returncode == 6 and "Traceback" not in done.stderr
    assert "out of memory" in done.stderr and "bfloat16" in done.stderr


# A newcomer's exercise ----------------------------------------------------------------------------

STATISTIC = """
import floatscope as fs
from floatscope.statistics import Array, Statistic


def peak(view, call):
    heads = view.query.shape[1] // view.key.shape[1]
    return {"key_peak": view.key.float().abs().amax(-1).repeat_interleave(heads, dim=1)}


fs.register(
    Statistic(
        "peaks",
        "largest channel of each key",
        (Array("key_peak", ("layer", "head", "key")),),
        on_request=True,
        compute=peak,
    )
)
"""
MEASURE = '''
from dataclasses import dataclass

import floatscope as fs
import xarray as xr


@fs.register
@dataclass(frozen=True)
class LargestPeak(fs.Measure):
    """Give the largest channel of any key, by layer."""

    @property
    def needs(self):
        return ("peaks",)

    def compute(self, trace):
        return xr.Dataset({"peak": trace.data["key_peak"].max(["step", "head", "key"])})
'''
SAMPLER = '''
from dataclasses import dataclass

import floatscope as fs


@fs.register
@dataclass(frozen=True)
class RightToLeft(fs.Sampler):
    """Reveal the rightmost masks first."""

    def score(self, guess):
        return guess.place.float()
'''
FAMILY = """
import floatscope as fs

fs.register(
    fs.Family(
        name="Borrowed",
        architectures=("BorrowedForCausalLM",),
        network="transformers:Qwen2ForCausalLM",
        examples="borrowed-1b",
    )
)
"""


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    for registry in (MEASURES, SAMPLERS, FAMILIES):
        monkeypatch.setattr(registry, "_added", dict(registry._added))
    files = {"statistic": STATISTIC, "measure": MEASURE, "sampler": SAMPLER, "family": FAMILY}
    flags = []
    for name, text in files.items():
        (tmp_path / f"my_{name}.py").write_text(text)
        flags += ["--plugin", tmp_path / f"my_{name}.py"]
    yield flags
    STATISTICS.remove("peaks")


def test_a_statistic_a_measure_a_sampler_and_a_family_from_one_file_each(
    ended, plugins, checkpoints, tmp_path
):
    out = tmp_path / "t.zarr"
    done = ended(
        "trace", *plugins, "--model", checkpoints["LLaDA"], "--prompt", "Hello", "--length", 4,
        "--sampler", "right-to-left", "--measure", "largest-peak", "--out", out,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "LargestPeak" in done.stdout
    trace = fs.Trace.load(out)
    assert "key_peak" in trace.data
    assert trace.change.argmax("tick").values[-4:].tolist() == [3, 2, 1, 0]
    qwen = tiny.write("Qwen2", tmp_path / "borrowed")
    config = json.loads((qwen / "config.json").read_text())
    config["architectures"] = ["BorrowedForCausalLM"]
    (qwen / "config.json").write_text(json.dumps(config))
    done = ended("trace", *plugins[-2:], "--model", qwen, "--prompt", "Hi", "--length", 2)
    assert done.returncode == 0, done.stderr
    assert "Borrowed" in done.stdout
    assert "Borrowed" in ended("models").stdout
