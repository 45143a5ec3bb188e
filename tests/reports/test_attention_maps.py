"""Maps that are known in advance, and drawings that hold what they should."""

import os
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from PIL.ExifTags import Base as ExifTag

from mlcil.core.errors import UserError
from mlcil.core.state import prefixed
from mlcil.data import contents
from mlcil.evaluation.results import evaluate
from mlcil.evaluation.scores import ScoredImages
from mlcil.models.backbone import Backbone
from mlcil.models.tagger import AttentionShape, Tagger
from mlcil.reports.attention_maps import explain_files, maps_for_report, pick_test_images
from mlcil.reports.explanation_drawing import draw, enlarged, peak
from mlcil.reports.style import save_png
from mlcil.serving.explanation import Explanation, Tag, class_activation, explain, relevance
from mlcil.serving.loading import open_run
from mlcil.serving.tagger import Tagger
from mlcil.training.config import make_config
from mlcil.training.folder import save_state
from mlcil.training.prepare import prepare_method

DATA = "digits:train=20,test=40,size=32"
SIZES, CLASSES = (3, 2, 2), tuple("0123456")
OPTIONS = {"krt": {"width": 16, "heads": 4}, "ft": {}}


def a_run(method, path=Path("run"), data=DATA, **changes):
    """A run that was never trained, with weights large enough to matter."""
    values = {"method": method, "data": data, "protocol": "0,1,2|3,4|5,6", "backbone": "small_conv", "image_size": 32}
    config = make_config(values | {"options": OPTIONS[method]} | changes)
    made, _ = prepare_method(config, len(CLASSES))
    for size in SIZES:
        made.tagger.grow(size)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.tagger.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    made.tagger.eval().requires_grad_(False)
    return Tagger(config, made, CLASSES, len(SIZES), path)


def stored(method, folder, **changes):
    """The same as a folder."""
    run = a_run(method, folder, **changes)
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(run.config.to_dict()))
    if method == "krt":
        run.method.rates = [0.5] * len(SIZES)
    tensors, values = run.method.state()
    tensors, values = prefixed("method.", tensors), {"method": values}
    scored = ScoredImages(np.eye(7, dtype=np.float32), np.eye(7, dtype=np.int8), np.arange(7), CLASSES)
    result = evaluate(scored, [], images=20, train_seconds=1.0, bytes_kept=0, notes={})
    for number in (1, 2, 3):
        save_state(folder / f"session-{number:02d}" / "state.safetensors", tensors, values | {"result": asdict(result)})
    return folder


@pytest.fixture(scope="module")
def krt():
    return a_run("krt")


@pytest.fixture(scope="module")
def krt_folder(tmp_path_factory):
    return stored("krt", tmp_path_factory.mktemp("runs") / "krt")


def picture(seed=0, shape=(32, 32, 3)):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def image_file(path, seed=0, shape=(32, 32, 3)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture(seed, shape)).save(path)
    return path


def height_of(path):
    with Image.open(path) as image:
        return image.height


def planted():
    """A tagger of two sessions; class 0 is dimension 0 of the token, class 1 its dimension 1, and so on."""
    tagger = Tagger(Backbone("small_conv", 32), AttentionShape(width=8, heads=2, attend_to_query=True)).eval()
    tagger.grow(2)
    tagger.grow(1)
    block = tagger.attention
    with torch.no_grad():
        for parameter in (*block.parameters(), *tagger.heads.parameters()):
            parameter.zero_()
        for norm in (block.attention.norm, tagger.heads[0][0], tagger.heads[1][0]):
            norm.weight.fill_(1)
        block.projection.weight[:8, :8, 0, 0] = torch.eye(8)
        block.attention.value.weight.copy_(torch.eye(8))
        block.attention.project.weight.copy_(torch.eye(8))
        tagger.heads[0][1].weight[[0, 1], [0, 1]] = 1.0
        tagger.heads[1][1].weight[0, 0] = -1.0
    return tagger


def test_the_patch_that_carries_a_class_has_the_peak_of_its_map():
    features = torch.zeros(1, 128, 4, 4)
    features[0, 0, 0, 1] = 5.0  # class 0 is at row 0, column 1
    features[0, 1, 2, 3] = 5.0
    maps = relevance(planted(), features, [0, 1, 2])
    assert maps.shape == (3, 4, 4)
    assert [divmod(int(one.argmax()), 4) for one in maps[:2]] == [(0, 1), (2, 3)]
    assert (maps >= 0).all()
    assert maps[2, 0, 1] == 0  # what speaks against a class is not shown


