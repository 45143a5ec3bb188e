"""One label's column of the weights, solved for again after every mark.

The sums of a tagger make one linear system for all labels. It is factored once; a mark then costs a product. The result
is exactly that of learning the marks as a table: marked photos join the sums with this label, and with other labels as
the tagger scores them, which leaves the columns of the others as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..models.ridge import factored
from ..models.sums import Sums

Floats = NDArray[np.float64]


class Marks(NamedTuple):
    """What was said about m photos for one label."""

    features: Floats  # (m, d)
    present: Floats  # (m,) 1 where the photo shows the label, else 0
    before: Floats  # (m,) what counts in the sums for this label so far, 0 for a photo that is not in them
    is_in_sums: NDArray[np.bool_]  # (m,)


class Column(NamedTuple):
    """A label that was solved for."""

    weights: Floats  # (d,)
    left_out: Floats  # (m,) the score of each marked photo by all photos but itself


@dataclass(frozen=True)
class System:
    """The linear system of a tagger's sums.

    Attributes:
        factor: (d, d) float64, lower triangular; see `models.ridge.factored`.
    """

    factor: Tensor

    @classmethod
    def of(cls, sums: Sums, ridge: float) -> System:
        """Factor the system at one strength of regularisation."""
        return cls(factored(sums, ridge))

    def directions(self, features: Floats) -> Floats:
        """(m, d) -> (d, m), where the weights move if one of these photos shows more of a label."""
        found: Floats = torch.cholesky_solve(torch.from_numpy(features.T.copy()), self.factor).numpy()
        return found


def solve_column(start: Floats, marks: Marks, directions: Floats) -> Column:
    """Solve for a label with marks.

    With P the inverse of the system and Z the features of photos that are not in the sums yet, the system with them is
    P - P Z' (1 + Z P Z')^-1 Z P (Woodbury), so nothing larger than the number of marks is solved for here.

    Arguments:
        start: (d,) the weights without the marks; zeros for a label that is new.
        directions: (d, m), P times the features of the marked photos; see `System.directions`.
    """
    known, new = marks.is_in_sums, ~marks.is_in_sums
    reach = marks.features @ directions  # (m, m)
    weights = start + directions[:, known] @ (marks.present - marks.before)[known]
    inner = np.eye(int(new.sum())) + reach[np.ix_(new, new)]
    solved = np.linalg.solve(inner, np.column_stack([(marks.present - marks.features @ weights)[new], reach[new]]))
    weights = weights + directions[:, new] @ solved[:, 0]
    own = np.einsum("ij,ji->i", reach[:, new], solved[:, 1:])
    leverage = (reach.diagonal() - own).clip(0.0, 0.99)  # how much a photo's own mark moves its own score
    scores = marks.features @ weights
    return Column(weights, (scores - leverage * marks.present) / (1 - leverage))
