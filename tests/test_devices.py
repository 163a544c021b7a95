"""A network that transformers spread by a device_map: what can be shown on one kind of device.

Two devices are not at hand here: `bench/devices.py` traces a model over a CPU and a GPU.
"""

import numpy as np
import pytest
import torch
from accelerate import cpu_offload
from accelerate.hooks import attach_align_device_hook_on_blocks

import floatscope as fs
from floatscope.attention import Forward, Labels
from floatscope.models import Direction, Visibility, tiny
from floatscope.models.devices import moved

SAMPLER = fs.Confidence(length=6, steps=3)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny.write("LLaDA", tmp_path_factory.mktemp("spread") / "llada", tiny.Shape(layers=2))


def test_a_spread_model_is_traced_as_one(path):
    plain, spread = fs.load(path), fs.load(path, device="auto")
    # Hooks as between devices, though all is on one: each layer's are called at every forward.
    parts = ["model.embed_tokens", "model.rotary_emb", "model.norm", "lm_head"]
    parts += [f"model.layers.{n}" for n in range(2)]
    attach_align_device_hook_on_blocks(
        spread.net, dict.fromkeys(["", *parts], "cpu"), offload=dict.fromkeys(["", *parts], False)
    )
    assert hasattr(spread.net.model.layers[1], "_hf_hook")
    given = fs.load(spread.net, family="LLaDA", mask_id=259, tokenizer=plain.tokenizer)
    keep = [name for name in fs.statistics.STATISTICS if name != "experts"]
    one = plain.trace("Hello", SAMPLER, keep=keep)
    for model in (spread, given):
        other = model.trace("Hello", SAMPLER, keep=keep)
        for name in one.data.data_vars:
            np.testing.assert_array_equal(one.data[name], other.data[name], err_msg=name)


def test_offloaded_weights_are_refused(path):
    net = fs.load(path).net
    cpu_offload(net, torch.device("cpu"))
    with pytest.raises(fs.ModelError, match="offloaded.*narrower dtype"):
        fs.load(net, family="LLaDA", mask_id=259)
    with pytest.raises(fs.ModelError, match="device='auto' with an adapter"):
        fs.load(path, device="auto", adapter="anywhere")


def test_weights_that_would_go_to_a_disk_are_refused(path, monkeypatch):
    parts = ["model.embed_tokens", "model.rotary_emb", "model.norm", "lm_head", "model.layers.0"]
    places = dict.fromkeys(parts, "cpu") | {"model.layers.1": "disk"}
    monkeypatch.setattr("transformers.modeling_utils._get_device_map", lambda *_: dict(places))
    with pytest.raises(fs.ModelError, match="offloaded.*narrower dtype"):
        fs.load(path, device="auto")


def test_all_that_stands_beside_a_layer_follows_it():
    padding = torch.zeros(1, dtype=torch.long)
    region = torch.zeros(1, 4, dtype=torch.long)
    visible = Visibility(Direction.BIDIRECTIONAL, None, padding, 4, 4)
    wanted = (0, torch.arange(4), torch.ones(1, 4, dtype=torch.bool))
    forward = Forward(visible, Labels(region, 1, region, 1), (0, 4), cached=False, predicted=wanted)
    assert forward.on(torch.device("cpu")) is forward
    away = forward.on(torch.device("meta"))
    assert away is forward.on(torch.device("meta"))
    for tensor in (
        *(away.visible.padding, away.visible.last_visible, away.visible.key_is_real),
        *(away.labels.group, away.labels.in_region, away.max_entropy, *away.predicted[1:]),
    ):
        assert tensor.is_meta
    assert moved((1, "a", region), torch.device("meta"))[2].is_meta
