"""The causal studies: what is planted is found, in a run as users run it; many patches in one forward."""

import json
import re

import numpy as np
import pytest
import torch
import xarray as xr
from planted_copy import planted_copy, records
from scipy import stats

import floatscope as fs
from floatscope.decode.state import State, notify_edits
from floatscope.errors import UsageError
from floatscope.measures import Foresight
from floatscope.measures.result import Result
from floatscope.models import attention_hook, tiny
from floatscope.sequences.prompt import Encoded
from floatscope.stats.discoveries import benjamini_hochberg, q_values
from floatscope.studies import Findings, request_of
from floatscope.studies.demo import demo_request
from floatscope.studies.experiments.answer_tracing import ANSWER, SPAN, corrupted, shares
from floatscope.studies.experiments.head_ablation import (
    EVIDENCE,
    HeadAblation,
    heads_of,
    matched_sets,
    strongest,
)
from floatscope.studies.kept_models import KeptModels
from floatscope.studies.library.ablation import NEEDED, _beyond, _untrained
from floatscope.studies.library.tracing import crossing
from floatscope.studies.planning import plan
from floatscope.studies.run import run
from floatscope.studies.study import by_default
from floatscope.studies.worker import ShardWorker
from floatscope.tasks import Passage

QUESTIONS = 20  # as many as a verdict needs


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Three layers, the copying head in the middle one; the letter is written at the last of three steps."""
    return planted_copy(tmp_path_factory.mktemp("copy") / "model", layers=3, layer=1, waits=True)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "letters.jsonl"
    rows = [
        {
            **{"id": one.id, "question": one.question, "answers": list(one.answers)},
            **{"passages": [p.text for p in one.passages], "gold": one.gold},
        }
        for one in records(QUESTIONS + 8)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def done(planted, data, out, *studies):
    fields = {
        **{"studies": studies, "models": [str(planted.path)], "data": str(data), "limit": 3},
        **{
            "controls": 2,
            "questions": QUESTIONS,
            "length": planted.length,
            "view": 0,
            "shard": 4,
            "chat": False,
        },
    }
    return run(request_of(fields), out)[1]


@pytest.fixture(scope="module")
def finished(planted, data, tmp_path_factory):
    return done(planted, data, tmp_path_factory.mktemp("run"), "ablation", "tracing", "lens")


def test_ablation_ranks_the_head_that_carries_the_answer_first(data, tmp_path):
    planted = planted_copy(tmp_path / "model")  # it copies at once
    finished = done(planted, data, tmp_path / "run", "ablation")
    table = finished.tables["head-ranking"]
    first = table.iloc[0]
    assert (first["layer"], first["head"]) == (planted.layer, planted.head)
    assert first["loss"] > 10 * table["loss"].iloc[1:].abs().max()
    result = finished.result("head-ablation", finished.mdm)
    assert heads_of(result) == [(planted.layer, planted.head)]  # an eighth of eight heads
    theta, *_ = finished.claims["ablation"][0].numbers
    p = float(np.exp(result.data["log_p"]))
    lost = p - p * np.exp(-first["loss"])
    assert theta.value == pytest.approx(lost, abs=0.02) and theta.n == QUESTIONS
    assert f"head {planted.head} of layer {planted.layer}" in finished.sentences["ablation"][0]


def test_tracing_finds_layer_position_and_step(planted, finished):
    """At the planted head's layer the letter is still in the passage; a layer on, at the row that says it."""
    result = finished.result("answer-tracing", finished.mdm)
    share = shares(result)
    where = share.sum("step")
    before, after = (where.sel(layer=planted.layer + n) for n in (0, 1))
    assert float(before.sel(group=SPAN)) > 0.95 > 0.05 > abs(float(before.sel(group=ANSWER)))
    assert float(after.sel(group=ANSWER)) > 0.95 > 0.05 > abs(float(after.sel(group=SPAN)))
    assert crossing(result) == planted.layer + 1
    others = where.drop_sel(group=[SPAN, ANSWER])
    assert float(abs(others).max()) < 0.05
    np.testing.assert_allclose(where.sel(layer=0, group=SPAN), 1, atol=1e-5)  # the clean run itself
    when = share.sel(group=ANSWER, layer=planted.layer + 1)
    assert int(when.values.argmax()) == planted.step and float(when[planted.step]) > 0.9
    (claim,) = finished.claims["tracing"]
    assert claim.verdict == "holds" and claim.numbers[0].value > 0.95
    assert f"enters at step {planted.step}" in finished.sentences["tracing"][0]


