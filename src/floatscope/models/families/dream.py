"""Dream: a bidirectional Qwen2; row i − 1 predicts position i, as in Qwen2.

The published code of Dream fails on transformers 5. The keys of a checkpoint are those of Qwen2, so no
key is renamed.
Ye et al. 2025, arXiv 2508.15487.
"""

from typing import Any

from ..family import Direction, Family, rope


def translate(raw: dict[str, Any]) -> dict[str, Any]:
    fields = {key: value for key, value in raw.items() if key != "rope_theta"}
    fields["rope_parameters"] = rope(
        raw.get("rope_theta", 1_000_000.0), fields.pop("rope_scaling", None)
    )
    return fields


DREAM = Family(
    name="Dream",
    architectures=("DreamModel",),
    network="transformers:Qwen2ForCausalLM",
    direction=Direction.BIDIRECTIONAL,
    shift=1,
    mask_id=151666,
    mask_vocab=(152064,),
    translate=translate,
    tokenizer="Qwen2Tokenizer",
    gguf=True,
    examples="Dream-7B Base and Instruct, Dream-Coder, DiffuCoder",
    tested="eager attention",
)
