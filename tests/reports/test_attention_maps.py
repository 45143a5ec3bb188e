"""Explanations of image files, and drawings of test images for a report."""

import os
from pathlib import Path

import pytest
from PIL import Image
from PIL.ExifTags import Base as ExifTag

from mlcil.core.errors import UserError
from mlcil.data import contents
from mlcil.reports.attention_maps import ON_PAGE, explain_files, maps_for_report, pick_test_images
from mlcil.serving.loading import open_run

from ..serving.made_runs import CLASSES, a_run, image_file, picture, stored


@pytest.fixture(scope="module")
def krt_folder(tmp_path_factory):
    return stored("krt", tmp_path_factory.mktemp("runs") / "krt")


def size_of(path):
    with Image.open(path) as image:
        return image.size


def drawings(*arguments, **options):
    return [one.drawing for one in explain_files(*arguments, **options)]


def test_files_are_drawn_under_names_of_their_own(krt_folder, tmp_path):
    images = [image_file(tmp_path / place / "cat.png", seed) for seed, place in enumerate(("a", "b"))]
    images.append(image_file(tmp_path / "tall.png", 3, (60, 30, 3)))
    out = tmp_path / "out" / "maps"
    written = drawings(krt_folder, images, out, session=2, threshold=0.5, most=2)
    assert [file.name for file in written] == ["cat-explained.png", "cat-2-explained.png", "tall-explained.png"]
    assert sorted(out.iterdir()) == sorted(written)
    sizes = [size_of(file) for file in written]
    assert sizes[0] == sizes[1]
    assert sizes[0][0] > sizes[2][0]  # the photo is as wide as in its file


def heic(path, picture):
    pillow_heif = pytest.importorskip("pillow_heif", reason="needs the extra mlcil[heic]")
    pillow_heif.from_pillow(picture).save(path)


def on_its_side(path, picture):
    exif = Image.Exif()
    exif[ExifTag.Orientation] = 6
    picture.transpose(Image.Transpose.ROTATE_90).save(path, exif=exif)


@pytest.mark.parametrize(("name", "save"), [("photo.heic", heic), ("photo.jpg", on_its_side)])
def test_a_portrait_is_drawn_upright_whatever_its_file(krt_folder, tmp_path, name, save):
    portrait = Image.fromarray(picture(0, (90, 60, 3)))
    portrait.save(tmp_path / "plain.png")
    save(tmp_path / name, portrait)
    plain, other = drawings(krt_folder, [tmp_path / "plain.png", tmp_path / name], tmp_path / "out")
    assert size_of(other) == size_of(plain)


def test_the_largest_image_is_as_large_as_the_run_allows(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000_000)  # Pillow's own limit does not matter
    photo = tmp_path / "large.jpg"
    Image.new("L", (8000, 6500)).save(photo)
    (drawn,) = drawings(stored("ft", tmp_path / "large", megapixels=100), [photo], tmp_path / "out")
    assert drawn.is_file()
    (refused,) = explain_files(stored("ft", tmp_path / "usual"), [photo], tmp_path / "out")
    assert "large.jpg: 52.0 megapixels, more than the limit of 50" in refused.problem


def test_an_image_is_never_overwritten(krt_folder, tmp_path):
    images = [image_file(tmp_path / name, 0) for name in ("cat.png", "cat-explained.png")]
    before = [image.read_bytes() for image in images]
    with pytest.raises(UserError, match="would be overwritten"):
        explain_files(krt_folder, images, tmp_path)
    assert [image.read_bytes() for image in images] == before
    assert drawings(krt_folder, images[1:], tmp_path) == [tmp_path / "cat-explained-explained.png"]


def test_a_bad_image_is_named_and_stops_no_other(krt_folder, tmp_path):
    good, out = image_file(tmp_path / "good.png"), tmp_path / "out"
    (tmp_path / "text.jpg").write_text("not an image")
    first, second, third = explain_files(krt_folder, [tmp_path / "missing.png", good, tmp_path / "text.jpg"], out)
    assert first.explanation is third.explanation is None
    assert first.problem.endswith("missing.png: missing")
    assert third.problem.endswith("text.jpg: not an image")
    assert list(out.iterdir()) == [second.drawing]
    with pytest.raises(UserError, match="got session 9"):
        explain_files(krt_folder, [good], out, session=9)