def test_tracing_detects_an_answer_that_passes_through_other_positions(data, tmp_path):
    """Every colon reads the letter, and the answer's row reads the colons: nothing comes straight."""
    planted = planted_copy(tmp_path / "model", relay=True)
    found = done(planted, data, tmp_path / "run", "tracing")
    (claim,) = found.claims["tracing"]
    assert claim.verdict == "refuted" and abs(claim.numbers[0].value) < 0.05
    between = shares(found.result("answer-tracing", found.mdm)).sum("step").sel(layer=planted.layer)
    assert float(abs(between.sel(group=[SPAN, ANSWER])).max()) < 0.05
    assert float(between.sum()) > 0.5  # other groups have it there


def test_a_run_of_causal_studies_is_stored_and_reported_like_others(finished, planted):
    """Resumed without work, verified byte for byte, and on a page that names the family."""
    from floatscope.report.build import render_report
    from floatscope.studies.verifying import verify

    again, _ = run(finished.request, finished.run.directory)
    assert again.computed == 0
    checked = {one.work.split(",")[0]: one for one in verify(finished.run.directory, sample=3)}
    assert "experiment" in checked and all(one.exact for one in checked.values())
    found = Findings(finished.run.directory)
    html = render_report(found)
    assert {c.family for c in found.verdicts} == {"causal"} and "98.3 %" in html
    cards = re.findall(r'<details class="claim".*?<span class="which">(.*?)</span>', html, re.S)
    assert cards == ["11", "12", "13"]
    tables = set(re.findall(r"<summary>Table: (.*?)</summary>", html))
    assert tables >= {"head-ranking", "answer-tracing"}
    asked = json.loads((finished.run.directory / "run.json").read_text())["request"]
    assert request_of(asked) == finished.request


def test_causal_studies_run_only_by_name():
    request, _ = demo_request()
    kinds = {shard.spec["kind"] for shard in plan(request).shards}
    assert kinds == {"trace", "ask"} and not {"ablation", "tracing", "lens"} & set(by_default())
    fields = {"studies": ["ablation", "tracing"], "models": ["pair/mdm"], "view": 0}
    shards = plan(request_of(fields)).shards
    assert {s.spec["experiment"] for s in shards} == {"head-ablation", "answer-tracing"}
    running_text = request_of(fields | {"data": "long:continuation"})
    assert not plan(running_text).shards


def test_too_few_records_for_choosing_heads_are_refused_before_the_run(planted, data, tmp_path):
    fields = {"studies": ["ablation"], "models": [str(planted.path)], "data": str(data), "limit": 2}
    with pytest.raises(UsageError, match="28 usable records, 21 are to be asked and 8 more"):
        run(request_of(fields | {"questions": 21, "length": 3}), tmp_path)


# Many patches in one forward


def patched(model, ids, patch):
    """Logits of rows 4 and 8 under the intervention."""
    prompt, canvas = Encoded(tuple(ids), ("prompt",) * len(ids)), torch.tensor([ids])
    size = len(ids)
    with patch(model), torch.inference_mode():
        state = State.build(model, [prompt], canvas, (size, size), prompt_end=size)
        with notify_edits(model, state):
            return model.forward(canvas, torch.tensor([4, 8]), state.visible)[0]


