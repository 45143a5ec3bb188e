"""Every method through all sessions of the digits, as the demo trains them; a table at the end.

    python benchmarks/digits_methods.py [OUT]

Nineteen runs of the demo's size; each continues where it was interrupted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from mlcil.cli.demo import KRT_OPTIONS, SETTINGS
from mlcil.methods.registry import OURS
from mlcil.reports.table import comparison_table
from mlcil.training.config import make_config
from mlcil.training.run import run

# Nothing is pretrained here: a transformer of a size that can learn from scratch, and prompts to go with it.
PROMPTS = {"backbone": "test_vit", "weights": None, "options": {"pool": 6, "length": 2, "chosen": 2, "unfreeze": True}}


def settings_of(name: str, has_buffer: bool) -> dict[str, Any]:
    """The demo's settings with what the method needs besides."""
    values: dict[str, Any] = SETTINGS | {"method": name, "protocol": "B0-C2", "buffer": "5" if has_buffer else "0"}
    if name == "l2p":
        return values | PROMPTS
    return values | {"options": KRT_OPTIONS if name.startswith("krt") else {}}


def main() -> None:
    """Run them all."""
    out, console = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/digits-methods"), Console()
    results = []
    for method in OURS:
        console.rule(method.name)
        config = make_config(settings_of(method.name, method.buffer_use != "none"))
        results.append(run(config, out / method.name, console))
        console.print(f"{method.name}: last mAP {results[-1]['last_map']:.1f}")
    console.print(comparison_table(results))


if __name__ == "__main__":
    main()
