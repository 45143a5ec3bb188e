"""What a tagger knows about itself: when it learned what, and how well."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Step:
    """One time that the tagger learned."""

    number: int  # counted from 1; what was taken back leaves a gap
    learned: str  # date and time, as in 2026-11-18T09:30:00+00:00
    source: str  # the table, or whatever the labels came from
    images: int  # that it learned from
    returning: int  # images among them that an earlier step had as well
    labels: tuple[str, ...]  # that were looked for
    new_labels: tuple[str, ...]  # that the tagger did not know before


@dataclass(frozen=True)
class LabelFacts:
    """What is known about a label.

    `ap`, `precision` and `recall` are in percent, on photos that `measured` names in words. None is unknown.
    """

    name: str
    step: int | None = None  # in which it was first learned
    learned: str = ""
    positives: int | None = None  # photos that show it
    images: int | None = None  # photos on which it was looked for
    ap: float | None = None
    precision: float | None = None
    recall: float | None = None
    measured: str = ""
    earlier: float | None = None  # the threshold when that was measured, if the tagger has changed since

    @property
    def origin(self) -> str:
        """What the figures were measured on, and with what threshold if it was before the tagger changed."""
        return self.measured if self.earlier is None else f"{self.measured}, earlier, at threshold {self.earlier:.2f}"

    def with_figures(
        self, ap: float | None, precision: float | None, recall: float | None, measured: str
    ) -> LabelFacts:
        """The same with what was measured of the tagger as it is."""
        return replace(self, ap=ap, precision=precision, recall=recall, measured=measured, earlier=None)

    def before_change(self, threshold: float) -> LabelFacts:
        """The same about a tagger that is about to change, with the threshold that it has now."""
        is_current = self.measured and self.earlier is None
        return replace(self, earlier=float(threshold)) if is_current else self
