"""The promises that every method makes to the rest of the library, checked on a few tiny images.

    from mlcil.testing import check_method

    check_method(MyMethod)

takes about a minute and raises an AssertionError that names the broken promise.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .core.checksums import CHECKSUM
from .core.config import build, option_names
from .core.errors import UserError
from .core.state import State, divided, part_of
from .data.loading import Batch
from .data.poison import poisoned, with_negatives
from .evaluation.results import load_results
from .memory.buffer import Budget
from .methods.base import Method, MethodConfig
from .methods.finetune import FineTuning
from .methods.registry import OURS, all_methods
from .training.config import RunConfig, make_config
from .training.prepare import Data, prepare_data, prepare_method, read_data
from .training.run import run
from .training.states import load_session, memory_order

TINY: dict[str, Any] = {
    **{"data": "digits:train=40,test=30,size=16", "protocol": "0,1|2,3", "augment": "flip"},
    **{"backbone": "small_conv", "weights": None, "image_size": 16},
    **{"epochs": 2, "batch_size": 8, "base_lr": 1e-3, "lr": 1e-3},
    **{"threads": 1, "accelerator": "cpu"},
}
LARGE_BASE = "0,1,2|3"
STEPS_BETWEEN_CRASHES = 4  # so that crashes hit the start, the middle and the end of epochs


def check_method(method: type[Method], **values: Any) -> None:
    """Check everything that the rest of the library relies on.

    Arguments:
        method: the class. It need not be registered, but another process must be able to import it.
        values: settings and options of the tiny runs, such as `backbone="test_vit"` or `width=16`.

    Raises:
        AssertionError: a promise is broken; the message says which.
    """
    with tempfile.TemporaryDirectory() as folder, _known(method):
        trial = _Trial(method, values, Path(folder))
        check_results(trial)
        check_growth(trial)
        check_resume(trial)
        check_hidden_labels(trial)
        check_hidden_labels_after_a_base(trial)
        check_negatives(trial)
        check_plain(trial)
        check_base(trial)
    check_processes([(method, values)])


@dataclass(frozen=True)
class _Trial:
    """A method, the settings to try it with, and a place for the runs."""

    method: type[Method]
    values: Mapping[str, Any]
    folder: Path

    def config(self, **changes: Any) -> RunConfig:
        """The tiny run's configuration."""
        return _config(self.method, {**self.values, **changes})

    def whole(self) -> Path:
        """The folder of an uninterrupted run, which the first call trains."""
        out = self.folder / "whole"
        if not out.exists():
            run(self.config(), out)
        return out

    def expect(self, holds: bool, promise: str) -> None:
        """Raise an AssertionError with the method's name unless the promise holds."""
        if not holds:
            raise AssertionError(f"method {self.method.name}: {promise}")


def _config(method: type[Method], values: Mapping[str, Any]) -> RunConfig:
    needed = {} if method.buffer_use == "none" else {"buffer": "3"}
    return make_config({**TINY, "method": method.name, **needed}, values)


@contextmanager
def _known(method: type[Method]) -> Iterator[None]:
    """Register the class for the time being, in place of any other of its name."""
    methods = all_methods()
    before = dict(methods)
    methods[method.name] = method
    try:
        yield
    finally:
        methods.clear()
        methods.update(before)


def check_results(trial: _Trial) -> None:
    """Losses are finite, every class seen so far has a score, and the buffer keeps to its budget."""
    results = json.loads((trial.whole() / "results.json").read_text())
    trial.expect(results["finished"], "a run finishes")
    records = [json.loads(line) for line in (trial.whole() / "metrics.jsonl").read_text().splitlines()]
    epochs = [one["losses"] for one in records if "losses" in one]  # none where nothing is trained
    trial.expect(all(epochs), "every epoch has a loss")
    trial.expect(all(math.isfinite(value) for losses in epochs for value in losses.values()), "losses are finite")
    for session in results["sessions"]:
        trial.expect(len(session["ap"]) == len(session["classes"]), "there is a score for every class seen so far")
    if trial.method.buffer_use != "none":
        for text in ("1", "3", "total:5"):
            _check_budget(trial, text)


def _check_budget(trial: _Trial, text: str) -> None:
    out, budget = trial.folder / f"budget {text}".replace(":", " "), Budget.parse(text)
    for session in run(trial.config(buffer=text, epochs=1), out).sessions:
        allowed = budget.total or budget.per_class * len(session.classes)
        trial.expect(session.notes["exemplars"] <= allowed, f"a buffer of {text} keeps at most {allowed} images")


