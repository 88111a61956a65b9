"""Damages files of small checkpoints in every layout; each must be read, or refused by a message.

    python -m tests.stress.fuzz_readers --count 10000 --seed 0 [--reader mesh_tf …]

A damage changes, removes, inserts or repeats bytes of a file, cuts it, empties it, deletes it,
exchanges it with another file, or changes a number in a text. In the layouts that mtf writes
(WRITTEN), it flips one bit of a file, cuts the file, exchanges it with another one, or replaces it
by that of another checkpoint. What must hold:

* opening the checkpoint, checking its tensors against the network, and reading all of them either
  succeeds or raises a ConversionError with one message, which names the checkpoint's directory;
* a tensor that is read has its announced shape and type; of layouts with checksums, its values;
* the message about a layout that mtf writes names a damaged file or `checksums.json`;
* no code in a pickle is run, no read takes longer than a minute, and memory stays bounded.

The output is a table of readers and outcomes. Exit status 1: something did not hold.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import faulthandler
import functools
import io
import random
import re
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from conversion import ConversionError, checksums, infer_architecture, mapping, open_checkpoint
from conversion.formats import output_formats
from conversion.peft_writer import write_adapters
from conversion.safetensors_file import open_tensors
from mtf import convert
from mtf.checkpoints import SaveCheckpointConfig
from mtf.checkpoints.manager import CheckpointManager
from mtf.models import LoraConfig
from tests.conversion import test_adapters, writers

_SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "emb_dim": 16,
    "num_heads": 2,
    "head_dim": 4,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "mlp_dim": 24,
}
_MAX_SECONDS = 60
_MAX_BYTES = 3 * 2**30
# More than `checksums.check_small_files` reads.
_LARGE = {**_SIZES, "vocab_size": 20_480}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000, help="damages per reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", nargs="+", choices=[*WRITERS], default=[*WRITERS])
    options = parser.parse_args(argv)
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for name in options.reader:
            start = time.monotonic()
            outcomes, problems = fuzz(name, options.count, options.seed, Path(folder))
            shown = ", ".join(f"{n:,} {what}" for what, n in sorted(outcomes.items()))
            print(f"{name:14} {shown} ({time.monotonic() - start:.0f} s)", flush=True)
            for problem in problems[:5]:
                print(problem, flush=True)
            failed = failed or bool(problems)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"peak memory {peak / 2**20:,.0f} MiB")
    return int(failed or peak > _MAX_BYTES)


def fuzz(
    name: str, count: int, seed: int, folder: Path
) -> tuple[collections.Counter[str], list[str]]:
    """Damages a checkpoint `count` times; returns the number of outcomes, and what did not hold."""
    path = WRITERS[name](folder / name)
    expected = read(path)
    root = path if path.is_dir() else path.parent
    files = contents(root)
    others: dict[Path, bytes] = {}
    if name in WRITTEN:
        other = WRITTEN[name](folder / f"other_{name}", 1)
        others = {root / file.relative_to(other): x for file, x in contents(other).items()}
    outcomes, problems = collections.Counter[str](), []
    for number in range(count):
        rng = random.Random(f"{name} {seed} {number}")
        damage = damaged_once(files, others, rng) if others else damaged(files, rng)
        for file, content in damage.items():
            if content is None:
                file.unlink()
            else:
                file.write_bytes(content)
        faulthandler.dump_traceback_later(_MAX_SECONDS, exit=True)
        problem = ""
        try:
            found = read(path)
            outcomes["read"] += 1
            if name in CHECKED:
                for tensor, array in found.items():
                    np.testing.assert_array_equal(array, expected[tensor], err_msg=tensor)
        except ConversionError as error:
            outcomes["refused"] += 1
            names = [root.name] if not others else [checksums.CHECKSUMS, *(x.name for x in damage)]
            if not any(x in str(error) for x in names):
                problem = f"the message does not name the checkpoint: {error}"
        except Exception:
            problem = traceback.format_exc(limit=-4)
        faulthandler.cancel_dump_traceback_later()
        if problem:
            outcomes["FAILED"] += 1
            changed = ", ".join(file.relative_to(root).as_posix() for file in damage)
            problems.append(f"  --seed {seed}, damage {number} of {changed}: {problem}")
        for file in damage:
            file.write_bytes(files[file])
    return outcomes, problems


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def read(path: Path) -> dict[str, np.ndarray]:
    """Opens a checkpoint, checks it as a conversion does, and reads all tensors."""
    if (path / "adapter_config.json").exists():  # Only PEFT reads adapters.
        checksums.check_small_files(path)
        tensors = open_tensors(path / "adapter_model.safetensors")
    else:
        checkpoint = open_checkpoint(path)
        mapping.check_parameters(checkpoint, mapping.entries(infer_architecture(checkpoint)))
        tensors = checkpoint.tensors
    arrays = {}
    with checksums.checking(path):
        for name, tensor in tensors.items():
            arrays[name] = array = tensor.read()
            assert (array.shape, array.dtype) == (tensor.shape, tensor.dtype), name
    return arrays


def damaged_once(
    files: dict[Path, bytes], others: dict[Path, bytes], rng: random.Random
) -> dict[Path, bytes | None]:
    """Returns the new contents of files; `others` are the files of another checkpoint."""
    weights = [len(content) for content in files.values()] if rng.random() < 0.5 else None
    (chosen,) = rng.choices([*files], weights)
    content, other = files[chosen], rng.choice([*files])
    kind = rng.randrange(4)
    if kind == 0:
        return {chosen: content[: rng.randrange(len(content))]}
    if kind == 1:
        return {chosen: files[other], other: content}
    if kind == 2 and chosen in others:
        return {chosen: others[chosen]}
    flipped = bytearray(content)
    flipped[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return {chosen: bytes(flipped)}


def damaged(files: dict[Path, bytes], rng: random.Random) -> dict[Path, bytes | None]:
    """Returns the new contents of the files that are damaged; None: the file is deleted."""
    texts = [file for file, content in files.items() if _is_text(content)]
    chosen = rng.choice(texts if texts and rng.random() < 0.3 else [*files])
    content, other = files[chosen], rng.choice([*files])
    kind = rng.randrange(12)
    if kind == 0:
        return {chosen: None}
    if kind == 1:
        return {chosen: files[other], other: content}
    if kind == 2:
        return {chosen: content[: rng.randrange(len(content) + 1)]}
    if kind == 3:
        return {chosen: content + rng.randbytes(rng.randint(1, 100))}
    if kind <= 5 and _is_text(content):
        return {chosen: _other_number(content, rng)}
    result = bytearray(content)
    # The structure is often at the beginning or the end.
    near = rng.choice([len(result), 200, -200])
    for _ in range(rng.randint(1, 4)):
        low, high = (0, near) if near > 0 else (len(result) + near, len(result))
        place = rng.randrange(max(0, low), max(1, min(high, len(result))) + 1)
        what = rng.randrange(4)
        if what == 0:
            result[place : place + 1] = rng.randbytes(1)
        elif what == 1:
            del result[place : place + rng.randint(1, 8)]
        elif what == 2:
            result[place:place] = rng.randbytes(rng.randint(1, 8))
        else:
            result[place:place] = result[place : place + rng.randint(1, 40)]
    return {chosen: bytes(result)}


def _is_text(content: bytes) -> bool:
    return content[:1] == b"{"


def _other_number(content: bytes, rng: random.Random) -> bytes:
    numbers = [*re.finditer(rb"\d+", content)]
    if not numbers:
        return b""
    match = rng.choice(numbers)
    others = ["0", "-1", "1", str(int(match[0]) + 1), "99999999999", "1e400", "null", '"x"', "[]"]
    return content[: match.start()] + rng.choice(others).encode() + content[match.end() :]


def _t5x(folder: Path) -> Path:
    parameters = writers.random_parameters(**_SIZES)
    inline = [name for name in parameters if "norm" in name]
    return writers.write_t5x(folder, parameters, inline=inline)


def _scanned(folder: Path) -> Path:
    parameters = writers.random_parameters(**_SIZES, bias_per_layer=True)
    return writers.write_t5x(folder, writers.stacked(parameters, 4))


def _mesh_tf(folder: Path) -> Path:
    parameters = writers.random_parameters(**_SIZES)
    return writers.write_bundle(folder, writers.mesh(parameters), num_files=2).parent


def _huggingface(folder: Path, *options: str) -> Path:
    out = folder / "hf"
    arguments = [str(_t5x(folder)), str(out), "--to", "hf", *options]
    with contextlib.redirect_stdout(io.StringIO()):
        assert convert.main(arguments) == 0
    return out


def _run(folder: Path, seed: int) -> Path:
    parameters = writers.random_parameters(**_LARGE, seed=seed)
    tree = unflatten_dict({name: jnp.asarray(x) for name, x in parameters.items()}, sep="/")
    manager = CheckpointManager(folder, SaveCheckpointConfig(period=1))
    manager.save(7, {"target": tree, "state": {"step": jnp.int32(7)}}, {"position": seed})
    manager.close()
    return folder / "checkpoints" / "checkpoint_7"


def _converted(to: str, folder: Path, seed: int) -> Path:
    out = folder / "out"
    if to == "peft":
        out.mkdir(parents=True)
        lora = LoraConfig(rank=3 + seed)
        write_adapters(test_adapters.checkpoint(lora), out, base=None, dropout_rate=0.0)
        return out
    source = writers.write_t5x(folder, writers.random_parameters(**_LARGE, seed=seed))
    with contextlib.redirect_stdout(io.StringIO()):
        assert convert.main([str(source), str(out), "--to", to, "--no-verify"]) == 0
    return out if to == "hf" else out / "checkpoint_7"


# Layout that mtf writes → function that writes a checkpoint, given a folder and a seed.
WRITTEN: dict[str, Callable[[Path, int], Path]] = {
    "run": _run,
    **{f"to_{to}": functools.partial(_converted, to) for to in output_formats()},
}
WRITERS: dict[str, Callable[[Path], Path]] = {
    "t5x": _t5x,
    "orbax": lambda folder: writers.write_orbax(folder, writers.random_parameters(**_SIZES)),
    "scanned": _scanned,
    "mesh_tf": _mesh_tf,
    "safetensors": _huggingface,
    "sharded": lambda folder: _huggingface(folder, "--max-shard-size", "5KB"),
    "pytorch": lambda folder: writers.write_pytorch(_huggingface(folder)).parent,
    "pytorch_old": lambda folder: writers.write_pytorch(_huggingface(folder), is_zip=False).parent,
    "flax": lambda folder: writers.write_flax(_huggingface(folder)).parent,
    **{name: functools.partial(write, seed=0) for name, write in WRITTEN.items()},
}
# Layouts in which every damage to values is noticed.
CHECKED = ("mesh_tf", "safetensors", "sharded", *WRITTEN)


if __name__ == "__main__":
    sys.exit(main())
