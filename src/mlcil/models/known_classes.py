"""Whether weights know the classes already that an experiment is about to teach."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

HEAD_WORDS = {
    *("head", "heads", "head_dist", "fc", "classifier", "decoder", "linear", "last_linear", "logits", "out", "output"),
    *("class_embed", "cls_score", "cls_head", "fc_cls"),
}
COUNT_WORDS = ("num_classes", "num_labels", "nc")  # what checkpoints call the number of classes
GENERAL = 1000  # a list of so many names is a general vocabulary, such as ImageNet's, which has most words anyway
DEEPEST = 10  # levels of what a file says about itself


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
    for key, outputs in _classifiers(tensors):
        if outputs in counts:
            return f"has a classifier of {outputs} outputs ({key})"
    for group in _groups(facts):
        if stated := next((one for one in _stated(group) if one in counts), None):
            return f"says that it has {stated} classes"
        for names in _lists(group):
            for vocabulary in vocabularies:
                common = [name for name in vocabulary if _plain(name) in names]
                if len(names) < GENERAL and 2 * len(common) >= len(vocabulary):
                    return f"names {len(common)} of the classes, such as {common[0]}"
    return None


def _classifiers(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, int]]:
    """The tensors that may end a classifier, with its number of outputs.

    Below each head word, in the order of the file, that is the last weight of a linear layer, whatever comes after it,
    and a bias behind that which belongs to no norm.
    """
    groups: dict[str, list[str]] = {}
    for key in tensors:
        place = key.lower().split(".")
        if word := next((one for one in place[:-1] if one in HEAD_WORDS), None):
            groups.setdefault(".".join(place[: place.index(word) + 1]), []).append(key)
    for keys in groups.values():
        shapes = [tensors[key].squeeze().shape for key in keys]  # a convolution of one pixel is a linear layer
        last = max((place for place, shape in enumerate(shapes) if len(shape) > 1), default=len(keys))
        for key, shape in zip(keys[last:], shapes[last:], strict=True):
            is_bias = len(shape) == 1 and "bias" in key and key.replace("bias", "weight") not in keys
            if len(shape) == 2 or is_bias:
                yield key, shape[0]


def _groups(facts: Any) -> Iterator[Mapping[Any, Any] | Sequence[Any]]:
    """Every mapping and list that is in something, each once; text may hold one, too."""
    waiting, seen = [(facts, 0)], dict[int, Any]()  # which keeps them, so that no other gets the same id
    while waiting:
        one, depth = waiting.pop()
        group = _parsed(one)
        if isinstance(group, Mapping | list | tuple) and depth <= DEEPEST and id(one) not in seen:
            seen[id(one)] = one
            yield group
            inner = group.values() if isinstance(group, Mapping) else group
            waiting += [(value, depth + 1) for value in inner if isinstance(value, Mapping | list | tuple | str)]


def _parsed(one: Any) -> Any:
    """A list or mapping that was written as text; anything else as it is."""
    if not isinstance(one, str):
        return one
    try:
        found = json.loads(one)
    except (ValueError, RecursionError):
        found = re.split(r"[,;|\n]", one)
    return found if isinstance(found, Mapping) or (isinstance(found, list) and len(found) > 1) else None


def _stated(group: Mapping[Any, Any] | Sequence[Any]) -> Iterator[int]:
    """The numbers of classes that a mapping states."""
    if isinstance(group, Mapping):
        texts = [str(group.get(key, "")) for key in COUNT_WORDS]
        yield from (int(text) for text in texts if re.fullmatch("[0-9]{1,9}", text))


def _lists(group: Mapping[Any, Any] | Sequence[Any]) -> Iterator[set[str]]:
    """What may be names of classes, as plain words: a list, or the keys or the values of a mapping."""
    for names in (group.keys(), group.values()) if isinstance(group, Mapping) else (group,):
        yield {_plain(one) for one in names if isinstance(one, str)}


def _plain(name: str) -> str:
    """A name without what spellings differ in, such as tvmonitor and TV/monitor."""
    return "".join(sign for sign in name.lower() if sign.isalnum())
