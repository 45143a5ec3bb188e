"""Where in a photo a map of evidence points: a smooth version of the map, the outline of its main part, and a box."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

FINE = 120  # side of the smooth map
OUTLINE = 0.6  # part of the highest evidence at which the outline runs

Point = tuple[float, float]  # x, y
Box = tuple[float, float, float, float]  # left, top, right, bottom


class Place(NamedTuple):
    """The place of a tag. Coordinates are parts of the photo's width and height, 0 at its left and upper edge.

    Attributes:
        evidence: float32 (FINE, FINE), the smooth map from 0 to 1, the highest value.
        region: bool (FINE, FINE), the largest connected part in which the evidence is above `OUTLINE`, without holes.
        box: the smallest box around the region.
        peak: the middle of the cell of the region in which the evidence is highest.
    """

    evidence: NDArray[np.float32]
    region: NDArray[np.bool_]
    box: Box
    peak: Point


def place_of(values: NDArray[np.float32]) -> Place | None:
    """The place to which a map (h, w) of at least 0 points; None if it is 0 everywhere."""
    smooth = enlarged(values, FINE)
    if smooth.max() <= 0:
        return None
    evidence = smooth / smooth.max()
    parts, _ = ndimage.label(evidence > OUTLINE)  # 0 where it is not
    region = ndimage.binary_fill_holes(parts == np.bincount(parts[parts > 0]).argmax())
    rows, columns = np.flatnonzero(region.any(axis=1)), np.flatnonzero(region.any(axis=0))
    box = (columns[0] / FINE, rows[0] / FINE, (columns[-1] + 1) / FINE, (rows[-1] + 1) / FINE)
    row, column = divmod(int(np.where(region, evidence, 0).argmax()), FINE)
    return Place(evidence, region, box, ((column + 0.5) / FINE, (row + 0.5) / FINE))


def enlarged(values: NDArray[np.float32], side: int) -> NDArray[np.float32]:
    """A map (h, w) of at least 0, enlarged bicubically to (side, side)."""
    # Pillow's cubic keeps a slope even. That of PyTorch makes waves, which show in an outline.
    height, width = values.shape
    padded = Image.fromarray(np.pad(values, 2, mode="edge"))  # so that no slope goes on beyond the outermost cells
    box = (2, 2, 2 + width, 2 + height)
    large = np.asarray(padded.resize((side, side), Image.Resampling.BICUBIC, box))
    return large.clip(min=0)  # a cubic curve dips below 0 beside a peak
