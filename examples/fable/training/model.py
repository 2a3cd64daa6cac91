"""A small Llama, with the names that a checkpoint of LlamaForCausalLM has, so that its weights are saved as they are."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention


@dataclass(frozen=True)
class Shape:
    """Everything that decides on the size."""

    vocabulary: int = 3072
    hidden: int = 256
    layers: int = 8
    heads: int = 8
    key_heads: int = 4
    head_width: int = 32
    intermediate: int = 512
    context: int = 2048
    theta: float = 10000.0
    epsilon: float = 1e-5


def rotate(x, cosine, sine):
    """Rotary position embedding, halves."""
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


class Attention(nn.Module):
    """Grouped-query attention within documents."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head_width, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.key_heads * shape.head_width, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.key_heads * shape.head_width, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_width, shape.hidden, bias=False)

    def forward(self, x, cosine, sine, mask):
        batch, length, _ = x.shape
        split = lambda y: y.view(batch, length, -1, self.shape.head_width).transpose(1, 2)
        query, key, value = split(self.q_proj(x)), split(self.k_proj(x)), split(self.v_proj(x))
        query, key = rotate(query, cosine, sine).to(value.dtype), rotate(key, cosine, sine).to(value.dtype)
        mixed = flex_attention(query, key, value, block_mask=mask, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    """Gated feed-forward network."""

    def __init__(self, shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and feed-forward network, each behind a norm and beside the residual stream."""

    def __init__(self, shape):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden, shape.epsilon)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, shape.epsilon)
        self.mlp = Mlp(shape)

    def forward(self, x, cosine, sine, mask):
        x = x + self.self_attn(self.input_layernorm(x), cosine, sine, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Embedding, layers, final norm."""

    def __init__(self, shape):
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, shape.epsilon)


class Llama(nn.Module):
    """The model; the head is the embedding's table."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.model = Decoder(shape)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                deep = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * shape.layers) ** 0.5 if deep else 0.02)
        angles = torch.outer(torch.arange(shape.context), shape.theta ** (-torch.arange(0, shape.head_width, 2) / shape.head_width))
        angles = torch.cat((angles, angles), -1).float()
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, ids, targets, mask):
        """The summed loss over the targets that are not -100."""
        x = self.model.embed_tokens(ids)
        cosine, sine = self.cosine[: ids.shape[1]], self.sine[: ids.shape[1]]
        for layer in self.model.layers:
            x = layer(x, cosine, sine, mask)
        logits = functional.linear(self.model.norm(x), self.model.embed_tokens.weight)
        return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")

    def count(self):
        """Parameters."""
        return sum(weight.numel() for weight in self.parameters())