@pytest.mark.parametrize("family", ["LLaDA", "Dream", "Llama"])
def test_each_swap_equals_a_patch(family, tmp_path):
    model = fs.load(tiny.write(family, tmp_path / family), dtype="float64")
    rng = np.random.default_rng(0)
    clean, other = ([int(i) for i in rng.integers(5, 30, 9)] for _ in range(2))
    source = fs.interventions.PatchSource.of(model, clean, keep="residual")
    swaps = [
        fs.interventions.Swap((1,), (2, 3)),
        fs.interventions.Swap((0, 2), (0, 8)),
        fs.interventions.Swap((0,), tuple(range(9))),
    ]
    found = fs.interventions.patched_each(model, clean, other, swaps, [4, 8])
    assert torch.equal(
        found, fs.interventions.patched_each(model, clean, other, swaps, [4, 8], batch_size=9)
    )
    few = fs.interventions.patched_each(model, clean, other, swaps, [4, 8], batch_size=1)
    torch.testing.assert_close(found, few, rtol=1e-10, atol=1e-10)
    plain = model.logits(torch.tensor([clean, other]))[:, [4, 8]]
    torch.testing.assert_close(found[:2], plain, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        found[4], found[0], rtol=1e-10, atol=1e-10
    )  # all of it: the clean run
    for swap, one in zip(swaps, found[2:], strict=True):
        patch = fs.interventions.Patch(
            "residual", source, layers=swap.layers, positions=swap.positions
        )
        torch.testing.assert_close(one, patched(model, other, patch), rtol=1e-10, atol=1e-10)
    back = fs.interventions.patched_each(
        model, other, clean, [fs.interventions.Swap((1,), (2, 3), into=0)], [4, 8]
    )
    torch.testing.assert_close(back[2], found[2], rtol=1e-10, atol=1e-10)  # the runs change places
    with pytest.raises(UsageError, match="texts of equal length"):
        fs.interventions.patched_each(model, clean, other[:-1], swaps, [4])
    with pytest.raises(UsageError, match="layers 0 to"):
        fs.interventions.patched_each(
            model, clean, other, [fs.interventions.Swap((99,), (0,))], [4]
        )


# Parts


def test_q_values_are_the_levels_at_which_a_head_is_listed():
    p = np.random.default_rng(0).beta(0.5, 2, (3, 7))
    q = q_values(p)
    np.testing.assert_allclose(q, stats.false_discovery_control(p.ravel()).reshape(p.shape))
    for level in (0.05, 0.2, 0.5):
        np.testing.assert_array_equal(q <= level, benjamini_hochberg(p, level))


def test_matched_heads_have_the_output_norm_of_the_chosen_heads():
    rng = np.random.default_rng(1)
    score, norm = rng.random((6, 8)), rng.lognormal(size=(6, 8))
    chosen = strongest(score, 6)
    assert len(set(chosen)) == 6 and score[chosen[0]] == score.max()
    assert min(score[place] for place in chosen) == np.sort(score, axis=None)[-6]
    ranks = norm.ravel().argsort().argsort().reshape(norm.shape)
    for drawn in matched_sets(chosen, norm, {*chosen, (0, 0)}, 3, rng):
        assert len(set(drawn)) == 6 and not {*chosen, (0, 0)} & set(drawn)
        pairs = zip(*(sorted(ranks[p] for p in heads) for heads in (chosen, drawn)), strict=True)
        assert max(abs(a - b) for a, b in pairs) <= 12


def test_matched_sets_share_no_head():
    rng = np.random.default_rng(2)
    norm = rng.lognormal(size=(12, 8))
    chosen = strongest(rng.random((12, 8)), 10)
    sets = matched_sets(chosen, norm, chosen, 20, rng)
    assert len(sets) == 8 and {len(heads) for heads in sets} == {10}
    every = [head for heads in (chosen, *sets) for head in heads]
    assert len(set(every)) == 90
    assert len(matched_sets(chosen[:2], norm, chosen, 20, rng)) == 20
    assert matched_sets(chosen, norm, {p for p in np.ndindex(12, 8) if p != (0, 1)}, 20, rng) == []


def planted_result(values, coords):
    return Result(xr.Dataset(), HeadAblation(), xr.Dataset(values, coords))


