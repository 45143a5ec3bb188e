import numpy as np
import pytest
from PIL import Image

from mlcil.data.truncation import is_cut_short

from .odd_bytes import encoded, with_preview

NOISE = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
JPEG = encoded(NOISE, "JPEG")
SECOND = {"save_all": True, "append_images": [Image.fromarray(255 - NOISE)]}
WHOLE = {
    "JPEG": JPEG,
    "progressive JPEG": encoded(NOISE, "JPEG", progressive=True, restart_marker_rows=1),
    "JPEG with a preview": with_preview(JPEG),
    "PNG": encoded(NOISE, "PNG"),
    "GIF": encoded(NOISE, "GIF"),
    "animated GIF": encoded(NOISE, "GIF", **SECOND),
    "WebP": encoded(NOISE, "WEBP", lossless=True),
    "AVIF": encoded(NOISE, "AVIF"),
}


@pytest.mark.parametrize("name", WHOLE)
def test_only_a_file_without_its_end_is_cut_short(name):
    content = WHOLE[name]
    assert not is_cut_short(content)
    assert not is_cut_short(content + bytes(9999))  # data after the end
    assert not is_cut_short(content + JPEG[:50])
    lost = 5 if name == "PNG" else 1  # the last four bytes of a PNG are only a check sum
    boxes = {content.index(kind) - 4 for kind in (b"meta", b"mdat") if name == "AVIF"}  # nothing tells what follows
    missed = [length for length in range(16, len(content) - lost + 1) if not is_cut_short(content[:length])]
    assert set(missed) <= {end + more for end in boxes for more in range(8)}


def test_both_pictures_of_a_pair_need_not_be_whole():
    pair = encoded(NOISE, "MPO", **SECOND)
    assert not is_cut_short(pair)
    assert not is_cut_short(pair[:-50])  # only the first one is decoded
    assert is_cut_short(pair[: len(pair) // 3])


@pytest.mark.parametrize("start", [b"", b"\xff\xd8\xff\xd8", b"GIF89a" + bytes(10), b"\0\0\0\0ftypavif", b"text"])
def test_what_makes_no_sense_is_left_to_the_decoder(start):
    assert not is_cut_short(start + bytes(100) * bool(start))
