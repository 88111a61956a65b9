"""Lets stores fail in many ways while files are read from them.

    python -m tests.stress.store_faults --count 60 --seed 0

Each case chooses a store (gs, s3 or https's stand-in, http), what reads from it (a token cache,
`mtf fetch`, a conversion or `mtf.load`), and a fault of `tests.stores.KINDS`. Each fourth case is a
run whose run directory is in a store that fails for one request or for all that follow, and that is
resumed when the store works again. What must hold:

* what was read is what the store has, or had before the file was replaced;
* otherwise, the command ends with status 2, or 1, and one message, without a traceback;
* it ends within a minute, which begins when its modules have been imported; a run that fails,
  within a minute after it tried the last time;
* a resumed run ends with the bits of one that was never interrupted.

The output is a line for each case. Exit status 1: something did not hold.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from conversion import open_checkpoint
from mtf import convert
from mtf.cli import fetch
from mtf.cli.command import exit_status
from mtf.storage import as_path
from mtf.storage.copies import copy_of
from tests import small, stores
from tests.cache import helpers as caches
from tests.conversion import writers
from tests.stress import store_kills

_SECONDS = 60
_AT_ONCE = 4
_STEP = "checkpoint_7"
# These copy files, whose checksums `gs://` has. Nothing else protects against flipped bits but the
# transport (TLS outside of this machine), and checksums of S3 objects that were uploaded with one.
_COPIES = ("cache", "fetch", "fetch_hf")


@dataclasses.dataclass(frozen=True)
class Case:
    """A fault of a store while something reads from it; `first` is that of `stores.Fault`."""

    scheme: str
    reader: str
    kind: int | str
    first: int
    times: int

    def __str__(self) -> str:
        return f"{self.scheme:5} {self.reader:8} {self.kind!s:15} {self.first}+{self.times}"


def _digest_of_tensors(path: Path) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(open_checkpoint(path).parameters().items()):
        digest.update(name.encode() + np.ascontiguousarray(tensor.read()).tobytes())
    return digest.hexdigest()


def _digest_of_files(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not file.name.startswith("."):
            digest.update(file.relative_to(folder).as_posix().encode() + file.read_bytes())
    return digest.hexdigest()


def _read_cache(address: str) -> int:
    from mtf.data.cache.reader import TokenCache

    def read() -> None:
        cache, digest = TokenCache(address, caches.NAME), hashlib.sha256()
        for name in sorted(cache.mixture(caches.NAME).tasks):
            task = cache.task(name)
            split = cache.split(task, "train")
            for example in split.examples(range(len(split))):
                for key in sorted(example):
                    digest.update(np.asarray(example[key]).tobytes())
        print("DIGEST", digest.hexdigest())

    return exit_status(read, only_shows=False)


def _fetch(digest: Callable[[Path], str], address: str) -> int:
    status = fetch.main([address])
    if status == 0:
        print("DIGEST", digest(copy_of(as_path(address))))
    return status


def _convert(address: str) -> int:
    status = convert.main([address, "out", "--to", "t5x", "--no-verify"])
    if status == 0:
        print("DIGEST", _digest_of_tensors(Path("out")))
    return status


def _load(address: str) -> int:
    import jax

    import mtf

    def load() -> None:
        model = mtf.load(address, vocabulary="byt5")
        leaves = jax.tree.leaves(model._predictor.params)
        digest = hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in leaves))
        print("DIGEST", digest.hexdigest())

    return exit_status(load, only_shows=False)


# What a run can do nothing about, or notices: nothing but TLS protects other answers than contents.
_FAULTS_OF_RUNS = (401, 403, 429, 500, 503, "reset", "reset_inside", "hanging", "hanging_inside")
_TRAIN = "train"


def check_run(case: Case, folder: Path, store: str) -> tuple[str, str]:
    """Trains with a fault of the store at the address `store`; returns what `check_case` does."""
    run_dir = f"{case.scheme}://runs/{case.kind}_{case.first}_{case.times}"
    settings = {**store_kills.SETTINGS, "model_dir": run_dir}
    command = ["-m", "mtf.run", *small.arguments(folder / "text.txt", **settings)]
    fault = stores.Fault(case.kind, case.first, case.times, every_request=True)
    with tempfile.TemporaryDirectory() as work, stores.faulty(store, fault) as proxy:
        run = functools.partial(small.python, cwd=Path(work), timeout=5 * _SECONDS)
        try:
            done = run(*command, status=None, **stores.variables(proxy, proxy))
        except subprocess.TimeoutExpired as error:
            return str(case), f"it did not end: {error.stderr!r}"
        now = time.monotonic()
        seconds, since_latest = now - (fault.began or now), now - (fault.latest or now)
        status, err = done.returncode, done.stderr
        messages = [line for line in err.splitlines() if line.startswith("error: ")]
        outcome = f"{case}: status {status}, {seconds:.0f} s, {' '.join(messages)}"
        if status and (status not in (1, 2) or len(messages) != 1 or "Traceback" in err):
            return outcome, f"no message: {err[-1500:]}"
        if status and since_latest > _SECONDS:
            return outcome, f"it took too long, {since_latest:.0f} s after the last try"
        if status:
            is_stored = (as_path(run_dir) / "config.json").is_file()
            advice = f"resume with: python -m mtf.run --from {run_dir}"
            if "Last complete checkpoint: " in err and not messages[0].endswith(advice):
                return outcome, "the message does not say how to resume"
            run(*(["-m", "mtf.run", "--from", run_dir] if is_stored else command))
    small.assert_same_end(as_path(run_dir), folder / "reference", store_kills.LAST_STEP)
    return outcome, ""


# Reader → function that reads from an address, the folder that it reads, and the schemes.
READERS: dict[str, tuple[Callable[[str], int], str, tuple[str, ...]]] = {
    "cache": (_read_cache, "cache", ("gs", "s3")),
    "fetch": (functools.partial(_fetch, _digest_of_files), f"t5x/{_STEP}", ("gs", "s3")),
    "fetch_hf": (functools.partial(_fetch, _digest_of_tensors), "hf", ("gs", "s3", "http")),
    "convert": (_convert, f"t5x/{_STEP}", ("gs", "s3", "http")),
    "convert_hf": (_convert, "hf", ("gs", "s3", "http")),
    "infer": (_load, f"t5x/{_STEP}", ("gs", "s3")),
    "infer_hf": (_load, "hf", ("gs", "s3", "http")),
}


def write(folder: Path, seed: int) -> None:
    """Writes what is read; another seed gives other values in files of the same names."""
    sizes = {"vocab_size": 384, "num_encoder_layers": 1, "num_decoder_layers": 1}
    source = writers.write_t5x(folder / "t5x", writers.random_parameters(**sizes, seed=seed))
    arguments = [str(source), str(folder / "hf"), "--to", "hf", "--no-verify"]
    assert convert.main([*arguments, "--vocabulary", "byt5"]) == 0
    shutil.copytree(caches.write_cache(folder / "written"), folder / "cache")
    shutil.rmtree(folder / "written")


def cases(count: int, seed: int) -> Iterator[Case]:
    """Yields random cases."""
    rng = random.Random(seed)
    places = [(scheme, name) for name, (_, _, schemes) in READERS.items() for scheme in schemes]
    for number in range(count):
        kind = stores.KINDS[number % len(stores.KINDS)]
        times = rng.choice((1, 1, 1000))
        if number % 4 == 3:
            kind, first = _FAULTS_OF_RUNS[number // 4 % len(_FAULTS_OF_RUNS)], rng.randrange(400)
            yield Case(rng.choice(("gs", "s3")), _TRAIN, kind, first, times)
        else:
            yield Case(*rng.choice(places), kind, rng.choice((0, 1, 2, 5)), times)


def run_case(case: Case, folder: Path) -> tuple[str, str, float]:
    """Runs a case; returns what it printed to stdout, what to stderr, and its seconds.

    Each case has servers of its own, because the files may be replaced.
    """
    _, inside, _ = READERS[case.reader]
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        first, second = folder / "first", folder / "second"
        if case.scheme == "http":
            shutil.copytree(first, work / "served")
            server = stack.enter_context(stores.http_files(work / "served"))
            replace = functools.partial(
                shutil.copytree, second, work / "served", dirs_exist_ok=True
            )
        else:
            server, replace = stack.enter_context(_bucket(case.scheme, first, second))
        fault = stores.Fault(case.kind, case.first, case.times, replace)
        proxy = stack.enter_context(stores.faulty(server, fault))
        address = f"{proxy if case.scheme == 'http' else f'{case.scheme}://bucket'}/{inside}"
        variables = {**stores.variables(proxy, proxy), "MTF_CACHE": str(work / "copies")}
        command = ("-m", "tests.stress.store_faults", "--read", case.reader, address)
        (work / "here").mkdir()
        start = time.monotonic()
        try:
            done = small.python(
                *command, cwd=work / "here", status=None, timeout=4 * _SECONDS, **variables
            )
        except subprocess.TimeoutExpired as error:
            return "", f"timeout {error.stderr!r}", time.monotonic() - start
        seconds = time.monotonic() - start
        return f"{done.stdout}\nSTATUS {done.returncode}", done.stderr, seconds


@contextlib.contextmanager
def _bucket(scheme: str, first: Path, second: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Starts a store with the files of `first`; yields a function that replaces them."""
    serve, put = (stores.gcs, stores.put_gcs) if scheme == "gs" else (stores.s3, stores.put_s3)
    with serve("bucket") as address:

        def upload(folder: Path) -> None:
            for file in folder.rglob("*"):
                if file.is_file():
                    name = file.relative_to(folder).as_posix()
                    put(address, "bucket", name, file.read_bytes())

        upload(first)
        yield address, functools.partial(upload, second)


