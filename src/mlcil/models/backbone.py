"""Any timm network as a source of feature maps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import UserError, unknown_name
from .small import SmallConvNet

SMALL = "small_conv"


class Backbone(nn.Module):
    """A network without its classifier, with one interface for convolutional nets and transformers.

    Attributes:
        channels: C, of the feature map.
        grid: (H, W) of the feature map at the image size it was made for.
        mean, std: the normalisation its weights expect, three numbers each.
    """

    def __init__(self, name: str, image_size: int) -> None:
        super().__init__()
        self.name = name
        self.net, configuration = _create(name, image_size)
        self.mean: tuple[float, ...] = tuple(configuration["mean"])
        self.std: tuple[float, ...] = tuple(configuration["std"])
        self.classifier_keys: tuple[str, ...] = _as_tuple(configuration.get("classifier"))
        self.prefix_tokens = int(getattr(self.net, "num_prefix_tokens", 0))
        self.channels = int(self.net.num_features)
        shape = self._probe(image_size)
        self.grid = (shape[2], shape[3])
        if any(isinstance(module, nn.Conv2d) and module.kernel_size != module.stride for module in self.modules()):
            self.to(memory_format=torch.channels_last)  # convolutions run faster so on CPUs and tensor cores

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) normalised images -> (B, C, h, w) feature map."""
        features: Tensor = self.net.forward_features(images.contiguous(memory_format=torch.channels_last))
        if features.ndim == 3:  # transformer tokens (B, prefix + h * w, C)
            patches = features[:, self.prefix_tokens :]
            side = round(patches.shape[1] ** 0.5)
            return patches.transpose(1, 2).unflatten(2, (side, side))
        if features.shape[1] != self.channels:  # (B, h, w, C), as Swin gives
            return features.permute(0, 3, 1, 2)
        return features

    def _probe(self, image_size: int) -> torch.Size:
        was_training = self.training
        try:
            with torch.no_grad():
                shape = self.eval()(torch.zeros(1, 3, image_size, image_size)).shape
        except (RuntimeError, AssertionError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"backbone {self.name!r} cannot take images of {image_size} pixels: {reason}") from error
        finally:
            self.train(was_training)
        if len(shape) != 4 or shape[1] != self.channels:
            raise UserError(f"backbone {self.name!r} gives features of shape {tuple(shape)}, not a feature map")
        return shape


def _create(name: str, image_size: int) -> tuple[Any, dict[str, Any]]:
    if name == SMALL:
        return SmallConvNet(), {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
    import timm

    plain = name.split(".")[0]
    if not timm.is_model(plain):
        near = timm.list_models(f"*{plain.split('_')[0]}*")[:40]
        raise unknown_name("backbone", name, [*near, SMALL])
    try:
        net = timm.create_model(name, num_classes=0, img_size=image_size)
    except TypeError:  # most convolutional nets take no image size
        net = timm.create_model(name, num_classes=0)
    return net, dict(net.default_cfg)


def _as_tuple(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)
