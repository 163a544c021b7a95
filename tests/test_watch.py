"""Somebody else's loop, watched: the numbers of `trace` and of eager attention, or a refusal."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    DynamicCache,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import floatscope as fs
from floatscope.errors import CaptureError, FloatscopeError, ModelError, UsageError
from floatscope.models import attention_hook, tiny

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
OLD = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 256}  # and attention of its own
CAUSAL = {
    "GPT2": (GPT2LMHeadModel, GPT2Config, OLD),
    "Llama": (LlamaForCausalLM, LlamaConfig, {}),
    "Qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
    "Qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 16}),
    "Gemma": (GemmaForCausalLM, GemmaConfig, {"head_dim": 16, "num_key_value_heads": 1}),
    "Mistral": (MistralForCausalLM, MistralConfig, {"head_dim": 16, "sliding_window": 64}),
}


def network(family="Llama", **more):
    torch.manual_seed(3)
    kind, config, own = CAUSAL[family]
    net = kind(config(**{**SIZE, **own, **more})).eval()
    if family == "GPT2":
        return net
    with torch.no_grad():  # attention that is far from uniform
        for layer in net.model.layers:
            layer.self_attn.q_proj.weight *= 20
    return net


APART = ("sampler", "fingerprint")


def require_equal(one, two, but=()):
    """All variables and coordinates of two traces, to the last bit."""
    names = set(one.data.variables) - set(but)
    assert names == set(two.data.variables) - set(but)
    for name in names:
        np.testing.assert_array_equal(one.data[name], two.data[name], err_msg=name)
    # A loaded model's fingerprint is of its weights as loaded, a watched network's of those it has.
    ours, theirs = ({k: v for k, v in t.info.items() if k not in APART} for t in (one, two))
    assert ours == theirs


@torch.no_grad()
def denoised(net, canvas, mask, steps, *, shift=0, block=None, forward=None):
    """A published loop in short: reveal what the network is surest of, block by block."""
    canvas, start = canvas.clone(), int((canvas[0] == mask).nonzero()[0])
    length = canvas.shape[1] - start
    block = block or length
    for at in range(start, start + length, block):
        for _ in range(steps * block // length):
            logits = (forward or net)(canvas).logits.float()
            logits = torch.cat([logits[:, :1], logits[:, :-1]], 1) if shift else logits
            logits[..., mask] = -torch.inf
            p, token = logits.softmax(-1).max(-1)
            p[canvas != mask] = -1
            p[:, at + block :] = -1
            best = p.topk(length // steps).indices
            canvas.scatter_(1, best, token.gather(1, best))
    return canvas


# The same bits as `trace`


@pytest.mark.parametrize("family", ["LLaDA", "Dream"])
@pytest.mark.parametrize("by", ["model", "network"])
def test_watched_denoising_loop_equals_model_trace_bit_for_bit(models, family, by):
    model = models[family]
    prompt = fs.Prompt.rag("Who?", ["It was Ann.", "It was Bob."], chat=False)
    ids = model.encode(prompt).ids
    canvas = torch.tensor([[*ids, *[model.mask_id] * 8]])
    truth = model.trace(prompt, fs.Confidence(length=8, steps=4, stop_at_eos=False))
    given = {"tokenizer": model.tokenizer, "family": family, "mask_id": model.mask_id}
    facts = {} if by == "model" else given | {"name": model.name}
    with fs.watch(model if by == "model" else model.net, prompt=prompt, **facts) as session:
        result = denoised(model.net, canvas, model.mask_id, 4, shift=model.shift)
    assert truth.canvas.values[-1].tolist() == result[0].tolist()
    assert set(truth.data["region"].values) > {"passage 1", "question", "answer"}
    require_equal(truth, session.trace(result), but=("confidence",))


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_watched_generate_equals_model_trace_bit_for_bit(models, family):
    model = models[family]
    ids = list(model.encode("Hello there").ids)
    truth = model.trace(ids, fs.Autoregressive(length=40))
    with fs.watch(model) as session:
        model.net.generate(torch.tensor([ids]), max_new_tokens=40, do_sample=False)
    require_equal(truth, session.trace(), but=("confidence",))


def test_watched_padded_generate_equals_model_trace(models):
    model = models["Llama"]
    prompts = [list(model.encode(text).ids) for text in ("Hi", "Hello there", "Good morning")]
    truths = model.trace(prompts, fs.Autoregressive(length=6, stop_at_eos=False))
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    there = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    with fs.watch(model) as session:
        model.net.generate(
            ids, attention_mask=there, max_new_tokens=6, do_sample=False, eos_token_id=None
        )
    for truth, trace in zip(truths, session.trace(), strict=True):
        require_equal(truth, trace, but=("confidence",))


@pytest.mark.parametrize("inference", [True, False])
def test_watched_padded_denoising_equals_model_trace(models, inference):
    model = models["LLaDA"]
    prompts = [list(model.encode(text).ids) for text in ("Hi", "Hello there", "Good morning")]
    truths = model.trace(prompts, fs.Confidence(length=8, steps=4, stop_at_eos=False))
    longest = max(map(len, prompts))
    canvas = torch.tensor([[0] * (longest - len(p)) + p + [model.mask_id] * 8 for p in prompts])
    there = torch.tensor([[0] * (longest - len(p)) + [1] * (len(p) + 8) for p in prompts])
    places = (there.cumsum(1) - 1).clamp(min=0)

    def forward(canvas):
        return model.net(canvas, attention_mask=there, position_ids=places)

    with fs.watch(model) as session, torch.inference_mode(inference):
        result = denoised(model.net, canvas, model.mask_id, 4, forward=forward)
    for truth, trace in zip(truths, session.trace(result), strict=True):
        require_equal(truth, trace, but=("confidence",))


@pytest.fixture(scope="module")
def sdar(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdar")
    return fs.load(tiny.write("SDAR", folder / "SDAR"), block=4)


def in_blocks(size, block=4):
    """Who sees whom in SDAR: its own block and every block before."""
    number = torch.arange(size) // block
    return (number[:, None] >= number)[None, None]


def cut(cache, size):
    """Keep the first positions of a cache."""
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, :size], layer.values[:, :, :size]


@torch.no_grad()
def block_loop(net, ids, mask, blocks, forward):
    """SDAR's loop: one block behind the other, two positions a step."""
    for _ in range(blocks):
        ids = torch.cat([ids, torch.full((1, 4), mask)], 1)
        for _ in range(2):
            logits = forward(ids).logits[:, -4:].float()
            logits[..., mask] = -torch.inf
            p, token = logits.softmax(-1).max(-1)
            p[ids[:, -4:] != mask] = -1
            best = p.topk(2).indices
            ids[:, -4:] = ids[:, -4:].scatter(1, best, token.gather(1, best))
        forward(ids, done=True)
    return ids


