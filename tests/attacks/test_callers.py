"""What a program can do to the instrument: threads, prompts and seeds of any kind, a network of its own."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from tiny_models import sampler_for
from transformers import LlamaForCausalLM

import floatscope as fs
from floatscope.decode.draw import check_seed
from floatscope.decode.likelihood import log_likelihood
from floatscope.models import attention_hook

PROMPTS = ["Hello", "Good morning", "What is it?", "Ünïcode"]


# Threads


def same(one, other):
    for name in ("mass", "canvas", "confidence"):
        np.testing.assert_array_equal(getattr(one, name).values, getattr(other, name).values)
    return True


def test_many_threads_on_one_model(llada):
    """64 traces from 8 threads are the traces of one thread."""
    sampler = fs.Confidence(length=1)

    def trace(n):
        return llada.trace(PROMPTS[n % 4], sampler, keep=["mass"])

    alone = [trace(n) for n in range(4)]
    with ThreadPoolExecutor(8) as pool:
        traces = list(pool.map(trace, range(64)))
    assert all(same(one, alone[n % 4]) for n, one in enumerate(traces))
    assert not attention_hook._handlers


def test_threads_that_ask_for_different_things(llada):
    """Tracing, plain decoding, likelihoods, reading and interventions, of two models with one network."""
    other = fs.load(llada.net, tokenizer=llada.tokenizer, family="LLaDA", mask_id=259)
    sampler = sampler_for(llada, length=2, steps=2)
    hidden = fs.interventions.MaskTokens(regions="prompt")
    context = list(llada.encode("Hello").ids)

    def changed(model):
        with hidden(model):
            return model.trace("Hello", sampler)

    asks = {
        "trace": lambda model: model.trace("Hello", sampler).mass.values.tolist(),
        "generate": lambda model: model.generate("Hello", sampler).answer_ids,
        "read": lambda model: model.read("Hello").mass.values.tolist(),
        "likelihood": lambda model: log_likelihood(model, context, [65, 66]).value,
    }
    alone = {name: ask(llada) for name, ask in asks.items()}
    with ThreadPoolExecutor(8) as pool:
        found = [
            (name, pool.submit(ask, model))
            for _ in range(2)
            for model in (llada, other)
            for name, ask in asks.items()
        ]
        assert all(result.result() == alone[name] for name, result in found)
    assert not changed(llada).mass.equals(llada.trace("Hello", sampler).mass)


def test_an_intervention_waits_for_a_decoding(llada):
    """Another thread's intervention begins when the decoding has ended, not in the middle of it."""
    entered, begun = [], threading.Event()
    alone = llada.trace("Hello", fs.Confidence(length=4))

    def edit():
        begun.set()
        with fs.interventions.MaskTokens(regions="prompt")(llada):
            entered.append(True)

    thread = threading.Thread(target=edit)

    def progress(done, total):
        if done == 1:
            thread.start()
            begun.wait()
        assert not entered and not llada.edits

    traced = llada.trace("Hello", fs.Confidence(length=4), progress=progress)
    thread.join()
    assert entered and not llada.edits and not attention_hook._handlers
    assert same(traced, alone)


def test_an_error_gives_the_network_back(llada):
    def fail(done, total):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        llada.trace("Hello", fs.Confidence(length=2), progress=fail)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(llada.generate, "Hello", fs.Confidence(length=2)).result()


# Prompts and seeds


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (None, "a prompt is None: expected text, a Prompt or a list of token ids"),
        (3.5, "a prompt is 3.5: expected text"),
        (7, "a prompt is 7: expected text"),
        (b"Hello", "a prompt is b'Hello': expected text"),
        ({"a": 1}, "a prompt is {'a': 1}: expected text"),
        ([], "no prompts"),
        ([[]], "the prompt is empty"),
        ([None], "a prompt is None"),
        (["Hello", 3], "a prompt is 3: expected text"),
        ([[["Hello"]]], "a prompt is .*: expected text"),
        ([1.5, 2.5], "a prompt is 1.5: expected text"),
        ([True, False], "a prompt is .True, False.: expected text"),
        (np.array([1.5]), "a prompt is array"),
        ("a\ud800b", "character 1 is a lone surrogate"),
        (fs.Prompt.rag("Who?", ["a\udfff"]), "passage 1: character 2 is a lone surrogate"),
        ("", "the prompt is empty"),
        ([-1], "token id -1 is outside the vocabulary"),
        ([10**30], "is outside the vocabulary"),
    ],
)
def test_prompts_that_are_none(llada, prompt, words):
    for ask in (llada.generate, llada.trace):
        with pytest.raises(fs.UsageError, match=words) as caught:
            ask(prompt, fs.Confidence(length=2))
        assert caught.value.remedy