def test_heads_of_skewed_costs_that_are_chosen_at_random_hardly_ever_cost_more_than_matched_ones():
    """Nominal: .8 % above, 98.3 % covered. `bench/verdicts.py` plants the same null."""
    rng, n = np.random.default_rng(3), 40
    above, covered, draws = 0, 0, 300
    for _ in range(draws):
        norm, cost = rng.lognormal(0, 0.5, (12, 8)), rng.lognormal(0, 1, (12, 8))
        chosen = strongest(rng.random((12, 8)), 10)
        sets = [chosen, *matched_sets(chosen, norm, chosen, 20, rng)]
        by_set = np.array([sum(cost[head] for head in heads) for heads in sets])[:, None] / 80
        lost = by_set * rng.lognormal(-0.3, 0.6, n) * rng.lognormal(0, 0.1, (len(sets), n))
        values = {
            "chosen": (("choice", "example"), lost[:1]),
            "matched": (("choice", "draw", "example"), lost[None, 1:]),
            "log_p": ("example", -0.3 * rng.random(n)),
        }
        coords = {"choice": [EVIDENCE], "example": [f"q{i}" for i in range(n)]}
        theta = _beyond(planted_result(values, coords), EVIDENCE, "")
        assert -1 <= theta.low <= theta.high <= 1
        above += theta.low > NEEDED.delta
        covered += theta.low <= 0 <= theta.high
    assert above <= 0.025 * draws and covered >= 0.97 * draws


def test_what_untrained_heads_cost_stays_between_minus_one_and_one():
    """Two networks far apart: Student's interval over them would reach far beyond any probability."""
    coords = {"choice": [EVIDENCE], "example": [f"q{i}" for i in range(20)]}
    controls = []
    for lost in (0.0, 2.0):
        values = {
            "chosen": (("choice", "example"), np.full((1, 20), lost)),
            "matched": (("choice", "draw", "example"), np.zeros((1, 3, 20))),
            "log_p": ("example", -np.linspace(0.01, 0.3, 20)),
        }
        controls.append(planted_result(values, coords))
    found = _untrained(controls, EVIDENCE)
    assert found.low == -1 and found.high == 1
    assert _untrained(controls, EVIDENCE, "nats").high > 1


def test_the_output_norm_of_a_head_is_what_it_writes(tmp_path):
    model = fs.load(tiny.write("Llama", tmp_path), dtype="float64")
    prompts = [[5, 6, 7, 8], [9, 10, 11]]
    means, rows = (
        kind.of(model, prompts) for kind in (fs.interventions.HeadMeans, fs.interventions.HeadRows)
    )
    for layer, module in enumerate(attention_hook.attention_modules(model.net)):
        outputs = torch.cat(rows.rows[layer])  # (row, h, d)
        by_head = module.o_proj.weight.unflatten(1, (model.n_heads, -1))  # (out, h, d)
        written = torch.einsum("rhd,ohd->rho", outputs, by_head).norm(dim=-1).mean(0)
        torch.testing.assert_close(means.norm[layer], written, rtol=1e-5, atol=1e-6)


def test_corruption_replaces_only_complete_words():
    record = fs.tasks.Record("r", "who?", ("Ann",), (Passage("Ann and Anna, Ann.", gold=True),))
    assert corrupted(record, "Ann", "Bo").passages[0].text == "Bo and Anna, Bo."


def decoding(guesses, final, reveal):
    """As Foresight keeps it: one layer, what each place says at each step, and when it is revealed."""
    guesses, final, reveal = (np.array(x) for x in (guesses, final, reveal))
    ahead = reveal - np.arange(len(guesses))[:, None]
    guess = np.where(ahead > 0, guesses, -1)[:, None]
    values = {"guess": (("step", "layer", "place"), guess), "ahead": (("step", "place"), ahead)}
    places = {"step": range(len(guesses)), "layer": [0], "place": range(len(final))}
    return xr.Dataset(values | {"final": (("place",), final)}, places)


def test_a_token_that_any_prompt_gets_is_not_known_before_its_reveal():
    reveal = [0, 1, 2]
    knows = [decoding([[a, b, c]] * 3, [a, b, c], reveal) for a, b, c in ((1, 2, 3), (4, 5, 6))]
    found = Foresight().summarise(knows, "m")
    assert float(found["early"]) == 1 and float(found["early_null"]) == 0
    assert found.examples["waits"].values.tolist() == [
        3,
        3,
    ]  # one place waits a step, one waits two
    same = [decoding([[7, 8, 9]] * 3, [7, 8, 9], reveal)] * 3  # by place, whatever the prompt
    found = Foresight().summarise(same, "m")
    assert float(found["early"]) == float(found["early_null"]) == 1
    late = [decoding([[0, 0, 0]] * 3, [a, b, c], reveal) for a, b, c in ((1, 2, 3), (4, 5, 6))]
    found = Foresight().summarise(late, "m")
    assert float(found["early"]) == float(found["early_null"]) == 0
    assert np.isnan(
        float(Foresight().summarise(knows[:1], "m")["early"])
    )  # nothing to compare with


