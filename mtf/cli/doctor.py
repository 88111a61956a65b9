"""Describes the installation and the machine for a bug report (`python -m mtf doctor`)."""

from __future__ import annotations

import argparse
import getpass
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement

from mtf.base import signals
from mtf.base.environment import package_versions
from mtf.base.host_memory import gib, total_bytes
from mtf.base.progress import waiting
from mtf.cli.command import exit_status, new_parser
from mtf.data.sources import hub
from mtf.storage.errors import GCS_URL, endpoint

_EPILOG = """\
examples:
  python -m mtf doctor
  python -m mtf doctor --no-train

The report does not show secrets. In paths, ~ stands for the home directory and USER for the
user's name. The exit status is 0 if JAX finds devices and training works or is not tried, and 1
otherwise.
"""
_PROJECT = "mtf-jax"
_VARIABLES = re.compile(
    "(AWS|CUDA|HF|JAX|LIBTPU|MTF|NCCL|TENSORSTORE|TPU|XLA)_.*|(HTTPS?|ALL|NO)_PROXY|GOOGLE_.*|"
    "STORAGE_EMULATOR_HOST|LD_LIBRARY_PATH|PYTHONPATH|TMPDIR|XDG_CACHE_HOME", re.IGNORECASE
)  # fmt: skip
_SECRET = re.compile("AUTH|CREDENTIAL|KEY|PASSW|SECRET|SESSION|TOKEN", re.IGNORECASE)
_CREDENTIALS = ("~/.cache/huggingface/token", "~/.aws/credentials",
                "~/.config/gcloud/application_default_credentials.json")  # fmt: skip
_DEVICES = """
import collections, jax
kinds = collections.Counter(f"{x.device_kind} ({x.platform})" for x in jax.local_devices())
print(", ".join(f"{number} × {kind}" for kind, number in kinds.items()))
"""
_TRAIN = "-m mtf.run recipes.pretrain_text --set train_steps=2 batch_size=64 data.files=text.txt "
_TRAIN += "num_samples=0 trainer.eval_period=None data.num_held_out=64 model_dir=run"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    title = "Describe the installation and this machine, and try to train for two steps."
    parser = new_parser("doctor", title, _EPILOG)
    parser.add_argument("--no-train", action="store_true", help="do not try to train")
    options = parser.parse_args(argv)
    return exit_status(lambda: _main(options), only_shows=True)


def _main(options: argparse.Namespace) -> int:
    """Prints the report section by section, and returns the exit status."""
    here = {"python": sys.version.split()[0], "mtf": str(Path(__file__).parents[1])}
    _print("versions", here | {"system": platform.platform()} | package_versions())
    works, found = _run(["-c", _DEVICES], os.getcwd())
    found = found.splitlines()[-1] if works else f"no devices found: {found}"
    if os.path.exists("/dev/nvidiactl") and "(gpu)" not in found:
        found += "; to use this machine's NVIDIA GPU, install the extra cuda"
    _print("devices", {"jax": found})
    free = {x: shutil.disk_usage(x).free for x in (os.getcwd(), tempfile.gettempdir())}
    disks = {folder: f"{gib(number)} free" for folder, number in free.items()}
    cores = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}"
    _print("machine", {"memory": gib(total_bytes()), "cores": cores} | disks)
    names = sorted(filter(_VARIABLES.fullmatch, os.environ))
    shown = {x: "set (not shown)" if _SECRET.search(x) else os.environ[x] for x in names}
    _print("environment variables", shown)
    _print("packages", {x or "core": _missing(x) or "installed" for x in sorted(_extras())})
    servers = {"Hugging Face hub": hub.endpoint(), "gs://": endpoint("gs") or GCS_URL}
    _print("network", {name: f"{url} {_answer(url)}" for name, url in servers.items()})
    files = {x: Path(x).expanduser().is_file() for x in _CREDENTIALS}
    _print("credentials", {file: "found" if found else "none" for file, found in files.items()})
    if works and not options.no_train:
        with tempfile.TemporaryDirectory() as folder, signals.removed_on_stop(folder):
            lines = (f"The square of {i} is {i * i}, its cube {i**3}.\n" for i in range(512))
            Path(folder, "text.txt").write_text("".join(lines))
            with waiting("training for two steps"):
                works, found = _run(_TRAIN.split(), folder)
        _print("training", {"2 steps of recipes.pretrain_text": "works" if works else found})
    return 0 if works else 1


