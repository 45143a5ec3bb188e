"""Nothing of the test images can be read while a session is learned, and they are scored all the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlcil.data.protocol import Protocol
from mlcil.methods.finetune import FineTuning
from mlcil.training import prepare
from mlcil.training.config import make_config
from mlcil.training.learner import Learner
from mlcil.training.prepare import KeptFeatures, OpenedImages
from mlcil.training.run import run

from ..tiny import settings

FROZEN = {"freeze": "all", "keep_features": True}
VARIANTS = {
    "krt with exemplars": settings("krt", epochs=1, buffer="2"),
    "krt on kept features": settings("krt", epochs=1, **FROZEN),
    "lwf with images set aside": settings("lwf", epochs=1, validation=0.3),
    "bic": settings("bic", epochs=1, buffer="2"),
    "prs": settings("prs", epochs=1, buffer="total:8"),
    "analytic": settings("analytic", **FROZEN),
}


class Lock:
    """Closed while a session is learned; what is behind it counts how often it was read while it was open."""

    def __init__(self) -> None:
        self.is_closed, self.reads = False, 0

    def pass_through(self) -> None:
        assert not self.is_closed, "the test images are read while a session is learned"
        self.reads += 1


@pytest.fixture
def lock(monkeypatch: pytest.MonkeyPatch) -> Lock:
    """A lock before the pixels or features of test images; see `behind` for their labels."""
    one, opening = Lock(), prepare.open_images

    def guarded(store: Any) -> Any:
        kind = type(store)

        class Guarded(kind):  # type: ignore[misc, valid-type]
            def __getitem__(self, rows: Any) -> Any:
                one.pass_through()
                return super().__getitem__(rows)

            def pick(self, *given: Any) -> Any:
                one.pass_through()
                return super().pick(*given)

        store.__class__ = Guarded
        return store

    def open_images(images: Any, *given: Any) -> OpenedImages:
        opened = opening(images, *given)
        if images.split == "test":
            guarded(opened.store.rows if isinstance(opened.store, KeptFeatures) else opened.store)
        return opened

    def closing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            one.is_closed = True
            try:
                return function(*given)
            finally:
                one.is_closed = False

        return call

    monkeypatch.setattr(prepare, "open_images", open_images)
    for name in ("open", "learn"):
        monkeypatch.setattr(Learner, name, closing(getattr(Learner, name)))
    return one


def behind(lock: Lock) -> Callable[[Protocol], Protocol]:
    """Puts the labels of the test images behind the lock."""

    class Guarded(np.ndarray[Any, Any]):
        def __getitem__(self, key: Any) -> Any:
            lock.pass_through()
            return np.asarray(self)[key]

        def __array_ufunc__(self, function: Any, method: str, *given: Any, **named: Any) -> Any:
            lock.pass_through()
            plain = [np.asarray(one) if isinstance(one, Guarded) else one for one in given]
            return getattr(function, method)(*plain, **named)

    def change(protocol: Protocol) -> Protocol:
        test = protocol.data.test
        guarded = replace(test, labels=test.labels.view(Guarded))
        return replace(protocol, data=protocol.data._replace(test=guarded))

    return change


@pytest.mark.parametrize("name", VARIANTS)
def test_a_session_is_learned_without_the_test_images(name: str, lock: Lock, tmp_path: Path) -> None:
    values = VARIANTS[name] | {"cache": str(tmp_path / "cache")}
    result = run(make_config(values), tmp_path / "run", _change=behind(lock))
    assert result.finished
    assert lock.reads > len(result.sessions)  # images and labels, after each session


@pytest.mark.parametrize("what", ["images", "labels"])
def test_a_method_that_peeks_is_caught(what: str, lock: Lock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    opening, before = prepare.open_images, FineTuning.before_session

    def open_images(images: Any, *given: Any) -> OpenedImages:
        opened = opening(images, *given)
        seen["images"] = opened.store  # the test images come last
        return opened

    def change(protocol: Protocol) -> Protocol:
        changed = behind(lock)(protocol)
        seen["labels"] = changed.data.test.labels
        return changed

    def peeking(method: FineTuning, *given: Any) -> None:
        before(method, *given)
        seen[what][np.arange(3)]

    monkeypatch.setattr(prepare, "open_images", open_images)
    monkeypatch.setattr(FineTuning, "before_session", peeking)
    with pytest.raises(AssertionError, match="read while a session is learned"):
        run(make_config(settings("ft", epochs=1)), tmp_path / "run", _change=change)