@pytest.mark.parametrize("hidden", [None, -torch.inf, torch.finfo(torch.float32).min])
def test_watched_block_loop_equals_model_trace(sdar, hidden):
    """With a mask of truths, or of numbers that are added to scores."""
    ids = list(sdar.encode("Good morning").ids)[:8]
    truth = sdar.trace(ids, fs.Confidence(length=8, steps=4, stop_at_eos=False), cache=None)

    def forward(canvas, done=False):
        mask = in_blocks(canvas.shape[1])
        if hidden is not None:
            mask = torch.zeros(mask.shape).masked_fill(~mask, hidden)
        return None if done else sdar.net(canvas, attention_mask=mask)

    with fs.watch(sdar) as session:
        result = block_loop(sdar.net, torch.tensor([ids]), sdar.mask_id, 2, forward)
    require_equal(truth, session.trace(result), but=("confidence",))


def test_a_cached_block_loop_accumulates_exactly(sdar):
    """A block is forwarded until it is full, and then once more to be stored, as SDAR's own code does."""
    ids = list(sdar.encode("Good morning").ids)[:8]
    truth = sdar.trace(ids, fs.Confidence(length=8, steps=4, stop_at_eos=False), cache=None)
    cache = DynamicCache(config=sdar.net.config)

    def forward(canvas, done=False):
        past, size = cache.get_seq_length(), canvas.shape[1]
        here = in_blocks(size)[:, :, past:]
        out = sdar.net(canvas[:, past:], attention_mask=here, past_key_values=cache)
        if not done:
            cut(cache, past)
        return out

    with fs.watch(sdar) as session:
        with torch.no_grad():
            prompt = torch.tensor([ids])
            sdar.net(prompt, attention_mask=in_blocks(8), past_key_values=cache)
        result = block_loop(sdar.net, prompt, sdar.mask_id, 2, forward)
    trace = session.trace(result)
    assert trace.info["cache"] == "exact"
    assert trace.n_steps == 7  # the prompt, and twice two steps and one that stores
    assert trace.canvas.values[-1].tolist() == truth.canvas.values[-1].tolist()
    some = trace.data.isel(step=[1, 2, 4, 5])
    for name in ("column_sum", "entropy", "flow", "rollout", "score", "cosine", "residual_norm"):
        np.testing.assert_allclose(some[name], truth.data[name], atol=2e-5, err_msg=name)


