"""A model in which one head carries the answer: ablation, cuts and patches find it and nothing else."""

from contextlib import nullcontext

import numpy as np
import pytest
from planted_copy import LETTERS, planted_copy, records

import floatscope as fs
from floatscope.tasks import PlainTemplate

FAMILIES = ("LLaDA", "Llama")
SMALL = 0.05  # nats: what the noise of any other head, edge or row may move


@pytest.fixture(scope="module", params=FAMILIES)
def planted(request, tmp_path_factory):
    fact = planted_copy(tmp_path_factory.mktemp("copy") / request.param, request.param)
    return fact, fs.load(fact.path)


@pytest.fixture(scope="module")
def waiting(tmp_path_factory):
    fact = planted_copy(tmp_path_factory.mktemp("waiting") / "LLaDA", layers=3, waits=True)
    return fact, fs.load(fact.path)


def said(model, fact, prompt=None, change=None):
    """The answer, and how sure the last step was of what it revealed, in nats."""
    with change(model) if change else nullcontext():
        done = model.generate(prompt or fact.clean, fact.sampler)
    return done.text, float(np.log(np.nanmax(done.confidence[done.steps - 1])))


def test_it_copies(planted):
    fact, model = planted
    assert model.encode(fact.clean).ids == fact.ids
    assert model.token_texts([fact.ids[fact.source]]) == [fact.answer]
    for prompt, letter in ((fact.clean, fact.answer), (fact.corrupted, fact.other)):
        text, logp = said(model, fact, prompt)
        assert text == letter and -0.2 < logp < -1e-4
    some = records(12)
    right = [model.generate(PlainTemplate().prompt(r), fact.sampler).text for r in some]
    assert right == [r.answers[0] for r in some] and len(set(right)) > 4
    without = [PlainTemplate().prompt(r.closed_book()) for r in some]
    assert not any(d.text in LETTERS for d in model.generate(without, fact.sampler) if d.text)


def test_of_all_heads_one_is_needed(planted):
    fact, model = planted
    ids, row = fact.canvas
    logits = fs.interventions.ablated_each(model, ids, [(), *([one] for one in fact.heads)], [row])
    letter = fact.ids[fact.source]
    logp = logits[:, 0].log_softmax(-1)[:, letter]
    loss = dict(zip(fact.heads, (logp[0] - logp[1:]).tolist(), strict=True))
    assert loss.pop((fact.layer, fact.head)) > 3
    assert max(map(abs, loss.values())) < SMALL and all(loss.values())
    for one in fact.heads:
        text, _ = said(model, fact, change=fs.interventions.AblateHeads([one]))
        assert (text == fact.answer) is (one != (fact.layer, fact.head))


def test_of_all_edges_one_is_needed(planted):
    """From the row that predicts the answer to the letter, in that layer; no other layer, head or key."""
    fact, model = planted
    plain, before = said(model, fact)
    assert plain == fact.answer
    needed = fs.interventions.CutEdges(
        queries="predicting", key_positions=fact.source, layers=fact.layer
    )
    assert said(model, fact, change=needed)[0] != fact.answer
    alone = fs.interventions.CutEdges(
        queries="predicting", key_positions=fact.source, layers=fact.layer, heads=fact.head
    )
    assert said(model, fact, change=alone)[0] != fact.answer
    rest = [at for at in range(len(fact.ids)) if at != fact.source]
    others = {
        "another layer": {"layers": 1 - fact.layer, "key_positions": fact.source},
        "other heads": {
            "layers": fact.layer,
            "heads": [h for h in range(4) if h != fact.head],
            "key_positions": fact.source,
        },
        "all other keys": {"key_positions": rest},
        "a key beside it": {"key_positions": fact.source + 1},
        "the control of it": {"key_positions": fact.source, "control": "random"},
    }
    for name, edge in others.items():
        text, after = said(
            model, fact, change=fs.interventions.CutEdges(queries="predicting", **edge)
        )
        assert text == fact.answer and abs(after - before) < SMALL, name
    rows = slice(0, len(fact.ids) - model.shift)
    text, after = said(
        model, fact, change=fs.interventions.CutEdges(query_positions=rows, keys="gold")
    )
    assert text == fact.answer and abs(after - before) < SMALL


def test_a_patch_restores_the_answer_where_it_passes_and_nowhere_else(planted):
    fact, model = planted
    clean = fs.interventions.PatchSource.of(model, fact.clean, fact.sampler)
    rest = [at for at in range(len(fact.ids)) if at != fact.source]

    def restored(**patch):
        change = fs.interventions.Patch(source=clean, **patch)
        text, _ = said(model, fact, fact.corrupted, change)
        assert text in (fact.answer, fact.other)
        return text == fact.answer

    assert said(model, fact, fact.corrupted)[0] == fact.other
    for layer in range(fact.layers):
        assert restored(what="residual", layers=layer, positions=fact.source)
        assert not restored(what="residual", layers=layer, positions=rest)
        for head in range(4):
            here = (layer, head) == (fact.layer, fact.head)
            assert restored(what="head", layers=layer, heads=head, regions="predicting") is here
    where = {"what": "head", "layers": fact.layer, "heads": fact.head}
    before = slice(0, len(fact.ids) - model.shift)
    assert not restored(**where, positions=before)
    # Where it looks is the same in both runs: what differs is what it finds there.
    assert not restored(what="attention", layers=fact.layer, heads=fact.head)


def test_the_answer_enters_at_one_step(waiting):
    """Three positions, filled one after the other: the letter comes with the last, through one head."""
    fact, model = waiting
    for prompt, letter in ((fact.clean, fact.answer), (fact.corrupted, fact.other)):
        done = model.generate(prompt, fact.sampler)
        assert done.text.replace("-", "") == letter and done.steps == fact.step + 1 == 3
        token = model.encode(prompt).ids[fact.source]
        assert [token in row[len(fact.ids) :] for row in done.canvas] == [0, 0, 0, 1]
    clean = fs.interventions.PatchSource.of(model, fact.clean, fact.sampler)
    for step in range(fact.length):
        for layer in range(fact.layers):
            for head in range(4):
                one = fs.interventions.Patch("head", clean, layer, head, step, regions="answer")
                text, _ = said(model, fact, fact.corrupted, one)
                here = (step, layer, head) == (fact.step, fact.layer, fact.head)
                assert (fact.answer in text) is here
            # In the residual: at the letter up to the head's layer, at the answer's row above it.
            for at, passes in (
                ({"positions": fact.source}, layer <= fact.layer),
                ({"regions": "masked"}, layer > fact.layer),
            ):
                one = fs.interventions.Patch("residual", clean, layer, None, step, **at)
                text, _ = said(model, fact, fact.corrupted, one)
                assert (fact.answer in text) is (passes and step == fact.step)
