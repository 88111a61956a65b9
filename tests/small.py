"""A tiny run of recipes.pretrain_text for tests of commands, and how its results are read."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import conversion
from mtf.cli.run import main
from mtf.storage import AnyPath
from tests import conftest  # noqa: F401  It sets where what is compiled is shared.

ROOT = Path(__file__).resolve().parents[1]

_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "jumps", "over", "lazy", "dogs")

# 34 bytes make 32 inputs and 8 targets (T5's lengths, in spans of three).
SETTINGS: dict[str, Any] = {
    "model.network.vocab_size": 384,
    "model.network.num_encoder_layers": 1,
    "model.network.num_decoder_layers": 1,
    "model.network.emb_dim": 32,
    "model.network.mlp_dim": 64,
    "model.network.num_heads": 2,
    "model.network.head_dim": 16,
    "model.network.dropout_rate": 0.1,
    "model.network.dtype": "float32",
    "model.network.scan_layers": False,
    "data.vocabulary.extra_ids": 125,
    "data.objective.mean_noise_span_length": 3.0,
    "data.task_feature_lengths.inputs": 32,
    "data.task_feature_lengths.targets": 16,
    "optimizer": "@mtf.training.AdafactorConfig("
    "learning_rate=@mtf.builders.schedule.constant(learning_rate=0.01))",
    "batch_size": 8,
    "trainer.stats_period": 1,
    "trainer.eval_period": None,
    "num_samples": 0,
}

_SAYS_RESUMING = re.compile(r"^resuming from step (\d+)$", re.MULTILINE)


def write_text(folder: Path, num_lines: int = 200) -> Path:
    """Writes `text.txt`, the same at every call."""
    rng = random.Random(0)
    lines = (" ".join(rng.choices(_WORDS, k=rng.randint(5, 15))) for _ in range(num_lines))
    file = folder / "text.txt"
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def contents(folder: Path, *without: str) -> dict[str, bytes]:
    """The files below a folder, but those with some names: path → content."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name not in without]
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def flip_a_bit(folder: Path) -> Path:
    """Flips a bit in the middle of the largest file in a folder; returns the file."""
    file = max(
        (each for each in folder.rglob("*") if each.is_file()), key=lambda x: x.stat().st_size
    )
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    return file


def arguments(text: Path | str, **settings: Any) -> list[str]:
    """The command line's arguments of a tiny run; a setting's dots are written as `__`."""
    named = {name.replace("__", "."): value for name, value in settings.items()}
    values = {"data.files": str(text), **SETTINGS, **named}
    return [
        "recipes.pretrain_text",
        "--set",
        *(f"{name}={value}" for name, value in values.items()),
    ]


def start(arguments: list[str], cwd: Path, **environment: str) -> subprocess.Popen[str]:
    """Starts `python -m mtf.run …` as `start_python` does."""
    return start_python("-m", "mtf.run", *arguments, cwd=cwd, **environment)


def start_python(
    *arguments: str, cwd: Path = ROOT, stderr: int = subprocess.PIPE, **environment: str
) -> subprocess.Popen[str]:
    """Starts Python in a process (and session) of its own, with pipes."""
    with hearing_ctrl_c():
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=cwd,
            env={**environment_variables(), **environment},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )


@contextlib.contextmanager
def hearing_ctrl_c() -> Iterator[None]:
    """Processes that are started in here hear Ctrl-C, which a background job's children ignore.

    Unlike with `preexec_fn`, nothing is forked, which JAX's threads could make hang.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def environment_variables() -> dict[str, str]:
    """Those of a process of ours: it finds the project, and shares what is compiled."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def run(arguments: list[str], cwd: Path, *, status: int = 0) -> str:
    """Runs a command line in this process, asserts its exit status; returns stdout and stderr.

    Starting a process takes longer than such a run: `run_process` is for what depends on that.
    """
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        found = main(arguments)
    output = out.getvalue() + err.getvalue()
    assert found == status, output
    return output


def run_process(
    arguments: list[str], cwd: Path, *, status: int = 0, timeout: float = 240, **environment: str
) -> str:
    """Runs a command line in a process of its own; otherwise as `run`."""
    command = ("-m", "mtf.run", *arguments)
    done = python(*command, cwd=cwd, status=status, timeout=timeout, **environment)
    return done.stdout + done.stderr


