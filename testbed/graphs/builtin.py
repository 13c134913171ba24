"""Defines the built-in graphs, computed from layer shapes for a given GPU."""

from collections.abc import Callable
from typing import TypeVar

from patchlight.testbed.errors import BadInput, nearest
from patchlight.testbed.graphs.layers import A100, GpuModel, Layers, Tensor
from patchlight.testbed.graphs.model import ComputationGraph

_IMAGE = (3, 224, 224)
CLASSES = 1000


def _relu(net: Layers, x: Tensor) -> Tensor:
    return net.pointwise("ReLU", x)


def _classifier(net: Layers, x: Tensor) -> None:
    x = net.reshape("Flatten", x, x.size)
    for _ in range(2):
        x = net.linear(net.pointwise("Dropout", x), 4096)
        x = _relu(net, x)
    net.linear(x, CLASSES)


def alexnet(net: Layers) -> None:
    """Krizhevsky 2014, "One weird trick"."""
    x = _relu(
        net,
        net.convolution(
            net.input(*_IMAGE),
            64,
            11,
            4,
            2,
        ),
    )
    x = net.pool(
        "MaxPool2d",
        x,
        3,
        2,
    )
    x = _relu(
        net,
        net.convolution(
            x,
            192,
            5,
            1,
            2,
        ),
    )
    x = net.pool(
        "MaxPool2d",
        x,
        3,
        2,
    )
    for channels in (384, 256, 256):
        x = _relu(
            net,
            net.convolution(
                x,
                channels,
                3,
                1,
                1,
            ),
        )
    _classifier(
        net,
        net.average(
            net.pool(
                "MaxPool2d",
                x,
                3,
                2,
            ),
            6,
        ),
    )


def _vgg(*blocks: int) -> Callable[[Layers], None]:
    def build(net: Layers) -> None:
        x = net.input(*_IMAGE)
        for count, channels in zip(
            blocks, (64, 128, 256, 512, 512), strict=True
        ):
            for _ in range(count):
                x = _relu(
                    net,
                    net.convolution(
                        x,
                        channels,
                        3,
                        1,
                        1,
                    ),
                )
            x = net.pool(
                "MaxPool2d",
                x,
                2,
                2,
            )
        _classifier(net, x)

    return build


# Simonyan and Zisserman 2015, configurations D and E.
vgg16 = _vgg(
    2,
    2,
    3,
    3,
    3,
)
vgg19 = _vgg(
    2,
    2,
    4,
    4,
    4,
)


def _normed(
    net: Layers,
    x: Tensor,
    channels: int,
    kernel: int,
    stride: int = 1,
    padding: int = 0,
) -> Tensor:
    return net.batch_norm(
        net.convolution(
            x,
            channels,
            kernel,
            stride,
            padding,
            bias=False,
        )
    )


def _resnet(bottleneck: bool, *blocks: int) -> Callable[[Layers], None]:
    def block(
        net: Layers,
        x: Tensor,
        channels: int,
        stride: int,
    ) -> Tensor:
        if bottleneck:
            y = _relu(
                net,
                _normed(
                    net,
                    x,
                    channels,
                    1,
                ),
            )
            y = _relu(
                net,
                _normed(
                    net,
                    y,
                    channels,
                    3,
                    stride,
                    1,
                ),
            )
            y = _normed(
                net,
                y,
                4 * channels,
                1,
            )
        else:
            y = _relu(
                net,
                _normed(
                    net,
                    x,
                    channels,
                    3,
                    stride,
                    1,
                ),
            )
            y = _normed(
                net,
                y,
                channels,
                3,
                1,
                1,
            )
        shortcut = (
            x
            if x.shape == y.shape
            else _normed(
                net,
                x,
                y.shape[0],
                1,
                stride,
            )
        )
        return _relu(net, net.pointwise("Add", y, shortcut))

    def build(net: Layers) -> None:
        x = _relu(
            net,
            _normed(
                net,
                net.input(*_IMAGE),
                64,
                7,
                2,
                3,
            ),
        )
        x = net.pool(
            "MaxPool2d",
            x,
            3,
            2,
            1,
        )
        for stage, count in enumerate(blocks):
            for number in range(count):
                stride = 2 if stage and not number else 1
                x = block(
                    net,
                    x,
                    64 << stage,
                    stride,
                )
        x = net.average(x)
        net.linear(net.reshape("Flatten", x, x.size), CLASSES)

    return build


# He et al. 2016; the stride of a bottleneck is in its 3 × 3 convolution.
resnet18 = _resnet(
    False,
    2,
    2,
    2,
    2,
)
resnet50 = _resnet(
    True,
    3,
    4,
    6,
    3,
)


