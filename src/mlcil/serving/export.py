"""A trained model as an ONNX file that answers like the tagger, and a script that uses it without this package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from .. import __version__
from ..core.errors import UserError
from ..core.files import write_atomically, write_text
from ..data.decoding import resized
from ..evaluation.calibration import DEFAULT_THRESHOLD
from ..evaluation.metrics import Array, Floats
from ..models.runtime import quiet
from .tagger import Tagger

SCRIPT = Path(__file__).with_name("predict_onnx.py")  # is copied beside every exported model
TOLERANCE = 1e-4  # the largest difference of a probability from the tagger's
CHECKED = 4  # images of the check
BLOBS = 8  # colours along a side of an image of the check


class ExportReport(NamedTuple):
    """What was written.

    Attributes:
        path: the model.
        script: the script beside it that tags photographs with it.
        size: of the model, in bytes.
        difference: the largest difference of a probability from the tagger's that the check found.
    """

    path: Path
    script: Path
    size: int
    difference: float


class ExportedTagger(nn.Module):
    """From pixels to calibrated probabilities: all that an exported model computes."""

    mean: Tensor  # (3, 1, 1)
    std: Tensor  # (3, 1, 1)
    temperatures: Tensor  # (K,)
    shifts: Tensor  # (K,)

    def __init__(self, run: Tagger) -> None:
        super().__init__()
        self._method, self.tagger = run.method, run.method.tagger
        backbone, self._is_calibrated = self.tagger.backbone, run.calibration is not None
        self.register_buffer("mean", torch.tensor(backbone.mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(backbone.std).view(3, 1, 1))
        if run.calibration is not None:
            for name in ("temperatures", "shifts"):
                self.register_buffer(name, torch.tensor(getattr(run.calibration, name), dtype=torch.float32))

    def forward(self, images: Tensor) -> Tensor:
        """Uint8 (B, H, W, 3) in RGB -> float32 (B, K)."""
        scaled = images.permute(0, 3, 1, 2).to(torch.float32) / 255  # (B, 3, H, W)
        scores = self._method.predict(self.tagger.backbone.torch_stem((scaled - self.mean) / self.std))
        if not self._is_calibrated:
            return scores
        scores = scores.clamp(0, 1)
        # 1 - score is exact where it is small, so float32 is enough, and every runtime has it.
        logits = torch.log(scores) - torch.log(1 - scores)
        return torch.sigmoid(logits / self.temperatures + self.shifts)


def export_onnx(run: Tagger, file: Path) -> ExportReport:
    """Write a trained model as ONNX, and beside it a script that tags photographs with it.

    The model takes `images`, uint8 (batch, size, size, 3) in RGB, and gives `probabilities`, float32 (batch, K). The
    labels, the thresholds on these probabilities and how to prepare an image are in its metadata. It is kept only if
    onnxruntime gives the tagger's probabilities for some images.

    Arguments:
        run: the trained model.
        file: where to write it, such as model.onnx; the script is predict_onnx.py in the same folder.

    Raises:
        UserError: a package is missing, the model cannot be exported or answers differently, or the file cannot be
            written. Whatever stood at `file` is untouched.
    """
    _check_extra()
    program = _program(run)
    program.model.metadata_props.update(metadata(run))
    found: list[float] = []  # the difference

    def write(partial: Path) -> None:
        program.save(partial, external_data=False)
        found.append(_checked_difference(run, partial))

    write_atomically(file, write)
    script = file.with_name(SCRIPT.name)
    write_text(script, SCRIPT.read_text(encoding="utf-8"))
    return ExportReport(file, script, file.stat().st_size, found[0])


def metadata(run: Tagger) -> dict[str, str]:
    """What an exported model says about itself; all but the version and the method are JSON."""
    thresholds = run.thresholds if run.thresholds is not None else np.full(len(run.classes), DEFAULT_THRESHOLD)
    preprocessing = {
        "size": run.config.settings.image_size,
        "stretch": True,
        "filter": "bilinear",
        "colours": "RGB",
        "transparent": "on white",
        "exif_orientation": "applied",
    }
    return {
        "labels": json.dumps(list(run.classes)),
        "thresholds": json.dumps(_probabilities(run, thresholds[None])[0].tolist()),
        "preprocessing": json.dumps(preprocessing),
        "mlcil_version": __version__,
        "method": run.config.settings.method,
    }


def _check_extra() -> None:
    try:
        import onnxscript  # noqa: F401
    except ImportError:
        raise UserError("exporting to ONNX needs onnxscript: pip install 'mlcil[onnx]'") from None


def _probabilities(run: Tagger, scores: Array) -> Floats:
    """(N, K) scores of the method on the scale of the output."""
    return np.asarray(scores, np.float64) if run.calibration is None else run.calibration.probabilities(scores)


def _program(run: Tagger) -> Any:
    """The model as an ONNX program.

    Raises:
        UserError: it does something that cannot be exported.
    """
    size = run.config.settings.image_size
    example = torch.zeros(2, size, size, 3, dtype=torch.uint8)  # of a single image, the batch would become a constant
    try:
        with torch.no_grad(), quiet():
            # Strict, because otherwise `len(images)` anywhere in a model or method makes the batch a constant.
            graph = torch.export.export(
                ExportedTagger(run).eval(),
                (example,),
                dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
                strict=True,
            )
            names: dict[str, Any] = {"input_names": ["images"], "output_names": ["probabilities"]}
            program: Any = torch.onnx.export(graph, dynamo=True, external_data=False, verbose=False, **names)
    except Exception as error:  # code that the exporter cannot follow raises almost anything
        raise UserError(
            f"method {run.config.settings.method} on backbone {run.config.settings.backbone} cannot be exported to "
            f"ONNX: {_reason(error)}"
        ) from error
    _forget_origin(program.model)
    return program


def _reason(error: BaseException) -> str:
    """The first line of what went wrong at the root."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _forget_origin(model: Any) -> None:
    """Remove the source lines, with the paths of this machine, that the exporter notes at every node."""
    for graph in (model.graph, *model.functions.values()):
        graph.metadata_props.clear()
        for node in graph:
            for one in (node, *node.outputs):
                one.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()


