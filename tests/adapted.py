"""The embedded diffusion model as somebody's own training leaves it: a Llama's weights and half a config.

Llama's key names, a config.json with sizes alone (no architecture, no mask, no word of direction), and a
tokenizer whose mask is one of the reserved tokens.
"""

import json
import re

from safetensors.torch import load_file, save_file

from floatscope.models.families import llada

SETTINGS = "family=Llama,direction=bidirectional,shift=0,mask_id=3"
_SIZES = """vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size
max_position_embeddings rms_norm_eps tie_word_embeddings""".split()


def written(mdm, path):
    """Of the directory of pair/mdm, or of its first layers."""
    path.mkdir(parents=True)
    config = llada.translate(json.loads((mdm / "config.json").read_text()))
    (path / "config.json").write_text(json.dumps({name: config[name] for name in _SIZES}))
    weights = load_file(mdm / "model.safetensors")
    save_file(
        {_llama(key): value for key, value in weights.items()},
        path / "model.safetensors",
        metadata={"format": "pt"},
    )
    text = (mdm / "tokenizer.json").read_text()
    (path / "tokenizer.json").write_text(text.replace("<mask>", "<|reserved_0|>"))
    settings = json.loads((mdm / "tokenizer_config.json").read_text())
    del settings["mask_token"]
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


def _llama(key):
    for theirs, ours in llada.KEYS.items():
        key = re.sub(theirs, ours, key)
    return key
