"""Measures the memory and time of `mtf.convert` between T5X's zarr layout and Hugging Face's.

A Hugging Face model of T5 1.1 with random parameters is converted to T5X, and the result back. Each
conversion runs in its own process, beside two others that do the same work:

* copy: decompresses and compresses the same bytes with the same compression (gzip, level 1) in
  threads, without any names, checks or transposition;
* simple: a straightforward script that loads all tensors, transposes them and saves them.

The logits are not compared (`--no-verify`). Peak memory is the resident set's. Needs 2.2 times the
checkpoint's size of disk space. The simple script is left out if the memory does not suffice.

    python benchmarks/convert.py --size large
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

# d_model, d_ff, heads, layers of the encoder and of the decoder
SIZES = {
    "tiny": (256, 512, 4, 4),
    "small": (512, 1024, 6, 8),
    "base": (768, 2048, 12, 12),
    "large": (1024, 2816, 16, 24),
    "xl": (2048, 5120, 32, 24),
}
VOCAB_SIZE, HEAD_DIM = 32128, 64
MAX_PEAK, MAX_RATIO = 1.5e9, 2.0
SIDES = ("copy", "mtf", "simple")
_BYTES_AT_ONCE = 64 * 2**20


class Run(NamedTuple):
    """A process: wall time and CPU time in seconds, and peak memory in bytes."""

    seconds: float
    cpu_seconds: float
    peak: int


def main() -> int:
    """Parses the command line and prints the table; exit status 1 if a bar is not met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="large")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--folder", help="for the files (default: a temporary directory)")
    parser.add_argument(
        "--child", nargs=3, metavar=("WHAT", "SOURCE", "OUT"), help=argparse.SUPPRESS
    )
    args = parser.parse_args()
    if args.child:
        what, source, out = args.child
        CHILDREN[what](Path(source), Path(out), args.size)
        return 0
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="convert-") as folder:
        return compare(args.size, args.sides, Path(folder))


def compare(size: str, sides: list[str], folder: Path) -> int:
    """Measures both directions; returns the exit status."""
    num_bytes = 4 * num_parameters(size)
    needed, free = 2.2 * num_bytes, shutil.disk_usage(folder).free
    if free < needed:
        sys.exit(f"{folder} has {free / 1e9:.1f} GB free; {size} needs {needed / 1e9:.1f} GB.")
    model, state, back = folder / "model", folder / "checkpoint_0", folder / "back"
    print(
        f"{size}: {num_parameters(size):,} parameters, {num_bytes / 1e9:.1f} GB; "
        f"{os.cpu_count()} CPUs, Python {sys.version.split()[0]}"
    )
    print(
        f"{'':20}{'':8}{'seconds':>9}{'CPU s':>9}{'peak GB':>9}{'ratio':>8}{'(CPU)':>8}", flush=True
    )
    run(child("make", folder / "none", model, size))
    met = measure("Hugging Face to T5X", "t5x", model, state, sides, size)
    shutil.rmtree(model)
    met &= measure("T5X to Hugging Face", "hf", state, back, sides, size)
    print(f"peak below {MAX_PEAK / 1e9} GB, ratio below {MAX_RATIO}: {'yes' if met else 'NO'}")
    return 0 if met else 1


def measure(title: str, to: str, source: Path, out: Path, sides: list[str], size: str) -> bool:
    """Measures a direction and prints a row per side; returns whether the bars are met."""
    runs: dict[str, Run] = {}
    for side in sides:
        if side == "simple" and 2.3 * 4 * num_parameters(size) > available_memory():
            print(f"{title:20}{side:8} left out: {available_memory() / 1e9:.0f} GB of memory")
            continue
        if side == "mtf":
            command = [sys.executable, "-m", "mtf.convert", str(source), str(out), "--to", to]
            command += ["--no-verify"] * (to == "hf")
            runs[side] = run(command)
        else:
            runs[side] = run(child(f"{side}_to_{to}", source, source.parent / side, size))
            shutil.rmtree(source.parent / side)
        ratio, done = "", runs[side]
        if copy := runs.get("copy"):
            ratio = f"{done.seconds / copy.seconds:8.2f}{done.cpu_seconds / copy.cpu_seconds:8.2f}"
        print(
            f"{title:20}{side:8}{done.seconds:9.1f}{done.cpu_seconds:9.1f}"
            f"{done.peak / 1e9:9.2f}{ratio}",
            flush=True,
        )
    ours, copy = runs["mtf"], runs.get("copy")
    return ours.peak < MAX_PEAK and not (copy and ours.seconds > MAX_RATIO * copy.seconds)


def child(what: str, source: Path, out: Path, size: str) -> list[str]:
    """Returns the command that runs a function of `CHILDREN`."""
    return [sys.executable, __file__, "--size", size, "--child", what, str(source), str(out)]


