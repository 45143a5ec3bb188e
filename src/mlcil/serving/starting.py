"""What a new tagger starts with: its method, and the best backbone at hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..methods.analytic import Analytic
from ..methods.registry import method_class
from ..models.backbone import SMALL
from ..models.weight_files import weight_file
from ..training.config import RunConfig, make_config

# timm models to start from, the best first as far as we have measured them on photographs.
PREFERRED = ("tf_efficientnet_lite0", "mobilenetv2_100")
# The closed form with features that do not depend on what came first, so that the order of steps does not matter.
CLOSED_FORM = {
    "freeze": "all",
    "keep_features": True,
    "options": {"expansion": 0, "window": 0, "remember": "fingerprints"},
}
VALIDATION = 0.1  # of the photos, on which methods that train find their thresholds


def start_config(
    data: str,
    images: str | None,
    method: str | None,
    backbone: str | None,
    weights: str | None,
    settings: Mapping[str, Any],
) -> RunConfig:
    """The configuration of a new tagger.

    Arguments:
        data, images: what it learns first.
        method: None for the closed form.
        backbone, weights: None for what is at hand: the backbone that a weight file is named after, else one of
            `PREFERRED` whose weights were downloaded before, else the first of them.
        settings: further settings and options, which win.
    """
    method = method or Analytic.name
    backbone, weights = at_hand(backbone, weights)
    values: dict[str, Any] = {"method": method, "data": data, "images": images, "on_bad_image": "skip"}
    values |= {"backbone": backbone, "weights": weights}
    if method == Analytic.name:
        values |= CLOSED_FORM
    elif not issubclass(method_class(method), Analytic):  # which finds its thresholds without images set aside
        values["validation"] = VALIDATION
    return make_config(values, settings)


def at_hand(backbone: str | None, weights: str | None) -> tuple[str, str | None]:
    """The backbone and its weights where one or both are not named."""
    if backbone is None and weights is not None and (file := weight_file(weights)) is not None:
        import timm

        return (file.stem if timm.is_model(file.stem) else PREFERRED[0]), weights
    if backbone is None:
        backbone = next(filter(is_downloaded, PREFERRED), PREFERRED[0])
    if weights is None and backbone != SMALL:
        weights = "pretrained"
    return backbone, None if weights == "none" else weights


def is_downloaded(backbone: str) -> bool:
    """Whether timm's default weights of a model are in the cache of downloads."""
    import timm
    from huggingface_hub import try_to_load_from_cache

    known = timm.get_pretrained_cfg(backbone)
    if known is None or not known.hf_hub_id:
        return False
    files = "model.safetensors", "pytorch_model.bin"
    return any(isinstance(try_to_load_from_cache(known.hf_hub_id, file), str) for file in files)


def weights_name(weights: str | None) -> str:
    """Weights for a person: the name of a file without its folders."""
    return "none" if weights is None else Path(weights).name
