"""Joint training: all classes and all labels at once."""

from __future__ import annotations

from .base import Method


class Joint(Method):
    """The upper bound: one session with every image and every label."""

    name = "joint"
    summary = "all classes and labels at once (upper bound)"
    family = "bound"
    reference = "KRT, section 4.2"
    is_joint = True