# Eager attention


@pytest.mark.parametrize("family", CAUSAL)
def test_generate_equals_eager_attentions(family):
    """Of a network that Floatscope did not load: a padded batch of two, with a cache, 40 tokens."""
    net = network(family)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 64, (2, 9), generator=generator)
    there = torch.ones_like(ids)
    there[0, :3] = 0
    asked = {"attention_mask": there, "max_new_tokens": 40, "do_sample": False}
    facts = {"direction": "causal"} if family == "GPT2" else {}
    with fs.watch(net, keep=("mass", "groups", "entropy"), **facts) as session:
        out = net.generate(ids, **asked)
    assert f"context {session.model.context}" in repr(session.model)
    assert net.config._attn_implementation == "sdpa"
    net.set_attn_implementation("eager")
    eager = net.generate(ids, output_attentions=True, return_dict_in_generate=True, **asked)
    assert torch.equal(out, eager.sequences)
    for b, trace in enumerate(session.trace()):
        begin = 3 if b == 0 else 0
        assert trace.n_steps == 40
        total = np.zeros((3, 4, 49))
        for step, layers in enumerate(eager.attentions):
            a = torch.stack(layers)[:, b].double()  # (layer, head, q, k)
            a = a[:, :, begin:] if step == 0 else a
            total[..., : a.shape[-1]] += a.sum(2).numpy()
            size = a.shape[-1] - begin
            found = trace.data["column_sum"].values[step].sum(0)[..., :size]
            np.testing.assert_allclose(found, total[..., begin : begin + size], atol=1e-5)


