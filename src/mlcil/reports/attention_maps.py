"""Where a trained model looks: for each tag what in the picture speaks for it, for each session where it attends."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..core.errors import UserError
from ..core.files import write_atomically
from ..data.decoding import BadImage, decode, resized
from ..data.images import PRESENT, LabelledImages
from ..data.sources import load
from ..models.tagger import Tagger
from ..training.restore import TrainedRun, open_run, prepare_images, read_images

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

THRESHOLD, MOST = 0.8, 4  # tags shown: KRT's threshold, and one row of panels
WIDTH, GAP, EDGE = 1200, 12, 14  # pixels of a drawing
COLUMNS, MOST_COLUMNS = 5, 9  # panels in a row: of tags, and of sessions
_INK, _FAINT = "#1a1a1a", "#666666"
_HEAT = "inferno"
_STYLE: dict[Any, Any] = {"text.parse_math": False, "text.color": _INK, "font.size": 11}


class Tag(NamedTuple):
    """A tag that the model gives to a picture.

    Attributes:
        session: in which it was learned, from 1.
        map: float32 (h, w), at least 0: how much each place of the feature map speaks for the tag.
    """

    name: str
    score: float
    session: int
    map: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Explanation:
    """What a model says about a picture, and where in it.

    Attributes:
        pixels: uint8 (H, W, 3), the picture.
        tags: the best first.
        attention: float32 (t, h, w), share of each session's attention at each place, averaged over heads;
            (0, h, w) for a model without cross-attention.
        by_head: float32 (t, heads), share of the attention that falls on the picture and not on tokens.
    """

    pixels: NDArray[np.uint8]
    tags: tuple[Tag, ...]
    attention: NDArray[np.float32]
    by_head: NDArray[np.float32]

    @property
    def masses(self) -> NDArray[np.float32]:
        """(t,), share of each session's attention that falls on the picture."""
        shares: NDArray[np.float32] = self.attention.sum(axis=(1, 2))
        return shares


def class_activation(tagger: Tagger, features: Tensor) -> Tensor:
    """(B, C, h, w) -> (B, K, h, w); for linear heads its mean over places plus the bias is the logit."""
    weight = torch.cat([head.get_parameter("weight") for head in tagger.heads])  # (K, C)
    return torch.einsum("bchw,kc->bkhw", features, weight)


def relevance(tagger: Tagger, features: Tensor, columns: Sequence[int]) -> Tensor:
    """What speaks for some classes in an image: the weights of attention times the gradient of the class's logit.

    The positive part of the product, summed over heads (the idea of Chefer et al., ICCV 2021). The gradient
    takes the weights as given, so it asks what the value of a patch says, not what attracts the attention.

    Arguments:
        features: (1, C, h, w).
        columns: n classes.

    Returns:
        (n, h, w), at least 0.
    """
    attention = _attention(tagger)
    weights = attention.weights(features).detach().requires_grad_()  # (t, 1, heads, h * w + 1 or 2)
    with torch.enable_grad():
        embeddings = attention.embed(features, weights)
        logits = torch.cat([head(one) for head, one in zip(tagger.heads, embeddings, strict=True)], dim=1)[0]
        gradients = [torch.autograd.grad(logits[column], weights, retain_graph=True)[0] for column in columns]
    height, width = features.shape[-2:]
    # A logit depends on its own session's weights alone: the sum over sessions has one term.
    speaking = torch.stack([(one * weights.detach()).clamp(min=0).sum(dim=(0, 1, 2)) for one in gradients])
    return speaking[:, : height * width].reshape(-1, height, width)


def explain(run: TrainedRun, pixels: NDArray[np.uint8], threshold: float = THRESHOLD, most: int = MOST) -> Explanation:
    """Tag a picture and find what in it speaks for each tag.

    With cross-attention a tag's map is its `relevance`, with linear heads the positive part of its
    `class_activation`.

    Arguments:
        pixels: uint8 (H, W, 3), of any size.
        threshold: tags with at least this score are shown; the best one always is.
        most: at most so many tags.

    Raises:
        UserError: the model has no such maps, or a number is out of range.
    """
    check_has_maps(run)
    if not 0 <= threshold <= 1:
        raise UserError(f"threshold: got {threshold}, expected 0 to 1")
    if most < 1:
        raise UserError(f"number of tags to show: got {most}, expected at least 1")
    tagger, images = run.method.tagger, prepare_images(run, pixels[None])
    with torch.no_grad():
        scores = run.method.predict(images)[0].numpy()  # (K,)
        features = tagger.backbone(images)  # (1, C, h, w)
    order = np.argsort(-scores, kind="stable")[:most]
    shown = [int(column) for place, column in enumerate(order) if place == 0 or scores[column] >= threshold]
    maps = _maps(tagger, features, shown).numpy()
    tags = [
        Tag(run.classes[column], float(scores[column]), run.session_of(column), one)
        for column, one in zip(shown, maps, strict=True)
    ]
    return Explanation(pixels, tuple(tags), *_session_attention(tagger, features))


