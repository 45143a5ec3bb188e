"""How a server holds up: many requests in a row with its memory over time, and fifty at once.

    python speed/server.py TAGGER PHOTOS [--requests 10000]

The server is started on a free port of this machine and stopped in the end.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

AT_ONCE = 50
ROUNDS = 5


def main() -> None:
    """Start a server, load it, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tagger")
    parser.add_argument("photos", type=Path, help="folder of photos")
    parser.add_argument("--requests", type=int, default=10_000)
    given = parser.parse_args()
    files = sorted(file for file in given.photos.iterdir() if file.suffix.lower() in {".jpg", ".jpeg", ".png"})[:200]
    photos = [file.read_bytes() for file in files]
    command = [sys.executable, "-m", "mlcil", "serve", given.tagger, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline().split(":")[2].split("/")[0])
        try:
            in_a_row(port, photos, given.requests)
            at_once(port, photos)
        finally:
            server.terminate()


def in_a_row(port: int, photos: list[bytes], requests: int) -> None:
    """Requests one after another over one connection."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    seconds, began = [], time.monotonic()
    print(f"{requests} requests in a row\n  requests   memory (MB)")
    for number, photo in zip(range(requests + 1), itertools.cycle(photos), strict=False):
        if number % max(1, requests // 10) == 0:
            print(f"  {number:8}   {memory(port) / 1e6:8.1f}", flush=True)
        if number == requests:
            break
        start = time.monotonic()
        assert ask(connection, photo) == 200
        seconds.append(time.monotonic() - start)
    print(f"  {requests / (time.monotonic() - began):.1f} requests/s, {quantiles(seconds)}")


def at_once(port: int, photos: list[bytes]) -> None:
    """Fifty clients that ask at the same time, a few times."""

    def one(photo: bytes) -> tuple[int, float]:
        connection = HTTPConnection("127.0.0.1", port, timeout=120)
        start = time.monotonic()
        status = ask(connection, photo)
        connection.close()
        return status, time.monotonic() - start

    wanted = list(itertools.islice(itertools.cycle(photos), AT_ONCE))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        began = time.monotonic()
        found = [outcome for _ in range(ROUNDS) for outcome in pool.map(one, wanted)]
        rate = len(found) / (time.monotonic() - began)
    statuses = {status: sum(one == status for one, _ in found) for status in sorted({status for status, _ in found})}
    print(f"{AT_ONCE} at once, {ROUNDS} times: statuses {statuses}, {rate:.1f} requests/s")
    print(f"  {quantiles([seconds for _, seconds in found])}, memory {memory(port) / 1e6:.1f} MB")


def ask(connection: HTTPConnection, photo: bytes) -> int:
    """Have a photo tagged; returns the status."""
    connection.request("POST", "/v1/predict", photo)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def memory(port: int) -> int:
    """The memory that the server takes, in bytes."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return int(next(line for line in lines if line.startswith("process_resident_memory_bytes")).split()[1])


def quantiles(seconds: list[float]) -> str:
    """The median and the slow end, in milliseconds."""
    cuts = statistics.quantiles(seconds, n=100)
    return f"median {1e3 * cuts[49]:.1f} ms, 95 % below {1e3 * cuts[94]:.1f} ms, slowest {1e3 * max(seconds):.1f} ms"


if __name__ == "__main__":
    main()