@contextmanager
def eager_weights(net):
    """What each layer's attention is, by its definition in float64, forward by forward."""
    found = []

    def look(call, proceed):
        key = call.key.repeat_interleave(call.query.shape[1] // call.key.shape[1], 1)
        score = call.query.double() @ key.double().mT * call.scale
        score = score.masked_fill(~attention_hook.explicit_mask(call), -torch.inf)
        found.append(score.softmax(-1)[0].sum(1))
        return proceed(call)

    with attention_hook.attach(net, look):
        yield found


class Kept(DynamicCache):
    """Keys and values of the whole canvas; a forward replaces those from `first` on."""

    first = 0

    def update(self, key, value, layer, *args, **more):
        if layer >= len(self.layers) or not self.layers[layer].is_initialized:
            return super().update(key, value, layer)
        kept, stop = self.layers[layer], self.first + key.shape[2]
        kept.keys, kept.values = (
            torch.cat([old[:, :, : self.first], new, old[:, :, stop:]], 2)
            for old, new in ((kept.keys, key), (kept.values, value))
        )
        return kept.keys, kept.values

    def get_seq_length(self, layer_idx=0):
        return 0


@pytest.mark.parametrize("kind", ["prefix", "dual", "cropped"])
def test_approximate_cache_loop_equals_model_trace(models, kind):
    """Fast-dLLM's shape: a forward over the block (and what follows) beside keys that are older."""
    model = models["LLaDA"]
    ids = list(model.encode("Hello there").ids)
    start, size = len(ids), len(ids) + 8
    canvas = torch.tensor([[*ids, *[model.mask_id] * 8]])
    cache, step = Kept(config=model.net.config), 0

    def forward(canvas):
        nonlocal cache, step
        within, at = step % 2, start + step // 2 * 4
        step += 1
        if within == 0:
            cache = (DynamicCache if kind == "cropped" else Kept)(config=model.net.config)
            return model.net(canvas, past_key_values=cache)
        cache.first, stop = at, at + 4 if kind == "dual" else size
        where = torch.arange(at, stop)[None]
        if kind == "cropped":  # to what is before the block, as Fast-dLLM's own code does
            cut(cache, at)
        some = model.net(canvas[:, at:stop], past_key_values=cache, position_ids=where)
        every = torch.zeros(1, size, model.vocab_size)
        every[:, at:stop] = some.logits
        some.logits = every
        return some

    with eager_weights(model.net) as weights, fs.watch(model) as session:
        result = denoised(model.net, canvas, model.mask_id, 4, block=4, forward=forward)
    trace = session.trace(result)
    truth = torch.stack(weights).unflatten(0, (4, -1)).numpy()  # (step, layer, head, key)
    np.testing.assert_allclose(trace.data["column_sum"].sum("group"), truth, atol=1e-5)
    stale = np.zeros((4, size), bool)
    for t in (1, 3):
        at = start + t // 2 * 4
        stale[t] = True
        stale[t, at : at + 4 if kind == "dual" else size] = False
    np.testing.assert_array_equal(trace.data["stale"], stale)
    assert trace.info["cache"] == "approximate"
    assert (trace.data["rows_counted"].sum("group") == (~stale).sum(1)).all()
    own = model.trace(
        *(ids, fs.Confidence(length=8, steps=4, block_length=4, stop_at_eos=False)),
        cache="dual" if kind == "dual" else "prefix",
    )
    assert own.canvas.values[-1].tolist() == result[0].tolist()
    for name in ("column_sum", "entropy", "residual_norm", "flow", "rollout", "row_weight"):
        np.testing.assert_allclose(trace.data[name], own.data[name], atol=1e-5, err_msg=name)


# Code that does not use transformers' attention interface


class Block(nn.Module):
    """A layer of a research repository: its own projections, and torch's SDPA."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.into, self.out = (
            heads,
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )

    def forward(self, x, store):
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.into(x).chunk(3, -1)
        )
        if store is not None:
            k, v = store(self, k, v)
        found = nn.functional.scaled_dot_product_attention(q * 4, k, v)
        return x + self.out(found.transpose(1, 2).flatten(2))


class Research(nn.Module):
    """A network whose cache chooses inside it which rows are computed, as d2Cache's does."""

    class config:
        n_layers, n_heads, d_model, vocab_size = 3, 4, 32, 64

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.places = nn.Embedding(64, 32), nn.Embedding(40, 32)
        self.blocks = nn.ModuleList(Block(32, 4) for _ in range(3))
        self.requires_grad_(False)

    def forward(self, input_ids, rows=None, order=None):
        x = self.tokens(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        if rows is not None:
            x = x[:, rows]

        def store(block, k, v):
            if rows is None:
                block.kept = (k, v)
            else:
                old = [t.clone() for t in block.kept]
                for whole, new in zip(old, (k, v), strict=True):
                    whole[:, :, rows] = new
                block.kept = tuple(old)
            if order is not None:  # keys in another order, as dKV-Cache has them
                return tuple(t[:, :, order] for t in block.kept)
            return block.kept

        for block in self.blocks:
            x = block(x, store)
        return x


@pytest.mark.parametrize("moved", [False, True])
def test_scattered_rows_of_a_foreign_network(moved):
    net, mask = Research(), 63
    order = torch.tensor([7, 3, 4, 0, 2, 1, 6, 5]) if moved else None
    canvas = torch.tensor([[5, 9, 11, 2, 63, 63, 63, 63]])
    rows = {1: torch.tensor([3, 4, 7]), 2: torch.tensor([0, 5])}
    truth, found = [], []

    def look(module, args, output):
        q, *_ = (
            t.unflatten(-1, (4, -1)).transpose(1, 2) for t in module.into(args[0]).chunk(3, -1)
        )
        a = (q.double() * 4 @ module.kept[0].double().mT / 8**0.5).softmax(-1)
        truth.append(a[0].sum(1))

    hooks = [block.register_forward_hook(look) for block in net.blocks]

    def chosen(given):
        if given.get("rows") is None:
            return None
        fresh = torch.zeros(1, 8, dtype=torch.bool).index_fill(1, given["rows"], True)
        return (fresh, order[None]) if moved else fresh

    def loop():
        outputs, now = [], canvas.clone()
        for step in range(3):
            outputs.append(net(now, rows.get(step), order if step else None))
            now[0, 4 + step] = 7 + step
        return outputs, now

    plain, _ = loop()
    truth.clear()
    facts = {"mask_id": mask, "direction": "bidirectional", "shift": 0}
    with fs.watch(net, rows=chosen, **facts) as session:
        found, result = loop()
    assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))
    trace = session.trace(result)
    sums = trace.data["column_sum"].sum("group").values
    np.testing.assert_allclose(sums, torch.stack(truth).unflatten(0, (3, 3)), atol=1e-5)
    fresh = ~trace.data["stale"].values
    assert [np.flatnonzero(one).tolist() for one in fresh] == [list(range(8)), [3, 4, 7], [0, 5]]
    np.testing.assert_array_equal(trace.entropy.notnull().all(["layer", "head"]), fresh)
    for hook in hooks:
        hook.remove()
    assert "forward" not in vars(net)


