"""From the colours of any image to 8-bit RGB."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, ImageCms


def to_rgb(image: Image.Image) -> Image.Image:
    """An image of any mode in RGB, composed on white where it is transparent."""
    if image.mode in {"I", "F"} or image.mode.startswith("I;16"):
        return _grey(image).convert("RGB")
    if image.mode in {"CMYK", "LAB"}:
        return _by_profile(image)
    if image.has_transparency_data:
        pixels = image.convert("LA" if image.mode == "La" else "RGBA").convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), pixels).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _grey(image: Image.Image) -> Image.Image:
    """Grey of 16 or 32 bits or in floating point, which Pillow would clip to white, in 8 bits."""
    values, full = np.asarray(image), 65535.0
    if image.mode == "F":
        largest = float(values.max(initial=0, where=np.isfinite(values)))
        full = next((full for full in (1.0, 255.0, 65535.0) if largest <= full), largest)
    elif image.mode == "I" and max(int(values.max()), -int(values.min())) > 65535:
        values, full = values.view(np.uint32), 2.0**32 - 1  # Pillow reads them as signed
    scaled = np.nan_to_num(values.astype(np.float32) / np.float32(full / 255))
    eight = np.rint(scaled.clip(0, 255)).astype(np.uint8)
    if "transparency" in image.info:
        eight[values == image.info["transparency"]] = 255
    return Image.fromarray(eight)


def _by_profile(image: Image.Image) -> Image.Image:
    """CMYK or Lab by the ICC profile that says what the numbers mean; CMYK without a usable one as Pillow guesses."""
    try:
        found = io.BytesIO(image.info.get("icc_profile") or b"")
        source = ImageCms.createProfile("LAB") if image.mode == "LAB" else ImageCms.ImageCmsProfile(found)
        converted = ImageCms.profileToProfile(image, source, ImageCms.createProfile("sRGB"), outputMode="RGB")
    except (ImageCms.PyCMSError, OSError, TypeError, ValueError):
        converted = None
    return converted or image.convert("RGB")
