"""ResNet-50 and EfficientNet-B7 in plain torch, layer by layer as in their papers; and one for a smoke test."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

# EfficientNet-B0: (expansion, kernel, stride, channels in, channels out, layers) of each stage. Table 1 of the paper.
_STAGES = (
    (1, 3, 1, 32, 16, 1),
    (6, 3, 2, 16, 24, 2),
    (6, 5, 2, 24, 40, 2),
    (6, 3, 2, 40, 80, 3),
    (6, 5, 1, 80, 112, 3),
    (6, 5, 2, 112, 192, 4),
    (6, 3, 1, 192, 320, 1),
)
_B7_WIDTH, _B7_DEPTH, _B7_DROPOUT, _B7_BLOCK_DROPOUT = 2.0, 3.1, 0.5, 0.2


class Layers(nn.Sequential):  # type: ignore[misc]  # torch is untyped here
    """One layer after the other. With a forward of its own, because torch.compile passes over nn.Sequential's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self:
            x = layer(x)
        return x


class Bottleneck(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """1x1, 3x3, 1x1 with a shortcut; the 3x3 has the stride ("v1.5")."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        channels_out = 4 * channels
        self.conv1 = nn.Conv2d(channels_in, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, channels_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels_out)
        self.downsample = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), nn.BatchNorm2d(channels_out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn2(self.conv2(y)).relu()
        return (self.bn3(self.conv3(y)) + self.downsample(x)).relu()


def resnet50(classes: int) -> nn.Module:
    """ResNet-50 (arxiv.org/abs/1512.03385): (batch, 3, 224, 224) -> (batch, classes). 25.6 million parameters."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels_in = 64
    for channels, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(channels_in, channels, stride if block == 0 else 1))
            channels_in = 4 * channels
    model = Layers(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels_in, classes))
    return _with_first_weights(model)


class BlockDropout(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Leaves whole samples out of a residual branch while training ("stochastic depth")."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or self.probability == 0.0:
            return x
        kept = torch.empty(len(x), 1, 1, 1, dtype=x.dtype, device=x.device).bernoulli_(1.0 - self.probability)
        return x * kept / (1.0 - self.probability)


class SqueezeExcitation(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Scales each channel by a factor computed from the means of all channels."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.scale = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            nn.SiLU(),
            nn.Conv2d(squeezed, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale(x)


class MBConv(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Widen, filter each channel by itself, squeeze and excite, narrow; with a shortcut where the shape stays."""

    def __init__(
        self, channels_in: int, channels_out: int, expansion: int, kernel: int, stride: int, dropout: float
    ) -> None:
        super().__init__()
        wide = expansion * channels_in
        self.branch = nn.Sequential(
            *(_conv(channels_in, wide, 1) if expansion > 1 else ()),
            *_conv(wide, wide, kernel, stride, groups=wide),
            SqueezeExcitation(wide, channels_in // 4),
            *_conv(wide, channels_out, 1)[:-1],  # no activation after the last
        )
        self.has_shortcut = stride == 1 and channels_in == channels_out
        self.dropout = BlockDropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.branch(x)
        return x + self.dropout(y) if self.has_shortcut else y


def efficientnet_b7(classes: int) -> nn.Module:
    """EfficientNet-B7 (arxiv.org/abs/1905.11946): (batch, 3, 600, 600) -> (batch, classes). 66.3 million parameters."""
    channels = _scaled(_STAGES[0][3])
    layers: list[nn.Module] = [*_conv(3, channels, 3, 2)]
    total = sum(math.ceil(repeats * _B7_DEPTH) for *_, repeats in _STAGES)
    blocks = 0
    for expansion, kernel, stride, _, base_out, repeats in _STAGES:
        for repeat in range(math.ceil(repeats * _B7_DEPTH)):
            dropout = _B7_BLOCK_DROPOUT * blocks / total  # later blocks are left out more often
            channels_out = _scaled(base_out)
            layers.append(MBConv(channels, channels_out, expansion, kernel, 1 if repeat else stride, dropout))
            channels = channels_out
            blocks += 1
    model = Layers(
        *layers,
        *_conv(channels, 4 * channels, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(_B7_DROPOUT),
        nn.Linear(4 * channels, classes),
    )
    return _with_first_weights(model)


def tiny(classes: int) -> nn.Module:
    """Two convolutions: for a smoke test of everything around the model."""
    model = Layers(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, 2, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, classes),
    )
    return _with_first_weights(model)


# name -> the model for so many classes, and the edge of the square images it was designed for
MODELS: dict[str, tuple[Callable[[int], nn.Module], int]] = {
    "resnet50": (resnet50, 224),
    "efficientnet_b7": (efficientnet_b7, 600),
    "tiny": (tiny, 32),
}


def _conv(channels_in: int, channels_out: int, kernel: int, stride: int = 1, groups: int = 1) -> tuple[nn.Module, ...]:
    """Convolution, normalisation (with B7's constants) and activation."""
    norm = partial(nn.BatchNorm2d, eps=1e-3, momentum=0.01)
    convolution = nn.Conv2d(channels_in, channels_out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return convolution, norm(channels_out), nn.SiLU()


def _scaled(channels: int) -> int:
    """B0's channels times the width, to the next multiple of 8, never more than a tenth below."""
    wanted = channels * _B7_WIDTH
    rounded = int(wanted + 4) // 8 * 8
    return rounded if rounded >= 0.9 * wanted else rounded + 8


def _with_first_weights(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model