def check_has_maps(run: TrainedRun) -> None:
    """Refuse a run whose scores come neither from cross-attention nor from linear heads.

    Raises:
        UserError: naming the method.
    """
    tagger, method = run.method.tagger, run.config.settings.method
    if type(tagger).forward is not Tagger.forward:
        raise UserError(
            f"run {run.path}: method {method} has no maps, as its heads do not read the picture's feature map; "
            "expected cross-attention (krt) or linear heads on the pooled feature (ft and most others)"
        )
    if getattr(run.method, "means", None) is not None:
        raise UserError(f"run {run.path}: method {method} scored by class means and not by its heads, so has no maps")


def explain_files(
    run_path: Path,
    images: Sequence[Path],
    out: Path,
    session: int | None = None,
    threshold: float = THRESHOLD,
    most: int = MOST,
) -> list[Path]:
    """Draw the maps of image files, one PNG each.

    Arguments:
        run_path: the folder of the run.
        out: the folder to write to; a picture is called like its image.
        session: the session after which to take the model; None for the last.

    Returns:
        The files written, in the order of `images`.

    Raises:
        UserError: the run or an image cannot be read, in which case nothing is written.
    """
    run = open_run(run_path, session)
    check_has_maps(run)
    pixels = read_images(run, images)
    files = [out / f"{name}.png" for name in _unique([image.stem for image in images])]
    for image, picture, file in zip(images, pixels, files, strict=True):
        explanation = replace(explain(run, picture, threshold, most), pixels=_in_proportion(picture, image))
        save(draw(explanation, f"{image.name} after session {run.session}"), file)
    return files


