import pytest

from mlcil.training.config import RunSettings
from mlcil.training.prepare import review_weights


@pytest.mark.parametrize(
    ("weights", "data", "warns"),
    [(None, "table:x.csv", True), ("pretrained", "table:x.csv", False), (None, "digits", False)],
)
def test_photographs_without_pretrained_weights_get_a_warning(weights, data, warns):
    assert bool(review_weights(RunSettings(data=data, weights=weights))) == warns
