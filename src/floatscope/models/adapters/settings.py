"""Read adapter_config.json: the fields of PEFT's LoRA that determine how an adapter changes a network.

Known fields that affect only training are ignored. Any other field that is set is refused, so that no
adapter is merged incorrectly.
"""

import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    FiniteFloat,
    ValidationError,
    field_validator,
)

from ...errors import ModelError

_REMEDY = "Correct adapter_config.json, or merge the adapter with PEFT and load the result."
# Ignored fields: training, origin, and settings internal to PEFT. `fan_in_fan_out` has no effect on an
# nn.Linear, in PEFT either.
_PASSED_OVER = frozenset(
    """
    auto_mapping base_model_name_or_path corda_config ephemeral_gpu_offload eva_config exclude_modules
    fan_in_fan_out inference_mode layers_pattern layers_to_transform loftq_config lora_bias lora_dropout
    lora_ga_config megatron_config megatron_core peft_version qalora_group_size revision runtime_config
    task_type use_dora velora_config
    """.split()
)
_REPEAT = re.compile(r"(?<!\\)[*+?{]")


def _quick(patterns: dict[str, Any]) -> dict[str, Any]:
    """Refuse regular expressions that may be slow, that is, have many repeats or repeat a group."""
    repeats = [len(_REPEAT.findall(pattern)) for pattern in patterns]
    of_a_group = any(f"){sign}" in pattern for pattern in patterns for sign in "*+{")
    if max(repeats, default=0) > 2 or sum(repeats) > 20 or of_a_group:
        raise ValueError
    try:
        for pattern in patterns:
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError from error
    return patterns


V = TypeVar("V")
Size = Annotated[int, Field(gt=0, le=2**31)]  # largest size of a tensor's dimension
# The limits bound the time for a hostile file, because pydantic collects all errors.
Names = Annotated[list[str], Field(max_length=10_000)]
ByPattern = Annotated[dict[str, V], Field(max_length=10_000), AfterValidator(_quick)]
Ids = Annotated[list[Annotated[int, Field(ge=0)]], FailFast()]


class Settings(BaseModel):
    """The settings of one adapter. A field's description states the expected values."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    peft_type: Literal["LORA"] = Field(
        description="LORA, the only kind of adapter that Floatscope reads"
    )
    # The other initialisations (PiSSA, OLoRA, CorDA, LoftQ …) first subtract a part from the base
    # weights.
    init_lora_weights: Literal[True, False, "gaussian", "eva", "orthogonal"] = Field(
        True, description="an initialisation that does not change the base weights"
    )
    bias: Literal["none", "all", "lora_only"] = Field("none", description="none, all or lora_only")
    r: Size = Field(8, description="a whole number above 0")
    lora_alpha: FiniteFloat = Field(8, description="a number")
    use_rslora: bool = Field(False, description="true or false")
    rank_pattern: ByPattern[Size] = Field({}, description="module → rank")
    alpha_pattern: ByPattern[FiniteFloat] = Field({}, description="module → number")
    target_modules: Names | str = Field([], description="names, or a regular expression")
    modules_to_save: Names = Field([], description="names")
    trainable_token_indices: dict[str, Ids] = Field(
        {}, description="token ids, in a list or by embedding"
    )
    ensure_weight_tying: bool = Field(False, description="true or false")

    @field_validator("trainable_token_indices", mode="before")
    @classmethod
    def _by_embedding(cls, value: Any) -> Any:
        return {"embed_tokens": value, "wte": value} if isinstance(value, list) else value

    @property
    def targets(self) -> list[str]:
        """Names of modules that must be in the file; empty for a regular expression."""
        named = [] if isinstance(self.target_modules, str) else self.target_modules
        return [*named, *self.modules_to_save]

    def rank(self, module: str) -> int:
        return _matching(self.rank_pattern, module, self.r)

    def scaling(self, module: str) -> float:
        alpha, rank = _matching(self.alpha_pattern, module, self.lora_alpha), self.rank(module)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    def rows(self, module: str) -> list[int]:
        """Return the indices of the embedding rows that the adapter replaces in a module."""
        for name, ids in self.trainable_token_indices.items():
            if ends(module, name):
                return ids
        raise ModelError(
            f"the adapter has rows for {module}, which trainable_token_indices does not name",
            _REMEDY,
        )


def ends(module: str, name: str) -> bool:
    """Tell whether a module's dotted name ends with `name`."""
    return module == name or module.endswith(f".{name}")


def _matching(patterns: dict[str, V], module: str, default: V) -> V:
    """Return the value of the first pattern that matches the end of the module's name, or `default`."""
    matches = (v for p, v in patterns.items() if re.match(rf"(.*\.)?({p})$", module))
    return next(matches, default)


def settings(raw: dict[str, Any], file: Path) -> Settings:
    """Return the settings in adapter_config.json; raise ModelError for a field that is not supported."""
    values = {name: value for name, value in raw.items() if value is not None}
    try:
        chosen = Settings.model_validate(values)
        name = next(
            (n for n, v in sorted((chosen.model_extra or {}).items()) if _unknown(n, v)), ""
        )
        expected = "no such field: Floatscope does not know how to merge it"
    except ValidationError as error:
        name = str(error.errors(include_url=False, include_input=False)[0]["loc"][0])
        expected = str(Settings.model_fields[name].description)
    if name:
        raise ModelError(f"{file}: {name} = {raw.get(name)!r:.80}, expected {expected}", _REMEDY)
    return chosen


def _unknown(name: str, value: Any) -> bool:
    return name not in _PASSED_OVER and value not in (False, [], {})