def test_the_llada2_pipeline_of_diffusers(tmp_path):
    """Two blocks, each with a wider canvas; the pipeline's tokens are those that it gives unwatched."""
    diffusers = pytest.importorskip("diffusers", reason="an extra of the tests")
    model = fs.load(tiny.write("LLaDA2", tmp_path / "llada2"))
    pipeline = diffusers.LLaDA2Pipeline(
        model=model.net, scheduler=diffusers.BlockRefinementScheduler(), tokenizer=None
    )
    pipeline.set_progress_bar_config(disable=True)
    ids = torch.arange(5, 13)[None]

    def run():
        return pipeline(
            input_ids=ids,
            gen_length=16,
            block_length=8,
            num_inference_steps=4,
            mask_token_id=model.mask_id,
            eos_early_stop=False,
            sampling_method="greedy",
            editing_threshold=None,
            output_type="seq",
        ).sequences

    plain = run()
    with eager_weights(model.net) as weights, fs.watch(model) as session:
        answer = run()
    assert torch.equal(plain, answer)
    trace = session.trace(torch.cat([ids, answer], 1))
    assert trace.info["ended"] == "complete" and trace.n_steps == 8
    found = trace.data["column_sum"].sum("group").values
    for step, layers in enumerate(zip(*[iter(weights)] * model.n_layers, strict=True)):
        truth = torch.stack(layers).numpy()  # (layer, head, key)
        np.testing.assert_allclose(found[step, ..., : truth.shape[-1]], truth, atol=1e-5)
        assert truth.shape[-1] == (16 if step < 4 else 24)


# Where one generation ends


def test_two_generations_give_two_traces(models):
    model = models["LLaDA"]
    canvas = torch.tensor([[5, 6, 7, *[model.mask_id] * 4]])
    with fs.watch(model) as session:
        one = denoised(model.net, canvas, model.mask_id, 2)
        two = denoised(model.net, canvas, model.mask_id, 2)
        denoised(model.net, canvas[:, 1:], model.mask_id, 2)
    with pytest.raises(UsageError, match="3 generations were watched"):
        session.trace()
    assert torch.equal(one, two)
    require_equal(session.trace(one, generation=0), session.trace(two, generation=1))


@pytest.mark.parametrize("doubled", [True, False])
def test_guidance_is_left_out(models, doubled):
    """LLaDA's guidance: a second half of the batch, or a second forward, whose prompt is masked."""
    model = models["LLaDA"]
    ids = list(model.encode("Hello there").ids)
    canvas = torch.tensor([[*ids, *[model.mask_id] * 8]])

    def guided(canvas):
        blank = canvas.clone()
        blank[:, : len(ids)] = model.mask_id
        if doubled:
            both = model.net(torch.cat([canvas, blank])).logits.chunk(2)
        else:
            both = (model.net(canvas).logits, model.net(blank).logits)
        return type("Output", (), {"logits": both[1] + 2.5 * (both[0] - both[1])})

    with fs.watch(model) as session:
        result = denoised(model.net, canvas, model.mask_id, 4, forward=guided)
    truth = model.trace(ids, fs.Confidence(length=8, steps=4, cfg=1.5, stop_at_eos=False))
    trace = session.trace(result)
    assert trace.canvas.values.tolist() == truth.canvas.values.tolist()
    np.testing.assert_allclose(trace.mass, truth.mass, atol=1e-6)


def test_a_batch_of_another_size_is_another_generation():
    """Also after one with padding, and after a forward that failed."""
    net = network()
    padded = {"attention_mask": torch.tensor([[0, 1, 1], [1, 1, 1]])}
    with fs.watch(net, keep=("mass",)) as session, torch.no_grad():
        net(torch.tensor([[0, 4, 5], [6, 7, 8]]), **padded)
        with pytest.raises(UsageError, match="zeros after"):
            net(torch.tensor([[3, 4]]), attention_mask=torch.tensor([[1, 0]]))
        net(torch.tensor([[3, 4, 5, 6]]))
        with pytest.raises(CaptureError):
            net(torch.tensor([[9, 4]]), is_causal=False)
        net(torch.tensor([[3, 4, 5, 6, 7]]))
    one, two = session.trace(generation=0)
    assert [t.canvas.shape[1] for t in (one, two)] == [2, 3]
    assert session.trace(generation=1).canvas.values.tolist() == [[3, 4, 5, 6]] * 2
    assert session.trace(generation=2).canvas.values.tolist() == [[3, 4, 5, 6, 7]] * 2


