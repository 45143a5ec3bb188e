"""Tag photographs with an exported model; needs Pillow, numpy and onnxruntime.

python predict_onnx.py model.onnx photo.jpg ...
"""

import json
import sys
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def read_square(path: str, size: int) -> Any:
    """Decode a photograph to RGB as a person sees it, squashed to a square, uint8 (size, size, 3)."""
    with Image.open(path) as image:
        # A large JPEG is decoded to a fraction of its size, as for training; the box is what the fraction fills.
        scaled = image.draft(None, (2 * size, 2 * size)) if image.format in ("JPEG", "MPO") else None
        image.load()
        upon: Image.Image = image
        if image.has_transparency_data:
            upon = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
        square = upon.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, scaled and scaled[1])
        square.info = image.info  # which has the EXIF orientation
        return np.asarray(ImageOps.exif_transpose(square))


def main(model: str, *paths: str) -> int:
    """Print the tags of each photograph, the most probable first; returns how many could not be read."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    facts = session.get_modelmeta().custom_metadata_map
    labels, thresholds, preprocessing = (json.loads(facts[key]) for key in ("labels", "thresholds", "preprocessing"))
    unread = 0
    for path in paths:
        try:
            pixels = read_square(path, preprocessing["size"])
        except Exception as error:  # decoders of broken files raise almost anything
            print(f"{path}: {error}", file=sys.stderr)
            unread += 1
            continue
        probabilities = session.run(["probabilities"], {"images": pixels[None]})[0][0].tolist()
        found = sorted(zip(probabilities, labels, thresholds, strict=True), reverse=True)
        tags = [f"{label} {probability:.3f}" for probability, label, least in found if probability > least]
        print(f"{path}: {', '.join(tags)}")
    return unread


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python predict_onnx.py model.onnx photo.jpg ...")
    sys.exit(1 if main(*sys.argv[1:]) else 0)
