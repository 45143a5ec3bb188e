"""Image files, good and broken, and a record of what is decoded."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mlcil.data import pixels
from mlcil.data.decoding import decode_content
from mlcil.data.images import LabelledImages


@pytest.fixture
def write_images() -> Callable[..., LabelledImages]:
    """Fills a new folder with images of noise."""

    def write(folder: Path, count: int = 5, seed: int = 0) -> LabelledImages:
        folder.mkdir()
        generator = np.random.default_rng(seed)
        for number in range(count):
            image = generator.integers(0, 256, (20, 30, 3), dtype=np.uint8)
            Image.fromarray(image).save(folder / f"{number:03}.png")
        paths = tuple(map(str, sorted(folder.iterdir())))
        return LabelledImages(paths, np.zeros((count, 1), np.int8), ("a",), "train")

    return write


@pytest.fixture
def broken_files(tmp_path: Path) -> dict[Path, str]:
    """Files that are no images, and why."""
    folder = tmp_path / "broken"
    folder.mkdir()
    content, noise = io.BytesIO(), np.random.default_rng(0).integers(0, 256, (50, 50, 3), dtype=np.uint8)
    Image.fromarray(noise).save(content, "JPEG")
    (folder / "half.jpg").write_bytes(content.getvalue()[: len(content.getvalue()) // 2])
    (folder / "text.jpg").write_text("not pixels")
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "folder.jpg").mkdir()
    reasons = {"half": "truncated", "text": "not an image", "empty": "empty", "lost": "missing"}
    reasons["folder"] = "not an image but a folder"
    return {folder / f"{name}.jpg": reason for name, reason in reasons.items()}


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths decoded so far for a pixel store of this process."""
    paths: list[str] = []

    def counted(path: str, content: bytes, size: int, megapixels: float) -> np.ndarray:
        paths.append(path)
        return decode_content(path, content, size, megapixels)

    monkeypatch.setattr(pixels, "decode_content", counted)
    return paths
