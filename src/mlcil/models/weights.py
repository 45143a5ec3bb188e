"""Putting pretrained weights into a backbone, and refusing files that would spoil an experiment."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import UserError
from .backbone import SMALL, Backbone
from .weight_files import weight_file

_HEAD_WORDS = ("head", "fc", "classifier", "decoder")
_HUB_SECONDS = 10.0  # to wait for the hub's first answer, as its own client does


def load_weights(backbone: Backbone, weights: str | None, class_counts: Collection[int]) -> Path | None:
    """Load `weights` into `backbone`.

    Arguments:
        backbone: changed in place.
        weights: None for a random start, "pretrained" for timm's default weights, a timm tag such as
            "miil_in21k", or the path of a .safetensors, .pth or .pt file.
        class_counts: a file whose classifier has one of these numbers of outputs is refused: it was most likely
            trained on the benchmark's own classes, and would leak every class that is still to come.

    Returns:
        The file the weights came from, if a local one.
    """
    if weights is None:
        return None
    file = weight_file(weights)
    if file is not None:
        tensors = _read(file)
        _refuse_leak(tensors, file, class_counts)
        _fill(backbone, tensors, str(file))
        return file
    _load_tag(backbone, weights)
    return None


def _load_tag(backbone: Backbone, tag: str) -> None:
    import timm

    plain = backbone.name.split(".")[0]
    tags = [one.partition(".")[2] for one in timm.list_pretrained(f"{plain}.*")]
    known = ["pretrained", *tags] if tags else []
    if backbone.name == SMALL or (tag != "pretrained" and tag not in tags):
        raise UserError(
            f"weights {tag!r} for {backbone.name}: neither a file nor a timm tag. "
            f"Allowed: {', '.join(['a .safetensors or .pth file', 'none', *known])}"
        )
    source = _fetch(backbone.name if tag == "pretrained" else f"{plain}.{tag}")
    configuration: Any = source.pretrained_cfg  # tags of one architecture may differ in normalisation
    backbone.mean, backbone.std = tuple(configuration["mean"]), tuple(configuration["std"])
    _fill(backbone, source.state_dict(), tag)


def check_fetchable(backbone: str, tag: str) -> None:
    """Check that timm's weights of this tag are in a cache of downloads or that the hub can be reached.

    Raises:
        UserError: they are not, and it cannot.
    """
    import timm
    from huggingface_hub import try_to_load_from_cache

    name = backbone if tag == "pretrained" else f"{backbone.split('.')[0]}.{tag}"
    known = timm.get_pretrained_cfg(name) if timm.is_model_pretrained(name) else None
    if known is None or not known.hf_hub_id:
        return  # a mistake, or a file of somebody else's
    files = known.hf_hub_filename, "model.safetensors", "pytorch_model.bin"
    is_cached = any(isinstance(try_to_load_from_cache(known.hf_hub_id, file), str) for file in files if file)
    older = Path(torch.hub.get_dir(), "checkpoints", Path(str(known.url)).name)
    if not (is_cached or older.is_file() or _hub_answers()):
        raise UserError(_unreachable(name))


def _unreachable(name: str) -> str:
    return (
        f"cannot fetch the weights of {name}: they are not in the cache, and the Hugging Face Hub cannot be reached. "
        "Give a local file by --weights"
    )


def _fetch(name: str) -> Any:
    """A timm model with its pretrained weights, from the network or, without one, from the cache of downloads."""
    import timm
    from huggingface_hub import constants

    answers, was_offline = _hub_answers(), constants.HF_HUB_OFFLINE
    # Without a network the client would repeat every request for half a minute before it looks into its cache.
    constants.HF_HUB_OFFLINE = was_offline or not answers
    try:
        return timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:  # the hub client raises a dozen unrelated types
        if not answers:
            raise UserError(_unreachable(name)) from error
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"cannot fetch the weights of {name}: {reason} Give a local file by --weights") from error
    finally:
        constants.HF_HUB_OFFLINE = was_offline


def _hub_answers() -> bool:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    try:
        get_hf_file_metadata(hf_hub_url("timm/resnet18.a1_in1k", "config.json"), timeout=_HUB_SECONDS)
    except HfHubHTTPError:
        return True  # a refusal is an answer
    except Exception:  # without a network, or where it is forbidden, a dozen unrelated types
        return False
    return True


def _read(file: Path) -> dict[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            loaded: Any = load_file(file)
        else:
            loaded = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises a dozen unrelated types
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"cannot read weight file {file}: {reason}") from error
    for key in ("state_dict", "model"):  # the two wrappings in use
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise UserError(f"weight file {file} does not hold a plain state dict of tensors")
    return {key.removeprefix("module."): value for key, value in loaded.items()}


def _refuse_leak(tensors: dict[str, Tensor], file: Path, class_counts: Collection[int]) -> None:
    for key, tensor in tensors.items():
        is_head = any(word in key.lower().split(".") for word in _HEAD_WORDS) and key.endswith("weight")
        if is_head and tensor.ndim in (2, 4) and tensor.shape[0] in class_counts:
            raise UserError(
                f"weight file {file} has a classifier of {tensor.shape[0]} outputs ({key}), as many as the "
                "benchmark has classes: it was probably trained on them and leaks every future class. "
                "Use weights trained on other labels, such as ImageNet"
            )


def _fill(backbone: Backbone, tensors: dict[str, Tensor], source: str) -> None:
    own = backbone.net.state_dict()
    needed = [key for key in own if not key.endswith("num_batches_tracked")]
    missing = [key for key in needed if key not in tensors]
    wrong = [key for key in needed if key in tensors and tensors[key].shape != own[key].shape]
    resizable = [key for key in wrong if key.endswith("pos_embed") and tensors[key].ndim == 3]
    if missing or len(wrong) > len(resizable):
        bad = (missing + [key for key in wrong if key not in resizable])[:3]
        raise UserError(
            f"weights {source} do not fit backbone {backbone.name}: {len(missing)} tensors missing and "
            f"{len(wrong)} of another shape, first {', '.join(bad)}"
        )
    filled = {key: tensors[key].to(own[key].dtype) for key in needed if key not in resizable}
    for key in resizable:
        filled[key] = _resize_positions(tensors[key].float(), own[key], backbone.prefix_tokens)
    backbone.net.load_state_dict(filled, strict=False)


def _resize_positions(stored: Tensor, own: Tensor, prefix: int) -> Tensor:
    from timm.layers.pos_embed import resample_abs_pos_embed

    side = round((own.shape[1] - prefix) ** 0.5)
    resized: Tensor = resample_abs_pos_embed(stored, [side, side], num_prefix_tokens=prefix)
    return resized
