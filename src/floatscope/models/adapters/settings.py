"""adapter_config.json: the fields of PEFT's LoRA that determine how its tensors change a network.

Known fields about training are ignored. Any other field that is set is refused, so that no adapter is
merged in a way it was not meant for.
"""

import math
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import ModelError

_LARGEST = 2**31  # rank; as many numbers as a tensor's side may have
_REMEDY = "Correct adapter_config.json, or merge the adapter with PEFT and load the result."
# A stranger's pattern with few repeats, and none of a group, is tried in time that a person does not notice.
_REPEAT = re.compile(r"(?<!\\)[*+?{]")
# How it was trained, where it came from, what matters to PEFT alone.
_PASSED_OVER = frozenset(
    """
    auto_mapping base_model_name_or_path corda_config ephemeral_gpu_offload eva_config exclude_modules
    fan_in_fan_out inference_mode layers_pattern layers_to_transform loftq_config lora_bias lora_dropout
    lora_ga_config megatron_config megatron_core peft_version qalora_group_size revision runtime_config
    task_type use_dora velora_config
    """.split()
)
# These leave the base as it is. The others (PiSSA, OLoRA, CorDA, LoftQ …) take a part out of it first.
_BASE_KEPT = (True, False, None, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True)
class Settings:
    """The settings of one adapter. `fan_in_fan_out` has no effect on nn.Linear, in PEFT and here."""

    r: int
    alpha: float
    rslora: bool = False
    ranks: dict[str, int] = field(default_factory=dict)
    alphas: dict[str, float] = field(default_factory=dict)
    targets: tuple[str, ...] = ()  # names that must be in the file; a regular expression names none
    tokens: dict[str, list[int]] = field(default_factory=dict)  # embedding → its new rows
    tied: bool = False  # what changes the embedding changes a tied head

    def rank(self, module: str) -> int:
        return self.ranks.get(_pattern(self.ranks, module), self.r)

    def scaling(self, module: str) -> float:
        alpha = self.alphas.get(_pattern(self.alphas, module), self.alpha)
        rank = self.rank(module)
        return alpha / (math.sqrt(rank) if self.rslora else rank)

    def rows(self, module: str) -> list[int]:
        """Return the indices of the embedding rows that the file replaces."""
        for name, ids in self.tokens.items():
            if ends(module, name):
                return ids
        raise ModelError(
            f"trainable_token_indices says nothing of {module}, and the adapter has rows for it",
            _REMEDY,
        )


def ends(module: str, name: str) -> bool:
    """Tell whether a module's dotted name ends with `name`."""
    return module == name or module.endswith(f".{name}")


def _pattern(patterns: dict[str, Any], module: str) -> str:
    for pattern in patterns:
        if re.match(rf"(.*\.)?({pattern})$", module):
            return pattern
    return ""


def settings(raw: dict[str, Any], file: Path) -> Settings:
    """Read the settings from the JSON object; ModelError names a field that is not supported."""

    def wrong(name: str, expected: str) -> ModelError:
        return ModelError(f"{file}: {name} = {raw.get(name)!r:.80}, expected {expected}", _REMEDY)

    def taken(name: str, default: Any, expected: str, fits: Any) -> Any:
        value = raw.get(name)
        value = default if value is None else value
        if not fits(value):
            raise wrong(name, expected)
        return value

    if raw.get("peft_type") != "LORA":
        raise wrong("peft_type", "LORA: Floatscope reads no other kind of adapter")
    if raw.get("init_lora_weights", True) not in _BASE_KEPT:
        raise wrong("init_lora_weights", "a start that leaves the base's weights as they are")
    taken("bias", "none", "none, all or lora_only", lambda v: v in ("none", "all", "lora_only"))
    tokens = raw.get("trainable_token_indices") or {}
    tokens = {"embed_tokens": tokens, "wte": tokens} if isinstance(tokens, list) else tokens
    if not isinstance(tokens, dict) or not all(
        isinstance(ids, list) and all(_count(i) for i in ids) for ids in tokens.values()
    ):
        raise wrong("trainable_token_indices", "token ids, in a list or by embedding")
    known = {
        *("peft_type", "init_lora_weights", "bias", "trainable_token_indices", "r", "lora_alpha"),
        *("use_rslora", "rank_pattern", "alpha_pattern", "target_modules", "modules_to_save"),
        "ensure_weight_tying",
    }
    for name in sorted(set(raw) - known - _PASSED_OVER):
        if raw[name] not in (None, False, [], {}):
            raise wrong(name, "nothing: Floatscope does not know how to merge that")
    return Settings(
        r=taken("r", 8, "a whole number above 0", _positive),
        alpha=taken("lora_alpha", 8, "a number", _number),
        rslora=taken("use_rslora", False, "true or false", lambda v: isinstance(v, bool)),
        ranks=taken("rank_pattern", {}, "module → rank", _by_module(_positive)),
        alphas=taken("alpha_pattern", {}, "module → number", _by_module(_number)),
        targets=(
            *taken("target_modules", [], "names, or a regular expression", _names_or_text),
            *taken("modules_to_save", [], "names", _names),
        )
        if not isinstance(raw.get("target_modules"), str)
        else tuple(taken("modules_to_save", [], "names", _names)),
        tokens=tokens,
        tied=taken("ensure_weight_tying", False, "true or false", lambda v: isinstance(v, bool)),
    )


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _positive(value: Any) -> bool:
    return _count(value) and 0 < value <= _LARGEST


def _number(value: Any) -> bool:
    """Tell whether a value is a finite number."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _names_or_text(value: Any) -> bool:
    return isinstance(value, str) or _names(value)


def _by_module(fits: Any) -> Any:
    """Return a test for {pattern: value} whose patterns are regular expressions that cannot run for long."""

    def test(value: Any) -> bool:
        if not isinstance(value, dict) or not all(map(fits, value.values())):
            return False
        repeats = [len(_REPEAT.findall(pattern)) for pattern in value]
        of_a_group = any(f"){sign}" in pattern for pattern in value for sign in "*+{")
        if max(repeats, default=0) > 2 or sum(repeats) > 20 or of_a_group:
            return False
        try:
            return all(isinstance(re.compile(pattern), re.Pattern) for pattern in value)
        except (re.error, OverflowError, RecursionError):
            return False

    return test
