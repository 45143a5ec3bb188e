"""What tests of commands share with those of taggers."""

from ..serving.conftest import digit_tables, digit_tagger

__all__ = ["digit_tables", "digit_tagger"]
