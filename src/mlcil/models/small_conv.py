"""A convolutional net of 0.2 million parameters for small images, trained from scratch in seconds."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

WIDTHS = (32, 64, 96, 128)  # channels after each halving of the image


class SmallConvNet(nn.Module):
    """Four blocks of convolution, batch norm and ReLU; each but the last halves the image."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, *WIDTHS)
        blocks = [_block(a, b, halve=b != WIDTHS[-1]) for a, b in pairwise(widths)]
        self.blocks = nn.Sequential(*blocks)
        self.num_features = WIDTHS[-1]
        self.feature_info = [{"module": f"blocks.{number}"} for number in range(len(blocks))]

    def group_matcher(self, coarse: bool) -> dict[str, str]:
        """Which parameters belong to which stage, as timm's nets say it."""
        return {"blocks": r"^blocks\.(\d+)"}

    def forward_features(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, 128, H/8, W/8)."""
        result: Tensor = self.blocks(images)
        return result


def _block(inputs: int, outputs: int, halve: bool) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)]
    layers += [nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, *([nn.MaxPool2d(2)] if halve else []))
