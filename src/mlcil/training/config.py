"""What a run is: every setting with its default, its range and where the paper states it.

The command line builds its options from this module, so it must not import torch: methods are imported when a
configuration is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ..core.config import as_dict, build, identity, option, option_names
from ..core.errors import UserError, shown, unknown_name

if TYPE_CHECKING:
    from ..methods.base import Method, MethodConfig


@dataclass(frozen=True)
class RunSettings:
    """The settings that every run has, whatever its method."""

    method: str = option("krt", "name of the method, see `mlcil methods`", flag=True)
    data: str = option("digits", "data set, see `mlcil datasets`", flag=True)
    images: str | None = option(None, "folder or URL to which the image paths in a table are relative", flag=True)
    protocol: str = option(
        "B0-C2",
        "classes of each session: B<base>-C<step>, joint, or lists of names such as a,b|c,d",
        paper="KRT, section 4.1",
        flag=True,
    )
    negatives: str = option(
        "auto",
        "images that show no class of a session: none leaves them out, as published; labelled takes those that were "
        "looked at; auto is labelled for tables and folders and none for benchmarks",
        choices=("auto", "none", "labelled"),
    )
    order: str | None = option(
        None, "class order: none (by name), shuffle:SEED, or all names separated by commas", flag=True
    )
    backbone: str = option("small_conv", "name of a timm model, or small_conv for small images", flag=True)
    weights: str | None = option(None, "pretrained weights: a file, a timm tag, pretrained, or none", flag=True)
    allow_known_classes: bool = option(
        False,
        "accept weights that seem to have been trained on the classes of the data set, which leak every future class; "
        "results and reports say so",
    )
    freeze: str = option(
        "none",
        "how much of the backbone is frozen: none, a number of stages from the input, all, or all that comes before "
        "the module of that name, such as conv_head",
    )
    norm_statistics: str = option(
        "train",
        "batch norm in the backbone: train renews its statistics in every session; frozen_later keeps them from the "
        "second session on, frozen keeps those of the pretrained weights; scale and shift are trained all the same",
        choices=("train", "frozen_later", "frozen"),
        paper="authors' code",
    )
    runtime: str = option(
        "auto",
        "what computes the frozen part of the backbone: onnx is ONNX Runtime, on CPUs; auto is onnx for convolutional "
        "nets on a CPU in full precision, else torch; their features differ in the last bits",
        choices=("auto", "torch", "onnx"),
    )
    keep_features: bool = option(
        False, "compute the frozen part once per image and view and keep its output on disk, for all epochs and runs"
    )
    views: int = option(
        4, "views kept of each image with keep_features, the first unaugmented; flip has 2, none has 1", low=1
    )
    image_size: int = option(
        224,
        "images are resized to a square with sides of this many pixels",
        low=8,
        high=4096,
        paper="KRT, section 4.1",
        flag=True,
    )
    buffer: str = option("0", "exemplars to keep: a number per class, or total:N", paper="KRT, section 4.1", flag=True)
    validation: float = option(
        0.0, "fraction of the training images held out to calibrate scores; 0 for none", low=0, high=0.5
    )
    seed: int = option(0, "random seed", low=0, high=2**31 - 1, flag=True)
    epochs: int = option(20, "epochs per session", low=1, paper="KRT, section 4.1", flag=True)
    base_epochs: int | None = option(None, "epochs of the first session; none for the same as later ones", low=1)
    batch_size: int = option(64, "images per step, over all devices", low=1, paper="KRT, section 4.1", flag=True)
    micro_batch: int | None = option(None, "largest part of a batch that a device computes at once", low=1)
    base_lr: float = option(4e-5, "peak learning rate of the first session", low=0, paper="KRT, section 4.1")
    lr: float = option(
        1e-4, "peak learning rate of later sessions; the paper uses 4e-5 on VOC", low=0, paper="KRT, section 4.1"
    )
    weight_decay: float = option(1e-4, "L2 penalty on tensors of two or more dimensions", low=0, paper="authors' code")
    warmup: float = option(
        0.2, "fraction of a session during which the learning rate rises", low=0, high=1, paper="authors' code"
    )
    clip_norm: float | None = option(None, "clip gradients to this norm", low=0)
    schedule: str = option(
        "one_cycle",
        "course of the learning rate within a session",
        choices=("one_cycle", "constant"),
        paper="authors' code",
    )
    ema: float | None = option(
        None, "decay of a moving average of the weights, which then becomes the result", low=0, high=1
    )
    augment: str = option(
        "randaugment",
        "augmentation of training images",
        choices=("none", "flip", "crop", "randaugment"),
        paper="KRT, section 4.1",
    )
    precision: str = option(
        "32-true", "floating-point precision", choices=("32-true", "16-mixed", "bf16-mixed"), flag=True
    )
    megapixels: float = option(50.0, "largest image that is decoded, in megapixels", low=0.001)
    on_bad_image: str = option(
        "stop",
        "stop at an image that cannot be read, or skip and list it",
        choices=("stop", "skip"),
        flag=True,
    )
    accelerator: str = option("auto", "hardware to compute on", choices=("auto", "cpu", "cuda", "mps"), machine=True)
    devices: int = option(1, "GPUs or processes to use on this machine", low=1, machine=True, flag=True)
    nodes: int = option(1, "number of machines", low=1, machine=True, flag=True)
    strategy: str = option("auto", "how devices share the work", choices=("auto", "ddp"), machine=True, flag=True)
    threads: int | None = option(None, "CPU threads per process", low=1, machine=True)
    engine: str = option(
        "local",
        "who computes features that are kept: processes on this machine, or actors of a Ray cluster",
        choices=("local", "ray"),
        machine=True,
        flag=True,
    )
    jobs: int = option(
        1,
        "number of these processes; with ray, 0 is as many as the cluster has room for",
        low=0,
        machine=True,
        flag=True,
    )
    workers: int = option(0, "processes that prepare batches", low=0, machine=True, flag=True)
    cache: str | None = option(
        "auto",
        "folder for decoded images and kept features; auto for the user's cache folder, none for no cache",
        machine=True,
    )
    cache_gb: float = option(50.0, "size limit of the cache in GB", low=0, machine=True)
    checkpoint_seconds: float = option(
        300.0, "longest time between checkpoints within an epoch, in seconds", low=0, machine=True
    )
    tensorboard: bool = option(False, "also write TensorBoard events", machine=True)
    preset: str | None = option(None, "published row that a report compares the run with", machine=True)
    bases: str | None = option(
        None, "folder through which runs share identical first sessions; none trains each on its own", machine=True
    )

    def epochs_of(self, session: int) -> int:
        """Number of epochs in a session, from 1."""
        return (self.base_epochs if session == 1 else None) or self.epochs

    def keeps_statistics(self, session: int) -> bool:
        """Whether batch norm leaves its statistics as they are while a session, from 1, is trained."""
        return self.norm_statistics == "frozen" or (self.norm_statistics == "frozen_later" and session > 1)


@dataclass(frozen=True)
class RunConfig:
    """A run: the shared settings and the method's own options."""

    settings: RunSettings
    options: MethodConfig

    def to_dict(self) -> dict[str, Any]:
        """As plain values, in the form of config.yaml."""
        return as_dict(self.settings) | {"options": as_dict(self.options)}

    def differences(self, stored: Mapping[str, Any]) -> list[str]:
        """Where a stored configuration asks for another result, as "key: stored -> here"."""
        # Another method's configuration lacks this one's options: they count as their defaults.
        defaults = RunConfig(RunSettings(), type(self.options)())
        then, now = defaults.flat() | flatten(stored), self.flat()
        return [f"{key}: {then[key]!r} -> {value!r}" for key, value in now.items() if then[key] != value]

    def flat(self) -> dict[str, Any]:
        """What decides the result, on one level; see `flatten`."""
        return flatten(identity(self.settings) | {"options": as_dict(self.options)})


def flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration on one level, with the method's own options as options.KEY."""
    shared = {key: value for key, value in values.items() if key != "options"}
    return shared | {f"options.{key}": value for key, value in (values.get("options") or {}).items()}


def make_config(
    values: Mapping[str, Any], changes: Mapping[str, object] | None = None, where: str = "settings"
) -> RunConfig:
    """Build and check a configuration.

    Arguments:
        values: settings by name, with the method's own options under "options", as in config.yaml.
        changes: settings and options by name; they override `values`.
        where: what an error calls the source of the values.

    Raises:
        UserError: a key is unknown, or a value is out of range.
    """
    from ..methods.registry import method_class

    shared = dict(values)
    own = shared.pop("options", None) or {}
    if not isinstance(own, Mapping):
        raise UserError(f"{where}: options must map names to values, got {shown(own)}")
    own = dict(own)
    method = method_class(str((changes or {}).get("method", shared.get("method", RunSettings().method))))
    names, own_names = option_names(RunSettings), option_names(method.Config)
    if clash := set(names) & set(own_names):
        raise UserError(f"method {method.name} has options with the names of settings: {', '.join(sorted(clash))}")
    for key, value in (changes or {}).items():
        if key not in names and key not in own_names:
            raise unknown_name(f"key for method {method.name}", key, (*names, *own_names))
        (shared if key in names else own)[key] = value
    settings = build(RunSettings, {**method.setting_defaults, **shared}, where)
    _check_buffer(method, settings.buffer)
    return RunConfig(settings, build(method.Config, own, f"options of {method.name}"))


