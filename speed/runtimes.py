"""Frozen networks by torch and by ONNX Runtime, one thread each; `runtime: auto` goes by what this finds.

Torch keeps freed memory, as it does in every command that learns.
"""

from __future__ import annotations

import torch
from measure import Ratio, medians, report

from mlcil.core.allocation import keep_freed_memory
from mlcil.models.backbone import Backbone

SIZE, BATCH, ROUNDS = 224, 16, 3
NETWORKS = (
    *("mobilenetv2_100", "tf_efficientnet_lite0", "efficientnet_b0", "mobilenetv3_large_100", "regnety_004"),
    *("resnet18", "resnet50", "convnext_atto", "tresnet_m", "deit_tiny_patch16_224"),
)


def measure(name: str) -> Ratio:
    """Seconds by torch over those by ONNX Runtime."""
    backbone = Backbone(name, SIZE)
    backbone.freeze("all")
    images = torch.randn(BATCH, 3, SIZE, SIZE).contiguous(memory_format=torch.channels_last)
    backbone.runtime = "onnx"
    network = backbone.eval().ready_stem()
    assert network is not None

    def by_torch() -> None:
        with torch.inference_mode():
            backbone.torch_stem(images)

    def by_onnx() -> None:
        network(images)

    found = medians({"torch": by_torch, "onnx": by_onnx}, ROUNDS)
    rates = " and ".join(f"{BATCH / found[one]:.1f}" for one in ("torch", "onnx"))
    return Ratio(f"{name}: torch / ONNX Runtime ({rates} images/s)", found["torch"] / found["onnx"])


def main() -> None:
    """Measure, print."""
    torch.set_num_threads(1)
    keep_freed_memory()
    report("runtimes", f"{BATCH} images of {SIZE} pixels, one thread", [measure(name) for name in NETWORKS])


if __name__ == "__main__":
    main()
