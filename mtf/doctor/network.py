"""Whether the hub and the stores answer, and whether there are credentials."""

from __future__ import annotations

import os
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from mtf.doctor.report import Section
from mtf.sources import hub
from mtf.storage import StorePath
from mtf.storage_errors import GCS_URL, StorageError, endpoint

_SECONDS_TO_ANSWER = 5


def servers() -> Section:
    """Returns which servers answer: the hub's, Google's, and that of S3 if a variable sets one."""
    rows, problems = [], []
    offline = hub.offline_variable()
    asked = {"Hugging Face hub": hub.endpoint(), "gs://": endpoint("gs") or GCS_URL}
    if url := endpoint("s3"):
        asked["s3://"] = url
    if offline is not None:
        rows.append(("Hugging Face hub", f"not asked, because {offline} is set"))
        del asked["Hugging Face hub"]
    for (name, url), (seconds, reason) in zip(
        asked.items(), _ask_all([*asked.values()]), strict=True
    ):
        if reason is None:
            rows.append((name, f"{url} answers ({seconds:.1f} s)"))
        else:
            rows.append((name, f"{url} cannot be reached: {reason}"))
            problems.append(f"{name}: {url} cannot be reached: {reason}.")
    return Section("network", rows, problems)


def _ask_all(urls: Sequence[str]) -> list[tuple[float, str | None]]:
    """Returns for each server the seconds that it took to answer, and why it did not answer."""
    begin = time.monotonic()
    answers: list[queue.Queue[tuple[float, str | None]]] = [queue.Queue() for _ in urls]

    def ask(url: str, answer: queue.Queue[tuple[float, str | None]]) -> None:
        reason = _ask(url)
        answer.put((time.monotonic() - begin, reason))

    for url, answer in zip(urls, answers, strict=True):
        # In threads, because the time to look up a name cannot be limited.
        threading.Thread(target=ask, args=(url, answer), daemon=True).start()
    found: list[tuple[float, str | None]] = []
    for answer in answers:
        rest = max(begin + 2 * _SECONDS_TO_ANSWER - time.monotonic(), 0)
        try:
            found.append(answer.get(timeout=rest))
        except queue.Empty:
            found.append((rest, "no answer"))
    return found


def _ask(url: str) -> str | None:
    """Returns why a server does not answer, or None if it does; through a proxy if one is set."""
    request = urllib.request.Request(url, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=_SECONDS_TO_ANSWER).close()
    except urllib.error.HTTPError:  # It answers that it wants something else.
        return None
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))
    return None


def credentials(environ: Mapping[str, str] = os.environ) -> Section:
    """Returns where credentials of the hub and the stores are; never the credentials."""
    home = Path.home()
    hub_home = Path(environ.get("HF_HOME") or home / ".cache/huggingface")
    gcloud = Path(environ.get("CLOUDSDK_CONFIG") or home / ".config/gcloud")
    key_file = environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    places = {
        "Hugging Face hub": (
            ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
            (Path(environ.get("HF_TOKEN_PATH") or hub_home / "token"),),
            "not found; public models and datasets need none",
        ),
        "gs://": (
            (),
            (Path(key_file or gcloud / "application_default_credentials.json"),),
            "not found; on Google Cloud, the machine's service account is used",
        ),
        "s3://": (
            ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"),
            (Path(environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws/credentials"),),
            "not found; on AWS, the machine's role is used",
        ),
    }
    rows = []
    for name, (names, files, otherwise) in places.items():
        found = [each for each in names if environ.get(each)]
        found += [str(file) for file in files if file.is_file()]
        rows.append((name, f"found: {', '.join(found)}" if found else otherwise))
    problems = []
    if key_file and not Path(key_file).is_file():
        problems.append(f"GOOGLE_APPLICATION_CREDENTIALS names {key_file}, which does not exist.")
    return Section("credentials", rows, problems)


def buckets(addresses: Sequence[StorePath]) -> Section:
    """Returns whether addresses in stores can be read with the credentials here."""
    rows, problems = [], []
    for address in addresses:
        try:
            text = "found" if address.exists() else "nothing is there"
        except StorageError as error:
            text = "cannot be read"
            problems.append(str(error))
        rows.append((str(address), text))
    return Section("buckets", rows, problems)
