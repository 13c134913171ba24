"""Recurrent and attention networks from their layer shapes."""

from __future__ import annotations

from patchlight.testbed.graphs.layers import Layers, Tensor


def gnmt(net: Layers, length: int = 48, width: int = 1024, words: int = 32320) -> None:
    """Wu et al. 2016 with four layers, as in NVIDIA's and PipeDream's: sequences of 48 words."""
    x = net.embedding(net.input(length), words, width)
    x = net.lstm((net.pointwise("Dropout", x),), width, ways=2)
    x = net.lstm((net.pointwise("Dropout", x),), width)
    for _ in range(2):
        y = net.lstm((net.pointwise("Dropout", x),), width)
        x = net.pointwise("Add", y, x)
    source = x
    x = net.embedding(net.input(length), words, width)
    x = net.lstm((net.pointwise("Dropout", x),), width)
    context = net.additive_attention(x, source)
    for number in range(3):
        y = net.lstm((net.pointwise("Dropout", x), context), width)
        x = net.pointwise("Add", y, x) if number else y
    net.linear(x, words)


def _attention(net: Layers, x: Tensor, heads: int) -> Tensor:
    width = x.shape[1]
    joined = net.linear(x, 3 * width)
    shares = net.pointwise("Softmax", net.scores(joined, heads), flops=5)
    return net.linear(net.mixed(shares, joined), width)


def _expansion(net: Layers, x: Tensor) -> Tensor:
    width = x.shape[1]
    return net.linear(net.pointwise("GELU", net.linear(x, 4 * width), flops=8), width)


def bert_large(net: Layers, length: int = 512, width: int = 1024, layers: int = 24) -> None:
    """Devlin et al. 2019, uncased, with its pooler: sequences of 512 tokens."""
    tokens = net.input(length)
    words = net.embedding(tokens, 30522, width)
    positions = net.embedding(tokens, 512, width, of="positions")
    segments = net.embedding(tokens, 2, width, of="segments")
    x = net.layer_norm(net.pointwise("Add", words, positions, segments))
    for _ in range(layers):
        x = net.layer_norm(net.pointwise("Add", _attention(net, x, heads=16), x))
        x = net.layer_norm(net.pointwise("Add", _expansion(net, x), x))
    first = net.reshape("First token", x, 1, width)
    net.pointwise("Tanh", net.linear(first, width), flops=8)


def gpt2(net: Layers, length: int = 1024, width: int = 768, layers: int = 12) -> None:
    """Radford et al. 2019, the smallest (124 M): sequences of 1,024 tokens."""
    tokens, entries = net.input(length), 50257
    words = net.embedding(tokens, entries, width)
    positions = net.embedding(tokens, length, width, of="positions")
    x = net.pointwise("Add", words, positions)
    for _ in range(layers):
        x = net.pointwise("Add", _attention(net, net.layer_norm(x), heads=12), x)
        x = net.pointwise("Add", _expansion(net, net.layer_norm(x)), x)
    net.linear(net.layer_norm(x), entries, bias=False, tied=True)