@pytest.mark.parametrize("make", [list, tuple, np.array, torch.tensor])
def test_token_ids_in_any_container(llada, make):
    expected = llada.generate([5, 6, 7], fs.Confidence(length=2))
    found = llada.generate(make([5, 6, 7]), fs.Confidence(length=2))
    assert found.prompt == expected.prompt and found.answer_ids == expected.answer_ids


def with_seed(sampler, seed):
    """As a caller makes it: in these tests alone a field's type is checked before Floatscope sees it."""
    object.__setattr__(sampler, "seed", seed)
    return sampler


@pytest.mark.parametrize("seed", [True, 1.5, 1.0, "1", -1, 2**70, None, [1]])
def test_seeds_that_are_none(llada, llama, seed):
    for model, sampler in (
        (llada, fs.Confidence(length=2)),
        (llada, fs.samplers.Threshold(length=2)),
        (llama, fs.Autoregressive(length=2)),
    ):
        with pytest.raises(fs.UsageError, match=r"seed = .*Use a whole number from 0"):
            model.trace("Hello", with_seed(sampler, seed))
    with pytest.raises(fs.UsageError, match=r"seed = .*Use a whole number from 0"):
        check_seed(seed)


@pytest.mark.parametrize("seed", [True, -1, 2**70])
def test_a_likelihoods_seed(llada, seed):
    with pytest.raises(fs.UsageError, match=r"seed = .*Use a whole number from 0"):
        log_likelihood(llada, [5], [6], seed=seed)


# A network of the caller's own


def flags(net):
    return {name: module.training for name, module in net.named_modules()}


def test_a_network_keeps_its_mode(checkpoints, llama):
    """In training before and afterwards, module by module, after an error too; no dropout between."""
    net = LlamaForCausalLM.from_pretrained(checkpoints["Llama"], attention_dropout=0.5).train()
    net.model.layers[1].eval()
    before = flags(net)
    model = fs.load(net, tokenizer=llama.tokenizer)
    assert flags(net) == before
    traced = model.trace("Hello", fs.Autoregressive(length=2))
    assert same(traced, llama.trace("Hello", fs.Autoregressive(length=2)))
    assert flags(net) == before

    def fail(call, proceed):
        raise RuntimeError("inside")

    with attention_hook.attach(net, fail), pytest.raises(RuntimeError, match="inside"):
        model.generate("Hello", fs.Autoregressive(length=2))
    assert flags(net) == before


def test_weights_made_in_inference_mode(checkpoints, llama):
    with torch.inference_mode():
        net = LlamaForCausalLM.from_pretrained(checkpoints["Llama"])
        for module in net.modules():
            for name, weight in list(module.named_parameters(recurse=False)):
                setattr(module, name, torch.nn.Parameter(weight.clone(), requires_grad=False))
    assert all(weight.is_inference() for weight in net.parameters())
    model = fs.load(net, tokenizer=llama.tokenizer)
    sampler = fs.Autoregressive(length=2)
    found, expected = (m.trace("Hello", sampler) for m in (model, llama))
    assert found.text == expected.text
    # Another place in memory may take another product of matrices.
    np.testing.assert_allclose(found.data["value_norm"], expected.data["value_norm"], rtol=1e-5)
    np.testing.assert_allclose(found.mass, expected.mass, rtol=1e-5)
    assert model.fingerprint == llama.fingerprint
    with fs.interventions.MaskTokens(regions="prompt")(model):
        model.trace("Hello", sampler)
