"""Putting pretrained weights into a backbone, and refusing files that would spoil an experiment."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import starmap
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import UserError
from ..core.files import read_json
from .backbone import SMALL, Backbone
from .known_classes import known_classes
from .weight_files import weight_file

_HUB_SECONDS = 10.0  # to wait for the hub's first answer, as its own client does


def load_weights(
    backbone: Backbone,
    weights: str | None,
    class_counts: Collection[int],
    vocabularies: Sequence[Collection[str]] = (),
) -> Path | None:
    """Load `weights` into `backbone`.

    Arguments:
        backbone: changed in place.
        weights: None for a random start, "pretrained" for timm's default weights, a timm tag such as
            "miil_in21k", or the path of a .safetensors, .pth or .pt file.
        class_counts: weights whose classifier has one of these numbers of outputs are refused: they were most likely
            trained on the data set's own classes, and would leak every class that is still to come.
        vocabularies: weights that name the classes of one of these lists are refused, too.

    Returns:
        The file the weights came from, if a local one.

    Raises:
        UserError: the weights cannot be had, do not fit, or are refused.
    """
    if weights is None:
        return None
    file = weight_file(weights)
    if file is not None:
        tensors, facts = _read(file)
        own = backbone.net.state_dict()
        others = {key: value for key, value in tensors.items() if key not in own}
        _refuse(known_classes(others, facts, class_counts, vocabularies), f"weight file {file}")
        _fill(backbone, tensors, str(file))
        return file
    source = _open_tag(backbone, weights)
    configuration: Any = source.pretrained_cfg  # tags of one architecture may differ in normalisation
    _refuse(known_classes({}, dict(configuration), class_counts, vocabularies), f"weights {weights}")
    backbone.mean, backbone.std = tuple(configuration["mean"]), tuple(configuration["std"])
    _fill(backbone, source.state_dict(), weights)
    return None


def _open_tag(backbone: Backbone, tag: str) -> Any:
    """The timm model with the weights of a tag."""
    import timm

    plain = backbone.name.split(".")[0]
    tags = [one.partition(".")[2] for one in timm.list_pretrained(f"{plain}.*")]
    known = ["pretrained", *tags] if tags else []
    if backbone.name == SMALL or (tag != "pretrained" and tag not in tags):
        raise UserError(
            f"weights {tag!r} for {backbone.name}: neither a file nor a timm tag. "
            f"Allowed: {', '.join(['a .safetensors or .pth file', 'none', *known])}"
        )
    return _fetch(backbone.name if tag == "pretrained" else f"{plain}.{tag}")


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


def _read(file: Path) -> tuple[dict[str, Tensor], Any]:
    """The tensors of a weight file, and what else it or a config.json beside it says."""
    facts: list[Any] = []
    try:
        if file.suffix == ".safetensors":
            from safetensors import safe_open
            from safetensors.torch import load_file

            loaded: Any = load_file(file)
            with safe_open(file, framework="pt") as opened:
                facts.append(opened.metadata())
        else:
            loaded = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises a dozen unrelated types
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"cannot read weight file {file}: {reason}") from error
    for key in ("state_dict", "model"):  # the two wrappings in use
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            facts.append({name: value for name, value in loaded.items() if name != key})
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not all(starmap(_is_plain, loaded.items())):
        raise UserError(f"weight file {file} does not hold a plain state dict of tensors")
    with suppress(UserError):  # it may be anybody's
        facts.append(read_json(file.with_name("config.json")))
    return {key.removeprefix("module."): value for key, value in loaded.items()}, facts


def _is_plain(key: Any, value: Any) -> bool:
    is_dense = isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta
    return isinstance(key, str) and is_dense


def _refuse(reason: str | None, source: str) -> None:
    if reason is not None:
        raise UserError(
            f"{source} {reason}: it was probably trained on the classes of this data set and leaks every future one. "
            "Use weights trained on other labels, such as ImageNet, or accept it by --set allow_known_classes=true, "
            "which results and reports then show"
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
