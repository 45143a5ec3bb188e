"""Ctrl-C and SIGTERM, in processes that send them to themselves."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.signals import heed_interrupts


def interrupted(code, number=signal.SIGINT, **environment):
    """What a process that runs `code` with the handler in place, and then gets the signal, leaves."""
    lines = "import os, signal, sys", "from mlcil.core import interruption", "interruption.install()", code
    send = f"os.kill(os.getpid(), {number:d})", "print('not reached')"
    return subprocess.run(
        [sys.executable, "-c", "\n".join([*lines, *send])],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=heed_interrupts,
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_is_one_line_and_the_code_of_the_signal(number, code):
    done = interrupted("print('before')\ninterruption.explain_with(lambda: 'all is kept')", number)
    assert (done.returncode, done.stdout, done.stderr) == (code, "before\n", "mlcil: all is kept\n")


SAVING = "mlcil: saving after the step under way; a second signal ends at once\n"
STARTED = "mlcil: interrupted before anything was done; the same command starts again\n"


@pytest.mark.parametrize(
    ("work", "printed"),
    [
        ("send(); print(interruption.waiting()); interruption.end(interruption.waiting())", "15\n"),
        ("send(); print('goes on')", "goes on\n"),
        ("send(); raise RuntimeError('a worker is gone')", ""),
        ("send(); print('goes on'); send(); print('not reached')", "goes on\n"),
    ],
)
def test_work_under_way_is_finished_unless_the_signal_comes_twice(work, printed):
    send = "send = lambda: os.kill(os.getpid(), signal.SIGTERM)"
    done = interrupted(f"{send}\nwith interruption.postponed(): {work}\nprint('not reached')")
    assert (done.returncode, done.stdout, done.stderr) == (143, printed, SAVING + STARTED)


def test_what_is_wrong_says_more_than_the_signal_that_waits():
    send = "from mlcil.core.errors import UserError\nsend = lambda: os.kill(os.getpid(), signal.SIGTERM)"
    work = (
        "try:\n    with interruption.postponed(): send(); raise UserError\nexcept UserError: print('full'); sys.exit(2)"
    )
    done = interrupted(f"{send}\n{work}")
    assert (done.returncode, done.stdout, done.stderr) == (2, "full\n", SAVING)


def test_nothing_can_catch_it():
    inside = "class Loud:\n    def __del__(self): os.kill(os.getpid(), signal.SIGINT)\n"
    done = interrupted(inside + "try: Loud()\nexcept BaseException: print('caught')\nfinally: print('finally')")
    assert done.returncode == 130
    assert done.stdout == ""
    assert done.stderr == "mlcil: interrupted before anything was done; the same command starts again\n"


def test_an_explanation_that_fails_is_left_out():
    done = interrupted("interruption.explain_with(lambda: 1 / 0)")
    assert (done.returncode, done.stderr) == (130, "mlcil: interrupted\n")


def test_a_name_that_is_not_text_is_escaped():
    done = interrupted("interruption.explain_with(lambda: os.fsdecode(b'caf\\xe9') + ' is kept')")
    assert (done.returncode, done.stderr) == (130, "mlcil: caf\\udce9 is kept\n")


@pytest.mark.parametrize("warnings", ["", "default::DeprecationWarning"])
def test_what_workers_leave_behind_is_cleared_up_in_silence(warnings):
    shared = "import multiprocessing\nlock = multiprocessing.get_context('forkserver').Lock()\ninterruption.install()"
    done = interrupted(f"{shared}\nprint(os.environ['PYTHONWARNINGS'])", PYTHONWARNINGS=warnings)
    assert done.stderr == "mlcil: interrupted before anything was done; the same command starts again\n"
    own = "ignore::UserWarning:multiprocessing.resource_tracker"
    assert done.stdout.strip() == (f"{warnings},{own}" if warnings else own)


def test_only_the_first_process_of_a_run_prints():
    done = interrupted("", LOCAL_RANK="1")
    assert (done.returncode, done.stderr) == (130, "")


def test_a_signal_that_was_ignored_stays_ignored():
    done = interrupted("signal.signal(signal.SIGINT, signal.SIG_IGN)\ninterruption.install()")
    assert (done.returncode, done.stdout) == (0, "not reached\n")


def test_after_the_end_of_the_program_it_is_too_late():
    late = "class Late:\n    def __del__(self, kill=os.kill, me=os.getpid()): kill(me, 2); kill(me, 15)\n"
    done = interrupted(late + "import builtins\nbuiltins.late = Late()\nsys.exit(0)")
    assert (done.returncode, done.stderr) == (0, "")


def test_processes_of_the_same_run_end_with_it():
    follower = [sys.executable, "-c", "import time; time.sleep(600)"]
    done = interrupted(
        f"import subprocess\nfollowers = []\ninterruption.end_with_me(followers)\n"
        f"followers.append(subprocess.Popen({follower}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))\n"
        "print(followers[0].pid, flush=True)"
    )
    while is_alive(int(done.stdout)):  # the system takes a moment
        time.sleep(0.01)


def is_alive(process):
    try:
        os.kill(process, 0)
        stat = Path(f"/proc/{process}/stat")
        return not (stat.exists() and stat.read_text().split()[2] == "Z")  # dead, and nobody has asked how
    except (ProcessLookupError, FileNotFoundError):
        return False
