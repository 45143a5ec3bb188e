import os
import signal
import socket
import subprocess
import sys
from urllib.request import urlopen

import pytest

from mlcil.cli.serving import ServeOptions, run_serve
from mlcil.core.errors import UserError
from mlcil.web.tagger_server import access_of

TOKEN = "0123456789abcdef"


def test_names_of_a_server():
    assert access_of("127.0.0.1", 1, None, (), "t").hosts[:3] == ("127.0.0.1", "localhost", "[::1]")
    assert "[fe80::1]" in access_of("fe80::1", 1, TOKEN, (), "t").hosts
    assert socket.gethostname() in access_of("0.0.0.0", 1, TOKEN, (), "t").hosts
    assert "photos.home" in access_of("0.0.0.0", 1, TOKEN, ["photos.home"], "t").hosts
    for name in ("http://photos.home", "photos.home:8000"):
        with pytest.raises(UserError, match="without http:// and without ports"):
            access_of("0.0.0.0", 1, TOKEN, [name], "t")


def test_mistakes_show_before_the_tagger_is_loaded():
    with pytest.raises(UserError, match="needs --token"):
        run_serve("no such tagger", ServeOptions("0.0.0.0", 0, None), print)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = ServeOptions("127.0.0.1", taken.getsockname()[1], None)
        with pytest.raises(UserError, match="is taken by another program"):
            run_serve("no such tagger", options, print)


def test_without_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("mlcil.web")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("mlcil.web", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(UserError, match=r"pip install 'mlcil\[serve\]'"):
        run_serve("no such tagger", ServeOptions("127.0.0.1", 0, None), print)


def test_the_command_from_its_start_to_its_end(digit_tagger):
    command = [sys.executable, "-m", "mlcil", "serve", str(digit_tagger), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        address = process.stdout.readline().decode().split()[1]
        with urlopen(f"{address}readyz", timeout=20) as answer:
            assert answer.read() == b'{"status":"ready"}'
        os.kill(process.pid, signal.SIGTERM)
        out, err = process.communicate(timeout=20)
    assert (out, err, process.returncode) == (b"stopped\n", b"", 0)
