import os
from dataclasses import replace

import pytest
from PIL import Image

from mlcil.core.errors import UserError
from mlcil.training.config import RunSettings
from mlcil.training.prepare import prepare_data, read_data, review_weights


def prepared(settings):
    return prepare_data(read_data(settings, print), settings, print)


@pytest.mark.parametrize(
    ("weights", "data", "warns"),
    [(None, "table:x.csv", True), ("pretrained", "table:x.csv", False), (None, "digits", False)],
)
def test_photographs_without_pretrained_weights_get_a_warning(weights, data, warns):
    assert bool(review_weights(RunSettings(data=data, weights=weights))) == warns


def test_a_first_session_that_cannot_be_measured_is_named_before_training(tmp_path):
    """Test images without any class do not help: nothing could be found in them."""
    for number in range(6):
        Image.new("RGB", (16, 16), (40 * number, 0, 0)).save(tmp_path / f"{number}.png")
    rows = ["0.png,cat,train", "1.png,dog,train", "2.png,,train", "3.png,dog,test", "4.png,,test"]
    (tmp_path / "labels.csv").write_text("\n".join(["path,labels,split", *rows]))
    settings = RunSettings(data=str(tmp_path / "labels.csv"), protocol="cat|dog", image_size=16, cache=None)
    with pytest.raises(UserError, match=r"no test image shows any class of the first session \(cat\)"):
        prepared(settings)


def test_the_limit_on_pixels_holds_for_images_in_the_cache_too(tmp_path):
    for number in range(4):
        Image.new("RGB", (40, 40), (40 * number, 0, 0)).save(tmp_path / f"{number}.png")
        os.utime(tmp_path / f"{number}.png", (1000, 1000))  # old enough to be remembered
    rows = ["0.png,cat,train", "1.png,dog,train", "2.png,cat,test", "3.png,dog,test"]
    (tmp_path / "labels.csv").write_text("\n".join(["path,labels,split", *rows]))
    given = {"data": str(tmp_path / "labels.csv"), "protocol": "cat|dog", "image_size": 16}
    settings = RunSettings(**given, cache=str(tmp_path / "cache"))
    prepared(settings)
    with pytest.raises(
        UserError, match=r"4 images cannot be read, first: .*0\.1 megapixels, more than the limit of 0\.001"
    ):
        prepared(replace(settings, megapixels=0.001))
