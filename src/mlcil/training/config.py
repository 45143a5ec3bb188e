"""What a run is: every setting with its default, its range and where the paper states it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..core.config import as_dict, build, identity, option, option_names
from ..core.errors import UserError, unknown_name
from ..data.augmentation import AUGMENTATIONS
from ..memory.buffer import Budget
from ..methods.base import Method, MethodConfig
from ..methods.registry import method_class


@dataclass(frozen=True)
class RunSettings:
    """The settings that all methods share."""

    method: str = option("krt", "the method, see `mlcil methods`")
    data: str = option("digits", "the data set, see `mlcil datasets`")
    images: str | None = option(None, "folder that relative image paths of a table start from")
    protocol: str = option("B0-C2", "B<base>-C<step>, joint, or class lists a,b|c,d", paper="KRT, section 4.1")
    order: str | None = option(None, "class order: none (by name), shuffle:SEED, or all names with commas")
    backbone: str = option("small_conv", "a timm model, or small_conv for small images")
    weights: str | None = option(None, "pretrained weights: a file, a timm tag, pretrained, or none")
    freeze: str = option("none", "how much of the backbone is frozen: none, a number of stages from the input, or all")
    keep_features: bool = option(
        False, "compute the frozen part once per image and view and keep its output on disk, for all epochs and runs"
    )
    views: int = option(
        4, "views kept of each image with keep_features, the first unaugmented; flip has 2, none has 1", low=1
    )
    image_size: int = option(224, "images are squashed to this square", low=8, high=4096, paper="KRT, section 4.1")
    buffer: str = option("0", "exemplars kept: so many per class, or total:N", paper="KRT, section 4.1")
    validation: float = option(
        0.0, "part of the images set aside, never trained on, to calibrate scores; 0 sets none aside", low=0, high=0.5
    )
    seed: int = option(0, "of all randomness", low=0, high=2**31 - 1)
    epochs: int = option(20, "per session", low=1, paper="KRT, section 4.1")
    base_epochs: int | None = option(None, "of the first session, if other than epochs", low=1)
    batch_size: int = option(64, "images per step, over all devices", low=1, paper="KRT, section 4.1")
    micro_batch: int | None = option(None, "largest part of a batch computed at once on a device", low=1)
    base_lr: float = option(4e-5, "peak learning rate of the first session", low=0, paper="KRT, section 4.1")
    lr: float = option(1e-4, "peak learning rate of later sessions; 4e-5 on VOC", low=0, paper="KRT, section 4.1")
    weight_decay: float = option(1e-4, "L2, on tensors of two or more dimensions", low=0, paper="authors' code")
    warmup: float = option(0.2, "part of a session in which the rate rises", low=0, high=1, paper="authors' code")
    clip_norm: float | None = option(None, "largest gradient norm", low=0)
    schedule: str = option(
        "one_cycle", "the learning rate within a session", choices=("one_cycle", "constant"), paper="authors' code"
    )
    ema: float | None = option(None, "decay of a running mean of the weights, used as the result", low=0, high=1)
    augment: str = option("randaugment", "training augmentation", choices=AUGMENTATIONS, paper="KRT, section 4.1")
    precision: str = option("32-true", "arithmetic", choices=("32-true", "16-mixed", "bf16-mixed"))
    on_bad_image: str = option("stop", "when an image cannot be read", choices=("stop", "skip"))
    accelerator: str = option("auto", "what to compute on", choices=("auto", "cpu", "cuda", "mps"), machine=True)
    devices: int = option(1, "processes or GPUs on this machine", low=1, machine=True)
    nodes: int = option(1, "machines", low=1, machine=True)
    strategy: str = option("auto", "how devices work together", choices=("auto", "ddp"), machine=True)
    threads: int | None = option(None, "threads of one process", low=1, machine=True)
    workers: int = option(0, "processes that prepare batches", low=0, machine=True)
    cache: str | None = option(
        "auto", "folder of decoded images and kept features; auto for the user's cache, none for no cache", machine=True
    )
    cache_gb: float = option(50.0, "size limit of the cache in GB", low=0, machine=True)
    checkpoint_seconds: float = option(300.0, "save at least so often, besides the ends of epochs", low=0, machine=True)
    tensorboard: bool = option(False, "also write TensorBoard events", machine=True)
    preset: str | None = option(None, "the published row that a report compares the run with", machine=True)
    bases: str | None = option(
        None, "folder in which runs share first sessions that are the same; none trains each", machine=True
    )

    def epochs_of(self, session: int) -> int:
        """Number of epochs in a session, from 1."""
        return (self.base_epochs if session == 1 else None) or self.epochs


@dataclass(frozen=True)
class RunConfig:
    """A run: the shared settings and the method's own options."""

    settings: RunSettings = field(default_factory=RunSettings)
    options: MethodConfig = field(default_factory=MethodConfig)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, in the form of config.yaml."""
        return as_dict(self.settings) | {"options": as_dict(self.options)}

    def differences(self, stored: Mapping[str, Any]) -> list[str]:
        """Where a stored configuration asks for another result, as "key: stored -> here"."""
        # A key that the stored file lacks is younger than the run, which had what is now its default.
        defaults = RunConfig(RunSettings(), type(self.options)())
        then, now = defaults._flat() | flatten(stored), self._flat()
        return [f"{key}: {then[key]!r} -> {value!r}" for key, value in now.items() if then[key] != value]

    def _flat(self) -> dict[str, Any]:
        return flatten(identity(self.settings) | {"options": as_dict(self.options)})


def flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as one level of keys, a method's own as options.KEY."""
    shared = {key: value for key, value in values.items() if key != "options"}
    return shared | {f"options.{key}": value for key, value in (values.get("options") or {}).items()}


