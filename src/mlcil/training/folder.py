"""A run is a folder: what it holds, who may write to it, and how it is continued."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ..core.checksums import DamagedFileError, set_aside, set_aside_damaged
from ..core.errors import UserError
from ..core.files import PARTIAL, read_json, remove, write_json, write_text
from ..core.kinds import is_kind
from ..core.locks import FileLock
from ..evaluation.results import RunResult, SessionResult, session_from_dict, write_results
from ..evaluation.scores import ScoredImages, load_scores, save_scores, scores_file
from .config import RunConfig, read_config
from .data_record import DataRecord, data_file, read_record
from .environment import environment
from .states import LEARNING, fitting, load_state, save_state

if TYPE_CHECKING:
    from torch import Tensor

    from ..core.state import State

WHOLE = 2  # newest sessions that can be learned on from: the last one, and the one before if that is damaged

Once = Callable[[Callable[[], None]], None]
"""Calls a function in one of the processes of a run; a `UserError` there is raised in all of them."""


class RunFolder:
    """The files of one run.

        config.yaml          what was asked
        data.json            what it was given: each image by content, with a digest of its labels
        environment.json     with what it was computed, one entry per launch
        metrics.jsonl        one line per epoch and per evaluation
        results.json         the outcome so far
        session-NN/          state.safetensors when the session is done, progress.safetensors while it is not,
                             learning.safetensors with what only further learning needs, for the newest sessions,
                             scores.safetensors of the test images after it

    A state does not repeat the tensors of an earlier one but names the session that holds them. A damaged one is set
    aside under a name that ends with .damaged.

    Arguments:
        path: the folder.
        once: lets one of a run's processes call a function, which writes; by default there is only one process.
    """

    def __init__(self, path: Path, once: Once = lambda write: write()) -> None:
        self.path, self._once = path, once
        self.results = path / "results.json"
        self.metrics = path / "metrics.jsonl"
        self._lock: FileLock | None = None

    def open(self, config: RunConfig) -> None:
        """Create the folder, or check that it holds this very run.

        Raises:
            UserError: it holds another run or something else, or another process is writing to it.
        """
        self._once(lambda: self._open(config))

    def _open(self, config: RunConfig) -> None:
        try:
            self._claim()
            self._check_config(config)
            self._check_states()
            self._tidy()
        except UserError:
            self.close()
            raise

    def _claim(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if self._is_foreign():  # before the lock: nothing is left in a folder that is not ours
                raise UserError(f"{self.path} is not empty and is no run folder; choose another --out")
            self._lock = FileLock(self.path / ".lock")
        except OSError as error:
            raise UserError(f"cannot use folder {self.path}: {error.strerror or error}") from error
        if not self._lock.try_to_claim():
            raise UserError(f"another process is writing to {self.path}; wait for it or choose another --out")

    def _is_foreign(self) -> bool:
        # A run's config.yaml is written before all but its lock; a kill may leave it half written.
        half_written = f".config.yaml.*{PARTIAL}"
        names = {child.name for child in self.path.iterdir() if not child.match(half_written)}
        return "config.yaml" not in names and not all(name.startswith(".lock") for name in names)

    def _check_config(self, config: RunConfig) -> None:
        stored = self.path / "config.yaml"
        # Before the first checkpoint nothing is learned yet: a mistyped command may be corrected.
        if stored.exists() and any(self.path.glob("session-*/*.safetensors")):
            differing = config.differences(read_config(stored))
            if differing:
                raise UserError(
                    f"{self.path} holds a run with another configuration ({'; '.join(differing)}); "
                    "choose another --out, or repeat its own settings to continue it"
                )
        else:
            # Whoever runs this file again elsewhere has no business in the folder of shared first sessions.
            write_text(stored, yaml.safe_dump(config.to_dict() | {"bases": None}, sort_keys=False))

    def _check_states(self) -> None:
        """Make sure that no state is missing before others: learning again would overwrite those."""
        finished = self.finished_sessions()
        later = [one.parent.name for one in self.path.glob(f"session-*/{self.state_file(1).name}")]
        if len(later) > finished:
            raise UserError(
                f"{self.path} has no state of session {finished + 1}, but {max(later)} has one; put it back, or move "
                "the folders of the later sessions away to learn them again"
            )

    def _tidy(self) -> None:
        """Remove what a kill left behind."""
        for orphan in (*self.path.glob(f".*{PARTIAL}"), *self.path.glob(f"session-*/.*{PARTIAL}")):
            remove(orphan)
        for number in range(1, self.finished_sessions() + 1):
            remove(self.progress_file(number))

    def close(self) -> None:
        """Let another process write."""
        if self._lock is not None:
            self._lock.close()

    def set_aside_damaged(self, say: Callable[[str], None]) -> None:
        """Rename the newest states as long as they are damaged, so that the run goes on from the one before.

        Arguments:
            say: takes a line for each of them.

        Raises:
            UserError: a state cannot be read for another reason, or an older one is damaged that it takes tensors from.
        """
        lines: list[str] = []
        self._once(lambda: lines.extend(self._set_aside()))
        for line in lines:
            say(line)

    def _set_aside(self) -> Iterator[str]:
        while True:
            number = self.finished_sessions()
            progress, state = self.progress_file(number + 1), self.state_file(number)
            files = [progress, state, state.with_name(LEARNING)]
            error = next((found for file in files if file.exists() and (found := _damage(file))), None)
            if error is None:
                return
            if error.file == files[-1]:  # then the session cannot be learned on from
                set_aside(state)
            again = number + (error.file == progress)
            yield set_aside_damaged(error, f"session {again} is learned again from its start")

    def state_file(self, session: int) -> Path:
        """Where the state after a finished session is."""
        return self.path / f"session-{session:02d}" / "state.safetensors"

    def progress_file(self, session: int) -> Path:
        """Where the state within an unfinished session is."""
        return self.path / f"session-{session:02d}" / "progress.safetensors"

    def finished_sessions(self) -> int:
        """How many sessions are done."""
        number = 0
        while self.state_file(number + 1).exists():
            number += 1
        return number

    def begun_sessions(self) -> int:
        """How many sessions are done or have a checkpoint."""
        finished = self.finished_sessions()
        return finished + self.progress_file(finished + 1).exists()

    def record(self) -> DataRecord | None:
        """What the run was given when it was last started; None before anything is learned.

        Raises:
            UserError: there is no record, or it is damaged.
        """
        return read_record(data_file(self.path)) if self.begun_sessions() else None

    def save_record(self, record: DataRecord) -> None:
        """Note what the run is given."""
        self._once(lambda: write_text(data_file(self.path), record.to_text()))

    def log(self, *records: Mapping[str, Any]) -> None:
        """Append a line for each record to metrics.jsonl."""
        self._once(lambda: self._log(records))

    def _log(self, records: Sequence[Mapping[str, Any]]) -> None:
        try:
            with self.metrics.open("a") as file:
                file.writelines(json.dumps(record) + "\n" for record in records)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UserError(
                f"cannot write {self.metrics}: {error.strerror}; make room and repeat the command to continue"
            ) from error

    def forget_metrics(self, session: int, epoch: int) -> None:
        """Drop the lines that will be written again when the run continues at this session and epoch."""

        def rewrite() -> None:
            if self.metrics.exists():
                # What was measured after an epoch comes after it: training may have ended there and measuring not.
                lines = [one for one in parse_lines(self.metrics) if is_kind(one.get("session"), int)]
                lines = [one for one in lines if is_kind(one.get("epoch"), int)]  # a damaged line is about neither
                kept = [one for one in lines if (one["session"], one["epoch"] + ("mAP" in one)) < (session, epoch)]
                write_text(self.metrics, "".join(json.dumps(one) + "\n" for one in kept))

        self._once(rewrite)

    def epochs(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl about epochs."""
        return [one for one in parse_lines(self.metrics) if "losses" in one]

    def log_environment(self, facts: Mapping[str, Any]) -> None:
        """Add this launch to environment.json."""

        def add() -> None:
            file = self.path / "environment.json"
            try:
                launches = [*read_json(file)["launches"]] if file.exists() else []
            except (UserError, LookupError, TypeError):  # nothing depends on it
                launches = []
                set_aside(file)
            write_json(file, {"launches": [*launches, environment() | dict(facts)]})

        self._once(add)

    def save(self, file: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Write a state to one of the folder's files."""
        self._once(lambda: save_state(file, tensors, values))

    def save_session(self, session: int, state: State, rest: State) -> None:
        """Write the state after a session, which is finished then, and `rest`, what only further learning needs."""

        def write() -> None:
            if rest.values:
                save_state(self.state_file(session).with_name(LEARNING), *rest)
            before = self.state_file(session - 1)
            save_state(self.state_file(session), *state, before if before.exists() else None)
            for number in range(1, session - WHOLE + 1):
                remove(self.state_file(number).with_name(LEARNING))

        self._once(write)

    def result_after(self, session: int) -> SessionResult:
        """What was measured after a session, as its state has it.

        Raises:
            UserError: the state cannot be read, is damaged or is that of another version.
        """
        file = self.state_file(session)
        with fitting(file):
            return session_from_dict(load_state(file, False)[1]["result"])

    def save_scores(self, session: int, scored: ScoredImages) -> None:
        """Keep the test scores after a session."""
        self._once(lambda: save_scores(scores_file(self.path, session), scored))

    def lacks_scores(self, session: int, say: Callable[[str], None]) -> bool:
        """Whether the scores after a session are missing; damaged ones are renamed, which is said in a line."""
        file = scores_file(self.path, session)

        def look() -> None:
            try:
                if file.exists():
                    load_scores(file)
            except DamagedFileError as error:
                say(set_aside_damaged(error))

        self._once(look)  # by all processes: they must agree
        return not file.exists()

    def drop_progress(self, session: int) -> None:
        """Remove the state within a session, which is finished."""
        self._once(lambda: remove(self.progress_file(session)))

    def write_results(self, result: RunResult) -> None:
        """Write results.json."""
        self._once(lambda: write_results(self.results, result))


def _damage(file: Path) -> DamagedFileError | None:
    """What is wrong with a state, if it is damaged itself; damage to another one that it needs is raised."""
    try:
        load_state(file)
    except DamagedFileError as error:
        if error.file == file:
            return error
        raise
    return None


def parse_lines(file: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl that are whole; a kill may have torn the last one."""
    lines = []
    try:
        for line in file.read_text(errors="replace").splitlines():
            with suppress(ValueError, RecursionError):  # also numbers too long to read
                lines.append(json.loads(line))
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from error
    return [line for line in lines if isinstance(line, dict)]
