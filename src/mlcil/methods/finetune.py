"""Fine-tuning: each session trains on its own labels, and old classes count as absent."""

from __future__ import annotations

from .base import Method


class FineTuning(Method):
    """The lower bound: nothing is done against forgetting."""

    name = "ft"
    summary = "fine-tuning, nothing done against forgetting (lower bound)"
    family = "bound"
    reference = "KRT, section 4.2"
    base_is_finetuning = True
    finetuning_options = {}
