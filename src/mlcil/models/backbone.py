"""Any timm network as a source of feature maps: a frozen stem, which the feed computes, and a trunk, which learns."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import UserError, unknown_name
from .runtime import OnnxNetwork, to_onnx
from .small_conv import SmallConvNet
from .stages import first_parameters, freeze_parameters, frozen_length, module_chain, stage_modules

SMALL = "small_conv"
RUNTIMES = ("torch", "onnx")


class Backbone(nn.Module):
    """A network without its classifier, with one interface for convolutional nets and transformers.

    An image passes `stem` and then `forward`. The stem is the part that is frozen from the start: the feed computes it,
    and may keep its output on disk. Where nothing is frozen, or the network cannot be cut, the stem changes nothing.

    Arguments:
        name: a timm model, or small_conv.
        image_size: side of the square images.

    Attributes:
        image_size: side of the square images that it was made for.
        takes_image_size: whether timm makes it for one image size, as it does transformers.
        channels: C, of the feature map.
        grid: (H, W) of the feature map at the image size it was made for.
        mean, std: the normalisation its weights expect, three numbers each.
        watched: number of stages whose maps `take_maps` gives.
        runtime: what computes the stem, one of `RUNTIMES`.
        is_convolutional: whether it is a convolutional net rather than a transformer.
    """

    def __init__(self, name: str, image_size: int) -> None:
        super().__init__()
        self.name, self.image_size = name, image_size
        self.net, configuration, self.takes_image_size = _create(name, image_size)
        self.mean: tuple[float, ...] = tuple(configuration["mean"])
        self.std: tuple[float, ...] = tuple(configuration["std"])
        self.prefix_tokens = int(getattr(self.net, "num_prefix_tokens", 0))
        self.channels = int(self.net.num_features)
        self.watched = 0
        self.runtime = "torch"
        self._onnx: tuple[int, OnnxNetwork] | None = None  # the stem, and which state of its weights it has
        self._maps: list[Tensor] = []
        self._frozen: list[nn.Module] = []  # modules that stay in evaluation mode
        self._keeps_statistics = False
        self._layers: list[nn.Module] = [_Whole(self.net)]  # called one after another, they are the network
        self._cut = 0  # how many of the layers are the stem
        shape = self._probe()
        self.grid = (shape[2], shape[3])
        convolutions = [module for module in self.modules() if isinstance(module, nn.Conv2d)]
        self.is_convolutional = any(one.kernel_size != one.stride for one in convolutions)
        if self.is_convolutional:
            self.to(memory_format=torch.channels_last)  # convolutions run faster so on CPUs and tensor cores

    def stem(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) normalised images -> what `forward` takes."""
        network = self.ready_stem()
        return self.torch_stem(images) if network is None else network(images)

    def ready_stem(self) -> OnnxNetwork | None:
        """Export the stem for its runtime, unless that is done; None where torch computes it.

        The first call takes about a second, and no other thread may change what Python warns of meanwhile.
        """
        if self.runtime == "torch" or not self.has_stem:
            return None
        # The frozen weights change only where a stored state is loaded.
        state = sum(value._version for layer in self._layers[: self._cut] for value in layer.state_dict().values())
        if self._onnx is None or self._onnx[0] != state:
            example = torch.randn(3, 3, self.image_size, self.image_size, generator=torch.Generator().manual_seed(0))
            self._onnx = state, to_onnx(_Stem(copy.deepcopy(self).cpu()), example)
        return self._onnx[1]

    def torch_stem(self, images: Tensor) -> Tensor:
        """The same, computed by torch whatever the runtime is."""
        given = _apply(self._layers[: self._cut], images.contiguous(memory_format=torch.channels_last))
        self._maps = []
        return self._oriented(given) if self.is_all_stem else given

    def forward(self, given: Tensor) -> Tensor:
        """The output of `stem` -> (B, C, h, w) feature map."""
        self._maps = []
        given = given.contiguous(memory_format=torch.channels_last)
        if self.is_all_stem:
            return given
        return self._oriented(_apply(self._layers[self._cut :], given))

    @property
    def is_all_stem(self) -> bool:
        """Whether the stem is all of it."""
        return self._cut == len(self._layers)

    @property
    def has_stem(self) -> bool:
        """Whether `stem` computes anything."""
        return self._cut > 0

    def stem_digest(self) -> str:
        """A name for what `stem` computes: another network, cut, weight or runtime gives another one."""
        digest = hashlib.sha256(repr((self.name, self.image_size, self._cut, len(self._layers))).encode())
        digest.update(b"" if self.runtime == "torch" else self.runtime.encode())
        for value in (one for layer in self._layers[: self._cut] for one in layer.state_dict().values()):
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:32]

    def freeze(self, amount: str) -> None:
        """Freeze a part of the network for good and make it the stem, as far as the network can be cut there.

        A convolutional net is a chain of modules and can be cut between them. A transformer that adds positions on the
        way is not: its first blocks can be frozen, but only the whole of it can be the stem.

        Arguments:
            amount: "none", a number of stages counted from the input, "all", or the name of the first module that is
                still trained, such as "conv_head".
        """
        if amount == "all":
            self._cut = len(self._layers)
            self.stop_training()
        elif amount != "none":
            self._freeze_stages(amount)

    def stop_training(self) -> None:
        """Keep parameters and statistics as they are from now on, whatever the mode; the stem stays what it was."""
        self.requires_grad_(False)
        self._frozen = [self.net]
        self.train(self.training)

    def keep_statistics(self, is_kept: bool) -> None:
        """Let batch norm use the statistics that it has and leave them as they are, whatever the mode, or no longer.

        Its scale and shift are trained all the same.
        """
        self._keeps_statistics = is_kept
        self.train(self.training)

    def train(self, mode: bool = True) -> Backbone:
        """Switch mode; normalisation layers that are frozen, or keep their statistics, stay in evaluation mode."""
        super().train(mode)
        for module in self._frozen:
            module.eval()
        for module in self.modules() if self._keeps_statistics else ():
            if getattr(module, "running_var", None) is not None:  # batch norm of any class
                module.training = False  # not `eval`, which would reach what timm puts into some of them
        return self

    def watch_stages(self) -> None:
        """Keep the maps of the last four stages at every pass, for `take_maps`."""
        stages = stage_modules(self.net)
        if not stages:
            raise UserError(f"backbone {self.name!r} does not say what its stages are; take another for this method")
        self.watched = len(stages)
        for module in stages:
            module.register_forward_hook(self._keep_map)  # bound: a deep copy then keeps its own maps

    def take_maps(self) -> tuple[Tensor, ...]:
        """The stages' maps of the last `forward`, once; stages within the stem have none."""
        maps, self._maps = tuple(self._maps), []
        return maps

    def _keep_map(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        self._maps.append(self._as_map(output))

    def _freeze_stages(self, amount: str) -> None:
        self._frozen = freeze_parameters(self.net, first_parameters(self.net, amount, self.name))
        images = torch.zeros(1, 3, self.image_size, self.image_size)
        chain = module_chain(self.eval().net, images) if self._frozen else []
        self._cut_chain(chain, images)
        self.train()

    def _cut_chain(self, chain: list[nn.Module], images: Tensor) -> None:
        """Make the frozen start of a chain the stem, if its output there is a map."""
        length = frozen_length(chain)
        with torch.no_grad():
            is_map = bool(chain) and _apply(chain[:length], images).ndim == 4
        if is_map:
            self._layers, self._cut = chain, length
        elif not any(one.requires_grad for one in self.net.parameters()):
            self._cut = len(self._layers)

    def _as_map(self, features: Tensor) -> Tensor:
        if features.ndim == 3:  # transformer tokens (B, prefix + h * w, C)
            patches = features[:, self.prefix_tokens :]
            side = round(int(patches.shape[1]) ** 0.5)
            return patches.transpose(1, 2).reshape(patches.shape[0], -1, side, side)
        if getattr(self.net, "output_fmt", "NCHW") == "NHWC":  # as Swin gives
            return features.permute(0, 3, 1, 2)
        return features

    def _oriented(self, features: Tensor) -> Tensor:
        made = self._as_map(features)
        # Some nets give (B, h, w, C) without saying so.
        return made if made.shape[1] == self.channels else made.permute(0, 3, 1, 2)

    def _probe(self) -> torch.Size:
        """The shape of the feature map; on the way, parameters that do not contribute to it stop being trained."""
        was_training = self.training
        try:
            features = self.eval()(torch.zeros(1, 3, self.image_size, self.image_size))
        except (RuntimeError, AssertionError, ValueError) as error:
            raise _unfit(self.name, self.image_size, error) from error
        finally:
            self.train(was_training)
        shape: torch.Size = features.shape
        if len(shape) != 4 or shape[1] != self.channels:
            raise UserError(f"backbone {self.name!r} gives features of shape {tuple(shape)}, not a feature map")
        # Some nets keep layers of their classifier. Left trainable, several devices would wait for their gradients.
        parameters = list(self.net.parameters())
        for parameter, gradient in zip(
            parameters, torch.autograd.grad(features.sum(), parameters, allow_unused=True), strict=True
        ):
            parameter.requires_grad_(gradient is not None)
        return shape


class _Stem(nn.Module):
    """A backbone's stem as a module."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> what the rest of the backbone takes."""
        return self.backbone.torch_stem(images)


class _Whole(nn.Module):
    """A network's `forward_features` as one module."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> the network's own form of features."""
        features: Tensor = self.net.forward_features(images)
        return features


def _create(name: str, image_size: int) -> tuple[Any, dict[str, Any], bool]:
    """The network, timm's facts about it, and whether it is made for one image size."""
    if name == SMALL:
        return SmallConvNet(), {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}, False
    import timm

    architecture = name.split(".")[0]
    if not timm.is_model(architecture):
        near = get_close_matches(architecture, timm.list_models(), n=20, cutoff=0.5)
        raise unknown_name("backbone", name, [*near, SMALL])
    tags = [one for one in timm.list_pretrained(f"{architecture}.*") if "." in one]
    if "." in name and name not in tags:
        raise unknown_name("backbone", name, [architecture, *tags])
    takes_image_size = True
    try:
        try:
            net = timm.create_model(name, num_classes=0, img_size=image_size)
        except TypeError:  # most convolutional nets take no image size
            net, takes_image_size = timm.create_model(name, num_classes=0), False
    except (RuntimeError, AssertionError, ValueError) as error:
        raise _unfit(name, image_size, error) from error
    configuration: Any = net.default_cfg
    return net, dict(configuration), takes_image_size


def _unfit(name: str, image_size: int, error: Exception) -> UserError:
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return UserError(f"backbone {name!r} cannot take images of {image_size} pixels: {reason}")


def _apply(modules: Sequence[nn.Module], value: Tensor) -> Tensor:
    for module in modules:
        value = module(value)
    return value