def test_long_loop_grows_the_arrays(models):
    """Records grow: 100 tokens of a causal network, step by step without a cache."""
    net = network()
    ids = torch.tensor([[3, 4, 5]])
    with fs.watch(net, keep=("mass",)) as session:
        out = net.generate(ids, max_new_tokens=100, do_sample=False, use_cache=False)
    uncached = session.trace()
    with fs.watch(net, keep=("mass",)) as session:
        net.generate(ids, max_new_tokens=100, do_sample=False)
    cached = session.trace()
    assert (
        uncached.canvas.values[-1].tolist() == cached.canvas.values[-1].tolist() == out[0].tolist()
    )
    np.testing.assert_allclose(uncached.mass, cached.mass, atol=1e-5)
    assert uncached.n_steps == 100


def test_without_a_result_the_last_step_reveals_nothing():
    net = network()
    with fs.watch(net) as session, torch.no_grad():
        net(torch.tensor([[3, 4, 5]]))
    trace = session.trace()
    assert trace.n_steps == 1 and trace.info["ended"] == "unfinished"
    assert trace.canvas.values.tolist() == [[3, 4, 5], [3, 4, 5]]


# What is left behind, and what is refused


def test_logits_are_untouched_and_everything_is_removed(models):
    llada = models["LLaDA"].net
    for net in (network("Gemma"), llada):
        ids = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 10]])
        there = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
        with torch.no_grad():
            plain = net(ids, attention_mask=there).logits
            facts = {} if net is not llada else {"family": "LLaDA", "mask_id": 259}
            hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules()]
            with fs.watch(net, **facts):
                watched = net(ids, attention_mask=there).logits
            assert torch.equal(plain[:, 1:], watched[:, 1:])
            with pytest.raises(ZeroDivisionError), fs.watch(net, **facts):
                net(ids)
                raise ZeroDivisionError
            with pytest.raises(CaptureError), fs.watch(net, **facts):
                mask = torch.ones(2, 1, 4, 4, dtype=torch.bool)
                mask[:, :, 2, 0] = False
                net(ids, attention_mask=mask)
        assert net.config._attn_implementation == "sdpa"
        assert "forward" not in vars(net) and "generate" not in vars(net)
        after = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules()]
        assert hooks == after and not attention_hook.attached_handlers(
            attention_hook.attention_modules(net)
        )


def refused(net, what, call, error=UsageError, **facts):
    with pytest.raises(error, match=what) as caught, fs.watch(net, **facts), torch.no_grad():
        call()
    assert isinstance(caught.value, FloatscopeError) and caught.value.remedy


def test_unsupported_networks_are_refused_with_a_remedy(models):
    net, ids = network(), torch.tensor([[3, 4, 5, 6]])
    llada = models["LLaDA"].net
    refused(
        net,
        "not that of the last forward",
        lambda: net.generate(ids, num_beams=3, max_new_tokens=8),
        CaptureError,
    )
    refused(
        net,
        "fixed-size",
        lambda: net.generate(ids, cache_implementation="static", max_new_tokens=4),
    )
    local = network("Mistral", sliding_window=8)
    refused(local, "sliding window", lambda: local.generate(ids, max_new_tokens=8))
    refused(net, "has no input_ids", lambda: net(inputs_embeds=torch.zeros(1, 3, 32)))
    right = torch.tensor([[1, 1, 1, 0]])
    refused(net, "zeros after", lambda: net(ids, attention_mask=right))
    refused(net, "should be causal", lambda: net(ids, is_causal=False), CaptureError)
    refused(net, "keeps gradients", lambda: torch.enable_grad()(net)(ids))
    bias = torch.zeros(1, 1, 4, 4).fill_(0.5)
    refused(net, "numbers other than", lambda: net(ids, attention_mask=bias), CaptureError)

    def cropped():
        cache = DynamicCache(config=net.config)
        net(ids, past_key_values=cache)
        cut(cache, 2)
        net(ids[:, 2:], past_key_values=cache)

    refused(net, "cache has 2 positions", cropped)

    def begun():
        net(ids[:, :1], past_key_values=cache)

    cache = DynamicCache(config=net.config)
    with torch.no_grad():
        net(ids, past_key_values=cache)
    refused(net, "were not watched", begun)
    refused(llada, "first column", lambda: llada(torch.tensor([[259, 4]])), family="LLaDA")
    for wrong, what, facts in (
        (llada, "which row", {}),
        (Research(), "attention direction", {}),
        (nn.Linear(2, 2), "not a network", {}),
        (Research(), "no mask id", {"direction": "bidirectional", "shift": 0}),
    ):
        with pytest.raises(ModelError, match=what) as caught:
            fs.watch(wrong, **facts)
        assert caught.value.remedy
    with pytest.raises(UsageError, match="'value_norm' requires a network"):
        fs.watch(Research(), direction="causal", keep=("mass", "value_norm"))
    with (
        pytest.raises(UsageError, match="no forward of the network was recorded"),
        fs.watch(net) as session,
    ):
        session.trace()
    with fs.watch(net, prompt=[9, 9, 9, 9]) as session, torch.no_grad():
        with pytest.raises(UsageError, match="differ from"):
            net(ids)
    with fs.watch(net) as session, torch.no_grad():
        net(ids)
    with pytest.raises(UsageError, match="does not continue"):
        session.trace(torch.tensor([[9, 4, 5, 6, 7]]))


