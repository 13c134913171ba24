"""Convolutional networks from their layer shapes, for images of 3 × 224 × 224 (ImageNet)."""

from __future__ import annotations

from collections.abc import Callable

from patchlight.testbed.graphs.layers import Layers, Tensor

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
    x = _relu(net, net.convolution(net.input(*_IMAGE), 64, 11, 4, 2))
    x = net.pool("MaxPool2d", x, 3, 2)
    x = _relu(net, net.convolution(x, 192, 5, 1, 2))
    x = net.pool("MaxPool2d", x, 3, 2)
    for channels in (384, 256, 256):
        x = _relu(net, net.convolution(x, channels, 3, 1, 1))
    _classifier(net, net.average(net.pool("MaxPool2d", x, 3, 2), 6))


def _vgg(*blocks: int) -> Callable[[Layers], None]:
    def build(net: Layers) -> None:
        x = net.input(*_IMAGE)
        for count, channels in zip(blocks, (64, 128, 256, 512, 512), strict=True):
            for _ in range(count):
                x = _relu(net, net.convolution(x, channels, 3, 1, 1))
            x = net.pool("MaxPool2d", x, 2, 2)
        _classifier(net, x)

    return build


# Simonyan and Zisserman 2015, configurations D and E.
vgg16 = _vgg(2, 2, 3, 3, 3)
vgg19 = _vgg(2, 2, 4, 4, 4)


def _normed(
    net: Layers, x: Tensor, channels: int, kernel: int, stride: int = 1, padding: int = 0
) -> Tensor:
    return net.batch_norm(net.convolution(x, channels, kernel, stride, padding, bias=False))


def _resnet(bottleneck: bool, *blocks: int) -> Callable[[Layers], None]:
    def block(net: Layers, x: Tensor, channels: int, stride: int) -> Tensor:
        if bottleneck:
            y = _relu(net, _normed(net, x, channels, 1))
            y = _relu(net, _normed(net, y, channels, 3, stride, 1))
            y = _normed(net, y, 4 * channels, 1)
        else:
            y = _relu(net, _normed(net, x, channels, 3, stride, 1))
            y = _normed(net, y, channels, 3, 1, 1)
        shortcut = x if x.shape == y.shape else _normed(net, x, y.shape[0], 1, stride)
        return _relu(net, net.pointwise("Add", y, shortcut))

    def build(net: Layers) -> None:
        x = _relu(net, _normed(net, net.input(*_IMAGE), 64, 7, 2, 3))
        x = net.pool("MaxPool2d", x, 3, 2, 1)
        for stage, count in enumerate(blocks):
            for number in range(count):
                stride = 2 if stage and not number else 1
                x = block(net, x, 64 << stage, stride)
        x = net.average(x)
        net.linear(net.reshape("Flatten", x, x.size), CLASSES)

    return build


# He et al. 2016; the stride of a bottleneck is in its 3 × 3 convolution.
resnet18 = _resnet(False, 2, 2, 2, 2)
resnet50 = _resnet(True, 3, 4, 6, 3)


def squeezenet(net: Layers) -> None:
    """Iandola et al. 2016, version 1.0."""

    def fire(x: Tensor, squeezed: int, expanded: int) -> Tensor:
        x = _relu(net, net.convolution(x, squeezed, 1))
        return net.concatenate(
            _relu(net, net.convolution(x, expanded, 1)),
            _relu(net, net.convolution(x, expanded, 3, 1, 1)),
        )

    x = _relu(net, net.convolution(net.input(*_IMAGE), 96, 7, 2))
    for stage in (
        ((16, 64), (16, 64), (32, 128)),
        ((32, 128), (48, 192), (48, 192), (64, 256)),
        ((64, 256),),
    ):
        x = net.pool("MaxPool2d", x, 3, 2, ceil=True)
        for squeezed, expanded in stage:
            x = fire(x, squeezed, expanded)
    x = _relu(net, net.convolution(net.pointwise("Dropout", x), CLASSES, 1))
    x = net.average(x)
    net.reshape("Flatten", x, x.size)
