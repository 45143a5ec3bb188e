"""Any timm network as a source of feature maps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from difflib import get_close_matches
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..core.errors import UserError, unknown_name
from .convolutions import copied_in_place, make_quick, spare_copies, uncounted
from .small_conv import SmallConvNet
from .stages import freeze, frozen_prefix, module_chain, segments, stage_modules, stage_parameters

SMALL = "small_conv"


class Backbone(nn.Module):
    """A network without its classifier, with one interface for convolutional nets and transformers.

    Arguments:
        name: a timm model, or small_conv.
        image_size: side of the square images.
        freeze_stages: how many stages, from the stem, keep their weights and statistics.

    Attributes:
        channels: C, of the feature map.
        grid: (H, W) of the feature map at the image size it was made for.
        mean, std: the normalisation its weights expect, three numbers each.
        prefix_length: modules in the frozen part that `prefix` computes; 0 where it cannot be cut off.
        starts_at_prefix: whether `forward` is given the output of `prefix` in place of images.
        compiles: whether `torch.compile` makes a program of the net at its first use.
    """

    def __init__(self, name: str, image_size: int, freeze_stages: int = 0) -> None:
        super().__init__()
        self.name, self._image_size = name, image_size
        self._frozen: list[nn.Module] = []
        self._in_place: list[nn.Module] = []
        self._maps: list[Tensor] = []
        self.watched = 0  # stages whose maps `take_maps` gives
        self._chain: list[nn.Module] = []  # the frozen stages can be cut off only where the net is a chain
        self.prefix_length = 0
        self._whole = False  # whether nothing is trained, and the prefix is all of it
        self.starts_at_prefix = False
        self.compiles = False
        self._program: Any = None
        self._checkpointed: list[nn.Module] = []  # the chain, if activations are computed again
        self.net, configuration = _create(name, image_size)
        self.mean: tuple[float, ...] = tuple(configuration["mean"])
        self.std: tuple[float, ...] = tuple(configuration["std"])
        self.prefix_tokens = int(getattr(self.net, "num_prefix_tokens", 0))
        self.channels = int(self.net.num_features)
        self._in_place = copied_in_place(self.net)
        shape = self._probe(image_size)
        self.grid = (shape[2], shape[3])
        if any(isinstance(module, nn.Conv2d) and module.kernel_size != module.stride for module in self.modules()):
            self.to(memory_format=torch.channels_last)  # convolutions run faster so on CPUs and tensor cores
            make_quick(self.net, torch.linspace(-1, 1, 3 * image_size**2).reshape(1, 3, image_size, image_size))
        self._freeze(freeze_stages)

    def train(self, mode: bool = True) -> Backbone:
        """Switch mode; frozen normalisation layers keep their statistics."""
        super().train(mode)
        for module in self._frozen:
            module.eval()
        spare_copies(self._in_place)
        return self

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) normalised images, or what `prefix` made of them -> (B, C, h, w) feature map."""
        self._maps = []
        images = images.contiguous(memory_format=torch.channels_last)
        if not self.starts_at_prefix:
            return self._features(images)
        if self._whole:
            return images
        return self._oriented(self._run(partial(self._through, self._chain[self.prefix_length :]), images))

    @property
    def has_prefix(self) -> bool:
        """Whether there is a frozen part whose output can be given in place of images."""
        return self._whole or self.prefix_length > 0

    @property
    def prefix_name(self) -> str:
        """Which part of the net `prefix` is."""
        return "all" if self._whole else f"{self.prefix_length} modules"

    def freeze_all(self) -> None:
        """Train nothing: parameters and statistics stay as they are, whatever the mode."""
        self.requires_grad_(False)
        self._frozen = [self.net]
        self._whole = self._whole or not self.starts_at_prefix  # the prefix does not move once it is used
        self.train(self.training)

    def frozen_tensors(self) -> list[Tensor]:
        """Parameters and statistics of the frozen part, each as it is kept."""
        return [one for module in self._frozen for one in (*module.parameters(), *module.buffers())]

    def checkpoint(self) -> None:
        """Keep no activation within a block for the backward pass, which computes it again.

        Raises:
            UserError: the net is no chain of blocks and has no way of its own.
        """
        self._checkpointed = self._links()
        if not self._checkpointed:
            try:
                if any(isinstance(one, nn.modules.batchnorm._BatchNorm) for one in self.net.modules()):
                    raise AttributeError  # the network's own way would count every batch twice
                self.net.set_grad_checkpointing(True)
            except (AttributeError, AssertionError):
                raise UserError(f"checkpointing: backbone {self.name!r} cannot do it; leave it out") from None

    def watch_stages(self) -> None:
        """Keep the maps of the last four stages at every pass, for `take_maps`."""
        stages = stage_modules(self.net)
        if not stages:
            raise UserError(f"backbone {self.name!r} does not say what its stages are; take another for this method")
        self.watched = len(stages)
        for module in stages:
            module.register_forward_hook(self._keep_map)  # bound: a deep copy then keeps its own maps

    def take_maps(self) -> tuple[Tensor, ...]:
        """The maps of the last pass, once; stages that `starts_at_prefix` skips have none."""
        maps, self._maps = tuple(self._maps), []
        return maps

    def _keep_map(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        self._maps.append(self._as_map(output))

    def _as_map(self, features: Tensor) -> Tensor:
        if features.ndim == 3:  # transformer tokens (B, prefix + h * w, C)
            patches = features[:, self.prefix_tokens :]
            side = round(patches.shape[1] ** 0.5)
            return patches.transpose(1, 2).reshape(len(patches), -1, side, side)
        if getattr(self.net, "output_fmt", "NCHW") == "NHWC":  # as Swin gives
            return features.permute(0, 3, 1, 2)
        return features

    def prefix(self, images: Tensor) -> Tensor:
        """The output of the frozen stages, for `forward` to go on from once `starts_at_prefix` is set."""
        images = images.contiguous(memory_format=torch.channels_last)
        given = self._features(images) if self._whole else _apply(self._chain[: self.prefix_length], images)
        self._maps = []
        return given

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_program": None}  # a copy makes its own

    def _features(self, images: Tensor) -> Tensor:
        """The whole net, (B, 3, H, W) -> (B, C, h, w)."""
        if self._checkpointed:
            return self._oriented(self._through(self._checkpointed, images))
        return self._oriented(self._run(self.net.forward_features, images))

    def _run(self, function: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        """Call what the net is from where it starts, as a program if wanted."""
        if not self.compiles or self.watched:  # a program would leave out the hooks that keep the stages' maps
            return function(images)
        if self._program is None:
            from torch import _dynamo  # takes seconds

            _dynamo.config.suppress_errors = True  # in this process: what cannot be compiled runs as it is
            self._program = torch.compile(function)
        result: Tensor = self._program(images)
        return result

    def _through(self, modules: list[nn.Module], value: Tensor) -> Tensor:
        if not (self._checkpointed and self.training and torch.is_grad_enabled()):
            return _apply(modules, value)
        for part in segments(modules):
            value = checkpoint(partial(_apply, part), value, use_reentrant=False, context_fn=partial(_contexts, part))
        return value

    def _oriented(self, features: Tensor) -> Tensor:
        made = self._as_map(features)
        # Some nets give (B, h, w, C) without saying so.
        return made if made.shape[1] == self.channels else made.permute(0, 3, 1, 2)

    def _links(self) -> list[nn.Module]:
        was_training = self.training
        links = module_chain(self.eval().net, torch.zeros(1, 3, self._image_size, self._image_size))
        self.train(was_training)
        return links

    def _freeze(self, count: int) -> None:
        stages = stage_parameters(self.net)
        if not 0 <= count <= len(stages):
            raise UserError(f"freeze_stages: got {count}, but {self.name} has 0 to {len(stages)} stages to freeze")
        self._frozen = freeze(self.net, {name for stage in stages[:count] for name in stage})
        if count:
            self._chain = self._links()
            self.prefix_length = self._cut()
            self._whole = not self._chain and not any(one.requires_grad for one in self.net.parameters())
            self.train()

    def _cut(self) -> int:
        """Where the chain's frozen part ends, if what it gives there is a map."""
        length = frozen_prefix(self._chain)
        with torch.no_grad():
            given = _apply(self._chain[:length], torch.zeros(1, 3, self._image_size, self._image_size))
        return length if given.ndim == 4 else 0

    def _probe(self, image_size: int) -> torch.Size:
        was_training = self.training
        try:
            features = self.eval()(torch.zeros(1, 3, image_size, image_size))
        except (RuntimeError, AssertionError, ValueError) as error:
            raise _unfit(self.name, image_size, error) from error
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


def _create(name: str, image_size: int) -> tuple[Any, dict[str, Any]]:
    if name == SMALL:
        return SmallConvNet(), {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
    import timm

    plain = name.split(".")[0]
    if not timm.is_model(plain):
        near = get_close_matches(plain, timm.list_models(), n=20, cutoff=0.5)
        raise unknown_name("backbone", name, [*near, SMALL])
    tags = [one for one in timm.list_pretrained(f"{plain}.*") if "." in one]
    if "." in name and name not in tags:
        raise unknown_name("backbone", name, [plain, *tags])
    try:
        try:
            net = timm.create_model(name, num_classes=0, img_size=image_size)
        except TypeError:  # most convolutional nets take no image size
            net = timm.create_model(name, num_classes=0)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise _unfit(name, image_size, error) from error
    configuration: Any = net.default_cfg
    return net, dict(configuration)


def _unfit(name: str, image_size: int, error: Exception) -> UserError:
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return UserError(f"backbone {name!r} cannot take images of {image_size} pixels: {reason}")


def _contexts(part: list[nn.Module]) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Of a segment's first pass and of the one that the backward pass repeats."""
    return nullcontext(), uncounted(part)


def _apply(modules: list[nn.Module], value: Tensor) -> Tensor:
    for module in modules:
        value = module(value)
    return value
