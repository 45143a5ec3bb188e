"""Which weights are meant: a file, or a name that timm knows."""

from __future__ import annotations

from pathlib import Path

from ..core.errors import UserError

_SUFFIXES = {".safetensors", ".pth", ".pt", ".bin"}


def weight_file(weights: str | None) -> Path | None:
    """The file that `weights` names; None if it names no file.

    Raises:
        UserError: the file does not exist.
    """
    if weights is None:
        return None
    file = Path(weights).expanduser()
    if file.is_file():
        return file
    if file.suffix in _SUFFIXES:
        raise UserError(f"weight file {file} does not exist")
    return None
