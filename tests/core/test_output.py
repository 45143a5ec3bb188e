"""Text that cannot be shown, printed by a process whose output would refuse it."""

import os
import subprocess
import sys


def test_what_cannot_be_shown_is_escaped():
    code = (
        "import sys\nfrom mlcil.core.output import escape_what_cannot_be_shown\nescape_what_cannot_be_shown()\n"
        "print('caf\\udce9 \u65e5')\nprint('caf\\udce9', file=sys.stderr)"
    )
    environment = os.environ | {"PYTHONIOENCODING": "latin-1:strict"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("caf\\udce9 \\u65e5\n", "caf\\udce9\n")


def test_input_that_is_no_text_names_a_file_all_the_same():
    code = (
        "import os, sys\nfrom mlcil.core.output import escape_what_cannot_be_shown\nescape_what_cannot_be_shown()\n"
        "print(os.fsencode(sys.stdin.read()))"
    )
    environment = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, input=b"caf\xe9", capture_output=True, check=True
    )
    assert done.stdout == b"b'caf\\xe9'\n"