def _print(title: str, rows: dict[str, str]) -> None:
    """Prints a section. Hides the home directory, the user's name, and secrets in URLs."""
    text = "\n".join(f"  {name:<{max(map(len, rows))}}  {x}" for name, x in rows.items())
    text = re.sub(rf"{re.escape(str(Path.home()))}(?=$|[/\s:,;'\")])", "~", text)
    text = re.sub(rf"(?<=/){re.escape(getpass.getuser())}(?=$|[/\s:,;'\")])", "USER", text)
    text = re.sub(r"(://[^\s?]+\?)\S+", r"\1…", re.sub(r"(?<=://)[^/@\s]+@", "…@", text))
    print(f"{title}\n{text or '  none'}\n", flush=True)


def _run(arguments: Sequence[str], folder: str) -> tuple[bool, str]:
    """Runs Python for up to ten minutes. Returns whether it succeeded, and its output or errors."""
    path = os.pathsep.join(each or os.getcwd() for each in sys.path)
    try:
        done = subprocess.run([sys.executable, *arguments], cwd=folder, stdin=subprocess.DEVNULL,
                              env={**os.environ, "PYTHONPATH": path}, capture_output=True,
                              text=True, errors="replace", timeout=600)  # fmt: skip
    except subprocess.TimeoutExpired:
        return False, "no result within ten minutes"
    errors = "\n".join(done.stderr.strip().splitlines()[-12:])
    return not done.returncode, errors if done.returncode else done.stdout


def _extras() -> dict[str, list[str]]:
    """Returns a dict mapping mtf's extras to their requirements; the key "" is for mtf itself."""
    file = Path(__file__).resolve().parents[2] / "pyproject.toml"
    if file.is_file():  # In a checkout, this file may be newer than the installed metadata.
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        return {"": project["dependencies"], **project["optional-dependencies"]}
    extras = importlib.metadata.metadata(_PROJECT).get_all("Provides-Extra") or []
    needed = importlib.metadata.requires(_PROJECT) or []
    return dict.fromkeys(("", *extras), needed)  # `_missing` evaluates the markers.


def _missing(extra: str) -> str:
    """Returns an extra's missing packages and how to install them, or "" if none is missing."""
    extras = _extras()
    missing = list(_unmet((*extras[""], *extras[extra]), extra))
    command = f"pip install '{_PROJECT}[{extra}]'"
    return f"missing {', '.join(missing)}: {command}" if missing else ""


def _unmet(requirements: Iterable[str], extra: str) -> Iterator[str]:
    """Yields the requirements of an extra, and of the extras that they name, that are not met."""
    for text in dict.fromkeys(requirements):
        needed = Requirement(text)
        if needed.marker and not any(needed.marker.evaluate({"extra": e}) for e in ("", extra)):
            continue
        try:
            is_met = needed.specifier.contains(importlib.metadata.version(needed.name), True)
        except importlib.metadata.PackageNotFoundError:
            is_met = needed.name == _PROJECT  # The extra contains other extras.
        if not is_met:
            needed.marker = None
            yield str(needed)
        elif needed.name != _PROJECT:
            found = importlib.metadata.requires(needed.name) or () if needed.extras else ()
            for each in needed.extras:
                yield from _unmet((text for text in found if "extra ==" in text), each)


def _answer(url: str) -> str:
    """Returns "answers", or a message that explains why the server cannot be reached."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=5).close()
    except (OSError, ValueError) as error:
        if not isinstance(error, urllib.error.HTTPError):  # An HTTP error is an answer.
            return f"cannot be reached: {getattr(error, 'reason', error)}"
    return "answers"
