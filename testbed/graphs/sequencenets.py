"""Recurrent and attention networks from their layer shapes."""

from __future__ import annotations

from testbed.graphs.layers import Layers, Tensor


def _lstm(net: Layers, inputs: tuple[Tensor, ...], width: int, ways: int = 1) -> Tensor:
    """One LSTM layer over a sequence of (length, features), PyTorch's two biases included."""
    length = inputs[0].shape[0]
    features = sum(each.shape[1] for each in inputs)
    gates = 4 * width * (features + width)
    return net.add(
        f"LSTM({features}, {width})" + ("" if ways == 1 else ", both ways"), inputs,
        (length, ways * width), macs=ways * length * gates, flops=ways * length * 10 * width,
        parameters=ways * (gates + 8 * width),
    )  # fmt: skip


def gnmt(net: Layers, length: int = 48, width: int = 1024, words: int = 32320) -> None:
    """Wu et al. 2016 with four layers, as in NVIDIA's and PipeDream's: sequences of 48 words."""
    x = net.embedding(net.input(length), words, width)
    x = _lstm(net, (net.pointwise("Dropout", x),), width, ways=2)
    x = _lstm(net, (net.pointwise("Dropout", x),), width)
    for _ in range(2):
        y = _lstm(net, (net.pointwise("Dropout", x),), width)
        x = net.pointwise("Add", y, x)
    source = x
    x = net.embedding(net.input(length), words, width)
    x = _lstm(net, (net.pointwise("Dropout", x),), width)
    # Bahdanau attention: both sides projected, summed for each pair, weighed, averaged.
    context = net.add(
        "BahdanauAttention", (x, source), (length, width),
        macs=2 * length * width * width + 2 * length * length * width,
        flops=2 * length * length * width, parameters=2 * width * width + width,
    )  # fmt: skip
    for number in range(3):
        y = _lstm(net, (net.pointwise("Dropout", x), context), width)
        x = net.pointwise("Add", y, x) if number else y
    net.linear(x, words)


def _attention(net: Layers, x: Tensor, heads: int) -> Tensor:
    length, width = x.shape
    joined = net.linear(x, 3 * width)
    scores = net.add(
        "MatMul(queries, keys)", (joined,), (heads, length, length), macs=length * length * width
    )
    shares = net.pointwise("Softmax", scores, flops=5)
    mixed = net.add(
        "MatMul(shares, values)", (shares, joined), (length, width), macs=length * length * width
    )
    return net.linear(mixed, width)


def _expansion(net: Layers, x: Tensor) -> Tensor:
    width = x.shape[1]
    return net.linear(net.pointwise("GELU", net.linear(x, 4 * width), flops=8), width)


def bert_large(net: Layers, length: int = 512, width: int = 1024, layers: int = 24) -> None:
    """Devlin et al. 2019, uncased, with its pooler: sequences of 512 tokens."""
    tokens = net.input(length)
    parts = [net.embedding(tokens, entries, width) for entries in (30522, 512, 2)]
    x = net.layer_norm(net.pointwise("Add", *parts))
    for _ in range(layers):
        x = net.layer_norm(net.pointwise("Add", _attention(net, x, heads=16), x))
        x = net.layer_norm(net.pointwise("Add", _expansion(net, x), x))
    first = net.reshape("First token", x, 1, width)
    net.pointwise("Tanh", net.linear(first, width), flops=8)


def gpt2(net: Layers, length: int = 1024, width: int = 768, layers: int = 12) -> None:
    """Radford et al. 2019, the smallest (124 M): sequences of 1,024 tokens."""
    tokens, words = net.input(length), 50257
    parts = [net.embedding(tokens, entries, width) for entries in (words, length)]
    x = net.pointwise("Add", *parts)
    for _ in range(layers):
        x = net.pointwise("Add", _attention(net, net.layer_norm(x), heads=12), x)
        x = net.pointwise("Add", _expansion(net, net.layer_norm(x)), x)
    net.linear(net.layer_norm(x), words, bias=False, tied=True)
