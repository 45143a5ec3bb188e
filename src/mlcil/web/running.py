"""Running a server until it is told to stop."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..core.errors import UserError

TOKEN_LENGTH = 16  # characters that a token has at least
HEADER_SECONDS = 10.0  # in which the headers of a request must have arrived
IDLE_SECONDS = 15  # after which a connection without a request is closed
GRACE_SECONDS = 5  # in which requests may end once the server is told to stop
HEADER_BYTES = 32 * 1024  # of one request
CONNECTIONS = 256  # at once


def check_address(host: str, token: str | None) -> None:
    """Make sure that only this machine can reach a server without a token.

    Raises:
        UserError: others could, or the token can be guessed.
    """
    if token is not None and (len(token) < TOKEN_LENGTH or not token.isascii() or not token.isprintable()):
        raise UserError(f"--token is too easy to guess: expected at least {TOKEN_LENGTH} letters, digits or signs")
    if token is None and not is_loopback(host):
        raise UserError(
            f"--host {host} can be reached from other machines, so it needs --token TEXT of at least {TOKEN_LENGTH} "
            "characters; or leave --host at 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one.

    Raises:
        UserError: the port is taken, or there is no such address here.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise UserError(f"cannot listen on --host {host}: it is no address of this machine ({error})") from None
    # Only where it is told that this is TCP, asyncio sends at once what is small; else each answer waits for 40 ms.
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(CONNECTIONS)
    except OSError as error:
        made.close()
        raise UserError(_why_not(host, port, error)) from None
    return made


def _why_not(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is taken by another program; choose another --port, or 0 for a free one"
    if error.errno == errno.EACCES:
        return f"port {port} needs special rights; choose a --port from 1024 on"
    return f"cannot listen on --host {host} --port {port}: {error.strerror}"


def run(app: FastAPI, host: str, port: int | socket.socket, say: Callable[[str], None] = print) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Arguments:
        port: to listen on, 0 for a free one; or a socket from `listen`.
        say: told the address to open, and that the server has stopped.

    Raises:
        UserError: the port is taken, or there is no such address here.
    """
    listening = listen(host, port) if isinstance(port, int) else port
    say(f"open {address_of(host, listening.getsockname()[1])} (Ctrl-C stops the server)")
    make_server(app).run(sockets=[listening])
    say("stopped")


def address_of(host: str, port: int) -> str:
    """What to open in a browser."""
    everywhere = ("0.0.0.0", "::", "[::]", "")  # noqa: S104 - compared with, not listened on
    name = socket.gethostname() if host in everywhere else host.strip("[]")
    return f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"


def make_server(app: FastAPI) -> Server:
    """A server that is strict with clients; its `should_exit` stops it."""
    return Server(
        uvicorn.Config(
            app, http=PatientProtocol, ws="none", loop="asyncio", lifespan="on", log_config=None, access_log=False,
            server_header=False, proxy_headers=False, limit_concurrency=CONNECTIONS, timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS, h11_max_incomplete_event_size=HEADER_BYTES,
        )
    )  # fmt: skip


class Server(uvicorn.Server):
    """A server for which a signal is the usual way to end and not a failure."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let signals stop the server, and what comes after it go on."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class PatientProtocol(H11Protocol):
    """HTTP/1.1 with an end to patience: a client that does not finish its headers is cut off."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for headers."""
        super().connection_made(transport)
        if len(self.connections) > 2 * CONNECTIONS:  # beyond the number that gets at least a 503
            transport.abort()
            return
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        """Wait for headers as long as a request has begun and they are not whole."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._timer is None and self.conn.trailing_data[0]:
            self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_headers(self) -> None:
        self._timer = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
