import io

import pytest
from rich.console import Console

from mlcil.training import progress
from mlcil.training.progress import Reporter


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests set."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def test_a_pass_over_images_prints_a_line_every_ten_seconds(clock):
    output = io.StringIO()
    show = Reporter(Console(file=output, width=100), []).images("scoring test images")
    for second in range(1, 51):
        clock.now = 100.0 + second
        show(40 * second, 2000)
    assert output.getvalue().splitlines() == [
        f"  scoring test images: {40 * second}/2000, 40 images/s, {50 - second} s left"
        for second in (5, 15, 25, 35, 45)
    ]


def test_quick_passes_print_nothing_until_they_add_up(clock):
    output = io.StringIO()
    reporter = Reporter(Console(file=output, width=100), [])
    for _ in range(2):
        show = reporter.images("scoring test images")
        clock.now += 2
        show(10, 20)
        clock.now += 2
        show(20, 20)
    assert output.getvalue() == "  scoring test images: 10/20, 5 images/s, 2 s left\n"


def test_in_a_terminal_a_pass_has_a_bar_also_beside_that_of_a_session():
    output = io.StringIO()
    reporter = Reporter(Console(file=output, width=100, force_terminal=True), [100])
    reporter.images("going over training images")(5, 10)
    reporter.session(1, ["cat"], 50, 2, 0.0)
    reporter.step(0, 0.5)
    reporter.images("scoring test images")(3, 30)
    reporter.stop()
    for words in ("going over training images", "session 1", "epoch 1", "scoring test images", "3/30"):
        assert words in output.getvalue()