def check_case(case: Case, folder: Path, expected: dict[str, set[str]]) -> tuple[str, str]:
    """Runs a case; returns its outcome and, if something did not hold, what."""
    out, err, seconds = run_case(case, folder)
    status = out.rpartition("STATUS ")[2].strip()
    digests = {line.split()[1] for line in out.splitlines() if line.startswith("DIGEST ")}
    messages = [line for line in err.splitlines() if line.startswith("error: ")]
    outcome = f"{case}: status {status}, {seconds:.0f} s, {' '.join(messages)[:300]}"
    problem = ""
    measured = out.rpartition("SECONDS ")[2].split()
    if not measured or float(measured[0]) > _SECONDS:
        problem = f"it took too long: {measured}"
    elif status == "0" and not digests <= expected[case.reader]:
        is_checked = case.kind != "flipped" or (case.scheme == "gs" and case.reader in _COPIES)
        problem = "wrong content was read" if is_checked else ""
        outcome += " (flipped bit not noticed)" * (not is_checked)
    elif status != "0" and (status not in ("1", "2") or len(messages) != 1 or "Traceback" in err):
        problem = f"no message: {err[-1500:]}"
    return outcome, problem


def expectations(folder: Path) -> dict[str, set[str]]:
    """Returns what each reader may read."""
    found: dict[str, set[str]] = collections.defaultdict(set)
    for reader, (read, inside, _) in READERS.items():
        for version in ("first", "second"):
            path = folder / version / inside
            if isinstance(read, functools.partial):  # `mtf fetch` copies only remote files.
                found[reader].add(read.args[0](path))
                continue
            with tempfile.TemporaryDirectory() as work:
                command = ("-m", "tests.stress.store_faults", "--read", reader, str(path))
                done = small.python(*command, cwd=Path(work))
                found[reader].add(done.stdout.rpartition("DIGEST ")[2].split()[0])
    return found