def save(figure: Figure, file: Path) -> None:
    """Write a drawing as PNG, as wide as it was made for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")  # a class may be named in any script
        write_atomically(file, lambda partial: figure.savefig(partial, format="png"))


def pick_test_images(run: TrainedRun, count: int) -> list[tuple[str, NDArray[np.uint8], tuple[str, ...]]]:
    """A few test images of the run's own data, the same every time and whatever the model says about them.

    Images with two to four labels from several sessions come first, each with as many classes as possible that
    those before did not show.

    Returns:
        For each its path, its pixels uint8 (size, size, 3) and its true labels among the run's classes.

    Raises:
        UserError: the data cannot be read, or no test image shows a class of the run.
    """
    settings = run.config.settings
    test = load(settings.data, settings.images).test.with_classes(run.classes)
    present = test.labels == PRESENT  # (N, K)
    sessions = np.array([run.session_of(column) for column in range(len(run.classes))])
    chosen: list[tuple[str, NDArray[np.uint8], tuple[str, ...]]] = []
    for row in _by_variety(present, sessions):
        try:
            picture = _pixels(test, row, settings.image_size)
        except BadImage:
            continue  # the run may have gone on without it as well
        chosen.append((test.paths[row], picture, tuple(run.classes[column] for column in np.flatnonzero(present[row]))))
        if len(chosen) == count:
            return chosen
    if not chosen:
        raise UserError(f"run {run.path}: no test image of {settings.data} can be read and shows a class of the run")
    return chosen


def maps_for_report(run_path: Path, count: int) -> list[tuple[str, Figure]]:
    """Drawings of a few test images of a run, each with a caption.

    Raises:
        UserError: the run has no maps, or its data cannot be read.
    """
    run = open_run(run_path)
    check_has_maps(run)
    drawings = []
    for path, pixels, labels in pick_test_images(run, count):
        name = Path(path).name
        caption = f"{name} after session {run.session}; truly there: {', '.join(labels)}"
        drawings.append((caption, draw(explain(run, pixels), name)))
    return drawings


def draw(explanation: Explanation, title: str) -> Figure:
    """The picture, a panel per tag, and below them the attention of each session.

    Every tag has a scale of its own; the sessions share one.
    """
    from matplotlib import rc_context
    from matplotlib.style import context

    with context("default"), rc_context(_STYLE):  # not the user's own matplotlib style
        rows = [_Row(COLUMNS, panels) for panels in _chunks(_tag_panels(explanation), COLUMNS)]
        if len(explanation.attention):
            columns = min(max(len(explanation.attention) + 1, COLUMNS), MOST_COLUMNS)
            rows += [_Row(columns, panels) for panels in _chunks(_session_panels(explanation), columns)]
        shape = explanation.pixels.shape
        return _compose(rows, shape[0] / shape[1], title, _legend(len(explanation.attention) > 0))


Panel = Callable[["Axes"], None]


class _Row(NamedTuple):
    """Panels side by side, as wide as if there were `columns` of them."""

    columns: int
    panels: list[Panel]


def _compose(rows: Sequence[_Row], aspect: float, title: str, legend: str) -> Figure:
    from matplotlib.figure import Figure

    head, below, words = 32, 54, 46  # pixels: for the title, the legend, and above each panel
    sides = [(WIDTH - 2 * EDGE - GAP * (row.columns - 1)) / row.columns for row in rows]
    height = head + below + sum(side * aspect + words for side in sides) + GAP * (len(rows) - 1)
    figure = Figure(figsize=(WIDTH / 100, height / 100), dpi=100, facecolor="white")
    figure.text(EDGE / WIDTH, 1 - 10 / height, title, va="top", size=12)
    top = float(head)
    for row, side in zip(rows, sides, strict=True):
        top += words
        for place, panel in enumerate(row.panels):
            left = EDGE + place * (side + GAP)
            box = (left / WIDTH, 1 - (top + side * aspect) / height, side / WIDTH, side * aspect / height)
            panel(figure.add_axes(box))
        top += side * aspect + GAP
    figure.text(EDGE / WIDTH, 10 / height, legend, va="bottom", size=8.5, color=_FAINT, linespacing=1.4)
    return figure


def _tag_panels(explanation: Explanation) -> list[Panel]:
    def picture(axes: Axes) -> None:
        height, width = explanation.tags[0].map.shape
        _frame(axes, explanation.pixels, "the picture", f"maps of {height} x {width} places")

    def tag_panel(tag: Tag) -> Panel:
        overlay = _overlay(explanation.pixels, tag.map, float(tag.map.max()))

        def panel(axes: Axes) -> None:
            _frame(axes, overlay, f"{_cut(tag.name)}  {tag.score:.2f}", f"session {tag.session}")
            if tag.map.max() > 0:
                x, y = peak(tag.map, explanation.pixels.shape)
                axes.plot(x - 0.5, y - 0.5, marker="+", color="white", markersize=9, markeredgewidth=1.6)

        return panel

    return [picture, *(tag_panel(tag) for tag in explanation.tags)]


def _session_panels(explanation: Explanation) -> list[Panel]:
    most = float(explanation.attention.max())

    def session_panel(place: int) -> Panel:
        overlay = _overlay(explanation.pixels, explanation.attention[place], most)
        share = f"{100 * explanation.masses[place]:.0f} % on patches"
        return lambda axes: _frame(axes, overlay, f"session {place + 1}:", share, small=True)

    def heads(axes: Axes) -> None:
        axes.pcolormesh(explanation.by_head, cmap="cividis", vmin=0, vmax=1, edgecolors="white", linewidth=1)
        axes.invert_yaxis()
        _name_panel(axes, "sessions by heads", "0 dark, 1 yellow", small=True)
        for place, row in enumerate(explanation.by_head):
            ink = "#000000" if row[0] > 0.5 else "#ffffff"
            axes.text(0.5, place + 0.5, str(place + 1), ha="center", va="center_baseline", size=8, color=ink)
        axes.set_axis_off()

    return [*(session_panel(place) for place in range(len(explanation.attention))), heads]


def _frame(axes: Axes, image: NDArray[Any], first: str, second: str, small: bool = False) -> None:
    axes.imshow(image, aspect="auto", interpolation="bilinear")
    axes.set_axis_off()
    _name_panel(axes, first, second, small)


def _name_panel(axes: Axes, first: str, second: str, small: bool) -> None:
    size, line = (9.0, 12) if small else (11.0, 15)  # points
    for text, above, colour in ((first, 4 + line, _INK), (second, 4, _FAINT)):
        axes.annotate(text, (0, 1), (0, above), "axes fraction", textcoords="offset points", size=size, color=colour)


def _legend(has_attention: bool) -> str:
    if not has_attention:
        return "Tags: class activation, positive part; each on a scale of its own, + marks its peak."
    return (
        "Tags: attention times gradient of the tag's logit, positive part; "
        "each on a scale of its own, + marks its peak.\n"
        "Sessions: share of the attention that each place gets, mean over heads, all on one scale; "
        "the rest goes to tokens. Squares: the same by head."
    )


def _overlay(pixels: NDArray[np.uint8], values: NDArray[np.float32], most: float) -> NDArray[Any]:
    """The greyed picture under the enlarged map, float (H, W, 3); `most` gets the strongest colour."""
    from matplotlib import colormaps

    large = enlarged(values, pixels.shape)
    share = (large / most if most > 0 else large)[..., None]  # (H, W, 1)
    grey = (pixels @ np.array([0.299, 0.587, 0.114]) / 255)[..., None]
    colour = colormaps[_HEAT](0.15 + 0.8 * share[..., 0])[..., :3]
    covering = 0.8 * share.clip(0, 1) ** 0.7  # what is worth little hides little
    result: NDArray[Any] = ((1 - covering) * grey + covering * colour).clip(0, 1)
    return result


def enlarged(values: NDArray[np.float32], shape: Sequence[int]) -> NDArray[np.float32]:
    """A map (h, w) enlarged bilinearly to the first two sides of a picture's shape, (H, W)."""
    large = F.interpolate(
        torch.from_numpy(values)[None, None], (shape[0], shape[1]), mode="bilinear", align_corners=False
    )
    return large[0, 0].numpy()