def squeezenet(net: Layers) -> None:
    """Iandola et al. 2016, version 1.0."""

    def fire(
        x: Tensor,
        squeezed: int,
        expanded: int,
    ) -> Tensor:
        x = _relu(net, net.convolution(x, squeezed, 1))
        return net.concatenate(
            _relu(net, net.convolution(x, expanded, 1)),
            _relu(
                net,
                net.convolution(
                    x,
                    expanded,
                    3,
                    1,
                    1,
                ),
            ),
        )

    x = _relu(
        net,
        net.convolution(
            net.input(*_IMAGE),
            96,
            7,
            2,
        ),
    )
    for stage in (
        ((16, 64), (16, 64), (32, 128)),
        ((32, 128), (48, 192), (48, 192), (64, 256)),
        ((64, 256),),
    ):
        x = net.pool(
            "MaxPool2d",
            x,
            3,
            2,
            ceil=True,
        )
        for squeezed, expanded in stage:
            x = fire(x, squeezed, expanded)
    x = _relu(net, net.convolution(net.pointwise("Dropout", x), CLASSES, 1))
    x = net.average(x)
    net.reshape("Flatten", x, x.size)


def gnmt(
    net: Layers,
    length: int = 48,
    width: int = 1024,
    words: int = 32320,
) -> None:
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


def _attention(
    net: Layers,
    x: Tensor,
    heads: int,
) -> Tensor:
    width = x.shape[1]
    joined = net.linear(x, 3 * width)
    shares = net.pointwise("Softmax", net.scores(joined, heads), flops=5)
    return net.linear(net.mixed(shares, joined), width)


def _expansion(net: Layers, x: Tensor) -> Tensor:
    width = x.shape[1]
    return net.linear(
        net.pointwise("GELU", net.linear(x, 4 * width), flops=8), width
    )


def bert_large(
    net: Layers,
    length: int = 512,
    width: int = 1024,
    layers: int = 24,
) -> None:
    """Devlin et al. 2019, uncased, with its pooler: sequences of 512 tokens."""
    tokens = net.input(length)
    words = net.embedding(tokens, 30522, width)
    positions = net.embedding(
        tokens,
        512,
        width,
        of="positions",
    )
    segments = net.embedding(
        tokens,
        2,
        width,
        of="segments",
    )
    x = net.layer_norm(
        net.pointwise(
            "Add",
            words,
            positions,
            segments,
        )
    )
    for _ in range(layers):
        x = net.layer_norm(
            net.pointwise("Add", _attention(net, x, heads=16), x)
        )
        x = net.layer_norm(net.pointwise("Add", _expansion(net, x), x))
    first = net.reshape(
        "First token",
        x,
        1,
        width,
    )
    net.pointwise("Tanh", net.linear(first, width), flops=8)


def gpt2(
    net: Layers,
    length: int = 1024,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    entries: int = 50257,
) -> None:
    """Radford et al. 2019, the smallest (124 M): sequences of 1,024 tokens."""
    tokens = net.input(length)
    words = net.embedding(tokens, entries, width)
    positions = net.embedding(
        tokens,
        length,
        width,
        of="positions",
    )
    x = net.pointwise("Add", words, positions)
    for _ in range(layers):
        x = net.pointwise("Add", _attention(net, net.layer_norm(x), heads), x)
        x = net.pointwise("Add", _expansion(net, net.layer_norm(x)), x)
    net.linear(
        net.layer_norm(x),
        entries,
        bias=False,
        tied=True,
    )


def tiny_transformer(net: Layers) -> None:
    """GPT-2's layers, but only two, 64 wide, over 64 tokens of 512: for slow links and CPUs."""
    gpt2(
        net,
        length=64,
        width=64,
        layers=2,
        heads=4,
        entries=512,
    )


L = TypeVar("L", bound=Layers)


# How each is built, and its batch size: that of PipeDream's profile if there is one.
_RECIPES: dict[str, tuple[Callable[[Layers], None], int]] = {
    "alexnet": (alexnet, 256),
    "vgg16": (vgg16, 128),
    "vgg19": (vgg19, 128),
    "resnet18": (resnet18, 256),
    "resnet50": (resnet50, 128),
    "squeezenet1_0": (squeezenet, 256),
    "gnmt": (gnmt, 32),
    "bert-large": (bert_large, 8),
    "gpt2": (gpt2, 8),
    "tiny-transformer": (tiny_transformer, 8),
}
BUILTIN_NAMES = tuple(_RECIPES)
"""The names accepted by ``builtin_graph``."""


def layers_of(
    name: str,
    batch: int | None = None,
    gpu: GpuModel = A100,
) -> Layers:
    """The layers of a built-in model; ``BadInput`` for an unknown name or a batch under 1."""
    return build(
        name,
        Layers,
        batch,
        gpu,
    )


def build(
    name: str,
    builder: type[L],
    batch: int | None = None,
    gpu: GpuModel = A100,
) -> L:
    """Like ``layers_of``, with a ``builder`` that makes more than a graph."""
    if name not in _RECIPES:
        raise BadInput(
            f"unknown built-in graph {name!r}: {nearest(name, BUILTIN_NAMES)}"
        )
    if batch is not None and batch < 1:
        raise BadInput(
            f"cannot compute {name!r} for a batch of {batch}: expected 1 or more"
        )
    build_layers, usual_batch = _RECIPES[name]
    net = builder(name, batch or usual_batch, gpu)
    build_layers(net)
    return net


def builtin_graph(
    name: str,
    batch: int | None = None,
    gpu: GpuModel = A100,
) -> ComputationGraph:
    """A built-in model's graph, for its usual batch or another; ``BadInput`` like ``layers_of``."""
    return layers_of(name, batch, gpu).graph()
