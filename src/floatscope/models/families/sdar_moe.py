"""SDAR-MoE: SDAR with experts, a Qwen3-MoE that sees its own block and all earlier blocks.

Its tensors and config.json have the names of Qwen3-MoE; blocks and mask are as in SDAR. Implemented after
config.json and the tensor names of SDAR-30B-A3B-Chat; the modelling code was not used.
Cheng et al. 2025, arXiv 2510.06303.
"""

from dataclasses import replace

from .sdar import SDAR

SDAR_MOE = replace(
    SDAR,
    name="SDAR-MoE",
    architectures=("SDARMoeForCausalLM",),
    network="transformers:Qwen3MoeForCausalLM",
    examples="SDAR-30B-A3B-Chat",
    experts=True,
    tested="float64 reference, transformers' own class",
)
