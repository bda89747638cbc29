"""A Llama-shaped decoder in torch with random weights, and its paged KV cache.

Random weights take as long as trained ones, and the same seed gives every engine the same. The cache is one tensor; a step
writes the keys and values of its tokens to their slots, and gathers those of whole sequences for attention. The gather costs
memory traffic that a kernel with paged access saves; in return both attention paths are torch's own.
"""

import dataclasses
from collections.abc import Callable

import numpy
import torch
import torch.nn.functional as functional

from scheduler import Chunk


@dataclasses.dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    mlp: int

    def parameters(self, vocabulary: int) -> int:
        attention = self.hidden * self.head * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.mlp) + 2 * vocabulary * self.hidden

    def kv_bytes(self, element: int) -> int:
        """Bytes of keys and values of one token."""
        return self.layers * 2 * self.kv_heads * self.head * element


SHAPES = {
    "8b": Shape(layers=32, hidden=4096, heads=32, kv_heads=8, head=128, mlp=14336),
    "3b": Shape(layers=28, hidden=3072, heads=24, kv_heads=8, head=128, mlp=8192),
    "1b": Shape(layers=16, hidden=2048, heads=32, kv_heads=8, head=64, mlp=8192),
    "tiny": Shape(layers=2, hidden=64, heads=4, kv_heads=2, head=16, mlp=128),
}

ROPE_BASE = 500_000.0
EPSILON = 1e-5


@dataclasses.dataclass
class Layer:
    attention_norm: torch.Tensor
    qkv: torch.Tensor
    out: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclasses.dataclass
class Group:
    """Consecutive chunks of a batch that one attention call computes: the decoding ones, or the prompts."""

    queries: slice  # in the batch's new tokens
    keys: slice  # in the gathered keys
    query_lengths: list[int]
    key_lengths: list[int]
    query_ends: torch.Tensor
    key_ends: torch.Tensor


Attention = Callable[[torch.Tensor, torch.Tensor, Group], torch.Tensor]


def attend_flash(query: torch.Tensor, keys_values: torch.Tensor, group: Group) -> torch.Tensor:
    """Flash attention over sequences of different lengths; a shorter query is the end of its sequence."""
    return torch.ops.aten._flash_attention_forward(
        query, keys_values[:, 0], keys_values[:, 1], group.query_ends, group.key_ends,
        max(group.query_lengths), max(group.key_lengths), 0.0, True, False,
    )[0]  # fmt: skip


def attend_one_by_one(query: torch.Tensor, keys_values: torch.Tensor, group: Group) -> torch.Tensor:
    """The same with the public function and explicit masks: runs everywhere, and is the oracle of the other."""
    answers, query_at, key_at = [], 0, 0
    for queries, keys in zip(group.query_lengths, group.key_lengths, strict=True):
        q = query[query_at : query_at + queries].transpose(0, 1)[None]
        k, v = (keys_values[key_at : key_at + keys, which].transpose(0, 1)[None] for which in (0, 1))
        mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
        found = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        answers.append(found[0].transpose(0, 1))
        query_at, key_at = query_at + queries, key_at + keys
    return torch.cat(answers)