def _check_buffer(method: type[Method], buffer: str) -> None:
    from ..memory.buffer import Budget

    budget = Budget.parse(buffer)
    if budget and method.buffer_use == "none":
        raise UserError(f"method {method.name} keeps no exemplars; leave the buffer out")
    if not budget and method.buffer_use == "required":
        raise UserError(f"method {method.name} needs a buffer, such as --buffer 20")


DEEPEST = 20  # levels of a configuration; settings have three
LONGEST_NUMBER = 1024  # bits
MOST_BYTES, MOST_VALUES = 200_000, 50_000  # of a configuration; YAML takes seconds to read more


class _BoundedLoader(yaml.SafeLoader):
    """YAML of bounded depth and size: with a few aliases it could stand for more values than any machine holds."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth, self._values, self._sizes = 0, 0, dict[yaml.Node, int]()

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """The next value."""
        if self._depth > DEEPEST:
            raise yaml.YAMLError(f"it is nested deeper than {DEEPEST} levels")
        is_alias, before = self.check_event(yaml.AliasEvent), self._values
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None and not is_alias:
            self._sizes[node] = self._values - before + 1
        elif node not in self._sizes:
            raise yaml.YAMLError("a value contains itself")
        self._values = before + self._sizes[node]
        if self._values > MOST_VALUES:
            raise yaml.YAMLError(f"with its aliases it has more than {MOST_VALUES} values, which no settings need")
        return node


def _whole_number(loader: _BoundedLoader, node: yaml.ScalarNode) -> int:
    number = loader.construct_yaml_int(node)
    if number.bit_length() > LONGEST_NUMBER:  # such as sixty to a high power; Python refuses to write it
        raise yaml.YAMLError(f"it has a number of {number.bit_length()} bits, which no setting needs")
    return number


_BoundedLoader.add_constructor("tag:yaml.org,2002:int", _whole_number)


def read_config(path: Path) -> dict[str, Any]:
    """Read a YAML file of settings.

    Raises:
        UserError: the file is missing or is not a YAML mapping.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise UserError(f"configuration {path} has more than {MOST_BYTES} bytes, which no settings need")
        values = yaml.load(content.decode("utf-8"), _BoundedLoader)  # noqa: S506 - it is a safe one
    except FileNotFoundError:
        raise UserError(f"configuration {path} does not exist") from None
    except OSError as error:
        raise UserError(f"cannot read configuration {path}: {error}") from None
    except (yaml.YAMLError, ValueError, RecursionError, ArithmeticError) as error:  # not text, an impossible date, ...
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"configuration {path} is not valid YAML: {reason}") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise UserError(f"configuration {path} must map names to values")
    if not isinstance(values.get("options") or {}, dict):
        raise UserError(f"configuration {path}: options must map names to values")
    return values