def test_the_scores_are_those_of_the_model_and_the_values_are_plain(krt_folder, tmp_path):
    file = image_file(tmp_path / "photo.png", 0, (60, 30, 3))
    (done,) = explain_files(krt_folder, [file], tmp_path / "out", threshold=0.0, most=7)
    assert done.explanation.pixels.shape == (60, 30, 3)  # from the file, not the square that is scored
    scores = dict(zip(CLASSES, open_run(krt_folder).scores(file)[0], strict=True))
    values = done.as_dict()
    assert values["path"] == str(file)
    assert len(values["tags"]) == 7
    for tag in values["tags"]:
        assert tag["score"] == pytest.approx(scores[tag["name"]], abs=1e-4)
        assert (tag["threshold"], tag["present"]) == (0.0, True)
        left, top, right, bottom = tag["box"]
        assert 0 <= left < tag["peak"][0] < right <= 1
        assert 0 <= top < tag["peak"][1] < bottom <= 1


def test_test_images_are_varied_and_always_the_same(krt_folder):
    run = open_run(krt_folder)
    chosen, again = pick_test_images(run, 4), pick_test_images(run, 4)
    assert [path for path, _, _ in chosen] == [path for path, _, _ in again]
    assert len({path for path, _, _ in chosen}) == 4
    for _, pixels, labels in chosen:
        assert pixels.shape == (32, 32, 3)
        assert 2 <= len(labels) <= 4
        assert len({run.session_of(CLASSES.index(label)) for label in labels}) >= 2
    assert len({label for _, _, labels in chosen for label in labels}) == 7


@pytest.fixture
def table(tmp_path):
    """A table of twelve photos, older than a moment, half of them to test with."""
    rows = ["path,labels,split"]
    for number in range(12):
        file = image_file(tmp_path / f"{number}.png", number)
        os.utime(file, (1000, 1000))
        rows.append(f"{file.name},{number % 7};{(number + 1) % 7},{'test' if number < 6 else 'train'}")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    return str(tmp_path / "labels.csv")


def test_only_the_chosen_test_images_are_read_again(table, tmp_path, monkeypatch):
    run, read = a_run("ft", data=table, cache=str(tmp_path / "cache")), []
    first = pick_test_images(run, 2)
    original = contents.read_content
    monkeypatch.setattr(contents, "read_content", lambda path: read.append(path) or original(path))
    assert [path for path, _, _ in pick_test_images(run, 2)] == [path for path, _, _ in first]
    assert read == []


def test_test_images_that_are_too_large_for_the_run_are_passed_over(table, tmp_path):
    image_file(tmp_path / "3.png", 3, (40, 40, 3))
    changes = {"data": table, "cache": str(tmp_path / "cache")}
    chosen = pick_test_images(a_run("ft", **changes, megapixels=0.0015), 9)
    assert sorted(Path(path).name for path, _, _ in chosen) == [f"{number}.png" for number in (0, 1, 2, 4, 5)]
    assert len(pick_test_images(a_run("ft", **changes), 9)) == 6


def test_a_report_gets_captions_and_drawings(krt_folder):
    drawings = maps_for_report(krt_folder, 2)
    assert len(drawings) == 2
    caption, figure = drawings[0]
    assert "true labels: " in caption
    assert len(figure.axes) == 1


def test_a_report_shows_photos_in_their_own_proportions(table, tmp_path):
    image_file(tmp_path / "0.png", 0, (40, 80, 3))
    run = stored("ft", tmp_path / "ft", data=table, cache=str(tmp_path / "cache"))
    shapes = [figure.axes[0].get_window_extent() for _, figure in maps_for_report(run, 9)]
    assert sorted({round(box.width / box.height) for box in shapes}) == [1, 2]
    assert max(box.width for box in shapes) <= ON_PAGE


def test_a_report_on_data_that_is_gone(tmp_path):
    with pytest.raises(UserError, match="/nowhere"):
        maps_for_report(stored("ft", tmp_path / "ft", data="coco:/nowhere"), 2)
