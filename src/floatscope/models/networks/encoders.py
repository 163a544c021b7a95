"""Encoders of transformers with a masked-LM head, given the interface of transformers' decoders.

Each class is a transformers class with another `forward` around the same modules: it returns the logits
of the requested rows and uses no cache and no causal mask. Attention modules get the attributes
`layer_idx` and `o_proj`. No modules are added, so a checkpoint's keys stay the same.
"""

from copy import deepcopy
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import (
    AlbertForMaskedLM,
    BertForMaskedLM,
    DistilBertForMaskedLM,
    ModernBertForMaskedLM,
    RobertaForMaskedLM,
)
from transformers.modeling_outputs import MaskedLMOutput

from ...errors import UsageError


class Encoder:
    """Base class of the encoders, which gives a masked-LM network the interface of transformers' decoders."""

    first_position: int = 0

    def name_parts(self) -> None:
        """Set `layer_idx` and `o_proj` of every attention module, as in a decoder."""
        for number, (attention, output) in enumerate(self.attentions()):
            # Bypasses nn.Module.__setattr__: a second name for a module would be a second key of its
            # weights.
            attention.__dict__["layer_idx"] = number
            attention.__dict__["o_proj"] = output

    def attentions(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return each layer's attention module and the module of its output projection."""
        raise NotImplementedError

    def readout(self, x: Float[Tensor, "*b width"]) -> Float[Tensor, "*b vocab"]:
        """Return the logits that the output head computes from a layer's output."""
        raise NotImplementedError

    def forward(
        self,
        input_ids: Int[Tensor, "b s"],
        attention_mask: Bool[Tensor, "b 1 s s"] | None = None,
        position_ids: Int[Tensor, "b s"] | None = None,
        logits_to_keep: Any = 0,
        past_key_values: Any = None,
        **ignored: Any,  # such as `is_causal` and `use_cache`, which do not apply to an encoder
    ) -> MaskedLMOutput:
        if past_key_values is not None:
            raise UsageError(
                f"a {type(self).__name__} does not accept a KV cache", "Use cache=None."
            )
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        hidden = self.base_model(  # type: ignore[attr-defined]
            input_ids=input_ids,
            attention_mask=self.masks(attention_mask, position_ids),
            position_ids=position_ids + self.first_position,
        ).last_hidden_state
        rows = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return MaskedLMOutput(logits=self.read(hidden[:, rows]))

    def masks(self, mask: Tensor | None, positions: Int[Tensor, "_ s"]) -> Any:
        """Return the attention mask in the form that the network expects."""
        return mask

    def read(self, x: Float[Tensor, "*b width"]) -> Float[Tensor, "*b vocab"]:
        """Return the logits for the network's last hidden state. For a layer's output use `readout`."""
        return self.readout(x)


class BertDenoiser(Encoder, BertForMaskedLM):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.name_parts()

    @property
    def blocks(self) -> Any:
        return self.bert.encoder.layer

    def attentions(self) -> list[tuple[nn.Module, nn.Module]]:
        return [(b.attention.self, b.attention.output.dense) for b in self.blocks]

    def readout(self, x: Float[Tensor, "*b width"]) -> Float[Tensor, "*b vocab"]:
        return self.cls(x)


class RobertaDenoiser(Encoder, RobertaForMaskedLM):
    """RoBERTa, whose position numbers always begin at the padding token's id + 1."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.first_position = self.roberta.embeddings.padding_idx + 1
        self.name_parts()

    @property
    def blocks(self) -> Any:
        return self.roberta.encoder.layer

    def attentions(self) -> list[tuple[nn.Module, nn.Module]]:
        return [(b.attention.self, b.attention.output.dense) for b in self.blocks]

    def readout(self, x: Float[Tensor, "*b width"]) -> Float[Tensor, "*b vocab"]:
        return self.lm_head(x)


class DistilBertDenoiser(Encoder, DistilBertForMaskedLM):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.name_parts()

    @property
    def blocks(self) -> Any:
        return self.distilbert.transformer.layer

    def attentions(self) -> list[tuple[nn.Module, nn.Module]]:
        return [(b.attention, b.attention.out_lin) for b in self.blocks]

    def readout(self, x: Float[Tensor, "*b width"]) -> Float[Tensor, "*b vocab"]:
        x = self.vocab_layer_norm(self.activation(self.vocab_transform(x)))
        return self.vocab_projector(x)


class AlbertDenoiser(Encoder, AlbertForMaskedLM):
    """ALBERT, whose layers share weights. After `spread`, each layer is a module of its own."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.blocks: list[Any] = []

    def spread(self) -> "AlbertDenoiser":
        """Give each layer its own module, so that hooks know which layer runs; called after loading."""
        encoder, config = self.albert.encoder, self.config
        shared, n_layers = encoder.albert_layer_groups, config.num_hidden_layers
        groups = [shared[int(n / (n_layers / config.num_hidden_groups))] for n in range(n_layers)]
        encoder.albert_layer_groups = nn.ModuleList(
            deepcopy(group, {id(p): p for p in group.parameters()} | {id(config): config})
            for group in groups
        )
        config.num_hidden_groups = n_layers
        self.blocks = list(encoder.albert_layer_groups)
        self.name_parts()
        return self

    def attentions(self) -> list[tuple[nn.Module, nn.Module]]:
        layers = [group.albert_layers[0] for group in self.blocks]
        return [(layer.attention, layer.attention.dense) for layer in layers]

    def readout(self, x: Float[Tensor, "*b width"]) -> Float[Tensor, "*b vocab"]:
        return self.predictions(x)


class ModernBertDenoiser(Encoder, ModernBertForMaskedLM):
    """ModernBERT, whose local layers see up to `sliding_window` positions to either side, inclusive."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.name_parts()

    @property
    def blocks(self) -> Any:
        return self.model.layers

    def attentions(self) -> list[tuple[nn.Module, nn.Module]]:
        return [(b.attn, b.attn.Wo) for b in self.blocks]

    def masks(self, mask: Tensor | None, positions: Int[Tensor, "_ s"]) -> Any:
        size, near = positions.shape[1], mask
        # otherwise local layers see every position, and SDPA gets no mask
        if size > self.config.sliding_window + 1:
            index = torch.arange(size, device=positions.device)
            band = ((index - index[:, None]).abs() <= self.config.sliding_window)[None, None]
            near = band if mask is None else mask & band
        return {"full_attention": mask, "sliding_attention": near}

    def readout(self, x: Float[Tensor, "*b width"]) -> Float[Tensor, "*b vocab"]:
        return self.read(self.model.final_norm(x))

    def read(self, x: Float[Tensor, "*b width"]) -> Float[Tensor, "*b vocab"]:
        return self.decoder(self.head(x))
