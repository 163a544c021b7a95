"""Encoders with a masked-LM head, decoded step by step like diffusion models with one noise level.

BERT 1810.04805, RoBERTa 1907.11692, ALBERT 1909.11942, DistilBERT 1910.01108, ModernBERT 2412.13663.
The encoders were trained with a separator after the text; a canvas has no separator after the answer.
ModernBERT's local layers see a window around each position.
"""

from typing import Any

from ...errors import ModelError
from ..family import Direction, Family

_NETWORKS = "floatscope.models.networks.encoders"
# Heads that a checkpoint may contain besides the masked-LM head, and saved position indices.
_UNUSED = (
    r"\.pooler\.",
    r"^cls\.seq_relationship\.",
    r"^sop_classifier\.",
    r"embeddings\.position_ids$",
)


def _translate(raw: dict[str, Any]) -> dict[str, Any]:
    for key, expected in {
        "is_decoder": False,
        "add_cross_attention": False,
        "position_embedding_type": "absolute",
        "inner_group_num": 1,
        "sinusoidal_pos_embds": False,
    }.items():
        if raw.get(key, expected) not in (expected, None):
            raise ModelError(
                f"this encoder has {key} = {raw[key]!r:.80}, and only {expected!r} is supported",
                "Floatscope cannot load it.",
            )
    return {key: value for key, value in raw.items() if key != "position_embedding_type"}


def _encoder_family(
    name: str, architectures: tuple[str, ...], network: str, **fields: Any
) -> Family:
    return Family(
        name=name,
        architectures=architectures,
        network=f"{_NETWORKS}:{network}",
        direction=Direction.BIDIRECTIONAL,
        shift=0,
        translate=_translate,
        unused=_UNUSED,
        keeps=False,
        tested="float64 reference, transformers' own class",
        **fields,
    )


BERT = _encoder_family(
    "BERT",
    ("BertForMaskedLM", "BertForPreTraining"),
    "BertDenoiser",
    mask_id=103,
    mask_vocab=(30522,),
    tokenizer="BertTokenizer",
    examples="bert-base, bert-large",
)
ROBERTA = _encoder_family(
    "RoBERTa",
    ("RobertaForMaskedLM",),
    "RobertaDenoiser",
    mask_id=50264,
    mask_vocab=(50265,),
    examples="roberta-base, roberta-large",
    # Position numbers begin after the padding token's id.
    context=lambda config: int(config.max_position_embeddings) - int(config.pad_token_id) - 1,
)
ALBERT = _encoder_family(
    "ALBERT",
    ("AlbertForMaskedLM", "AlbertForPreTraining"),
    "AlbertDenoiser",
    mask_id=4,
    mask_vocab=(30000,),
    tokenizer="AlbertTokenizer",
    examples="albert-base-v2",
    prepare=lambda net: net.spread(),
)
DISTILBERT = _encoder_family(
    "DistilBERT",
    ("DistilBertForMaskedLM",),
    "DistilBertDenoiser",
    mask_id=103,
    mask_vocab=(30522,),
    tokenizer="BertTokenizer",
    examples="distilbert-base",
)
MODERNBERT = _encoder_family(
    "ModernBERT",
    ("ModernBertForMaskedLM",),
    "ModernBertDenoiser",
    mask_id=50284,
    mask_vocab=(50368,),
    examples="ModernBERT-base, -large",
    reaches=lambda config: tuple(
        int(config.sliding_window) if kind == "sliding_attention" else None
        for kind in config.layer_types
    ),
)
