import http.client
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from mlcil.core.errors import UserError
from mlcil.web import running
from mlcil.web.app import make_app
from mlcil.web.running import address_of, check_address, listen

from .conftest import ACCESS, served

TOKEN = "0123456789abcdef"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.9.9.9", "[::1]"])
def test_loopback_needs_no_token(host):
    check_address(host, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.2", "photos.home", ""])
def test_other_hosts_need_a_token(host):
    with pytest.raises(UserError, match="needs --token"):
        check_address(host, None)
    check_address(host, TOKEN)


@pytest.mark.parametrize("token", ["", "short", TOKEN[:-1], "ü" * 20, "line\n" * 5])
def test_a_token_must_be_hard_to_guess(token):
    for host in ("0.0.0.0", "127.0.0.1"):
        with pytest.raises(UserError, match="easy to guess"):
            check_address(host, token)


def test_a_port_that_is_taken_is_one_line():
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} of 127.0.0.1 is taken by another program"):
            listen("127.0.0.1", port)


def test_small_answers_are_sent_at_once():
    """Which asyncio only does for sockets that say that they are TCP."""
    with listen("127.0.0.1", 0) as made:
        assert made.proto == socket.IPPROTO_TCP


def test_an_address_of_another_machine():
    with pytest.raises(UserError, match="cannot listen on --host 192.0.2.1"):
        listen("192.0.2.1", 0)
    with pytest.raises(UserError, match="cannot listen on --host no such host"):
        listen("no such host", 0)


def test_addresses_to_open():
    assert address_of("127.0.0.1", 80) == "http://127.0.0.1:80/"
    assert address_of("::1", 80) == "http://[::1]:80/"
    assert address_of("0.0.0.0", 80) == f"http://{socket.gethostname()}:80/"


@pytest.fixture
def app():
    return make_app("t", ACCESS, [], "predict.html")


def test_no_header_names_the_program(app):
    with served(app) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.getheader("Server") is None
        connection.close()


@pytest.mark.parametrize("beginning", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "])
def test_slow_headers_are_given_up(app, monkeypatch, beginning):
    monkeypatch.setattr(running, "HEADER_SECONDS", 0.2)
    with served(app) as port, socket.create_connection(("127.0.0.1", port), timeout=5) as raw:
        raw.sendall(beginning)
        assert raw.recv(100) == b""


def test_slow_headers_of_a_second_request_are_given_up(app, monkeypatch):
    with served(app) as port, socket.create_connection(("127.0.0.1", port), timeout=5) as raw:
        raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = http.client.HTTPResponse(raw)
        answer.begin()
        assert (answer.status, answer.read()) == (200, b'{"status":"alive"}')
        monkeypatch.setattr(running, "HEADER_SECONDS", 0.2)
        time.sleep(0.4)  # between requests a client may be idle
        raw.sendall(b"GET /heal")
        assert raw.recv(100) == b""


def test_long_headers_are_refused(app):
    with served(app) as port, socket.create_connection(("127.0.0.1", port), timeout=5) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (running.HEADER_BYTES + 1000))
        assert raw.recv(5000).startswith(b"HTTP/1.1 400")


SERVE = """
from mlcil.web.access import LOOPBACK, Access
from mlcil.web.app import make_app
from mlcil.web.running import run
app = make_app("t", Access(LOOPBACK, 1, None, "t"), [], "predict.html", on_close=lambda: print("closed", flush=True))
run(app, "127.0.0.1", 0, lambda line: print(line, flush=True))
print("after", flush=True)
"""


def test_a_signal_ends_it_without_a_traceback():
    with subprocess.Popen([sys.executable, "-c", SERVE], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        first = process.stdout.readline().decode()
        port = int(first.split(":")[2].split("/")[0])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b'{"status":"alive"}'
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=20)
        connection.close()
    assert first.startswith("open http://127.0.0.1:")
    assert out.decode().split() == ["closed", "stopped", "after"]
    assert (err, process.returncode) == (b"", 0)