def test_one_word_that_the_prompt_decides_is_at_the_null_of_other_places():
    reveal = [0, 1, 2]
    words = [decoding([[a] * 3] * 3, [a] * 3, reveal).assign_attrs(id=str(a)) for a in (1, 2, 3)]
    found = Foresight().summarise(words, "m")
    assert float(found["early"]) == 1 and float(found["early_null"]) == 0  # no other prompt's word
    assert float(found["elsewhere"]) == float(found["elsewhere_null"]) == 1
    single = [decoding([[0, a]] * 2, [-1, a], [0, 1]) for a in (1, 2)]  # one content token each
    assert np.isnan(float(Foresight().summarise(single, "m")["elsewhere"]))


def test_the_null_of_a_network_uses_only_its_own_prompts():
    """Two untrained networks on the same prompts: each says its one word, and neither knows anything."""
    both = [
        decoding([[word] * 3] * 3, [word] * 3, [0, 1, 2]).assign_attrs(id=prompt)
        for word in (7, 8)
        for prompt in ("a", "b", "c")
    ]
    found = Foresight().summarise(both, "m")
    assert found.examples["early"].values.tolist() == [1] * 6
    assert found.examples["early_null"].values.tolist() == [1] * 6


def test_a_control_is_asked_about_tokens_of_its_own_decoding(planted, data, tmp_path):
    fields = {"studies": ["lens"], "models": [str(planted.path)], "data": str(data), "limit": 2}
    fields |= {"controls": 1, "length": planted.length, "view": 0, "chat": False}
    request = request_of(fields)
    worker = ShardWorker(request, KeptModels(tmp_path))
    spec = next(s.spec for s in plan(request).shards if s.spec.get("controls"))
    stored, (seed,) = worker(spec, lambda done, total: None).data, spec["controls"]
    control = worker.model({"model": spec["model"], "control": seed})
    prompt = worker._prompt(spec["domain"], 0, control)[1]
    with worker._untrained(spec["model"], seed, True):
        own = Foresight().compute(control.trace(prompt, worker.sampler(control), keep=("lens",)))
    for name in ("guess", "final", "ahead"):
        found = stored[f"0/control-{seed}/foresight"][name]
        np.testing.assert_array_equal(found, own[name].values)
    trained = stored["0/foresight"]["final"]
    assert (trained != own["final"].values).any()  # the trained network reveals other tokens


def test_rounding_errors_do_not_count_as_spread(planted, data, tmp_path, finished):
    """Two questions that agree to the last digits do not decide claim 12."""
    theta = finished.claims["tracing"][0].numbers[0]
    assert theta.n == QUESTIONS and theta.high == 1
    assert theta.low == pytest.approx(
        (0.05 / 6) ** (1 / QUESTIONS)
    )  # Clopper and Pearson's, of 20 of 20
    fields = finished.request.model_dump() | {"studies": ("tracing",), "questions": 2}
    few = run(request_of(fields), tmp_path)[1].claims["tracing"][0]
    assert few.verdict == "undecided" and few.numbers[0].low < 0.1


def test_a_causal_model_alone_is_traced_and_decides_nothing(data, tmp_path):
    planted = planted_copy(tmp_path / "model", "Llama")
    found = done(planted, data, tmp_path / "run", "tracing")
    assert "rows hold more of it" in found.sentences["tracing"][0]
    assert found.claims["tracing"][0].verdict == "not testable"


def test_a_task_without_answers_is_refused_before_the_run(planted, tmp_path):
    fields = {"studies": ["ablation", "tracing"], "models": [str(planted.path)], "view": 0}
    with pytest.raises(UsageError, match="neither right nor wrong"):
        run(request_of(fields | {"data": "long:summary"}), tmp_path)