class TorchModel:
    """Computes chunks on one device. Every answer is the most likely token."""

    def __init__(
        self, shape: Shape, blocks: int, block_tokens: int, vocabulary: int, positions: int, device: str, dtype: torch.dtype
    ):
        self.shape, self.device, self.vocabulary = shape, torch.device(device), vocabulary
        self.attend: Attention = attend_flash if self.device.type == "cuda" else attend_one_by_one
        self._block_tokens, self._dtype = block_tokens, dtype
        self._random = torch.Generator(self.device).manual_seed(0)
        padded = -(-vocabulary // 128) * 128
        self._embedding = self._weights(padded, shape.hidden)
        self._layers = [self._layer() for _ in range(shape.layers)]
        self._norm = torch.ones(shape.hidden, dtype=dtype, device=self.device)
        self._head = self._weights(padded, shape.hidden)
        slots = (shape.layers, blocks * block_tokens, 2, shape.kv_heads, shape.head)
        self._cache = torch.zeros(slots, dtype=dtype, device=self.device)
        steps = torch.arange(0, shape.head, 2, dtype=torch.float64) / shape.head
        angles = torch.outer(torch.arange(positions, dtype=torch.float64), ROPE_BASE**-steps)
        # One more dimension, for the heads.
        self._cosine = angles.cos().to(self.device, dtype)[:, None]
        self._sine = angles.sin().to(self.device, dtype)[:, None]

    def _weights(self, rows: int, columns: int) -> torch.Tensor:
        empty = torch.empty(rows, columns, dtype=self._dtype, device=self.device)
        return empty.normal_(0, 0.02, generator=self._random)

    def _layer(self) -> Layer:
        shape = self.shape
        ones = torch.ones(shape.hidden, dtype=self._dtype, device=self.device)
        return Layer(
            attention_norm=ones,
            qkv=self._weights((shape.heads + 2 * shape.kv_heads) * shape.head, shape.hidden),
            out=self._weights(shape.hidden, shape.heads * shape.head),
            mlp_norm=ones,
            gate_up=self._weights(2 * shape.mlp, shape.hidden),
            down=self._weights(shape.hidden, shape.mlp),
        )

    @torch.inference_mode()
    def step(self, chunks: list[Chunk]) -> list[int]:
        # Decoding chunks first: attention over one token per sequence is another kernel.
        order = sorted(range(len(chunks)), key=lambda at: len(chunks[at].tokens) > 1)
        batch = Batch([chunks[at] for at in order], self._block_tokens, self.device)
        cosine, sine = self._cosine[batch.positions], self._sine[batch.positions]
        hidden = functional.embedding(batch.tokens, self._embedding)
        for layer, cache in zip(self._layers, self._cache, strict=True):
            self._attention(hidden, layer, cache, batch, cosine, sine)
            self._feed_forward(hidden, layer)
        last = functional.rms_norm(hidden[batch.ends], self._norm.shape, self._norm, EPSILON)
        logits = functional.linear(last, self._head)[:, : self.vocabulary]
        found = logits.argmax(-1).tolist()
        answers = [0] * len(chunks)
        for at, token in zip(order, found, strict=True):
            answers[at] = token
        return answers

    def _attention(
        self, hidden: torch.Tensor, layer: Layer, cache: torch.Tensor, batch: "Batch", cosine: torch.Tensor, sine: torch.Tensor
    ) -> None:
        shape, count = self.shape, hidden.shape[0]
        normed = functional.rms_norm(hidden, layer.attention_norm.shape, layer.attention_norm, EPSILON)
        qkv = functional.linear(normed, layer.qkv).view(count, -1, shape.head)
        rotate(qkv[:, : shape.heads + shape.kv_heads], cosine, sine)
        cache.index_copy_(0, batch.new_slots, qkv[:, shape.heads :].view(count, 2, shape.kv_heads, shape.head))
        gathered = cache.index_select(0, batch.all_slots)
        parts = [self.attend(qkv[group.queries, : shape.heads], gathered[group.keys], group) for group in batch.groups]
        attended = parts[0] if len(parts) == 1 else torch.cat(parts)
        hidden.addmm_(attended.reshape(count, -1), layer.out.t())

    def _feed_forward(self, hidden: torch.Tensor, layer: Layer) -> None:
        normed = functional.rms_norm(hidden, layer.mlp_norm.shape, layer.mlp_norm, EPSILON)
        gate, up = functional.linear(normed, layer.gate_up).chunk(2, -1)
        hidden.addmm_(functional.silu(gate).mul_(up), layer.down.t())


def compare_attention(model: TorchModel) -> str:
    """Compares the fast attention with its oracle, and takes the oracle if they differ or the fast one is not there."""
    shape, device = model.shape, model.device
    if model.attend is attend_one_by_one:
        return "attention: one by one"
    # Decoding, a prompt without a cached prefix, and the rest of a prompt.
    lengths = [([1, 1, 1], [1, 700, 2049]), ([900, 300, 5], [900, 1500, 4000])]
    largest = 0.0
    for queries, keys in lengths:
        query = torch.randn(sum(queries), shape.heads, shape.head, dtype=torch.bfloat16, device=device)
        keys_values = torch.randn(sum(keys), 2, shape.kv_heads, shape.head, dtype=torch.bfloat16, device=device)
        batch = group(queries, keys, 0, len(queries), device)
        try:
            fast = attend_flash(query, keys_values, batch)
        except (RuntimeError, TypeError) as error:
            model.attend = attend_one_by_one
            return f"attention: one by one, because flash attention failed: {error}"
        slow = attend_one_by_one(query.float(), keys_values.float(), batch)
        largest = max(largest, (fast - slow).abs().max().item())
    # Rounding makes 0.03; a mask that is off by one token, ten times as much.
    if largest > 0.1:
        model.attend = attend_one_by_one
        return f"attention: one by one, because flash attention differs by {largest:.3f}"
    return f"attention: flash; it differs from the oracle by {largest:.4f} at most"


def rotate(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> None:
    """Rotary position embedding, in place."""
    first, second = heads.chunk(2, -1)
    turned = (first * cosine).addcmul_(second, sine, value=-1)
    second.copy_((second * cosine).addcmul_(first, sine))
    first.copy_(turned)


class Batch:
    """The chunks of a step as tensors: decoding ones first, then prompts."""

    def __init__(self, chunks: list[Chunk], block_tokens: int, device: torch.device):
        offsets = numpy.arange(block_tokens)
        tokens, positions, new_slots, all_slots = [], [], [], []
        for chunk in chunks:
            end = chunk.start + len(chunk.tokens)
            blocks = numpy.asarray(chunk.blocks[: -(-end // block_tokens)], dtype=numpy.int64)
            slots = (blocks[:, None] * block_tokens + offsets).ravel()[:end]
            tokens.append(numpy.asarray(chunk.tokens, dtype=numpy.int64))
            positions.append(numpy.arange(chunk.start, end))
            new_slots.append(slots[chunk.start :])
            all_slots.append(slots)
        lengths = [len(chunk.tokens) for chunk in chunks]

        def on_device(parts: list[numpy.ndarray]) -> torch.Tensor:
            return torch.from_numpy(numpy.concatenate(parts)).to(device, non_blocking=True)

        self.tokens, self.positions = on_device(tokens), on_device(positions)
        self.new_slots, self.all_slots = on_device(new_slots), on_device(all_slots)
        self.ends = torch.from_numpy(numpy.cumsum(lengths) - 1).to(device, non_blocking=True)
        singles = sum(length == 1 for length in lengths)
        key_lengths = [chunk.start + len(chunk.tokens) for chunk in chunks]
        self.groups = []
        for first, last in ((0, singles), (singles, len(chunks))):
            if first < last:
                self.groups.append(group(lengths, key_lengths, first, last, device))


def group(query_lengths: list[int], key_lengths: list[int], first: int, last: int, device: torch.device) -> Group:
    """The chunks from `first` to `last` of a batch with these lengths."""

    def ends(lengths: list[int]) -> torch.Tensor:
        return torch.tensor([0, *numpy.cumsum(lengths)], dtype=torch.int32).to(device, non_blocking=True)

    def part(lengths: list[int]) -> slice:
        return slice(sum(lengths[:first]), sum(lengths[:last]))

    queries, keys = query_lengths[first:last], key_lengths[first:last]
    return Group(part(query_lengths), part(key_lengths), queries, keys, ends(queries), ends(keys))
