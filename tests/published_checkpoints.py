"""Small checkpoints under published config.json files: every field as published, but sizes of matrices.

The vocabulary's size and every token id stay, so that masks and ends of answers are the published ones.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from floatscope.models import tiny
from floatscope.models.registry import family_of

CONFIGS = Path(__file__).parent / "data" / "published_configs"
_NARROW = ("hidden_size", "d_model", "dim", "intermediate_size", "mlp_hidden_size", "hidden_dim")
_SIZES = {
    **dict.fromkeys((*_NARROW, "moe_intermediate_size", "expert_intermediate_size"), 8),
    **dict.fromkeys(("num_hidden_layers", "n_layers", "n_layer"), 1),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "n_heads", "n_kv_heads"), 2),
    "head_dim": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "layer_types": ["full_attention"],
}


def config_of(name):
    """As published; ".from-code" and ".from-memory" in a file's name say what it is otherwise."""
    (file,) = CONFIGS.glob(f"{name}.json")
    return json.loads(file.read_text())


def write(name, folder, **changes):
    """A checkpoint without a tokenizer."""
    config = config_of(name)
    config |= {key: value for key, value in _SIZES.items() if key in config}
    config |= changes
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    kind = family_of(config["architectures"][0], name)
    tiny._write_weights(tiny._weights(kind.name, config, tiny.Shape()), folder, 1)
    return folder


def write_tokenizer(folder, tokens, **settings):
    """Bytes, and special tokens at the ids that they are published with."""
    vocab = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab | tokens, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in tokens])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
