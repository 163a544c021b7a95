"""The bridge to lm-evaluation-harness: tasks defined here, offline, against Floatscope's own answers."""

import json
import math
import os
import subprocess
import sys
from contextlib import contextmanager
from functools import cache

import pytest
import torch
import torch.utils.collect_env
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model, model_registry
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from waiting import LIMIT

import floatscope as fs
from floatscope.decode.likelihood import log_likelihood, rolling_log_likelihood, windows
from floatscope.harness import FloatscopeLM
from floatscope.harness.generation import GenerationRequest, resized
from floatscope.interventions import MaskColumns, SinkToken
from floatscope.models import attention_hook, tiny
from floatscope.tasks import prompt_of
from floatscope.tasks.world import LEVELS, World

SAMPLERS = {"pair/mdm": fs.Confidence(length=10, steps=5), "pair/arm": fs.Autoregressive(length=10)}
GENERATE = """
task: world
output_type: generate_until
doc_to_text: "{{prompt}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"]}
filter_list:
  - name: stripped
    filter: [{function: remove_whitespace}, {function: take_first}]
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
CHOOSE = """
task: choose
output_type: multiple_choice
doc_to_text: "{{prompt}}"
doc_to_target: 0
doc_to_choice: "{{choices}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
ROLL = """
task: roll
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{prompt}}"
metric_list: [{metric: byte_perplexity, aggregation: weighted_perplexity, higher_is_better: false}]
"""


@pytest.fixture(scope="module", autouse=True)
def described_once():
    """The harness describes the machine after every evaluation, by a list of all that is installed on it."""
    with pytest.MonkeyPatch.context() as patch:
        module = torch.utils.collect_env
        patch.setattr(module, "get_pretty_env_info", cache(module.get_pretty_env_info))
        yield


@pytest.fixture(scope="module")
def examples():
    """Some answered from a passage, some from memory: not all of them rightly."""
    read = World().examples(LEVELS["one"], 8, seed=5)
    unseen = World().examples(LEVELS["one"], 4, seed=6)
    known = World().examples(LEVELS["one"], 4, seed=7, known=True)
    return [*read, *(e.closed_book() for e in [*unseen, *known])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, examples):
    """Three tasks over one local file."""
    folder = tmp_path_factory.mktemp("tasks")
    file = folder / "questions.jsonl"
    answers = [e.answers[0] for e in examples]
    with file.open("w") as out:
        for i, e in enumerate(examples):
            others = [a for a in dict.fromkeys(answers[i:] + answers[:i]) if a != answers[i]][:2]
            line = {"prompt": prompt_of(e).text, "answer": answers[i]}
            out.write(json.dumps({**line, "choices": [answers[i], *others]}) + "\n")
    for text in (GENERATE, CHOOSE, ROLL):
        name = text.split()[1]
        where = {"data_files": {"test": str(file)}, "cache_dir": str(folder / "cache")}
        source = f"dataset_path: json\ntest_split: test\ndataset_kwargs: {json.dumps(where)}\n"
        (folder / f"{name}.yaml").write_text(text + source)
    return folder


