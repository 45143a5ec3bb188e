"""Every registered method passes the battery, and the battery notices a method that does not."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mlcil import testing as checks
from mlcil.core.state import State
from mlcil.data.images import PRESENT
from mlcil.data.loading import Batch
from mlcil.data.protocol import Protocol, Session
from mlcil.methods.base import Inference, Method, TrainingSet
from mlcil.methods.er import ER
from mlcil.methods.finetune import FineTuning
from mlcil.methods.lwf import LwF
from mlcil.methods.registry import all_methods
from mlcil.models.tagger import TaggerNet

SMALL_ATTENTION = {"width": 16, "heads": 4, "labels_per_image": 2.5}
SMALL_PROMPTS = {"backbone": "test_vit", "image_size": 32, "pool": 4, "length": 2, "chosen": 2}
VARIANTS: dict[str, dict[str, Any]] = {
    "derpp reservoir": {"selection": "reservoir"},
    "er reservoir": {"selection": "reservoir", "exemplar_labels": "stored_only", "missing": "ignore"},
    "er ocdm concat": {"selection": "ocdm", "replay": "concat"},
    "icarl faithful": {"cls_scope": "new", "scores": "nme", "missing": "ignore"},
    "tpcil hebbian": {"pairs": "hebbian", "buffer": "total:9"},
    "bic fixed total": {"buffer": "total:9", "replay": "paired"},
    "analytic remembering": {"expansion": 16, "remember": "fingerprints"},
    "adaptive forgetful": {"expansion": 0, "remember": "none", "norm_statistics": "train"},
    "oewc true fisher": {"fisher": "true", "gamma": 0.5, "weight": 1e4},
    "lwf faithful": {"missing": "ignore"},
    "prs offline bce": {"loss": "bce", "rho": 0.5, "micro_batch": 3},
    "podnet stronger": {"spatial_weight": 500.0, "ema": 0.9},
    "l2p without buffer": SMALL_PROMPTS | {"buffer": "0", "augment": "randaugment"},
    "krt strict": SMALL_ATTENTION | {"buffer": "total:7", "exemplar_labels": "stored_only", "pseudo": "fixed"},
    "krt per class": SMALL_ATTENTION | {"pseudo_label_rule": "per_class", "pseudo": "fixed"},
    "krt paired": SMALL_ATTENTION | {"replay": "paired", "selection": "random"},
}


def values_of(name: str) -> dict[str, Any]:
    if name in VARIANTS:
        return VARIANTS[name]
    if name in ("analytic", "adaptive"):
        return {"expansion": 16}
    return SMALL_PROMPTS if name == "l2p" else SMALL_ATTENTION if name.startswith(("krt", "class")) else {}


CASES = {name: (all_methods()[name.split()[0]], values_of(name)) for name in (*all_methods(), *VARIANTS)}


@pytest.mark.parametrize("name", CASES)
def test_a_method_holds_to_its_promises(name: str, tmp_path: Path) -> None:
    method, values = CASES[name]
    trial = checks._Trial(method, values, tmp_path)
    checks.check_results(trial)
    checks.check_growth(trial)
    checks.check_resume(trial)
    checks.check_hidden_labels(trial)
    if name in all_methods():
        checks.check_hidden_labels_after_a_base(trial)
        checks.check_negatives(trial)


@pytest.mark.parametrize(
    "name", [name for name, method in all_methods().items() if method.finetuning_options is not None]
)
def test_without_its_terms_a_method_is_fine_tuning(name: str, tmp_path: Path) -> None:
    checks.check_plain(checks._Trial(all_methods()[name], values_of(name), tmp_path))


@pytest.mark.parametrize("name", [name for name, method in all_methods().items() if method.base_is_finetuning])
def test_a_first_session_can_be_shared(name: str, tmp_path: Path) -> None:
    checks.check_base(checks._Trial(all_methods()[name], values_of(name) | {"epochs": 1}, tmp_path))


def test_every_method_runs_in_two_processes() -> None:
    checks.check_processes([CASES[name] for name in (*all_methods(), "derpp reservoir")])


class LeavesNegativesOut(FineTuning):
    """Trains on the images that show a new class, as if there were no others."""

    name = "leaves_negatives_out"

    def training_set(self, session: Session) -> TrainingSet:
        shows_one = (session.labels[:, session.first :] == PRESENT).any(axis=1)
        return TrainingSet(session.indices[shows_one], session.labels[shows_one])


class ForgetsItsState(LwF):
    """Does not save the teacher."""

    name = "forgets_its_state"

    def state(self) -> State:
        tensors, values = super().state()
        return State({key: value for key, value in tensors.items() if not key.startswith("teacher.")}, values)


class Hoards(ER):
    """Keeps everything."""

    name = "hoards"

    def after_session(self, session: Session, infer: Inference) -> None:
        super().after_session(session, infer)
        self.buffer.indices, self.buffer.labels = session.indices, session.labels


class GrowsBadly(FineTuning):
    """Starts every head anew when another comes."""

    name = "grows_badly"

    def make_tagger(self, backbone: Any) -> TaggerNet:
        class Careless(TaggerNet):
            def grow(self, classes: int) -> None:
                super().grow(classes)
                for head in self.heads:
                    torch.nn.init.normal_(head.weight)

        return Careless(backbone)


class NotPlain(LwF):
    """Says that it is fine-tuning and is not."""

    name = "not_plain"
    finetuning_options = {"weight": 1.0}  # noqa: RUF012


class CountsInSecret(FineTuning):
    """Weights its loss by a number that is not part of its state."""

    name = "counts_in_secret"
    steps = 0

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        self.steps += 1
        return {name: term * self.steps for name, term in super().losses(batch).items()}


class TurnsItsState(FineTuning):
    """Reads a matrix back with its rows contiguous, which had its columns contiguous."""

    name = "turns_its_state"
    saved = ("matrix",)
    matrix = torch.ones(2, 3).T

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.matrix = self.matrix.contiguous()


@pytest.mark.parametrize(
    ("method", "check", "promise"),
    [
        (ForgetsItsState, checks.check_resume, "continues to the same result"),
        (Hoards, checks.check_results, "a buffer of 1 keeps at most"),
        (GrowsBadly, checks.check_growth, "leaves the old classes' scores"),
        (TurnsItsState, checks.check_growth, "matrix keeps its memory layout"),
        (LeavesNegativesOut, checks.check_negatives, "trains on images without a new class"),
        (NotPlain, checks.check_plain, "equals fine-tuning"),
        (CountsInSecret, checks.check_resume, "continues to the same result"),
    ],
)
def test_the_battery_notices(method: type[Method], check: Any, promise: str, tmp_path: Path) -> None:
    with checks._known(method), pytest.raises(AssertionError, match=promise):
        check(checks._Trial(method, {}, tmp_path))
    assert method.name not in all_methods()


def test_the_battery_notices_a_leak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Protocol._session

    def leaking(self: Protocol, number: int, first: int, stop: int) -> Session:
        session = real(self, number, first, stop)
        session.labels[:, :first] = self.data.train.labels[session.indices, :first]
        return session

    monkeypatch.setattr(Protocol, "_session", leaking)
    with pytest.raises(AssertionError, match="reads no label that a session may not see"):
        checks.check_hidden_labels(checks._Trial(FineTuning, {}, tmp_path))