def make_config(
    values: Mapping[str, Any], changes: Mapping[str, Any] | None = None, where: str = "settings"
) -> RunConfig:
    """Build and check a configuration.

    Arguments:
        values: settings by name, the method's own under "options", as in config.yaml.
        changes: further values by name, of either kind, that win over `values`.
        where: what to call the values in an error.

    Raises:
        UserError: an unknown key or a value out of range.
    """
    shared, own = dict(values), dict(values.get("options") or {})
    shared.pop("options", None)
    method = method_class(str((changes or {}).get("method", shared.get("method", RunSettings().method))))
    names, own_names = option_names(RunSettings), option_names(method.Config)
    if clash := set(names) & set(own_names):
        raise UserError(f"method {method.name} names an option like a setting of every run: {', '.join(sorted(clash))}")
    for key, value in (changes or {}).items():
        if key not in names and key not in own_names:
            raise unknown_name(f"key for method {method.name}", key, (*names, *own_names))
        (shared if key in names else own)[key] = value
    settings = build(RunSettings, {**method.setting_defaults, **shared}, where)
    _check_buffer(method, Budget.parse(settings.buffer))
    return RunConfig(settings, build(method.Config, own, f"options of {method.name}"))


def _check_buffer(method: type[Method], budget: Budget) -> None:
    if budget and method.buffer_use == "none":
        raise UserError(f"method {method.name} keeps no exemplars; leave out the buffer")
    if not budget and method.buffer_use == "required":
        raise UserError(f"method {method.name} needs a buffer, such as --buffer 20")


def read_config(path: Path) -> dict[str, Any]:
    """Read a YAML file of settings.

    Raises:
        UserError: the file is missing or is not a YAML mapping.
    """
    try:
        values = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise UserError(f"configuration {path} does not exist") from None
    except OSError as error:
        raise UserError(f"cannot read configuration {path}: {error}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not text, or an impossible date
        raise UserError(f"configuration {path} is not valid YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise UserError(f"configuration {path} must map names to values")
    if not isinstance(values.get("options") or {}, dict):
        raise UserError(f"configuration {path}: options must map names to values")
    return values
