"""What can be done to a tagger besides learning: forget, rename, merge, and choose thresholds.

Each function gives a new tagger and leaves the old one as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..core.errors import UserError, unknown_name
from ..core.state import State
from ..methods.analytic import Analytic
from ..models.ledger import Ledger
from ..models.merging import merged
from .records import LabelFacts, Step
from .restoring import restored
from .tagger import Tagger


def forget_labels(tagger: Tagger, names: Sequence[str]) -> Tagger:
    """Without some labels, as if they had never been given; the logits of the others stay the same to the bit.

    Raises:
        UserError: there is no such label, none would be left, or the method cannot forget.
    """
    for name in names:
        tagger.column(name)
    kept = [one for one in tagger.labels if one.name not in set(names)]
    if not kept:
        raise UserError("no label would be left; delete the tagger's folder instead")
    method = exact_copy(tagger, "forget a label")
    method.keep_classes([one.name for one in kept])
    steps = tuple(_without_labels(step, names) for step in tagger.steps)
    chosen = {name: value for name, value in (tagger.chosen or {}).items() if name not in names} or None
    return replace(tagger, method=method, labels=tuple(kept), steps=steps, chosen=chosen, path=None)


def forget_step(tagger: Tagger, number: int) -> Tagger:
    """As if a step had never been: without its photos, and without the labels that only it taught.

    Raises:
        UserError: there is no such step, or it cannot be taken back exactly.
    """
    if number not in {step.number for step in tagger.steps}:
        raise unknown_name("step", str(number), (str(step.number) for step in tagger.steps))
    method = exact_copy(tagger, "take a step back")
    if number not in method.ledger.numbers:
        raise UserError(f"step {number} did not remember its photos, so it cannot be taken back")
    left = method.ledger.without_step(number)
    if not left.classes:
        raise UserError("no label would be left; delete the tagger's folder instead")
    return solved(tagger, method, left, *_without_step(tagger, left, number))


def merge(first: Tagger, second: Tagger) -> Tagger:
    """Both taggers in one, exactly as if one had learned from all photos; a label that both have is one label.

    Raises:
        UserError: their features differ, or both have seen some photos in a way that sums cannot tell apart.
    """
    one, other = exact_copy(first, "be merged"), exact_copy(second, "be merged")
    ledger, number = merged(one.ledger, other.ledger)
    known = {step.number for step in first.steps}
    added = [step for step in second.steps if number[step.number] not in known]
    steps = (*first.steps, *(replace(step, number=number[step.number]) for step in added))
    new = [label for label in second.earlier_labels if label.name not in first.classes]
    labels = [*first.earlier_labels, *(replace(label, step=number.get(label.step or 0, label.step)) for label in new)]
    chosen = (second.chosen or {}) | (first.chosen or {})
    return solved(replace(first, chosen=chosen), one, ledger, labels, steps)


def rename(tagger: Tagger, names: Mapping[str, str]) -> Tagger:
    """With other names for some labels.

    Raises:
        UserError: there is no such label, or two would have the same name.
    """
    for old, new in names.items():
        tagger.column(old)
        if not new.strip() or new in tagger.classes:
            why = "there is a label of that name already" if new.strip() else "a label needs a name"
            raise UserError(f"cannot rename {old!r} to {new!r}: {why}")
    if len(set(names.values())) < len(names):
        raise UserError("cannot give two labels the same name")
    method = tagger.method
    if isinstance(method, Analytic):
        method = _copied(tagger, "rename a label")
        for old, new in names.items():
            method.ledger = method.ledger.renamed(old, new)

    def changed(values: Sequence[str]) -> tuple[str, ...]:
        return tuple(names.get(one, one) for one in values)

    return replace(
        tagger,
        method=method,
        labels=tuple(replace(one, name=names.get(one.name, one.name)) for one in tagger.labels),
        steps=tuple(
            replace(one, labels=changed(one.labels), new_labels=changed(one.new_labels)) for one in tagger.steps
        ),
        chosen={names.get(name, name): value for name, value in (tagger.chosen or {}).items()} or None,
        path=None,
    )


def choose_thresholds(tagger: Tagger, chosen: Mapping[str, float | None], precision: float | None = None) -> Tagger:
    """With thresholds that a person has chosen.

    Arguments:
        chosen: by label; None gives the tagger's own back.
        precision: for all labels that are not named, the thresholds of this precision.

    Raises:
        UserError: there is no such label, or a value is not in 0..1.
    """
    found = dict(tagger.chosen or {})
    if precision is not None:
        found |= dict(zip(tagger.classes, tagger.thresholds_for(precision=precision).tolist(), strict=True))
    for name, value in chosen.items():
        tagger.column(name)
        if value is None:
            found.pop(name, None)
        elif 0 <= value <= 1:
            found[name] = float(value)
        else:
            raise UserError(f"got threshold {value} for {name!r}, expected 0 to 1")
    changed = replace(tagger, chosen=found or None, path=None)
    moved = (changed.thresholds != tagger.thresholds).tolist()
    pairs = zip(tagger.labels, tagger.earlier_labels, strict=True)
    return replace(changed, labels=tuple(pair[is_moved] for pair, is_moved in zip(pairs, moved, strict=True)))


def exact_copy(tagger: Tagger, deed: str) -> Analytic:
    """A copy of the closed-form learner of a tagger, if all that was learned is in its sums.

    Raises:
        UserError: it is not, or there is nothing to change it with.
    """
    method = tagger.method
    if isinstance(method, Analytic) and not method.is_all_in_sums:
        raise UserError(
            f"only a closed-form tagger (analytic) can {deed} exactly; this one is {method.name}, and its backbone has "
            "learned from the photos, too"
        )
    return _copied(tagger, deed)


def _copied(tagger: Tagger, deed: str) -> Analytic:
    """A copy of the closed-form learner of a tagger.

    Raises:
        UserError: it has another method, or nothing to change it with.
    """
    method = tagger.method
    if not isinstance(method, Analytic):
        raise UserError(f"only a closed-form tagger (analytic) can {deed} exactly; this one is {method.name}")
    if tagger.slim:
        raise UserError(f"{tagger.path} was saved slim, without what is needed to {deed}; take the one it is from")
    state = method.state()
    copied = State({name: value.clone() for name, value in state.tensors.items()}, state.values)
    copy = restored(tagger.config, copied, tagger.classes, None)
    assert isinstance(copy, Analytic)
    old = method.tagger.backbone
    copy.tagger.backbone.mean, copy.tagger.backbone.std = old.mean, old.std
    return copy


def solved(
    tagger: Tagger,
    method: Analytic,
    ledger: Ledger,
    labels: Sequence[LabelFacts],
    steps: tuple[Step, ...],
    ridge: float | None = None,
) -> Tagger:
    """The tagger with another ledger, solved by a copy of its method.

    Arguments:
        labels: at least those of the ledger, in any order.
        ridge: the strength to solve at; None for the one that is found.
    """
    method.relearn(ledger, ridge)
    images, positives = ledger.counts()
    facts = {one.name: one for one in labels}
    counted = tuple(
        replace(facts[name], images=int(images[k]), positives=int(positives[k]))
        for k, name in enumerate(ledger.classes)
    )
    chosen = {name: value for name, value in (tagger.chosen or {}).items() if name in facts} or None
    return replace(tagger, method=method, labels=counted, steps=steps, chosen=chosen, path=None)


def _without_step(tagger: Tagger, left: Ledger, number: int) -> tuple[list[LabelFacts], tuple[Step, ...]]:
    """The labels and steps that are left: a later step may now be the first to teach a label, or to bring a photo."""
    seen, returning = np.zeros(len(left.fingerprints), bool), {}
    for one in left.statements:
        returning[one.number] = int(seen[one.rows].sum())
        seen[one.rows] = True
    taught: dict[str, Step] = {}
    steps = []
    for step in (one for one in tagger.steps if one.number != number):
        new = tuple(name for name in step.labels if name not in taught)
        steps.append(replace(step, new_labels=new, returning=returning.get(step.number, step.returning)))
        taught |= dict.fromkeys(new, step)
    (gone,) = (step for step in tagger.steps if step.number == number)
    labels = []
    for label in (one for one in tagger.earlier_labels if one.name in left.classes):
        first = taught.get(label.name)
        if label.name in gone.labels:  # the figures were those of what is gone
            label = label.with_figures(None, None, None, "")
        labels.append(label if first is None else replace(label, step=first.number, learned=first.learned))
    return labels, tuple(steps)


def _without_labels(step: Step, names: Sequence[str]) -> Step:
    labels, new = (tuple(one for one in values if one not in names) for values in (step.labels, step.new_labels))
    return replace(step, labels=labels, new_labels=new)
