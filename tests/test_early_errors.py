"""What cannot work is said before any model is loaded, any worker starts or anything is written."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import floatscope as fs
from floatscope.errors import FloatscopeError, ModelError, UsageError
from floatscope.models import tiny
from floatscope.models.outline import outlined
from floatscope.models.spec import ModelSpec
from floatscope.sequences.vocabulary import ModelFacts
from floatscope.studies import request_of
from floatscope.studies.run import run


@pytest.fixture
def place(checkpoints, tmp_path, monkeypatch):
    """A folder with checkpoints that fail when loaded, and data whose second record fits none of them."""
    monkeypatch.chdir(tmp_path)
    for name in ("LLaDA", "Llama"):
        shutil.copytree(checkpoints[name], tmp_path / name)
        for weights in (tmp_path / name).glob("*.safetensors"):
            # To load them would be another error.
            nothing = {n: torch.full_like(t, torch.nan) for n, t in load_file(weights).items()}
            save_file(nothing, weights, metadata={"format": "pt"})
    rows = [
        {"question": f"Number {i}?", "answers": ["x"], "passages": ["word " * n, "No."], "gold": 0}
        for i, n in enumerate([3, 900, 3, 3])
    ]
    (tmp_path / "long.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n{"prompt": "' + "b " * 900 + '"}')
    return tmp_path


STUDY = "study floating --limit 2 --questions 2 --workers 1 --out run --length 8 --model"
ASK = "evaluate --limit 4 --out a --length 8 --model"
TRACE = "trace --out t.zarr --length 8 --model"
NO_ROOM = (
    "record 'long:2' (long.jsonl, line 2): 4595 prompt tokens and 8 after them exceed the context"
)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (f"{STUDY} ./nowhere", ["no such model: ./nowhere", "Give a directory"]),
        (f"{STUDY} LLaDA,family=Lama", ["no family 'Lama'", "Known: llada, dream, llama"]),
        (f"{STUDY} LLaDA --sampler magic", ["no sampler 'magic'", "There are: confidence"]),
        (f"{STUDY} LLaDA --sampler confidence,colour=3", ["no such field", "It has: block_length"]),
        (
            f"{STUDY} LLaDA --sampler confidence,temperature=hot",
            ["temperature = 'hot'", "a number"],
        ),
        (f"{STUDY} LLaDA --sampler confidence,length=2.5", ["length = '2.5'", "a whole number"]),
        (
            f"{STUDY} LLaDA --sampler confidence,block_length=5",
            ["does not divide", "a divisor of 8"],
        ),
        (f"{STUDY} LLaDA --steps 9", ["9 steps for 8 tokens", "use steps ≤ length"]),
        (f"{STUDY} LLaDA --sampler magic --engine ray", ["no sampler 'magic'", "There are"]),
        (f"{STUDY} LLaDA --data nowhere.jsonl", ["nowhere.jsonl does not exist", "Check the path"]),
        (
            f"{STUDY} LLaDA --data long.jsonl --limit 5",
            ["has 4 usable records, 5", "Lower --limit"],
        ),
        (f"{STUDY} LLaDA --data long.jsonl", [NO_ROOM, "context of 512 of LLaDA", "--skip-bad"]),
        (f"{STUDY} Llama --data long.jsonl --engine ray", [NO_ROOM, "Use fewer passages"]),
        (f"{ASK} ./nowhere --data world:one", ["no such model", "Give a directory"]),
        (f"{ASK} LLaDA --data world:one --sampler magic", ["no sampler 'magic'", "There are"]),
        (f"{ASK} LLaDA,family=Lama --data world:one", ["no family 'Lama'", "Known"]),
        (
            f"{ASK} LLaDA --data long.jsonl --condition closed-book --condition as-is",
            [NO_ROOM, "512"],
        ),
        (f"{TRACE} ./nowhere --prompt x", ["no such model", "Give a directory"]),
        (f"{TRACE} LLaDA,family=Lama --prompt x", ["no family 'Lama'", "Known"]),
        (
            f"{TRACE} Llama --prompt x --steps 4",
            ["autoregressive has no setting steps", "Leave it out"],
        ),
        (
            f"{TRACE} Llama --prompt x --sampler confidence",
            ["is autoregressive", "Autoregressive("],
        ),
        (f"{TRACE} LLaDA --data prompts.jsonl", ["prompt 2 of 2: ", "Shorten the prompt by"]),
    ],
)
def test_a_command_that_cannot_work_is_refused_with_its_remedy(place, ended, command, says):
    before = sorted(place.iterdir())
    done = ended(*command.split())
    assert done.returncode in (2, 3) and "Traceback" not in done.stderr
    for words in says:
        assert words in done.stderr
    assert sorted(place.iterdir()) == before


def test_python_raises_the_same_errors_as_the_command_line(place):
    fields = {"studies": ["floating"], "models": ["LLaDA"], "limit": 2, "length": 8}
    fields |= {"data": "world:one", "view": 0, "questions": 2}
    with pytest.raises(UsageError, match="no such field"):
        run(request_of(fields | {"sampler": "confidence,colour=3"}), place / "run")
    further = [{"data": "long.jsonl"}]  # in a further run
    with pytest.raises(UsageError, match="line 2.* exceed the context of 512"):
        run(request_of(fields | {"extra_runs": further}), place / "run")
    assert not (place / "run").exists()


def test_the_outline_equals_the_facts_of_the_loaded_model(checkpoints, models):
    for name, path in checkpoints.items():
        outline, model = outlined(ModelSpec(str(path))), models[name]
        assert isinstance(outline, ModelFacts) and isinstance(model, ModelFacts)
        for fact in ("direction", "mask_id", "end_ids", "chat", "vocab_size", "context"):
            assert getattr(outline, fact) == getattr(model, fact), (name, fact)
        assert outline.is_diffusion == model.is_diffusion
        assert (
            outline.tokenizer is None
            or outline.tokenizer.get_vocab() == model.tokenizer.get_vocab()
        )


def test_outlined_is_none_without_local_files_and_refuses_bad_ones(tmp_path):
    assert outlined(ModelSpec("owner/name")) is None
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="has no config.json"):
        outlined(ModelSpec(str(tmp_path / "empty")))
    path = tiny.write("Llama", tmp_path / "model")
    with pytest.raises(FloatscopeError, match="needs block=N"):
        outlined(ModelSpec(str(path), direction="block-causal", mask_id=4))


@pytest.mark.parametrize(
    ("name", "sampler"), [("LLaDA", "Confidence"), ("Llama", "Autoregressive")]
)
def test_trace_with_a_sampler_setting_names_the_sampler(models, name, sampler):
    with pytest.raises(
        UsageError, match=rf"length is a setting of the sampler(.|\n)*{sampler}\(length=16\)"
    ):
        models[name].trace("hi", length=16)


def test_trace_with_an_unknown_option_lists_the_options(models):
    with pytest.raises(UsageError, match=r"no option 'colour'(.|\n)*keep, layers"):
        models["LLaDA"].trace("hi", colour=3)


def test_score_of_another_shape_is_refused_with_the_expected_shape(models):
    class PerToken(fs.Sampler):
        def score(self, guess):
            return guess.logits

    with pytest.raises(UsageError, match=r"PerToken.score returns shape .*expected \(1, 4\)"):
        models["LLaDA"].generate("hi", PerToken(length=4))
