"""Whether the Hugging Face hub can be reached; asked once, so that nobody waits for retries."""

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
    """Returns the package `datasets`, which uses only its own cache if there is no hub.

    Otherwise it would retry for 50 seconds and more. Raises UserError if it is not installed;
    `purpose` says what it would be for.
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
    """Returns why the hub cannot be reached; None: something answers there."""
    if "all" in urllib.request.getproxies():  # `datasets` may know it, `urllib` does not.
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
    """Returns a sentence on the missing hub and what to set, or "" where it can be reached."""
    reason = why_unreachable()
    if reason is None:
        return ""
    return (
        f" {_endpoint()} cannot be reached ({reason}), so only what was downloaded before can be "
        "used. Another address of the hub is set with HF_ENDPOINT, a proxy with HTTPS_PROXY."
    )
