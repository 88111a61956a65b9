"""Learns that Google Cloud is about to take this machine away, from its metadata server.

A spot or preemptible machine has 30 seconds from this notice to its shutdown
(https://cloud.google.com/compute/docs/instances/create-use-spot#detect-preemption).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

# As in Google's client libraries: another address of the metadata server, HOST or HOST:PORT.
_ADDRESS = "GCE_METADATA_HOST"
_PRODUCT = Path("/sys/class/dmi/id/product_name")
# Seconds for which the server may wait before it answers that nothing has changed, and between
# requests if it does not answer.
_SECONDS_PER_REQUEST = 60


@contextlib.contextmanager
def as_sigterm() -> Iterator[None]:
    """Sends SIGTERM to this process, which must record it, when its machine will be preempted.

    Does nothing outside Google Cloud.
    """
    address = os.environ.get(_ADDRESS) or _default_address()
    if address is None:
        yield
        return
    closed = threading.Event()
    watch = threading.Thread(target=_watch, args=(address, closed), name="preemption", daemon=True)
    watch.start()
    try:
        yield
    finally:
        closed.set()


def _default_address() -> str | None:
    """Returns the address of the metadata server, or None outside Google Cloud."""
    with contextlib.suppress(OSError):
        if "Google" in _PRODUCT.read_text():
            return "metadata.google.internal"
    return None


def _watch(address: str, closed: threading.Event) -> None:
    etag = "0"  # The first answer comes at once.
    while not closed.is_set():
        try:
            answer, etag = _ask(address, etag)
        except (OSError, ValueError):
            closed.wait(_SECONDS_PER_REQUEST)
            continue
        if answer == "TRUE" and not closed.is_set():
            print("\nThis machine will be preempted.", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGTERM)
            return


def _ask(address: str, etag: str) -> tuple[str, str]:
    """Waits until the answer has another etag; returns "TRUE" or "FALSE", and the etag."""
    query = {"wait_for_change": "true", "last_etag": etag, "timeout_sec": _SECONDS_PER_REQUEST}
    request = urllib.request.Request(
        f"http://{address}/computeMetadata/v1/instance/preempted?{urllib.parse.urlencode(query)}",
        headers={"Metadata-Flavor": "Google"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=_SECONDS_PER_REQUEST + 30) as response:
        return response.read().decode().strip(), response.headers.get("ETag", "0")
