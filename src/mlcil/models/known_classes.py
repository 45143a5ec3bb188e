"""Whether weights know the classes already that an experiment is about to teach."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

HEAD_WORDS = {
    *("head", "heads", "fc", "classifier", "decoder", "last_linear", "logits", "output"),
    *("class_embed", "cls_score", "cls_head", "fc_cls"),
}
COUNT_WORDS = ("num_classes", "num_labels", "nc")  # what checkpoints call the number of classes
GENERAL = 1000  # a list of so many names is a general vocabulary, such as ImageNet's, which has most words anyway


def known_classes(
    tensors: Mapping[str, Tensor], facts: Any, counts: Collection[int], vocabularies: Sequence[Collection[str]]
) -> str | None:
    """What gives away that weights were trained on the classes of a data set, in words; None if nothing does.

    Arguments:
        tensors: what a weight file holds besides the backbone.
        facts: what else it says about itself, as nested lists and mappings.
        counts: numbers of outputs that a classifier of the classes has.
        vocabularies: the names of the classes of each data set that counts.
    """
    for key, tensor in tensors.items():
        parts = key.lower().split(".")
        is_weight = parts[-1] == "weight" and tensor.ndim in (2, 4)
        if is_weight and HEAD_WORDS.intersection(parts) and tensor.shape[0] in counts:
            return f"has a classifier of {tensor.shape[0]} outputs ({key})"
    for count in _counts(facts):
        if count in counts:
            return f"says that it has {count} classes"
    for names in _lists(facts):
        for vocabulary in vocabularies:
            common = [name for name in vocabulary if _plain(name) in names]
            if len(names) < GENERAL and 2 * len(common) >= len(vocabulary):
                return f"names {len(common)} of the classes, such as {common[0]}"
    return None


def _counts(facts: Any) -> Iterator[int]:
    """Every number of classes that is stated somewhere."""
    facts = _parsed(facts)
    if isinstance(facts, Mapping):
        yield from (int(facts[key]) for key in COUNT_WORDS if str(facts.get(key, "")).isdecimal())
    for one in _inner(facts):
        yield from _counts(one)


def _lists(facts: Any) -> Iterator[set[str]]:
    """Every list of names that is stated somewhere, as plain words: a list, or the keys or the values of a mapping."""
    facts = _parsed(facts)
    both = (facts.keys(), facts.values()) if isinstance(facts, Mapping) else (_inner(facts),)
    for names in both:
        yield {_plain(one) for one in names if isinstance(one, str)}
    for one in _inner(facts):
        yield from _lists(one)


def _inner(facts: Any) -> Sequence[Any]:
    if isinstance(facts, Mapping):
        return list(facts.values())
    return facts if isinstance(facts, list | tuple) else ()


def _parsed(facts: Any) -> Any:
    """A list or mapping that was written as text; anything else as it is."""
    if not isinstance(facts, str):
        return facts
    try:
        found = json.loads(facts)
    except ValueError:
        found = re.split(r"[,;|\n]", facts)
    return found if isinstance(found, Mapping) or (isinstance(found, list) and len(found) > 1) else None


def _plain(name: str) -> str:
    """A name without what spellings differ in, such as tvmonitor and TV/monitor."""
    return "".join(sign for sign in name.lower() if sign.isalnum())
