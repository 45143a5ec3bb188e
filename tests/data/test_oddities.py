import re

import numpy as np
import pytest
from PIL import Image

from mlcil.data.decoding import BadImage, decode, inspect, read_content, resized, upright_rgb

from .oddities import CASES, make, table

READABLE = [name for name, case in CASES.items() if case.pixels is not None]
UNREADABLE = [name for name, case in CASES.items() if case.pixels is None]


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return make(tmp_path_factory.mktemp("oddities") / "made")


def plainly(pixels, size):
    return np.asarray(Image.fromarray(pixels).resize((size, size), Image.Resampling.BILINEAR))


@pytest.mark.parametrize("name", READABLE)
@pytest.mark.parametrize("size", [8, 20, 50])
def test_a_file_gives_what_a_person_sees(paths, name, size):
    case, result = CASES[name], decode(str(paths[name]), size)
    assert result.shape == (size, size, 3)
    difference = np.abs(result.astype(int) - plainly(case.pixels, size))
    assert difference.max() <= case.tolerance, f"{difference.max()} at {np.argwhere(difference > case.tolerance)[0]}"


@pytest.mark.parametrize("name", READABLE)
def test_the_header_gives_the_size_that_a_person_sees(paths, name):
    header = inspect(str(paths[name]), read_content(str(paths[name])))
    assert (header.height, header.width) == CASES[name].pixels.shape[:2]


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # Pillow opens the file here; it cannot read two kinds
@pytest.mark.parametrize("name", [name for name in READABLE if not re.search(r"key-.*bit|heic", name)])
def test_an_image_in_memory_takes_the_same_road(paths, name):
    with Image.open(paths[name]) as image:
        assert np.array_equal(resized(upright_rgb(image), 50), decode(str(paths[name]), 50))


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_cannot_be_read_has_the_reason(paths, name):
    path = str(paths[name])
    with pytest.raises(BadImage) as caught:
        decode(path, 8)
    assert caught.value.reason == CASES[name].reason
    with pytest.raises(BadImage) as caught:
        inspect(path, read_content(path))
    assert caught.value.reason == CASES[name].reason


def test_the_table_has_a_row_for_all_that_happens():
    rows = table().splitlines()
    assert rows[:2] == ["| file | what happens |", "|---|---|"]
    assert len(rows) - 2 == len({case.happens for case in CASES.values()})
    assert "| `text.jpg` | left out, and the reason is named: not an image |" in rows
    assert sum(row.count("`, `") + 1 for row in rows[2:]) == len(CASES) - 3 * 7  # one name for eight orientations