def run_cases(chosen: list[Case], folder: Path) -> Iterator[tuple[str, str]]:
    """Yields the outcome of each case, and what did not hold."""
    for version, seed in (("first", 0), ("second", 1)):
        write(folder / version, seed)
    expected = expectations(folder)
    store_kills.reference(folder)
    with stores.gcs("runs") as gcs, stores.s3("runs") as s3, ThreadPoolExecutor(_AT_ONCE) as pool:
        os.environ |= stores.variables(gcs, s3)

        def check(case: Case) -> tuple[str, str]:
            if case.reader != _TRAIN:
                return check_case(case, folder, expected)
            return check_run(case, folder, gcs if case.scheme == "gs" else s3)

        yield from pool.map(check, chosen)


def main() -> int:
    """Parses the command line, and runs; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--read", nargs=2, metavar=("READER", "ADDRESS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        import jax.numpy  # noqa: F401 - what the commands import takes seconds on a busy machine

        start = time.monotonic()
        status = READERS[options.read[0]][0](options.read[1])
        print("SECONDS", time.monotonic() - start)
        return status
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for outcome, problem in run_cases([*cases(options.count, options.seed)], Path(folder)):
            print(outcome, *([f"FAILED: {problem}"] if problem else []), sep="\n  ", flush=True)
            failed += bool(problem)
    print(f"{options.count} cases, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
