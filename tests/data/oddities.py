"""A folder of the odd files that are found among real photographs, and what becomes of each."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .odd_bytes import Pixels, cmyk_profile, encoded, exif, picture, png, stored, with_preview


def grey(values: NDArray[np.generic]) -> Pixels:
    return np.repeat(values.astype(np.uint8)[..., None], 3, axis=-1)


def on_white(alpha: NDArray[np.uint8], pixels: Pixels | None = None) -> Pixels:
    """What pixels (H, W, 3) with this alpha (H, W) look like on white."""
    opaque = alpha[..., None] / 255
    return np.rint((PICTURE if pixels is None else pixels) * opaque + 255 * (1 - opaque)).astype(np.uint8)


def flat(*colour: int) -> Pixels:
    return np.full((40, 60, 3), colour, np.uint8)


PICTURE = picture()
GREY = np.asarray(Image.fromarray(PICTURE).convert("L"))
ALPHA = np.repeat(np.repeat(np.array([[0, 255, 128]], np.uint8), 40, 0), 20, 1)  # hidden, opaque, half (40, 60)
HALF = np.where(ALPHA == 0, 0, 255).astype(np.uint8)
STEPS = np.repeat(np.arange(60, dtype=np.uint8)[None] * 4, 40, 0)  # (40, 60), indices of a palette and greys
PALETTE = np.stack([np.arange(256), 255 - np.arange(256), np.full(256, 90)], axis=-1).astype(np.uint8)


@dataclass(frozen=True)
class Case:
    """One odd file.

    Attributes:
        happens: what becomes of it, for readers.
        write: makes the file.
        pixels: what a person sees, uint8 (H, W, 3); None if it cannot be read.
        tolerance: the largest difference of a pixel, above 0 for lossy formats and rounding.
        reason: why it cannot be read.
    """

    happens: str
    write: Callable[[Path], object]
    pixels: Pixels | None = None
    tolerance: int = 0
    reason: str | None = None


def save(pixels: NDArray[np.generic], mode: str | None = None, **options: object) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        image = Image.fromarray(np.ascontiguousarray(pixels))
        (image if mode is None else image.convert(mode)).save(path, **options)

    return write


def content(data: bytes) -> Callable[[Path], int]:
    return lambda path: path.write_bytes(data)


def heic(path: Path, orientation: int = 1) -> None:
    from pillow_heif import HeifFile

    pixels, file = np.ascontiguousarray(stored(PICTURE, orientation)), HeifFile()
    file.add_frombytes("RGB", pixels.shape[1::-1], pixels.tobytes())
    file.save(path, quality=95, chroma=444, exif=exif(orientation))


def frames(path: Path, **options: object) -> None:
    first, second = (Image.fromarray(pixels) for pixels in (PICTURE, 255 - PICTURE))
    if path.suffix == ".gif":
        first = Image.fromarray(STEPS)
    first.save(path, save_all=True, append_images=[second], **options)


def coloured_palette(path: Path, **options: object) -> None:
    image = Image.fromarray(STEPS)
    image.putpalette(PALETTE.tobytes())
    image.save(path, **options)


JPEG = encoded(PICTURE, "JPEG", quality=95, subsampling=0)
LOSSLESS = {"lossless": True, "exact": True}
CMYK = {"quality": 95, "icc_profile": cmyk_profile()}
RED_INK = np.repeat(np.array([[[0, 255, 255, 0]]], np.uint8), 60, 1).repeat(40, 0)
WORDS = {
    "exif": "turned upright by its EXIF orientation before it is resized",
    "no exif": "an orientation that makes no sense counts as upright",
    "alpha": "composed on white; what is hidden under transparency does not show",
    "profile": "CMYK is converted to sRGB by its ICC profile",
    "no profile": "CMYK without a usable profile is converted by the plain formula",
    "deep": "scaled to 8 bits without clipping",
    "frames": "the first frame or page is taken",
    "photo": "read like any photo",
    "name": "read like any file",
    "cut": "left out, and the reason is named: truncated",
    "huge": "left out before it is decoded: 60.1 megapixels, more than the limit of 50 (megapixels)",
    "other": "left out, and the reason is named: ",
}


def _orientations() -> dict[str, Case]:
    cases = {}
    for number in range(1, 9):
        turned = stored(PICTURE, number)
        cases[f"orientation-{number}.png"] = Case(WORDS["exif"], save(turned, exif=exif(number)), PICTURE)
        photo = save(turned, exif=exif(number), quality=95, subsampling=0)
        cases[f"orientation-{number}.jpg"] = Case(WORDS["exif"], photo, PICTURE, 4)
        tags = {"tiffinfo": {0x0112: number}}
        cases[f"orientation-{number}.tif"] = Case(WORDS["exif"], save(turned, **tags), PICTURE)
    return cases


def _turned() -> dict[str, Case]:
    six, eight = stored(PICTURE, 6), stored(PICTURE, 8)
    late = content(png(40, 8, six.reshape(60, -1), eXIf=exif(6).removeprefix(b"Exif\0\0")))
    squeezed = save(six, tiffinfo={0x0112: 6}, compression="tiff_lzw")
    cases = {
        "orientation-after-the-pixels.png": Case(WORDS["exif"], late, PICTURE),
        "orientation-compressed.tif": Case(WORDS["exif"], squeezed, PICTURE),
        "orientation.webp": Case(WORDS["exif"], save(eight, exif=exif(8), **LOSSLESS), PICTURE),
        "orientation.avif": Case(WORDS["exif"], save(six, exif=exif(6), quality=95, subsampling="4:4:4"), PICTURE, 6),
        "orientation-9.png": Case(WORDS["no exif"], save(PICTURE, exif=exif(9)), PICTURE),
        "damaged-exif.jpg": Case(WORDS["no exif"], save(PICTURE, exif=b"Exif\0\0MM\0*junk", quality=95), PICTURE, 9),
    }
    if find_spec("pillow_heif"):
        cases["orientation.heic"] = Case(WORDS["exif"], partial(heic, orientation=6), PICTURE, 6)
        cases["photo.heic"] = Case(WORDS["photo"] + " (needs the extra heic)", heic, PICTURE, 6)
    return cases


def _transparent() -> dict[str, Case]:
    rgba = np.dstack([PICTURE, ALPHA])
    keyed, grey_keyed = np.where(HALF[..., None] > 0, PICTURE, [9, 8, 7]).astype(np.uint8), np.where(HALF, GREY, 1)
    opaque = bytes([0] * 80 + [255] * 80 + [128] * 96)
    alphas = np.frombuffer(opaque, np.uint8)[STEPS]
    index = on_white(np.where(STEPS == 40, 0, 255).astype(np.uint8), PALETTE[STEPS])
    four = (STEPS[:, ::2] // 16) << 4 | STEPS[:, 1::2] // 16  # two pixels in a byte, 4 bits each
    sixteen = (keyed.astype(np.uint16) * 256 + 5).astype(">u2").view(np.uint8).reshape(40, -1)
    happens = WORDS["alpha"]
    return {
        "alpha.png": Case(happens, save(rgba), on_white(ALPHA), 1),
        "alpha.webp": Case(happens, save(rgba, **LOSSLESS), on_white(ALPHA), 1),
        "grey-alpha.png": Case(happens, save(np.dstack([GREY, ALPHA])), on_white(ALPHA, grey(GREY)), 1),
        "colour-key.png": Case(happens, save(keyed, transparency=(9, 8, 7)), on_white(HALF)),
        "grey-key.png": Case(happens, save(grey_keyed, transparency=1), on_white(HALF, grey(GREY))),
        "grey-key-4-bit.png": Case(
            happens, content(png(60, 4, four, tRNS=b"\0\x03")), grey(np.where(STEPS // 16 == 3, 255, STEPS // 16 * 17))
        ),
        "colour-key-16-bit.png": Case(
            happens, content(png(60, 16, sixteen, tRNS=b"\x09\5\x08\5\x07\5")), on_white(HALF)
        ),
        "palette-alpha.png": Case(
            happens, partial(coloured_palette, transparency=opaque), on_white(alphas, PALETTE[STEPS]), 1
        ),
        "palette-key.gif": Case(happens, partial(coloured_palette, transparency=40), index),
    }


def _deep() -> dict[str, Case]:
    ramp, full = GREY.astype(np.uint16) * 257, GREY.astype(np.uint32) * (2**24 + 2**16 + 2**8 + 1)
    three = (PICTURE.astype(np.uint16) * 256 + 7).astype(">u2").view(np.uint8).reshape(40, -1)
    turned = save(stored(ramp, 6), exif=exif(6))
    return {
        "grey-16-bit.png": Case(WORDS["deep"], save(ramp), grey(GREY)),
        "grey-16-bit-turned.png": Case(WORDS["deep"], turned, grey(GREY)),
        "grey-16-bit.tif": Case(WORDS["deep"], save(ramp.astype(">u2")), grey(GREY)),
        "grey-32-bit.tif": Case(WORDS["deep"], save(full.view(np.int32)), grey(GREY)),
        "grey-float.tif": Case(WORDS["deep"], save((GREY / 255).astype(np.float32)), grey(GREY)),
        "grey-float-of-255.tif": Case(WORDS["deep"], save(GREY.astype(np.float32)), grey(GREY)),
        "colour-16-bit.png": Case(WORDS["deep"], content(png(60, 16, three)), PICTURE),
    }


def _printed() -> dict[str, Case]:
    def ink(**options: object) -> Callable[[Path], None]:
        return lambda path: Image.frombytes("CMYK", (60, 40), RED_INK.tobytes()).save(path, **options)

    lab = Image.frombytes("LAB", (60, 40), bytes([138, 81, 70]) * 2400).save  # L* = 54, a* = 81, b* = 70, red
    broken = {**CMYK, "icc_profile": b"not a profile"}
    return {
        "cmyk-profile.jpg": Case(WORDS["profile"], ink(**CMYK), flat(119, 119, 119), 2),
        "cmyk-profile.tif": Case(WORDS["profile"], ink(icc_profile=cmyk_profile()), flat(119, 119, 119), 1),
        "lab.tif": Case("Lab is converted to sRGB", lab, flat(255, 0, 0), 5),
        "cmyk.jpg": Case(WORDS["no profile"], ink(quality=95), flat(255, 0, 0), 2),
        "cmyk-broken-profile.jpg": Case(WORDS["no profile"], ink(**broken), flat(255, 0, 0), 2),
    }


def _whole() -> dict[str, Case]:
    named, first = Case(WORDS["name"], save(PICTURE, format="PNG"), PICTURE), WORDS["frames"]
    return {
        "animation.gif": Case(first, frames, grey(STEPS)),
        "animation.webp": Case(first, partial(frames, **LOSSLESS), PICTURE),
        "animation.png": Case(first, frames, PICTURE),
        "pages.tif": Case(first, frames, PICTURE),
        "two-pictures.mpo": Case(first, partial(frames, quality=95, subsampling=0), PICTURE, 4),
        "photo.jpg": Case(WORDS["photo"], content(JPEG), PICTURE, 4),
        "photo.webp": Case(WORDS["photo"], save(PICTURE, quality=95), PICTURE, 9),
        "photo.avif": Case(WORDS["photo"], save(PICTURE, quality=95, subsampling="4:4:4"), PICTURE, 6),
        "film-after-its-end.jpg": Case(WORDS["photo"], content(JPEG + b"\0\0\0\x18ftypmp42" * 99), PICTURE, 4),
        "copy-of-photo.jpg": Case("the same content under two names is one image", content(JPEG), PICTURE, 4),
        "png-called.jpg": named,
        "Grüße-猫.png": named,
        f"{'long' * 61}xx.png": named,
        f"{'deep/' * 40}photo.png": named,
    }


def _unusable() -> dict[str, Case]:
    def cut(form: str) -> Case:
        whole = encoded(PICTURE, form)
        return Case(WORDS["cut"], content(whole[: len(whole) * 2 // 3]), reason="truncated")

    def out(write: Callable[[Path], object], reason: str) -> Case:
        return Case(WORDS["other"] + reason, write, reason=reason)

    huge = png(10000, 1, np.zeros((6001, 1250), np.uint8))
    limit = WORDS["huge"].split(": ")[1]
    return {
        **{f"truncated.{form.lower()}": cut(form) for form in ("JPEG", "PNG", "GIF", "WEBP", "AVIF")},
        "truncated-with-preview.jpg": Case(WORDS["cut"], content(with_preview(JPEG)[:-9]), reason="truncated"),
        "empty.jpg": out(content(b""), "empty"),
        "text.jpg": out(content(b"not pixels"), "not an image"),
        "missing.jpg": out(lambda path: None, "missing"),
        "folder.jpg": out(Path.mkdir, "not an image but a folder"),
        "huge.png": Case(WORDS["huge"], content(huge), reason=limit),
    }


CASES = {
    **_orientations(),
    **_turned(),
    **_transparent(),
    **_printed(),
    **_deep(),
    **_whole(),
    **_unusable(),
}


def make(folder: Path) -> dict[str, Path]:
    """Write all odd files; returns name -> file."""
    shutil.rmtree(folder, ignore_errors=True)
    paths = {name: folder / name for name in CASES}
    for name, path in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        CASES[name].write(path)
    return paths


def table() -> str:
    """The cases as a table in Markdown, one row for each thing that happens."""
    files: dict[str, dict[str, None]] = {}
    for name, case in CASES.items():
        short = name if len(name) < 60 else f"{name[:8]}…{name[-9:]}"
        files.setdefault(case.happens, {})[re.sub("orientation-[1-8]", "orientation-1…8", short)] = None
    rows = [f"| {', '.join(f'`{name}`' for name in names)} | {happens} |" for happens, names in files.items()]
    return "\n".join(["| file | what happens |", "|---|---|", *rows])
