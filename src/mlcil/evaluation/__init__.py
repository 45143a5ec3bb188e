"""How well a model tags images: metrics, calibration, results of a run, and comparisons of two runs."""
