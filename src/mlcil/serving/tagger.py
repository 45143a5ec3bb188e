"""The tagger: a trained model with its labels, ready to tag photos, to learn more and to be kept in a folder."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..core.errors import UserError, unknown_name
from ..core.words import counted, listed
from ..data.augmentation import normalise
from ..data.decoding import decode, decode_to_fit, resized, upright_rgb
from ..data.pixels import MemoryPixels
from ..evaluation.calibration import DEFAULT_THRESHOLD, Calibration, stored_thresholds
from ..evaluation.metrics import Floats
from ..methods.analytic import Analytic
from ..methods.base import Method
from ..training.config import RunConfig
from .pictures import Picture, as_list, picture_of
from .predictions import Prediction, Tag
from .records import LabelFacts, Step

if TYPE_CHECKING:
    from rich.console import Console

    from .evaluating import Evaluation
    from .explanation import Explanation
    from .learn_report import LearnReport


PHOTO_SIDE = 1000  # pixels of the longer side of a photo that is explained


@dataclass(eq=False)
class Tagger:
    """A trained model with its labels.

        tagger = mlcil.Tagger.load("cats")
        tagger.predict(["a.jpg", "b.jpg"])
        tagger.learn("more.csv")
        tagger.evaluate("known.csv")
        tagger.explain("a.jpg")
        tagger.save("cats-2")

    Attributes:
        config: the settings and options of its method.
        method: the trained method, in evaluation mode and on the CPU.
        labels: what is known about each of the K labels, in the order of the scores' columns.
        steps: what it has learned when.
        calibration: of the K labels, if images were held out for it.
        chosen: thresholds that a person has chosen, by label; they stay whatever is learned.
        weights: where the backbone's pretrained weights came from, in words.
        path: the folder or URL that it came from, None for one that was never saved.
        slim: whether it was saved without what further learning needs.
    """

    config: RunConfig
    method: Method
    labels: tuple[LabelFacts, ...]
    steps: tuple[Step, ...] = ()
    calibration: Calibration | None = None
    chosen: dict[str, float] | None = None
    weights: str = ""
    path: Path | str | None = None
    slim: bool = False

    @staticmethod
    def load(path: str | Path, session: int | None = None) -> Tagger:
        """Load a tagger from its folder, or the model of a run from the folder of the run.

        Arguments:
            path: the folder; of a tagger also its URL, from which it is fetched.
            session: of a run, take the model after this session, counted from 1; None for the last one.

        Raises:
            UserError: the folder holds neither, or a file is damaged.
        """
        from .loading import load

        return load(path, session)

    @staticmethod
    def start(data: str, *, console: Console | None = None, **options: Any) -> Tagger:
        """A new tagger that has learned the labels of a table; arguments as for `learn`.

        Raises:
            UserError: the data cannot be read, or there is nothing in it to learn.
        """
        from .learning import LearnOptions, learn

        return learn(None, data, LearnOptions(**options), console or _notebook())[0]

    def save(self, path: str | Path, *, slim: bool = False) -> Path:
        """Write the tagger into a new folder, whole or not at all.

        Arguments:
            slim: leave out what only further learning needs.

        Returns:
            The folder.

        Raises:
            UserError: something is there already, or it cannot be written.
        """
        from .tagger_files import save

        return save(self, Path(path), slim)

    def learn(self, data: str | Path, *, console: Console | None = None, **options: Any) -> LearnReport:
        """Learn the labels of a table, new ones or known ones, without forgetting the others.

        Every row of the table was looked at for the labels of that table: a row without one of them is its negative.
        If anything fails, the tagger stays as it was.

        Arguments:
            data: the table, or any data set that `mlcil datasets` lists.
            console: where to print progress; None prints in a notebook, and nowhere else.
            options: see `mlcil.serving.learning.LearnOptions`.

        Returns:
            What was learned, and how well.

        Raises:
            UserError: the data cannot be read, or there is nothing in it to learn.
        """
        from .learning import LearnOptions, learn

        learned, report = learn(self, str(data), LearnOptions(**options), console or _notebook())
        vars(self).update(vars(learned))
        return report

    def evaluate(self, data: str | Path, images: str | None = None) -> Evaluation:
        """How well the tagger gives the labels of a table that it knows; see `mlcil.serving.evaluating.evaluate`."""
        from .evaluating import evaluate

        return evaluate(self, str(data), images)

    def forget(self, labels: Sequence[str] = (), *, steps: Sequence[int] = ()) -> None:
        """Forget labels, or take steps back, as if they had never been; see `mlcil.serving.changing`.

        Raises:
            UserError: there is no such label or step, or the method cannot forget exactly.
        """
        from .changing import forget_labels, forget_step

        changed = self
        for number in steps:
            changed = forget_step(changed, number)
        vars(self).update(vars(forget_labels(changed, labels) if labels else changed))

    def rename(self, names: Mapping[str, str]) -> None:
        """Give labels other names, by their old ones.

        Raises:
            UserError: there is no such label, or two would have the same name.
        """
        from .changing import rename

        vars(self).update(vars(rename(self, names)))

    def merge(self, other: Tagger) -> None:
        """Take in all that another tagger has learned, exactly as if this one had learned it.

        Raises:
            UserError: the features differ, or both have seen some photos in a way that sums cannot tell apart.
        """
        from .changing import merge

        vars(self).update(vars(merge(self, other)))

    def explain(self, image: Picture, *, threshold: float | None = None, most: int = 10) -> Explanation:
        """The tags of a picture, and where in it the evidence for each lies.

        Arguments:
            image: as for `predict`.
            threshold: the lowest score of a tag; None for the thresholds of the tagger.
            most: maximum number of tags.

        Raises:
            UserError: the picture cannot be read, or the method's scores do not belong to places.
        """
        from .explanation import explain

        if isinstance(image, str | Path):
            photo = np.asarray(decode_to_fit(str(image), PHOTO_SIDE, self.config.settings.megapixels))
        else:
            photo = np.asarray(upright_rgb(image if isinstance(image, Image.Image) else picture_of(image)))
        return explain(self, self.square(image), threshold, most, photo)

    def predict(
        self,
        images: Picture | Sequence[Picture],
        *,
        top: int | None = None,
        threshold: float | None = None,
        precision: float | None = None,
    ) -> list[Prediction]:
        """Tag images.

        Arguments:
            images: one image or several, each a file, a PIL image of any mode, or an array (H, W), (H, W, 3) or
                (H, W, 4) of bytes, bools or numbers from 0 to 1; also one array (N, H, W, 3).
            top: give this many labels, whether they reach their threshold or not.
            threshold, precision: see `thresholds_for`.

        Returns:
            One prediction per image.

        Raises:
            UserError: a file cannot be read, or an array is not an image.
        """
        listed_images = as_list(images)
        names = [
            str(one) if isinstance(one, str | Path) else f"image {place}" for place, one in enumerate(listed_images)
        ]
        thresholds = self.thresholds_for(threshold, precision)
        scores = self.scores(listed_images)
        return [self.prediction(*pair, thresholds, top) for pair in zip(names, scores, strict=True)]

    def prediction(self, name: str, scores: NDArray[np.float32], thresholds: Floats, top: int | None) -> Prediction:
        """The tags of one image with the scores (K,): those above the thresholds (K,), or the `top` ones."""
        probabilities = self.probabilities(scores[None])[0]
        order = np.argsort(-probabilities, kind="stable")
        shown = [k for k in order if scores[k] > thresholds[k]] if top is None else order[:top]
        made = (Tag(self.classes[k], float(scores[k]), float(probabilities[k]), float(thresholds[k])) for k in shown)
        return Prediction(name, tuple(made))

    @torch.inference_mode()
    def scores(self, images: Picture | Sequence[Picture]) -> NDArray[np.float32]:
        """Score images, given as for `predict`, for all labels: float32 (N, K) in 0..1, in the order of `classes`."""
        given, size = as_list(images), self.config.settings.batch_size
        parts = [given[start : start + size] for start in range(0, len(given), size)]
        scores = [self.score_pixels(np.stack([self.square(one) for one in part])) for part in parts]
        return np.concatenate([np.empty((0, len(self.classes)), np.float32), *scores])

    @torch.inference_mode()
    def score_pixels(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Score pixels uint8 (N, H, W, 3), as few as fit into one batch, float32 (N, K)."""
        found: NDArray[np.float32] = self.method.predict(self.prepare(pixels)).numpy()
        return found

    def probabilities(self, scores: NDArray[np.float32]) -> Floats:
        """Calibrated probabilities of scores (N, K), float64 (N, K)."""
        return np.asarray(scores, np.float64) if self.calibration is None else self.calibration.probabilities(scores)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the K labels, in the order of the scores' columns."""
        return tuple(label.name for label in self.labels)

    @property
    def size(self) -> int:
        """The side of the square that images are resized to, in pixels."""
        return self.config.settings.image_size

    @property
    def session(self) -> int:
        """The number of the last step."""
        return self.steps[-1].number if self.steps else 0

    @property
    def thresholds(self) -> Floats:
        """(K,) scores above which a label counts as present."""
        stored = stored_thresholds(self.method.thresholds(), self.calibration)
        found = np.full(len(self.classes), DEFAULT_THRESHOLD) if stored is None else stored.copy()
        for name, value in (self.chosen or {}).items():
            found[self.column(name)] = value
        return found

    def thresholds_for(self, threshold: float | None = None, precision: float | None = None) -> Floats:
        """(K,) one threshold for all labels, those for a wanted precision, or the tagger's own.

        Arguments:
            threshold: on the score, 0 to 1.
            precision: the part of the tags that is to be right, 0 to 1.

        Raises:
            UserError: both are given, or the tagger cannot tell how precise its scores are.
        """
        if threshold is not None and precision is not None:
            raise UserError("got both a threshold and a precision, expected one of them")
        for name, value in (("threshold", threshold), ("precision", precision)):
            if value is not None and not 0 <= value <= 1:
                raise UserError(f"got {value} for {name}, expected 0 to 1")
        if threshold is not None:
            return np.full(len(self.classes), float(threshold))
        if precision is None:
            return self.thresholds
        if isinstance(self.method, Analytic):
            return self.method.probabilities(self.method.scores.thresholds_for(precision))
        if self.calibration is None:
            raise UserError(
                f"this tagger ({self.config.settings.method}) cannot say how precise its scores are: it was trained "
                "without --set validation=0.1; give a threshold instead"
            )
        return self.calibration.thresholds_for(precision)

    def column(self, name: str) -> int:
        """The column of a label.

        Raises:
            UserError: there is no such label.
        """
        if name not in self.classes:
            raise unknown_name("label", name, self.classes)
        return self.classes.index(name)

    def session_of(self, column: int) -> int:
        """The step in which the label of this column was learned."""
        return self.labels[column].step or 1

    @property
    def earlier_labels(self) -> tuple[LabelFacts, ...]:
        """`labels` of a tagger that is about to change: their figures are then of an earlier one."""
        return tuple(one.before_change(value) for one, value in zip(self.labels, self.thresholds, strict=True))

    def count_seen(self, fingerprints: NDArray[np.int64] | None) -> int:
        """How many photos with these fingerprints the tagger has learned from, as far as it remembers."""
        if not isinstance(self.method, Analytic) or self.slim or fingerprints is None:
            return 0
        return int((self.method.ledger.find(fingerprints) >= 0).sum())

    def with_label_facts(self, facts: Sequence[LabelFacts]) -> Tagger:
        """The same with other facts about labels of these names."""
        changed = {one.name: one for one in facts}
        return replace(self, labels=tuple(changed.get(one.name, one) for one in self.labels))

    def prepare(self, pixels: NDArray[np.uint8]) -> Tensor:
        """Turn pixels uint8 (N, H, W, 3) into the model's input."""
        squares = MemoryPixels(pixels, self.size)[np.arange(len(pixels))]
        images = torch.from_numpy(squares).permute(0, 3, 1, 2).contiguous()
        backbone = self.method.tagger.backbone
        return backbone.stem(normalise(images, backbone.mean, backbone.std))

    def square(self, image: Picture) -> NDArray[np.uint8]:
        """One image resized as for training, uint8 (size, size, 3).

        Raises:
            UserError: it cannot be read, or is not an image.
        """
        if isinstance(image, str | Path):
            return decode(str(image), self.size, self.config.settings.megapixels)
        picture = image if isinstance(image, Image.Image) else picture_of(image)
        return resized(upright_rgb(picture), self.size)

    def __repr__(self) -> str:
        settings = self.config.settings
        labels = f"{counted(len(self.labels), 'label')} ({listed(self.classes, 5)})"
        learned = f"learned in {counted(len(self.steps), 'step')}"
        return f"Tagger of {labels}: {settings.method} on {settings.backbone}, {learned}, from {self.path or 'memory'}"


def _notebook() -> Console | None:
    """Where to print in a notebook; None elsewhere."""
    if "ipykernel" not in sys.modules:
        return None
    from rich.console import Console

    return Console()


def read_images(tagger: Tagger, paths: Sequence[Path]) -> NDArray[np.uint8]:
    """Decode image files and resize them as for training, uint8 (N, size, size, 3)."""
    return np.stack([tagger.square(path) for path in paths])
