import sys
import time

import pytest

from mlcil.core.errors import UserError
from mlcil.experiments import engines
from mlcil.experiments.engines import LocalEngine, Work, last_line, make_engine, visible_gpus


def work(tmp_path, text):
    """A run that is only a script: an engine does not care what it does."""
    script = tmp_path / "config.yaml"
    script.write_text(text)
    return Work(script, tmp_path / "out", tmp_path / "logs" / "run.log", 1, 1)


@pytest.fixture
def scripts(monkeypatch):
    """Let the engine run the file that takes the place of a configuration."""
    real = engines.subprocess.Popen
    monkeypatch.setattr(
        engines.subprocess, "Popen", lambda command, **given: real([sys.executable, command[3]], **given)
    )


def outcome(script):
    running = LocalEngine().start(script, 0)
    while (error := running.ended()) is None:
        time.sleep(0.02)
    return error


@pytest.mark.usefixtures("scripts")
def test_how_a_run_ended(tmp_path):
    assert outcome(work(tmp_path, "print('fine')")) == ""
    assert outcome(work(tmp_path, "import sys; sys.exit('mlcil: no such class')")) == "no such class"
    assert outcome(work(tmp_path, "1 / 0")) == "ZeroDivisionError: division by zero"
    assert outcome(work(tmp_path, "import os; os.kill(os.getpid(), 9)")) == "ended by SIGKILL"


@pytest.mark.usefixtures("scripts")
def test_a_run_can_be_stopped(tmp_path):
    running = LocalEngine().start(work(tmp_path, "import os\nwhile os.read(0, 1): pass"), 0)
    assert running.ended() is None
    running.stop()
    assert running.ended() is not None


def test_each_slot_has_its_own_gpus(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [visible_gpus(slot, 1, 4) for slot in range(5)] == [{"CUDA_VISIBLE_DEVICES": text} for text in "01230"]
    assert visible_gpus(1, 2, 4) == {"CUDA_VISIBLE_DEVICES": "2,3"}
    assert visible_gpus(0, 3, 2) == {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert visible_gpus(3, 1, 0) == {}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert visible_gpus(1, 1, 2) == {"CUDA_VISIBLE_DEVICES": "7"}


def test_the_last_line_that_says_something(tmp_path):
    log = tmp_path / "log"
    assert last_line(log) == ""
    log.write_text("x" * 9000 + "\nfirst\nlast \n\n  \n")
    assert last_line(log) == "last"


def test_an_unknown_engine_is_one_line():
    with pytest.raises(UserError, match="unknown engine 'slurm'.*local, ray"):
        make_engine("slurm", 1)


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"mlcil\[ray\]"):
        make_engine("ray", 1)