def python(
    *arguments: str,
    cwd: Path = ROOT,
    status: int | None = 0,
    timeout: float | None = None,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Runs Python in a process of its own, and asserts its exit status, if one is given."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**environment_variables(), **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert status in (None, done.returncode), done.stdout + done.stderr
    return done


def without_waiting(text: str) -> str:
    """What a command has printed, without the lines that say on a busy machine what it does."""
    return re.sub(r"^.* … \d+:\d\d\n", "", text, flags=re.MULTILINE)


def read_until(stream: IO[str] | None, beginning: str) -> str:
    """Reads a process' stdout or stderr up to the end of the line that begins so."""
    assert stream is not None
    text = ""
    for line in stream:
        text += line
        if line.startswith(beginning):
            return text
    raise AssertionError(f"no line begins with {beginning!r} in:\n{text}")


def continued_from(output: str) -> int | None:
    """The step that a run says it continues from; None: it began anew."""
    found = _SAYS_RESUMING.findall(output)
    return int(found[0]) if found else None


def steps(run_dir: Path) -> list[int]:
    """The steps whose checkpoint directory has its final name, in order."""
    names = [path.name for path in _entries(run_dir) if re.fullmatch(r"checkpoint_\d+", path.name)]
    return sorted(int(name.removeprefix("checkpoint_")) for name in names)


def unfinished(run_dir: Path) -> list[str]:
    """The names of checkpoint directories that are being written, or never were finished."""
    return [path.name for path in _entries(run_dir) if "orbax-checkpoint-tmp" in path.name]


def _entries(run_dir: Path) -> Iterator[Path]:
    folder = run_dir / "checkpoints"
    return folder.iterdir() if folder.is_dir() else iter(())


def read_checkpoint(run_dir: AnyPath, step: int) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Every tensor of a checkpoint, bit for bit: name → (dtype, shape, bytes)."""
    opened = conversion.open_checkpoint(run_dir / "checkpoints" / f"checkpoint_{step}")
    arrays = {name: tensor.read() for name, tensor in opened.tensors.items()}
    return {name: (str(x.dtype), x.shape, x.tobytes()) for name, x in arrays.items()}


def read_data_state(run_dir: AnyPath, step: int) -> dict[str, Any]:
    """The data iterators' states in a checkpoint."""
    file = run_dir / "checkpoints" / f"checkpoint_{step}" / "data" / "metadata"
    state: dict[str, Any] = json.loads(file.read_text())
    return state


def read_measured(run_dir: AnyPath, step: int) -> dict[str, float]:
    """The metrics that are stored in a checkpoint."""
    file = run_dir / "checkpoints" / f"checkpoint_{step}" / "metrics" / "metrics"
    measured: dict[str, float] = json.loads(file.read_text())
    return measured


def read_metrics(run_dir: AnyPath, kind: str = "train") -> list[dict[str, float]]:
    """The lines of a metrics.jsonl without what depends on the clock."""
    lines = (run_dir / kind / "metrics.jsonl").read_text().splitlines()
    return [
        {name: value for name, value in json.loads(line).items() if not name.startswith("timing/")}
        for line in lines
    ]


def assert_resumes(folder: Path, first_steps: int, train_steps: int, **settings: Any) -> str:
    """Asserts that a run, `whole`, ends like one that resumes; returns what `whole` printed."""
    text = folder / "text.txt"
    said = run(arguments(text, **settings, train_steps=train_steps, model_dir="whole"), folder)
    run(arguments(text, **settings, train_steps=first_steps, model_dir="parts"), folder)
    run(["--from", "parts", "--set", f"train_steps={train_steps}"], folder)
    assert_same_end(folder / "parts", folder / "whole", train_steps)
    return said


def assert_same_end(run_dir: AnyPath, reference: AnyPath, step: int) -> None:
    """Asserts that two runs ended with the same bits: tensors, place in the data, metrics."""
    expected = read_checkpoint(reference, step)
    found = read_checkpoint(run_dir, step)
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []
    assert read_data_state(run_dir, step) == read_data_state(reference, step)
    assert read_measured(run_dir, step) == read_measured(reference, step)
    for kind in ("train", "training_eval/held_out", "inference_eval/held_out"):
        if kind == "train" or (reference / kind).is_dir():
            assert read_metrics(run_dir, kind) == read_metrics(reference, kind)