def check_growth(trial: _Trial) -> None:
    """Growing the model leaves the scores of old classes as they are."""
    method = _check_round_trip(trial, trial.whole() / "session-01" / "state.safetensors")
    sizes = _data(trial).protocol.sizes
    if len(sizes) == 1:  # there is nothing to grow for
        return
    size = trial.config().settings.image_size
    images = torch.rand(6, 3, size, size, generator=torch.Generator().manual_seed(0))
    images = method.tagger.backbone.stem(images)
    method.tagger.eval()
    with torch.no_grad():
        before = method.tagger(images).logits
        method.tagger.grow(sizes[1])
        after = method.tagger(images).logits
    trial.expect(after.shape[1] == sum(sizes[:2]), "the model grows by the session's classes")
    trial.expect(torch.equal(before, after[:, : before.shape[1]]), "growing leaves the old classes' scores as they are")


def _data(trial: _Trial) -> Data:
    settings = trial.config().settings
    return prepare_data(read_data(settings, _silent), settings, _silent)


def _silent(line: str) -> None:
    """Print nothing."""


def _check_round_trip(trial: _Trial, file: Path) -> Method:
    """What is saved can be loaded, to the bit and with the same memory layout, which decides how products round.

    Returns:
        The method as it was when the file was written.
    """
    method, _ = prepare_method(trial.config(), _data(trial).total_classes)
    tensors, values = load_session(file)
    tensors = part_of(tensors, "method.")
    method.load_state(State(tensors, values["method"]))
    gone = [name for name in method.only_for_learning if name not in values["method"]["saved"]]
    loaded, _ = divided(method.state(), gone)
    trial.expect(loaded.values == values["method"], "its saved values survive the disk")
    trial.expect(loaded.tensors.keys() == tensors.keys(), "what is loaded has the tensors that were saved")
    for name, value in loaded.tensors.items():
        trial.expect(torch.equal(value.cpu(), tensors[name]), f"state of {name} survives the disk to the bit")
        trial.expect(memory_order(value) == memory_order(tensors[name]), f"{name} keeps its memory layout on the disk")
    return method