@pytest.fixture(scope="module", autouse=True)
def without_a_list_of_packages():
    """For its report the harness asks pip what is installed, each time: a process and most of a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.utils.collect_env.get_pretty_env_info", lambda: "")
        yield


@pytest.fixture(scope="module")
def pair():
    return {name: fs.load(name) for name in SAMPLERS}


def evaluate(lm, task, folder, **options):
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    return simple_evaluate(lm, tasks=[task], task_manager=manager, bootstrap_iters=0, **options)


def ask(*arguments, kind="loglikelihood"):
    return [Instance(kind, {}, tuple(one), i) for i, one in enumerate(arguments)]


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_same_answers_as_our_own_decoding(pair, folder, examples, name):
    model, sampler = pair[name], SAMPLERS[name]
    own = model.generate([prompt_of(e) for e in examples], sampler)
    found = evaluate(FloatscopeLM(model, sampler), "world", folder)
    for one, sample in zip(own, found["samples"]["world"], strict=True):
        assert sample["resps"] == [[one.text.split("\n")[0]]]
    right = [one.text.strip() == e.answers[0] for one, e in zip(own, examples, strict=True)]
    assert [s["exact_match"] == 1 for s in found["samples"]["world"]] == right
    assert found["results"]["world"]["exact_match,stripped"] == sum(right) / len(right)
    assert 0 < sum(right) < len(right)
    assert found["config"]["floatscope_sampler"] == sampler.describe()


@pytest.mark.parametrize("name", SAMPLERS)
def test_text_in_one_piece_has_the_tokens_of_its_parts(pair, name):
    lm = FloatscopeLM(pair[name])
    for level in ("one", "nine", "names", "hops", "conflict"):
        for example in World().examples(LEVELS[level], 10, seed=3):
            prompt = prompt_of(example)
            assert tuple(lm.tok_encode(prompt.text)) == pair[name].encode(prompt).ids


@pytest.mark.parametrize("name", SAMPLERS)
def test_multiple_choice(pair, folder, examples, name):
    model = pair[name]
    lm = FloatscopeLM(model, samples=8, check_greedy=False)
    found = evaluate(lm, "choose", folder, limit=4)
    right = []
    for example, sample in zip(examples[:4], found["samples"]["choose"], strict=True):
        context = list(model.encode(prompt_of(example)).ids)
        scores = []
        for choice, given in zip(sample["doc"]["choices"], sample["filtered_resps"], strict=True):
            target = model.tokenizer(" " + choice, add_special_tokens=False)["input_ids"]
            one = log_likelihood(model, context, target, samples=8, check_greedy=False)
            assert given[0] == pytest.approx(one.value, abs=1e-4)
            scores.append(one.value)
        right.append(scores[0] == max(scores))
    assert found["results"]["choose"]["acc,none"] == sum(right) / len(right)
    assert sum(right) >= 3


@pytest.mark.parametrize("family", ["LLaDA", "Llama"])
def test_rolling_perplexity(models, folder, examples, family):
    model = models[family]
    found = evaluate(FloatscopeLM(model, samples=4), "roll", folder, limit=3)
    total = size = 0.0
    for example in examples[:3]:
        text = prompt_of(example).text
        ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
        total += rolling_log_likelihood(model, ids, prefix=tiny.BEGIN, samples=4).value
        size += len(text.encode())
    perplexity = found["results"]["roll"]["byte_perplexity,none"]
    assert perplexity == pytest.approx(math.exp(-total / size), rel=1e-5)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 30])
def test_windows_are_those_of_the_harness(length):
    ids = list(range(length))
    theirs = get_rolling_token_windows(ids, prefix_token=99, max_seq_len=7, context_len=1)
    assert list(windows(ids, 99, 8)) == [make_disjoint_window(one) for one in theirs]


def test_greedy_flag_equals_greedy_decoding(models):
    for family in ("LLaDA", "Llama"):
        model = models[family]
        lm = FloatscopeLM(model, samples=2, length=6, stop_at_eos=False)
        ids = lm.tok_encode("Tell me:")
        answer = model.generate(ids, lm.sampler).answer_ids
        wrong = [*answer[:-1], (answer[-1] + 1) % 256]
        asked = [(("", ""), ids, answer), (("", ""), ids, wrong)]
        assert [g for _, g in lm._loglikelihood_tokens(asked, disable_tqdm=True)] == [True, False]


def test_spaces_at_the_end_of_a_context_belong_to_the_continuation(llama):
    lm = FloatscopeLM(llama)
    assert lm._encode_pair("ab ", "cd") == lm._encode_pair("ab", " cd")
    context, target = lm._encode_pair("ab", " cd")
    assert context == [tiny.BEGIN, *target_of(llama, "ab")] or context == target_of(llama, "ab")
    assert target == target_of(llama, " cd")
    assert lm._encode_pair("", "cd") == ([tiny.BEGIN], target_of(llama, "cd"))
    assert lm._encode_pair(" ", "cd") == ([tiny.BEGIN], target_of(llama, " cd"))


def target_of(model, text):
    return model.tokenizer(text, add_special_tokens=False)["input_ids"]


def test_data_never_becomes_a_special_token(llama):
    assert tiny.END not in FloatscopeLM(llama).tok_encode("a <|end|> b")


def test_a_chat_template_is_applied(tmp_path):
    path = tiny.write("Llama", tmp_path / "chatty")
    settings = json.loads((path / "tokenizer_config.json").read_text())
    settings["chat_template"] = (
        "<|begin|>{% for m in messages %}{{ m.role }}: {{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    lm = FloatscopeLM(path)
    assert lm.chat_template(True) == settings["chat_template"]
    text = lm.apply_chat_template([{"role": "user", "content": "Who?"}])
    assert tuple(lm.tok_encode(text)) == lm.model.encode("Who?").ids
    assert tuple(FloatscopeLM(lm.model).tok_encode(text)) == lm.model.encode("Who?").ids
    plain = fs.Prompt.plain("Who? <|end|>", chat=False)  # a text beside the chat stays plain
    assert tuple(lm.tok_encode(plain.text)) == lm.model.encode(plain).ids
    context, target = lm._encode_pair(text, "Me")
    assert (*context, *target) == (*lm.model.encode("Who?").ids, *target_of(lm.model, "Me"))
    assert lm.tokenizer_name
    unfinished = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "It is"}]
    assert lm.apply_chat_template(unfinished, add_generation_prompt=False).endswith("It is")


@contextmanager
def deaf(model):
    """An intervention: the first layer attends to nothing."""

    def silence(call, proceed):
        return proceed(call) * (call.layer != 0)

    with attention_hook.attach(model.net, silence):
        yield model


def test_an_intervention_is_active_during_requests_and_removed_after(llada):
    plain, other = FloatscopeLM(llada, samples=4), FloatscopeLM(llada, samples=4, intervention=deaf)
    asked, text = ask(("A b c", " d e")), ask(("A b c", {}), kind="generate_until")
    first = plain.loglikelihood(asked, disable_tqdm=True)
    assert other.loglikelihood(asked, disable_tqdm=True) != first
    assert other.generate_until(text, disable_tqdm=True) != plain.generate_until(
        text, disable_tqdm=True
    )
    assert plain.loglikelihood(asked, disable_tqdm=True) == first


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("edit", [MaskColumns(k=5), SinkToken()], ids=lambda e: e.describe())
def test_the_same_answers_under_an_intervention(pair, examples, name, edit):
    model, sampler = pair[name], SAMPLERS[name]
    prompts = [prompt_of(e) for e in examples[-4:]]
    lm = FloatscopeLM(model, sampler, intervention=edit, samples=4, check_greedy=False)
    requests = ask(*[(p.text, {}) for p in prompts], kind="generate_until")
    with edit(model):
        own = [one.text for one in model.generate(prompts, sampler)]
    assert lm.generate_until(requests, disable_tqdm=True) == own
    assert lm.get_model_info()["floatscope_intervention"] == edit.describe()
    pairs = ask((prompts[0].text, " 1715"))
    plain = FloatscopeLM(model, samples=4, check_greedy=False)
    assert lm.loglikelihood(pairs, True) != plain.loglikelihood(pairs, True)
    assert not model.edits


def test_answers_are_stored_in_the_harness_cache(llama, folder, tmp_path):
    first = evaluate(FloatscopeLM(llama), "choose", folder, limit=2, use_cache=str(tmp_path / "c"))
    lm = FloatscopeLM(llama)
    lm.model = None  # whoever asks again gets an error
    lm.get_model_info = dict
    again = evaluate(lm, "choose", folder, limit=2, use_cache=str(tmp_path / "c"))
    assert again["results"] == first["results"]


def test_generation_kwargs_become_sampler_settings(llama):
    lm = FloatscopeLM(llama, length=12, stop_at_eos=False)
    whole = lm.generate_until(ask(("Hello", {}), kind="generate_until"), disable_tqdm=True)[0]
    stop = next(c for c in whole[1:] if c.isascii())
    requests = ask(
        ("Hello", {"until": stop}),
        ("Hello", {"until": ["", "\ue000", stop]}),
        ("Hello", {"max_gen_toks": 3, "do_sample": False, "temperature": 0.7, "top_p": 0.9}),
        ("Hello", {"temperature": 5.0, "do_sample": True}),
        ("Hello", {"temperature": 5.0, "do_sample": True}),
        kind="generate_until",
    )
    one, two, short, warm, again = lm.generate_until(requests, disable_tqdm=True)
    assert one == two == whole[: whole.index(stop)]
    assert short == llama.generate(lm.tok_encode("Hello"), resized(lm.sampler, 3)).text
    assert "" < one < whole
    assert warm != again
    with pytest.raises(fs.UsageError, match="the task asks for num_beams = 4"):
        lm.generate_until(ask(("Hello", {"num_beams": 4}), kind="generate_until"))
    with pytest.raises(fs.UsageError, match="top_p = 0.9"):
        GenerationRequest.from_kwargs({"top_p": 0.9, "temperature": 1})


def test_another_length_keeps_the_tokens_per_step():
    base = fs.Confidence(length=32, steps=16, block_length=8)
    assert resized(base, 64) == fs.Confidence(length=64, steps=32, block_length=8)
    assert resized(base, 20) == fs.Confidence(length=24, steps=12, block_length=8)
    assert resized(base, 5) == fs.Confidence(length=5, steps=2, block_length=5)
    assert resized(fs.samplers.Margin(length=32), 7) == fs.samplers.Margin(length=7)
    assert resized(fs.Autoregressive(), 7) == fs.Autoregressive(length=7)
    for length in range(1, 70):
        resized(base, length).check_fields()


def test_contexts_that_do_not_fit(llama, caplog):
    long = ask(("x" * 600, " y"))
    with pytest.raises(fs.UsageError, match="a context of 60. tokens, .* pass truncate=True"):
        FloatscopeLM(llama).loglikelihood(long, disable_tqdm=True)
    lm = FloatscopeLM(llama, truncate=True)
    found = lm.loglikelihood(long, disable_tqdm=True)[0][0]
    lead = lm.tok_encode("")
    kept = [*lead, *target_of(llama, "x" * (510 - len(lead)))]
    assert found == pytest.approx(
        log_likelihood(llama, kept, target_of(llama, " y")).value, abs=1e-4
    )
    assert "1 of 1 contexts were cut" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": "confident"}, "no sampler 'confident'"),
        ({"sampler": "confidence", "beam": 0}, "confidence takes no beam"),
        ({"sampler": fs.Confidence(), "length": 8}, "length given with a sampler"),
        ({"sampler": "autoregressive"}, "fills masks"),
        ({"batch_size": "auto"}, "batch_size = auto"),
        ({"device": "cpu"}, "given with a loaded model"),
    ],
)
def test_invalid_options_are_refused(llada, options, message):
    with pytest.raises(fs.UsageError, match=message):
        FloatscopeLM(llada, **options)


def test_a_model_without_a_chat_template_or_a_tokenizer(llama):
    with pytest.raises(fs.UsageError, match="has no chat template"):
        FloatscopeLM(llama).apply_chat_template([{"role": "user", "content": "Hi"}])
    bare = fs.load(llama.net, check=False)
    with pytest.raises(fs.UsageError, match="has no tokenizer"):
        FloatscopeLM(bare)


def test_the_model_is_registered_with_those_of_the_harness():
    assert get_model("floatscope") is FloatscopeLM
    assert "hf" in model_registry
    given = "model=pair/mdm,sampler=threshold,length=16,threshold=0.8,seed=3,samples=32"
    lm = FloatscopeLM.create_from_arg_string(given, {"batch_size": 4, "device": None})
    assert lm.sampler == fs.samplers.Threshold(length=16, threshold=0.8, seed=3)
    assert (lm.samples, lm.batch_size, lm.seed, lm.rank, lm.world_size) == (32, 4, 3, 0, 1)
    assert lm.device == torch.device(lm.model.device)


def test_the_harness_runs_from_the_command_line(folder, tmp_path):
    # As `python -m floatscope.harness`, without the 15 s in which the harness lists its own tasks.
    code = (
        "import functools, runpy, lm_eval.tasks as tasks\n"
        "tasks.TaskManager = functools.partial(tasks.TaskManager, include_defaults=False)\n"
        "runpy.run_module('floatscope.harness', run_name='__main__', alter_sys=True)"
    )
    command = [sys.executable, "-c", code, "run", "--model", "floatscope"]
    command += ["--model_args", "model=pair/arm,length=10", "--tasks", "world", "--limit", "2"]
    command += ["--include_path", folder, "--output_path", tmp_path / "out"]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HOME": str(tmp_path)}
    done = subprocess.run(
        command, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "exact_match" in done.stdout
    results = json.loads(next((tmp_path / "out").rglob("results*.json")).read_text())
    assert results["config"]["floatscope_sampler"] == "Autoregressive(length=10)"


def test_without_the_harness_the_error_has_a_remedy():
    code = "import sys; sys.modules['lm_eval'] = None; import floatscope.harness"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode != 0
    assert "pip install 'floatscope[lm-eval]'" in done.stderr
