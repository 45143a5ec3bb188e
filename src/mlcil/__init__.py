"""mlcil: multi-label class-incremental learning."""

__version__ = "0.1.0"
