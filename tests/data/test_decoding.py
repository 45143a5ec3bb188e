import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from mlcil.core.errors import UserError
from mlcil.data import decoding
from mlcil.data.decoding import BadImage, Decoding, decode


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16"])
def test_decode_reads_every_colour_mode(tmp_path, mode):
    grey = np.full((10, 20), 255 if mode == "1" else 128, np.uint8)
    image = Image.fromarray(grey.astype(np.uint16) * 257) if mode == "I;16" else Image.fromarray(grey).convert(mode)
    path = tmp_path / ("image.tiff" if mode in {"CMYK", "YCbCr"} else "image.png")
    image.save(path)
    result = decode(str(path), 7)
    assert result.shape == (7, 7, 3)
    assert result.dtype == np.uint8
    assert np.abs(result.astype(int) - int(grey[0, 0])).max() <= 2


def test_decode_squashes_bilinearly(tmp_path):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 20, 3), dtype=np.uint8))
    image.save(tmp_path / "image.png")
    wanted = np.asarray(image.resize((9, 9), Image.Resampling.BILINEAR))
    assert np.array_equal(decode(str(tmp_path / "image.png"), 9), wanted)


def test_decode_lets_no_warning_out(tmp_path, monkeypatch):
    palette = Image.fromarray(np.full((8, 8), 3, np.uint8)).convert("P")
    palette.save(tmp_path / "palette.png", transparency=bytes(range(256)))
    assert decode(str(tmp_path / "palette.png"), 4).shape == (4, 4, 3)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40)  # 64 pixels only warn, 100 are refused
    filters = list(warnings.filters)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: decode(str(tmp_path / "palette.png"), 4), range(50)))
    assert warnings.filters == filters
    Image.new("RGB", (10, 10)).save(tmp_path / "bomb.png")
    with pytest.raises(BadImage, match=r"bomb\.png: too many pixels"):
        decode(str(tmp_path / "bomb.png"), 4)


def test_decode_names_the_file_and_the_reason(tmp_path, broken_files):
    for path, reason in broken_files.items():
        with pytest.raises(BadImage) as caught:
            decode(str(path), 8)
        assert str(caught.value) == f"cannot read image {path}: {reason}"
        assert isinstance(caught.value, UserError)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_chunks_give_every_row_its_pixels_or_the_reason(monkeypatch, tmp_path, write_images):
    monkeypatch.setattr(decoding, "CHUNK", 2)
    images, progress = write_images(tmp_path / "images"), []
    paths = (*images.paths, str(tmp_path / "lost.png"))
    job = Decoding(paths, 6, 2, lambda *at: progress.append(at))
    chunks = list(job.chunks([1, 2, 5]))
    assert [list(chunk) for chunk in chunks] == [[1, 2], [5]]
    assert np.array_equal(chunks[0][2], decode(paths[2], 6))
    assert chunks[1][5].reason == "missing"
    assert progress == [(5, 6), (6, 6)]  # the rows left out count as done
    assert job.named({5: "missing"}) == {5: f"cannot read image {paths[5]}: missing"}


def test_chunks_refuse_a_file_that_lost_its_digest(tmp_path, write_images):
    images = write_images(tmp_path / "images")
    job = Decoding(images.paths, 6, 2, None)
    digests = job.digests()
    assert len(set(digests)) == 5
    assert digests == job.digests()
    Image.new("RGB", (9, 9), "red").save(images.paths[3])
    with pytest.raises(UserError, match=r"003\.png changed while it was read"):
        list(job.chunks(range(5), digests))
