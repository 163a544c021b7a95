"""A LLaDA network with the modules and calls of the published one, and nothing else.

TransformerLens wraps LLaDA's own code, which comes with the checkpoint and from no package. This
stands in for it: the same tree (`model.transformer.blocks[i].q_proj` …), the same `attention` call
that TransformerLens replaces, stock attention, float32 rotation. It reads the published key names.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PretrainedConfig
from transformers.modeling_outputs import CausalLMOutputWithPast


def config_of(folder: Path) -> Any:
    """The checkpoint's config with the fields that published ones have and small ones leave out."""
    raw = json.loads((folder / "config.json").read_text())
    published = {
        "block_group_size": 1,
        "rope_full_precision": True,
        "attention_layer_norm": False,
        "scale_logits": False,
        "input_emb_norm": False,
        "attention_dropout": 0.0,
    }
    return PretrainedConfig(**(published | raw), tie_word_embeddings=raw["weight_tying"])


class Norm(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(config.d_model)), config.rms_norm_eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class Rotary(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.d_model // config.n_heads
        step = 1 / config.rope_theta ** (torch.arange(0, width, 2).float() / width)
        angle = torch.arange(config.max_sequence_length).float()[:, None] * step
        self.cos, self.sin = (
            torch.cat([angle, angle], -1).cos(),
            torch.cat([angle, angle], -1).sin(),
        )

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        def turn(x: Tensor) -> Tensor:
            first, second = x.float().chunk(2, -1)
            size = x.shape[-2]
            turned = x * self.cos[:size] + torch.cat([-second, first], -1) * self.sin[:size]
            return turned.to(x.dtype)

        return turn(q), turn(k)


class Block(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        width, inner = config.d_model, config.mlp_hidden_size
        self.q_proj, self.k_proj, self.v_proj, self.attn_out = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.ff_proj, self.up_proj = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.ff_out = nn.Linear(inner, width, bias=False)
        self.attn_norm, self.ff_norm = Norm(config), Norm(config)
        self.act, self.rotary_emb = nn.SiLU(), Rotary(config)

    @staticmethod
    def _cast_attn_bias(bias: Tensor, dtype: torch.dtype) -> Tensor:
        return bias.to(dtype)

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attention_bias: Tensor | None = None,
        layer_past: None = None,
        use_cache: bool = False,
    ) -> tuple[Tensor, None]:
        b, s, width = q.shape
        shape = (b, s, self.config.n_heads, width // self.config.n_heads)
        q, k, v = (x.view(shape).transpose(1, 2) for x in (q, k, v))
        q, k = self.rotary_emb(q, k)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=attention_bias)
        return self.attn_out(out.transpose(1, 2).reshape(b, s, width)), None

    def forward(
        self,
        x: Tensor,
        attention_bias: Tensor | None = None,
        layer_past: None = None,
        use_cache: bool = False,
    ) -> tuple[Tensor, None]:
        y = self.attn_norm(x)
        found, cache = self.attention(
            self.q_proj(y),
            self.k_proj(y),
            self.v_proj(y),
            attention_bias,
            layer_past=layer_past,
            use_cache=use_cache,
        )
        x = x + found
        y = self.ff_norm(x)
        return x + self.ff_out(self.act(self.ff_proj(y)) * self.up_proj(y)), cache


class Inner(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.vocab_size, config.d_model),
                "blocks": nn.ModuleList(Block(config) for _ in range(config.n_layers)),
                "ln_f": Norm(config),
                "ff_out": nn.Linear(config.d_model, config.vocab_size, bias=False),
            }
        )


class LLaDAModelLM(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config, self.model = config, Inner(config)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
    ) -> CausalLMOutputWithPast:
        net: Any = self.model.transformer
        bias = None
        if attention_mask is not None and not attention_mask.all():
            hidden = attention_mask[:, None, None, :] == 0
            size = input_ids.shape[1]
            bias = torch.zeros(len(input_ids), 1, size, size)
            bias = bias.masked_fill(hidden, torch.finfo(torch.float32).min)
        x = net.wte(input_ids)
        for block in net.blocks:
            x, _ = block(x, attention_bias=bias, layer_past=None, use_cache=False)
        return CausalLMOutputWithPast(logits=net.ff_out(net.ln_f(x)))


def load(folder: Path) -> LLaDAModelLM:
    net = LLaDAModelLM(config_of(folder))
    net.load_state_dict(load_file(folder / "model.safetensors"))
    return net.eval()