def peak(values: NDArray[np.float32], shape: Sequence[int]) -> tuple[float, float]:
    """Where a map (h, w) is largest, as x and y in pixels of a picture (H, W, ...): the middle of that place."""
    row, column = np.unravel_index(int(values.argmax()), values.shape)
    height, width = values.shape
    return (float(column) + 0.5) * shape[1] / width, (float(row) + 0.5) * shape[0] / height


def _maps(tagger: Tagger, features: Tensor, columns: Sequence[int]) -> Tensor:
    if tagger.attention is not None:
        return relevance(tagger, features, columns)
    return class_activation(tagger, features)[0, list(columns)].clamp(min=0)


@torch.no_grad()
def _session_attention(tagger: Tagger, features: Tensor) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(t, h, w) and (t, heads) of one image; see `Explanation`."""
    height, width = features.shape[-2:]
    if tagger.attention is None:
        return np.zeros((0, height, width), np.float32), np.zeros((0, 0), np.float32)
    weights = tagger.attention.weights(features)[:, 0, :, : height * width]  # (t, heads, h * w)
    return weights.mean(1).reshape(-1, height, width).numpy(), weights.sum(2).numpy()


def _attention(tagger: Tagger) -> Any:
    if tagger.attention is None:
        raise ValueError("Got a tagger with linear heads, expected one with cross-attention")
    return tagger.attention


def _in_proportion(square: NDArray[np.uint8], file: Path) -> NDArray[np.uint8]:
    """The squashed picture (size, size, 3) stretched to the shape that it has in its file, but for extreme ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the file was decoded before, so whatever is odd about it did no harm
        with Image.open(file) as image:
            aspect = min(max(image.height / image.width, 0.5), 1.5)
    size = len(square)
    shape = (size, round(size * aspect)) if aspect < 1 else (round(size / aspect), size)  # width, height
    return np.asarray(Image.fromarray(square).resize(shape, Image.Resampling.BICUBIC))


def _by_variety(present: NDArray[np.bool_], sessions: NDArray[np.int64]) -> Iterator[int]:
    """Rows of `present` (N, K), the most varied first, each chosen in view of the ones before."""
    labels = present.sum(axis=1)
    spread = np.array([len(set(sessions[row])) for row in present])  # (N,) sessions that an image shows
    rank = 100 * ((labels >= 2) & (labels <= 4)) + 100 * np.minimum(spread, 2)
    left, shown = np.flatnonzero(labels), np.zeros(present.shape[1], bool)
    while len(left):
        fresh = (present[left] & ~shown).sum(axis=1).clip(max=4)
        best = int(left[np.argmax(rank[left] + fresh)])  # of equal ones the first
        yield best
        shown |= present[best]
        left = left[left != best]


def _pixels(images: LabelledImages, row: int, size: int) -> NDArray[np.uint8]:
    if images.pixels is not None:
        return resized(Image.fromarray(images.pixels[row]), size)
    return decode(images.paths[row], size)


def _unique(names: Sequence[str]) -> list[str]:
    taken: list[str] = []
    for name in names:
        number, free = 1, name
        while free in taken:
            number += 1
            free = f"{name}-{number}"
        taken.append(free)
    return taken


def _chunks(panels: list[Panel], size: int) -> list[list[Panel]]:
    return [panels[start : start + size] for start in range(0, len(panels), size)]


def _cut(name: str, width: int = 22) -> str:
    return name if len(name) <= width else name[: width - 1] + "…"
