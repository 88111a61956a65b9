"""Checks once whether the Hugging Face hub can be reached, so that nobody waits for retries."""

from __future__ import annotations

import functools
import os
import ssl
import urllib.error
import urllib.request
from types import ModuleType

from mtf.extras import import_extra

_TIMEOUT_SECONDS = 10


def import_datasets(purpose: str) -> ModuleType:
    """Returns the package `datasets`, set to offline mode if the hub cannot be reached.

    Otherwise it would retry for 50 seconds or more. Raises UserError, which names `purpose`, if it
    is not installed.
    """
    datasets = import_extra("datasets", purpose)
    if why_unreachable() is not None and hasattr(datasets, "config"):
        import huggingface_hub.constants

        datasets.config.HF_HUB_OFFLINE = True
        huggingface_hub.constants.HF_HUB_OFFLINE = True
    return datasets


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


@functools.cache
def why_unreachable() -> str | None:
    """Returns why the hub cannot be reached, or None if it answers."""
    if "all" in urllib.request.getproxies():  # `datasets` may support it; `urllib` does not.
        return None
    request = urllib.request.Request(_endpoint(), method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS):
            return None
    except urllib.error.HTTPError:
        return None
    except OSError as error:
        reason = getattr(error, "reason", error)
        return None if isinstance(reason, ssl.SSLError) else str(reason)


def no_hub_hint() -> str:
    """Returns a sentence that says why the hub is missing and what to set, or "" if it answers."""
    reason = why_unreachable()
    if reason is None:
        return ""
    return (
        f" {_endpoint()} cannot be reached ({reason}), so only data downloaded earlier is "
        "available. Set HF_ENDPOINT to use another hub address, or HTTPS_PROXY to use a proxy."
    )
