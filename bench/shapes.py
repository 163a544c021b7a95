"""Shapes of networks that are built with drawn weights: what a forward costs does not depend on these."""


def _shape(
    width: int, layers: int, heads: int, kv_heads: int, inner: int, words: int
) -> dict[str, int]:
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "vocab_size": words,
    }


SHAPES = {
    "LLaDA-8B": _shape(4096, 32, 32, 32, 12288, 126464),
    "Dream-7B": _shape(3584, 28, 28, 4, 18944, 152064),
    "Llama-8B": _shape(4096, 32, 32, 8, 14336, 128256),
    "twin": _shape(576, 30, 9, 3, 1536, 49152),
    "pair": _shape(256, 12, 8, 8, 768, 8192),
    "narrow": _shape(128, 32, 32, 32, 128, 512),  # as many layers and heads as 8B, and little else
    "tiny": _shape(16, 2, 2, 2, 16, 512),
}