def run(command: list[str]) -> Run:
    """Runs a command, after the disk has written what others left, and measures it."""
    os.sync()
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        sys.exit(f"failed: {' '.join(command)}")
    return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def available_memory() -> int:
    """Returns the bytes of memory that programs can still use."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def shapes(size: str) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each parameter, under T5X's names."""
    emb, mlp, heads, depth = SIZES[size]
    joined = heads * HEAD_DIM
    attention = {"query": (emb, joined), "key": (emb, joined), "value": (emb, joined)}
    attention["out"] = (joined, emb)
    kernels = {"wi_0": (emb, mlp), "wi_1": (emb, mlp), "wo": (mlp, emb)}
    parts: dict[str, list[tuple[str, str, dict[str, Any]]]] = {
        "encoder": [("attention", "attention", attention), ("mlp", "mlp", kernels)],
        "decoder": [
            ("self_attention", "self_attention", attention),
            ("cross_attention", "encoder_decoder_attention", attention),
            ("mlp", "mlp", kernels),
        ],
    }
    found: dict[str, tuple[int, ...]] = {
        "token_embedder/embedding": (VOCAB_SIZE, emb),
        "decoder/logits_dense/kernel": (emb, VOCAB_SIZE),
    }
    for side, sublayers in parts.items():
        found[f"{side}/relpos_bias/rel_embedding"] = (heads, 32)
        found[f"{side}/{side}_norm/scale"] = (emb,)
        for i in range(depth):
            for norm, name, rows in sublayers:
                found[f"{side}/layers_{i}/pre_{norm}_layer_norm/scale"] = (emb,)
                for row, shape in rows.items():
                    found[f"{side}/layers_{i}/{name}/{row}/kernel"] = shape
    return found


def num_parameters(size: str) -> int:
    """Returns the number of parameters."""
    count = 0
    for shape in shapes(size).values():
        count += shape[0] * (shape[1] if len(shape) > 1 else 1)
    return count


def make(_: Path, out: Path, size: str) -> None:
    """Writes a Hugging Face model with random parameters."""
    import numpy as np

    from conversion.huggingface import Export, write_export
    from conversion.tensor import Checkpoint, Tensor

    def random(shape: tuple[int, ...], seed: int, index: Any) -> Any:
        values = np.random.default_rng(seed).standard_normal(shape, np.float32)
        return (values * np.float32(0.05))[index]

    float32 = np.dtype(np.float32)
    tensors = {
        f"target/{name}": Tensor(
            name, shape, float32, functools.partial(random, shape, seed), shape
        )
        for seed, (name, shape) in enumerate(shapes(size).items())
    }
    out.mkdir()
    write_export(Export(Checkpoint(out, "t5x-zarr", 0, tensors), allow_non_finite=True), out)


def in_threads(jobs: Iterator[Callable[[], bytes]], write: Callable[[bytes], object]) -> None:
    """Runs jobs in a thread per CPU, and writes their results in order."""
    number = os.cpu_count() or 1
    with ThreadPoolExecutor(number) as pool:
        started = []
        for job in jobs:
            started.append(pool.submit(job))
            if len(started) > number:
                write(started.pop(0).result())
        for each in started:
            write(each.result())


def copy_to_hf(source: Path, out: Path, _: str) -> None:
    """Decompresses all chunks into a file."""
    chunks = [x for x in sorted(source.rglob("*")) if x.is_file() and x.name[0].isdigit()]

    def decompressed(file: Path) -> bytes:
        return zlib.decompress(file.read_bytes(), 31)

    out.mkdir()
    with (out / "copy").open("wb") as opened:
        in_threads((functools.partial(decompressed, file) for file in chunks), opened.write)


def copy_to_t5x(source: Path, out: Path, size: str) -> None:
    """Compresses the bytes in parts of the sizes that the tensors have."""
    files = sorted(source.glob("*.safetensors"))
    tensors = [
        4 * shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in shapes(size).values()
    ]
    sizes = [
        min(_BYTES_AT_ONCE, total - i) for total in tensors for i in range(0, total, _BYTES_AT_ONCE)
    ]

    def parts() -> Iterator[bytes]:
        left = iter(sizes)
        for file in files:
            with file.open("rb") as opened:
                while part := opened.read(next(left, _BYTES_AT_ONCE)):
                    yield part

    def compressed(part: bytes) -> bytes:
        compressor = zlib.compressobj(1, wbits=31)
        return compressor.compress(part) + compressor.flush()

    out.mkdir()
    with (out / "copy").open("wb") as opened:
        in_threads((functools.partial(compressed, part) for part in parts()), opened.write)


def simple_to_hf(source: Path, out: Path, size: str) -> None:
    """Loads all arrays, transposes the kernels, and saves them."""
    import numpy as np
    import tensorstore as ts
    from safetensors.numpy import save_file

    arrays = {}
    for name in shapes(size):
        spec = {"driver": "zarr", "kvstore": f"file://{source}/target.{name.replace('/', '.')}/"}
        array = ts.open(spec).result().read().result()
        arrays[name] = np.ascontiguousarray(array.T) if name.endswith("kernel") else array
    out.mkdir()
    save_file(arrays, out / "model.safetensors")


def simple_to_t5x(source: Path, out: Path, _: str) -> None:
    """Loads all arrays, transposes the kernels, and saves them."""
    import tensorstore as ts
    from safetensors.numpy import load_file

    arrays: dict[str, Any] = {}
    for file in sorted(source.glob("*.safetensors")):
        arrays |= load_file(file)
    out.mkdir()
    for name, array in arrays.items():
        if array.ndim == 2 and name != "shared.weight":
            array = array.T
        spec = {
            "driver": "zarr",
            "kvstore": f"file://{out}/{name}/",
            "metadata": {"compressor": {"id": "gzip", "level": 1}},
        }
        opened = ts.open(spec, create=True, dtype=array.dtype.name, shape=array.shape).result()
        opened.write(array).result()


CHILDREN: dict[str, Callable[[Path, Path, str], None]] = {
    each.__name__: each for each in (make, copy_to_hf, copy_to_t5x, simple_to_hf, simple_to_t5x)
}


if __name__ == "__main__":
    sys.exit(main())
