"""Draw forgetting.png, the picture of the README, from the runs of `mlcil demo`.

The demo takes two to three minutes, the picture a second:

    mlcil demo --out runs/demo
    python docs/images/forgetting.py runs/demo
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mlcil.data.digits import read_digits
from mlcil.data.images import LabelledImages

INK, SOFT, GRID, WARN = "#1b1f24", "#59626e", "#dfe1e3", "#d55e00"
LINES = {"krt": ("#0072b2", "KRT", "o"), "ft": (WARN, "fine-tuning", "s")}
SESSIONS = (range(6), range(6, 8), range(8, 10))  # the digits that each session of the demo teaches


def map_after_sessions(run: Path) -> list[float]:
    """The mAP in percent after each session of a run."""
    return [session["metrics"]["mAP"] for session in json.loads((run / "results.json").read_text())["sessions"]]


def draw_session(figure: Figure, number: int, new: range, images: LabelledImages) -> None:
    """One column above the curves: the session's new digits, and an image with the labels that the session sees."""
    digits = [[int(digit) for digit in row.nonzero()[0]] for row in images.labels == 1]
    wanted = 3 if number == 1 else 1  # new digits on the canvas; the others are old
    row = next(
        row
        for row, shown in enumerate(digits)
        if len(shown) == 3 and max(shown) < new.stop and len(set(shown) & set(new)) == wanted
    )
    left = 0.065 + 0.31 * (number - 1)
    axes = figure.add_axes((left, 0.70, 0.115, 0.25))
    axes.imshow(images.pixels[row], interpolation="nearest")
    axes.axis("off")
    lines = [
        (f"session {number}", SOFT, "normal"),
        ("new: " + " ".join(map(str, new)), INK, "bold"),
        ("labelled: " + " ".join(str(digit) for digit in digits[row] if digit in new), INK, "normal"),
        ("not labelled: " + " ".join(str(digit) for digit in digits[row] if digit not in new), WARN, "normal"),
    ]
    for place, (text, colour, weight) in enumerate(lines[: 3 if number == 1 else 4]):
        figure.text(left + 0.125, 0.905 - 0.06 * place, text, color=colour, weight=weight, fontsize=11)


def draw_curves(axes: Axes, demo: Path) -> None:
    """The mAP of fine-tuning and KRT as digits arrive, and that of joint training."""
    for name, (colour, label, marker) in LINES.items():
        values = map_after_sessions(demo / name)
        axes.plot(range(3), values, color=colour, marker=marker, linewidth=2.5, markersize=7, zorder=3)
        note = {"textcoords": "offset points", "color": colour, "fontsize": 12.5, "weight": "bold"}
        axes.annotate(f"{label} {values[-1]:.0f}", (2, values[-1]), (10, -4), **note)
    (joint,) = map_after_sessions(demo / "joint")
    axes.axhline(joint, color=SOFT, linestyle=(0, (5, 3)), linewidth=1.3)
    note = {"textcoords": "offset points", "color": SOFT, "fontsize": 10.5}
    axes.annotate(f"all labels at once {joint:.0f}", (2, joint), (10, -14), **note)
    axes.set(xlim=(-0.12, 2.62), ylim=(30, 102), yticks=(40, 60, 80, 100), xticks=range(3))
    axes.set_xticklabels(["6 digits seen", "8 digits", "10 digits"])
    axes.set_ylabel("mAP over all digits seen, %", color=SOFT, fontsize=10)
    axes.tick_params(colors=SOFT, length=0, labelsize=10.5)
    axes.grid(axis="y", color=GRID)
    axes.spines[:].set_visible(False)


def main(demo: Path, file: Path) -> None:
    """Write the picture."""
    figure = plt.figure(figsize=(10, 4.6), facecolor="white")
    draw_curves(figure.add_axes((0.065, 0.1, 0.905, 0.52)), demo)
    images = read_digits(train=300, test=1, size=64).train
    for number, new in enumerate(SESSIONS, start=1):
        draw_session(figure, number, new, images)
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo"), Path(__file__).with_name("forgetting.png"))