def test_relevance_is_the_weight_times_the_derivative_of_the_logit():
    tagger = a_run("krt").method.tagger.double()
    features = torch.randn(1, 128, 4, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    weights, column, session = tagger.attention.weights(features), 4, 1

    def logit(given):
        return tagger.heads[session](tagger.attention.embed(features, given)[session])[0, column - SIZES[0]].item()

    expected, step = torch.zeros(16, dtype=torch.float64), 1e-5
    for head in range(4):
        for patch in range(16):
            above, below = weights.clone(), weights.clone()
            above[session, 0, head, patch] += step
            below[session, 0, head, patch] -= step
            slope = (logit(above) - logit(below)) / (2 * step)
            expected[patch] += max(0.0, slope * weights[session, 0, head, patch].item())
    assert expected.max() > 1e-4
    torch.testing.assert_close(relevance(tagger, features, [column])[0].flatten(), expected, rtol=1e-4, atol=1e-8)


def test_the_mean_of_a_class_activation_and_the_bias_are_the_logit():
    tagger = a_run("ft").method.tagger
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        features, logits = tagger.backbone(images), tagger(images).logits
    bias = torch.cat([head.bias for head in tagger.heads])
    maps = class_activation(tagger, features)
    assert maps.shape == (3, 7, 4, 4)
    torch.testing.assert_close(maps.mean(dim=(2, 3)) + bias, logits, rtol=1e-4, atol=1e-4)


def test_a_linear_head_shows_the_positive_part_of_its_activation():
    run = a_run("ft")
    explanation = explain(run, picture(), threshold=0.0, most=7)
    assert all((tag.map >= 0).all() for tag in explanation.tags)
    assert any((tag.map == 0).any() and tag.map.max() > 0 for tag in explanation.tags)
    assert explanation.attention.shape == (0, 4, 4)


def test_shares_are_the_sums_of_the_maps_and_the_means_over_heads(krt):
    explanation = explain(krt, picture())
    assert explanation.attention.shape == (3, 4, 4)
    assert explanation.by_head.shape == (3, 4)
    assert np.allclose(explanation.masses, [one.sum() for one in explanation.attention])
    assert np.allclose(explanation.masses, explanation.by_head.mean(axis=1))
    assert ((explanation.masses > 0) & (explanation.masses < 1)).all()


def test_tags_come_best_first_with_the_session_of_each(krt):
    tags = explain(krt, picture(), threshold=0.0, most=7).tags
    assert sorted(tag.name for tag in tags) == list(CLASSES)
    assert [tag.score for tag in tags] == sorted((tag.score for tag in tags), reverse=True)
    assert {tag.name: tag.session for tag in tags} == dict(zip(CLASSES, (1, 1, 1, 2, 2, 3, 3), strict=True))


def test_the_threshold_leaves_at_least_the_best_tag_and_most_limits_them(krt):
    every = explain(krt, picture(), threshold=0.0, most=7).tags
    between = (every[2].score + every[3].score) / 2
    assert [tag.name for tag in explain(krt, picture(), between, 7).tags] == [tag.name for tag in every[:3]]
    assert [tag.name for tag in explain(krt, picture(), 1.0, 7).tags] == [every[0].name]
    assert [tag.name for tag in explain(krt, picture(), 0.0, 2).tags] == [tag.name for tag in every[:2]]


def test_a_model_that_scores_otherwise_has_no_maps():
    class Another(Tagger):
        def forward(self, images):
            return super().forward(images.flip(3))

    run = a_run("ft")
    run.method.tagger = Another(Backbone("small_conv", 32))
    with pytest.raises(UserError, match=r"run run: method ft has no maps"):
        explain(run, picture())
    by_means = a_run("ft")
    by_means.method.means = torch.zeros(7, 128)
    with pytest.raises(UserError, match="by class means"):
        explain(by_means, picture())


def test_a_map_is_enlarged_to_the_picture_and_its_peak_is_the_middle_of_a_place():
    values = np.zeros((2, 4), np.float32)
    values[1, 2] = 1
    assert enlarged(values, (20, 80, 3)).shape == (20, 80)
    assert peak(values, (20, 80, 3)) == (50.0, 15.0)
    assert enlarged(values, (20, 80)).argmax() // 80 > 10


def explanation_of(names, sessions, shape=(24, 36, 3)):
    rng = np.random.default_rng(0)
    tags = [Tag(name, 0.93, 2, rng.random((3, 3), np.float32)) for name in names]
    attention = rng.random((sessions, 3, 3), np.float32) / 12
    return Explanation(picture(0, shape), tuple(tags), attention, rng.random((sessions, 4), np.float32))


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_a_drawing_has_a_panel_for_the_picture_each_tag_and_each_session(tmp_path):
    explanation = explanation_of(["cat", "dog"], 5)
    figure = draw(explanation, "photograph.jpg")
    assert len(figure.axes) == 1 + 2 + 5 + 1
    written = texts(figure)
    assert {"cat  0.93", "dog  0.93", "session 2", "session 5:"} <= set(written)
    assert f"{100 * explanation.attention[2].sum():.0f} % on patches" in written
    save_png(figure, tmp_path / "drawing.png", dpi=figure.dpi)
    with Image.open(tmp_path / "drawing.png") as image:
        assert image.width == 1200
        assert len(set(np.asarray(image.convert("L")).ravel().tolist())) > 50


@pytest.mark.parametrize(("tags", "sessions"), [(1, 0), (9, 0), (4, 1), (2, 12)])
def test_any_number_of_panels_fits(tags, sessions):
    figure = draw(explanation_of([f"class {n}" for n in range(tags)], sessions), "title")
    assert len(figure.axes) == 1 + tags + (sessions + 1 if sessions else 0)
    boxes = [axes.get_position() for axes in figure.axes]
    assert all(0 <= box.x0 < box.x1 <= 1 and 0 <= box.y0 < box.y1 <= 1 for box in boxes)
    assert not any(one.overlaps(other) for place, one in enumerate(boxes) for other in boxes[:place])


def test_names_in_any_script_and_a_map_of_nothing_can_be_drawn(tmp_path):
    explanation = explanation_of(["$5 & $6", "日本", "a class of a very very long name"], 1)
    blank = [tag._replace(map=np.zeros((3, 3), np.float32)) for tag in explanation.tags]
    figure = draw(Explanation(explanation.pixels, tuple(blank), explanation.attention, explanation.by_head), "日本")
    save_png(figure, tmp_path / "drawing.png", dpi=figure.dpi)
    assert "$5 & $6  0.93" in texts(figure)
    assert "a class of a very ver…  0.93" in texts(figure)


def test_files_are_drawn_under_names_of_their_own(krt_folder, tmp_path):
    images = [image_file(tmp_path / place / "cat.png", seed) for seed, place in enumerate(("a", "b"))]
    images.append(image_file(tmp_path / "tall.png", 3, (60, 30, 3)))
    out = tmp_path / "out" / "maps"
    written = explain_files(krt_folder, images, out, session=2, threshold=0.5, most=2)
    assert [file.name for file in written] == ["cat-explained.png", "cat-2-explained.png", "tall-explained.png"]
    assert sorted(out.iterdir()) == sorted(written)
    heights = [height_of(file) for file in written]
    assert heights[0] == heights[1] < heights[2]  # panels as tall as the image in its file


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
    plain, other = explain_files(krt_folder, [tmp_path / "plain.png", tmp_path / name], tmp_path / "out")
    assert height_of(other) == height_of(plain)


def test_the_largest_image_is_as_large_as_the_run_allows(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000_000)  # Pillow's own limit does not matter
    photo = tmp_path / "large.jpg"
    Image.new("L", (8000, 6500)).save(photo)
    (drawn,) = explain_files(stored("ft", tmp_path / "large", megapixels=100), [photo], tmp_path / "out")
    assert drawn.is_file()
    with pytest.raises(UserError, match=r"large\.jpg: 52\.0 megapixels, more than the limit of 50"):
        explain_files(stored("ft", tmp_path / "usual"), [photo], tmp_path / "out")


def test_an_image_is_never_overwritten(krt_folder, tmp_path):
    images = [image_file(tmp_path / name, 0) for name in ("cat.png", "cat-explained.png")]
    before = [image.read_bytes() for image in images]
    with pytest.raises(UserError, match="would be overwritten"):
        explain_files(krt_folder, images, tmp_path)
    assert [image.read_bytes() for image in images] == before
    assert explain_files(krt_folder, images[1:], tmp_path) == [tmp_path / "cat-explained-explained.png"]


def test_a_bad_image_is_named_before_anything_is_written(krt_folder, tmp_path):
    good, out = image_file(tmp_path / "good.png"), tmp_path / "out"
    with pytest.raises(UserError, match=r"missing\.png: missing"):
        explain_files(krt_folder, [good, tmp_path / "missing.png"], out)
    with pytest.raises(UserError, match="got session 9"):
        explain_files(krt_folder, [good], out, session=9)
    assert not out.exists()


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
    assert len(figure.axes) >= 1 + 1 + 3 + 1


def test_a_report_on_data_that_is_gone(tmp_path):
    with pytest.raises(UserError, match="/nowhere"):
        maps_for_report(stored("ft", tmp_path / "ft", data="coco:/nowhere"), 2)