def _checked_difference(run: Tagger, file: Path) -> float:
    """The largest difference between an exported model and the tagger, on some images in batches of several sizes.

    Raises:
        UserError: it is larger than `TOLERANCE`, or onnxruntime cannot use the model.
    """
    pixels = _random_images(run.config.settings.image_size)
    with torch.inference_mode():
        expected = _probabilities(run, run.method.predict(run.prepare(pixels)).numpy())
    batches = (slice(None), slice(0, 1), slice(1, None))
    difference = max(float(np.abs(_answer(file, pixels[one]) - expected[one]).max()) for one in batches)
    if not difference <= TOLERANCE:  # also if it is NaN
        raise UserError(
            f"the exported model differs from the tagger by up to {difference:.2g}, more than {TOLERANCE:g} "
            f"(method {run.config.settings.method}, backbone {run.config.settings.backbone}), so it was not kept"
        )
    return difference


def _random_images(size: int) -> NDArray[np.uint8]:
    """Blobs of random colours, uint8 (CHECKED, size, size, 3): noise would look the same to a network every time."""
    small = np.random.default_rng(0).integers(0, 256, (CHECKED, BLOBS, BLOBS, 3), np.uint8)
    return np.stack([resized(Image.fromarray(one), size) for one in small])


def _answer(file: Path, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    try:
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        (probabilities,) = session.run(["probabilities"], {"images": pixels})
    except Exception as error:  # its errors have no base of their own
        raise UserError(f"onnxruntime cannot use the exported model: {_reason(error)}") from error
    return np.asarray(probabilities, np.float32)