def check_resume(trial: _Trial) -> None:
    """A run that crashes again and again ends as if it had not."""
    out, method, is_finished = trial.folder / "resumed", trial.method, False
    settings = trial.config().settings
    calls = -(-settings.batch_size // (settings.micro_batch or settings.batch_size))  # of `losses` in a step
    while not is_finished:
        left = STEPS_BETWEEN_CRASHES * calls

        class Stopping(method):  # type: ignore[valid-type, misc]
            """The method, which crashes after some steps."""

            def losses(self, batch: Batch) -> dict[str, Tensor]:
                nonlocal left
                left -= 1
                if left < 0:
                    raise InterruptedError
                return super().losses(batch)  # type: ignore[no-any-return]

        with _known(Stopping):
            try:
                run(trial.config(checkpoint_seconds=0.0), out)  # a checkpoint after every step
                is_finished = True
            except InterruptedError:
                _check_round_trip(trial, max(out.glob("session-*/*.safetensors"), key=lambda file: file.parent.name))
    trial.expect(_same_outcome(out, trial.whole()), "an interrupted run continues to the same result, to the bit")


def check_hidden_labels(trial: _Trial) -> None:
    """Replacing every label that a session may not see by noise changes nothing."""
    out = trial.folder / "poisoned"
    run(trial.config(), out, _change=poisoned)
    trial.expect(_same_outcome(out, trial.whole()), "it reads no label that a session may not see")


def check_hidden_labels_after_a_base(trial: _Trial) -> None:
    """The same where the first session is larger than the others, and without a buffer if the method can do without."""
    changes: dict[str, Any] = {"protocol": LARGE_BASE, "epochs": 1}
    if trial.method.buffer_use == "optional":
        changes["buffer"] = "0"
    plain, noisy = trial.folder / "large base", trial.folder / "poisoned large base"
    run(trial.config(**changes), plain)
    run(trial.config(**changes), noisy, _change=poisoned)
    trial.expect(
        _same_outcome(noisy, plain), "after a large first session, it reads no label that a session may not see"
    )


def check_negatives(trial: _Trial) -> None:
    """Images that show no class of a session are trained on where they count, and hide what they should."""
    plain, noisy = trial.folder / "negatives", trial.folder / "poisoned negatives"
    run(trial.config(epochs=1), plain, _change=with_negatives)
    run(trial.config(epochs=1), noisy, _change=lambda protocol: poisoned(with_negatives(protocol)))
    images = [[one.images for one in load_results(out).sessions] for out in (plain, trial.whole())]
    trial.expect(all(more > few for more, few in zip(*images, strict=True)), "it trains on images without a new class")
    trial.expect(_same_outcome(noisy, plain), "with negatives, it reads no label that a session may not see")


def check_plain(trial: _Trial) -> None:
    """With the options in `Method.finetuning_options` and no buffer, the method is fine-tuning, step for step."""
    method, plain = trial.method, trial.method.finetuning_options
    if plain is None:
        return
    own = {key: value for key, value in trial.values.items() if key in option_names(method.Config)}
    config = replace(trial.config(), options=build(method.Config, {**own, **plain}, method.name))
    settings = replace(config.settings, buffer="0")
    run(RunConfig(settings, config.options), trial.folder / "plain")
    tuned = RunConfig(replace(settings, method="ft"), MethodConfig(config.options.missing))
    with _known(FineTuning):
        run(tuned, trial.folder / "fine-tuning")
    ours, theirs = (part_of(_state(trial.folder / name), "method.tagger.") for name in ("plain", "fine-tuning"))
    trial.expect(_same(ours, theirs), f"with {dict(plain)} and no buffer it equals fine-tuning, step for step")


def check_base(trial: _Trial) -> None:
    """A method whose first session can be shared ends the same if fine-tuning trained that session."""
    method, bases = trial.method, str(trial.folder / "bases")
    if not method.base_is_finetuning:
        return
    plain = type("Plain", (method,), {"losses": Method.losses, "draw": Method.draw, "base_is_finetuning": True})
    with _known(plain):
        run(trial.config(bases=bases), trial.folder / "giver")
    run(trial.config(bases=bases), trial.folder / "taker")
    trial.expect(len(list(Path(bases).glob("*.safetensors"))) == 1, "its first session can be shared")
    is_same = _same_outcome(trial.folder / "taker", trial.whole())
    trial.expect(is_same, "its first session is fine-tuning's (`base_is_finetuning`)")


def check_processes(cases: Sequence[tuple[type[Method], Mapping[str, Any]]]) -> None:
    """Each method runs in two processes that exchange gradients over gloo.

    Arguments:
        cases: classes, and their settings as for `check_method`.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "cases.json").write_text(json.dumps([[*_address(one), dict(values)] for one, values in cases]))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command += ["-m", __name__, str(folder)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(  # noqa: S603 - ourselves, and no shell
            command, env=environment, capture_output=True, text=True, check=False
        )
        for number, (method, _) in enumerate(cases):
            results = folder / str(number) / "results.json"
            if done.returncode or not (results.exists() and json.loads(results.read_text())["finished"]):
                raise AssertionError(f"method {method.name}: it runs in two processes\n{done.stderr[-3000:]}")


def _address(method: type[Method]) -> tuple[str, str]:
    """Where another process finds the class: module and name, or "" and its name in the registry for a variant."""
    module, name = method.__module__, method.__qualname__
    if module != "__main__" and getattr(sys.modules.get(module), name, None) is method:
        return module, name
    if method in OURS:
        return "", method.name
    raise UserError(f"method {method.name}: put its class at the top of a module that can be imported")


def _run_cases(folder: Path) -> None:
    """What each of the two processes does."""
    for number, (module, name, values) in enumerate(json.loads((folder / "cases.json").read_text())):
        method = getattr(importlib.import_module(module), name) if module else all_methods()[name]
        with _known(method):
            run(_config(method, {**values, "devices": 2, "strategy": "ddp", "epochs": 1}), folder / str(number))


def _same_outcome(one: Path, other: Path) -> bool:
    """Whether two runs have the same results, apart from times, and the same state to the bit."""
    return _outcome(one) == _outcome(other) and _same(_state(one), _state(other))


def _outcome(folder: Path) -> dict[str, Any]:
    """results.json without what depends on the clock."""
    record: dict[str, Any] = json.loads((folder / "results.json").read_text())
    del record[CHECKSUM]
    for session in record["sessions"]:
        del session["train_seconds"]
    return record


def _state(folder: Path) -> dict[str, Tensor]:
    return load_session(sorted(folder.glob("session-*/state.safetensors"))[-1])[0]


def _same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


if __name__ == "__main__":
    _run_cases(Path(sys.argv[1]))
