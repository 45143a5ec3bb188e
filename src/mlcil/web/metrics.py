"""What a server counts, as text for Prometheus. Routes are named by their patterns, so there are few of them."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16)


class Histogram:
    """How often a value was at most each of some bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.total = tuple(bounds), [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        place = next((n for n, bound in enumerate(self.bounds) if value <= bound), len(self.bounds))
        self.counts[place] += 1
        self.total += value

    def lines(self, name: str, labels: str = "") -> list[str]:
        """Its lines; labels as in `route="/"`."""
        found, so_far = [], 0
        comma = "," if labels else ""
        for bound, count in zip((*(f"{one:g}" for one in self.bounds), "+Inf"), self.counts, strict=True):
            so_far += count
            found.append(f'{name}_bucket{{{labels}{comma}le="{bound}"}} {so_far}')
        braces = f"{{{labels}}}" if labels else ""
        return [*found, f"{name}_sum{braces} {self.total:.6f}", f"{name}_count{braces} {so_far}"]


class Metrics:
    """The figures of one server; any thread may add to them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, Histogram] = {}
        self._batches = Histogram(SIZES)
        self._images = self._rejected = 0
        self.queue_length: Callable[[], int] = lambda: 0

    def add_request(self, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        with self._lock:
            self._requests[route, status] += 1
            self._seconds.setdefault(route, Histogram(SECONDS)).add(seconds)

    def add_batch(self, images: int) -> None:
        """Count images that were computed together."""
        with self._lock:
            self._batches.add(images)
            self._images += images

    def add_rejected(self, images: int) -> None:
        """Count images for which there was no room."""
        with self._lock:
            self._rejected += images

    def text(self) -> str:
        """All figures in the text format of Prometheus."""
        with self._lock:
            lines = [
                *_head("mlcil_requests_total", "counter", "Requests by route and status."),
                *(f'mlcil_requests_total{{route="{r}",status="{s}"}} {n}' for (r, s), n in self._requests.items()),
                *_head("mlcil_request_seconds", "histogram", "Time from the request to the end of its answer."),
                *(line for r, one in self._seconds.items() for line in one.lines("mlcil_request_seconds", _route(r))),
                *_head("mlcil_batch_images", "histogram", "Images computed together."),
                *self._batches.lines("mlcil_batch_images"),
                *_single("mlcil_images_total", "counter", "Images predicted.", self._images),
                *_single(
                    "mlcil_rejected_images_total", "counter", "Images for which there was no room.", self._rejected
                ),
            ]
        lines += _single("mlcil_queue_images", "gauge", "Images that wait or are computed.", self.queue_length())
        if (memory := resident_bytes()) is not None:
            lines += _single("process_resident_memory_bytes", "gauge", "Resident memory in bytes.", memory)
        return "\n".join(lines) + "\n"


class Measured:
    """Counts and times what passes through."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and count its answer."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        began, status = time.perf_counter(), 500

        async def watched(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, receive, watched)
        finally:
            route = getattr(scope.get("route"), "path", "other")  # the pattern: a raw path could be anything
            self.metrics.add_request(route, status, time.perf_counter() - began)


def resident_bytes() -> int | None:
    """The memory that this process takes now; None where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _route(route: str) -> str:
    return f'route="{route}"'


def _head(name: str, kind: str, what: str) -> list[str]:
    return [f"# HELP {name} {what}", f"# TYPE {name} {kind}"]


def _single(name: str, kind: str, what: str, value: int) -> list[str]:
    return [*_head(name, kind, what), f"{name} {value}"]