# fs.column_sums


def test_column_sums_equal_a_float64_softmax():
    """Random shapes, masks, head groups and query groups; with and without a log-sum-exp."""
    generator = torch.Generator().manual_seed(0)

    def draw(low, high):
        return int(torch.randint(low, high, (), generator=generator))

    for _ in range(150):
        b, kv, per, q, d = (draw(1, n) for n in (4, 4, 4, 70, 40))
        k, h = q + draw(0, 40), kv * per
        query = torch.randn(b, h, q, d, generator=generator)
        key = torch.randn(b, kv, k, d, generator=generator)
        causal, scale = bool(draw(0, 2)), (None, 0.3)[draw(0, 2)]
        mask = groups = None
        if draw(0, 2):
            mask = (
                torch.rand((b, 1)[draw(0, 2)], (1, h)[draw(0, 2)], q, k, generator=generator) > 0.3
            )
            mask[..., 0] = True
            mask[:, :, draw(0, q)] &= bool(draw(0, 2))  # a row may see nothing
        if draw(0, 2):
            groups = torch.randint(-1, 4, (b, q), generator=generator)
        allowed = torch.ones(b, h, q, k, dtype=torch.bool).tril(k - q if causal else k)
        allowed = allowed if mask is None else allowed & mask
        score = query.double() @ key.double().repeat_interleave(per, 1).mT * (scale or d**-0.5)
        score = score.masked_fill(~allowed, -torch.inf)
        weight = score.softmax(-1).nan_to_num(0)
        of = torch.zeros(b, q, dtype=torch.long) if groups is None else groups
        asked = {"scale": scale, "mask": mask, "causal": causal, "groups": groups}
        found = fs.column_sums(query, key, **asked)
        assert found.shape == (b, max(int(of.max()) + 1, 1), h, k)
        truth = [(weight * (of == g)[:, None, :, None]).sum(2) for g in range(found.shape[1])]
        torch.testing.assert_close(found.double(), torch.stack(truth, 1), atol=1e-5, rtol=0)
        lse = score.logsumexp(-1).float()
        if torch.isfinite(lse).all():
            again = fs.column_sums(query, key, lse=lse, **asked)
            torch.testing.assert_close(again, found, atol=1e-5, rtol=0)


def test_column_sums_refuse_shapes_that_do_not_fit():
    query, key = torch.zeros(1, 4, 3, 8), torch.zeros(1, 2, 5, 8)
    uneven = torch.ones(1, 4, 3, 5, dtype=torch.bool)
    uneven[0, 0, 1] = False
    for wrong in (
        {"key": torch.zeros(1, 3, 5, 8)},
        {"key": torch.zeros(1, 2, 5, 7)},
        {"mask": torch.zeros(1, 1, 3, 5)},
        {"mask": torch.ones(3, 5, dtype=torch.bool)},
        {"mask": uneven},
        {"groups": torch.zeros(3)},
        {"groups": torch.zeros(5, dtype=torch.long)},
        {"lse": torch.zeros(1, 4, 5)},
    ):
        with pytest.raises(UsageError) as caught:
            fs.column_sums(**{"query": query, "key": key, **wrong})
        assert caught.value.remedy


# As people use it


def denoise(model, steps=4, length=8):
    """A loop of one's own: yields its canvas before each forward, and the result."""
    canvas = torch.tensor([[5, 6, 7, *[model.mask_id] * length]])
    with torch.no_grad():
        for _ in range(steps):
            logits = model.net(canvas).logits
            logits[..., model.mask_id] = -torch.inf
            p, token = logits.softmax(-1).max(-1)
            p[canvas != model.mask_id] = -1
            best = p.topk(length // steps).indices
            canvas = canvas.scatter(1, best, token.gather(1, best))
    return canvas


def test_result_given_after_the_trace_is_refused(models):
    model = models["LLaDA"]
    with fs.watch(model) as session:
        canvas = denoise(model)
    assert session.trace().info["ended"] == "unfinished"
    with pytest.raises(fs.UsageError, match="before result was given"):
        session.trace(canvas)
    with fs.watch(model) as session:
        canvas = denoise(model)
    assert session.trace(canvas[0].tolist()).info["ended"] == "complete"
    assert session.trace(canvas).info["ended"] == "complete"  # once more, the same


def test_each_generate_call_starts_a_generation():
    """Also where the second goes on with the text of the first, as a chat does."""
    net = network("Llama")
    with fs.watch(net, keep=("mass",)) as session:
        first = net.generate(torch.tensor([[3, 4, 5]]), max_new_tokens=3, do_sample=False)
        second = net.generate(first, max_new_tokens=2, do_sample=False)
    one, other = (session.trace(generation=n) for n in range(2))
    assert one.n_steps == 3 and one.info["prompt_length"] == 3
    assert other.n_steps == 2 and other.info["prompt_length"] == 6
    assert other.canvas.values[-1].tolist() == second[0].tolist()


def test_a_text_of_a_padded_batch_that_ends_early():
    net = network("Llama")
    ids, there = torch.tensor([[0, 0, 5], [7, 8, 9]]), torch.tensor([[0, 0, 1], [1, 1, 1]])
    plain = net.generate(ids, attention_mask=there, max_new_tokens=6, do_sample=False)
    end = int(plain[0, 4])  # what it says second
    net.config.eos_token_id = net.generation_config.eos_token_id = end
    net.generation_config.pad_token_id = 0
    with fs.watch(net, keep=("mass",)) as session:
        net.generate(ids, attention_mask=there, max_new_tokens=6, do_sample=False)
    first, second = session.trace()
    assert first.info["ended"] == "eos" and first.n_steps <= 2
    assert second.n_steps >= first.n_steps


def test_a_session_is_open_once_and_in_one_thread():
    net, session = network("Llama"), None
    session = fs.watch(net, keep=("mass",))
    with session:
        with pytest.raises(fs.UsageError, match="already open"):
            session.__enter__()
        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(net.generate, torch.tensor([[3, 4]]), max_new_tokens=2)
            with pytest.raises(fs.UsageError, match="a thread other than"):
                job.result()
    assert not {"forward", "generate"} & set(vars(net))


def test_watching_draws_no_random_numbers():
    net = network("GPT2")
    torch.manual_seed(3)
    before = torch.get_rng_state()
    fs.watch(net, direction="causal")
    assert torch.equal(torch.get_rng_state(), before)


def test_watching_under_autocast_keeps_exact_statistics(models):
    """Rows that are revealed included."""
    model = models["LLaDA"]
    with torch.autocast("cpu", dtype=torch.bfloat16), fs.watch(model) as session:
        canvas = denoise(model)
    trace = session.trace(canvas)
    assert trace.rows["row_weight"].dtype == np.float32
    np.testing.assert_allclose(trace.mass.sum("key"), 1, atol=5e-5)


def test_lens_around_generate():
    net = network("Llama")
    with fs.watch(net, keep=("mass", "lens")) as session:
        net.generate(torch.tensor([[3, 4, 5]]), max_new_tokens=3, do_sample=False)
    assert session.trace().lens["probability"].notnull().any()


@pytest.mark.parametrize("length", [0, -1])
def test_impossible_prompt_lengths_are_refused(length):
    with pytest.raises(fs.UsageError, match="prompt_length"):
        fs.watch(network("Llama"), prompt_length=length)


def test_a_part_of_a_network_is_refused():
    with pytest.raises(fs.ModelError, match="Give the whole network"):
        fs.watch(network("Llama").model)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"causal": True, "key": torch.ones(1, 2, 3, 4)}, "causal queries"),
        ({"key": torch.ones(1, 2, 0, 4)}, "non-empty tensors"),
        ({"mask": torch.ones(1, 1, 5, 5, dtype=torch.long)}, "ones and zeros"),
    ],
)
def test_column_sums_errors_name_the_wrong_argument(given, match):
    asked = {"query": torch.ones(1, 2, 5, 4), "key": torch.ones(1, 2, 5, 4), **given}
    with pytest.raises(fs.UsageError, match=match):
        fs.column_sums(**asked)


def test_a_watched_network_has_the_fingerprint_of_its_weights(checkpoints):
    model = fs.load(checkpoints["LLaDA"])
    with fs.watch(model.net, mask_id=model.mask_id, shift=0, direction="bidirectional") as session:
        canvas = denoise(model)
    assert session.trace(canvas).info["fingerprint"] == model.fingerprint
