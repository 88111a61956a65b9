"""Measures mtf on an NVIDIA GPU beside transformers with torch.compile: T5 1.1 in bfloat16.

    python benchmarks/gpu.py --only train --sizes base --minutes 9

Sections: `attention` compares attention with T5's bias through XLA and through cuDNN, and with XLA
in float32; `train` measures training steps; `rank` and `decode` measure rank evaluation and
decoding. Both sides run in processes of their own, which share the GPU's memory and take turns in
blocks; figures are medians. Results are appended to a file as JSON lines at once, so that a run
that is stopped keeps them; `--table FILE` prints the tables of such files.

Needs jax, optax, orbax-checkpoint, tensorstore, msgpack, protobuf, safetensors and, for the other
side, torch and transformers; neither Fiddle nor Grain. Without a GPU, `--sizes tiny` only tries the
script.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn

from gpu_run import Run
from gpu_tables import tables
from gpu_workers import ROOT, Failed, OutOfTime, Worker

SECTIONS = ("attention", "train", "rank", "decode")
NEEDED = {
    "mtf": (
        *("jax", "optax", "orbax.checkpoint", "tensorstore", "ml_dtypes", "msgpack"),
        *("google.protobuf", "safetensors", "numpy"),
    ),
    "torch": ("torch", "transformers"),
}
VERSIONS = ("jax", "jaxlib", "torch", "triton", "transformers", "nvidia-cudnn-cu12")
VERSIONS += ("nvidia-cudnn-cu13", "jax-cuda12-plugin", "jax-cuda13-plugin")


def attention(run: Run) -> None:
    """Compares implementations of attention, at about the same number of keys."""
    cases = [
        *(
            ("encoder", n, n, packed)
            for n in run.args.attention_lengths
            for packed in (False, True)
        ),
        *(("decoder", n // 4, n // 4, False) for n in run.args.attention_lengths),
        *(("cross", n // 4, n, False) for n in run.args.attention_lengths),
    ]
    with run.worker("attention", share=0.9) as worker:
        for kind, queries, keys, packed in cases:
            shape = {"kind": kind, "queries": queries, "keys": keys, "packed": packed}
            shape |= {"heads": run.args.heads, "batch": max(1, run.args.attention_tokens // keys)}
            try:
                worker.ask("case", limit=run.limit, **shape)
                for backward in (False, True):
                    attention_pass(run, worker, shape, backward)
            except Failed as error:
                run.record(section="attention", **shape, failed=str(error))


def attention_pass(run: Run, worker: Worker, shape: Mapping[str, Any], backward: bool) -> None:
    """Measures the forward pass, or forward and backward pass, of all implementations in turn."""
    built: dict[str, tuple[Worker, dict[str, Any]]] = {}
    for name in ("mtf", "xla", "cudnn"):
        request = {"name": name, "backward": backward}
        try:
            done = worker.ask("implementation", limit=run.limit, **request)
            built[name] = worker, {**done, "name": name}
        except Failed as error:
            run.record(section="attention", **shape, **request, failed=str(error))
    run.record(section="attention", **shape, backward=backward, **run.timed(built, 64))


def inference(
    run: Run, request: str, cases: Sequence[Mapping[str, Any]], ways: Sequence[str]
) -> None:
    """Measures what `request` builds for each size and case, in turn with the other side.

    All `ways` of the other side are measured in the first case of a size and a number of beams;
    then, only the fastest.
    """
    for size in run.args.sizes:
        best: dict[Any, list[str]] = {}
        with run.worker("mtf") as ours, run.worker("torch") as theirs:
            for case in cases:
                about = {"section": request, "size": size, **case}
                asked = {"limit": run.limit, "size": size, **case}
                try:
                    built = {"mtf": (ours, ours.ask(request, **asked, layers=run.args.layers))}
                except Failed as error:
                    run.record(**about, side="mtf", failed=str(error))
                    continue
                seconds: dict[str, float] = {}
                kind = case.get("num_beams")
                for way in [] if run.args.no_peer else best.get(kind, ways):
                    try:
                        built["torch"] = theirs, theirs.ask(request, **asked, way=way)
                    except Failed as error:
                        run.record(**about, peer=way, failed=str(error))
                        continue
                    figures = run.timed(built)
                    run.record(**about, peer=way, **figures)
                    seconds[way] = figures["torch"]["seconds"]
                if seconds:
                    best[kind] = [min(seconds, key=seconds.__getitem__)]
                else:
                    run.record(**about, **run.timed({"mtf": built["mtf"]}))


def rank(run: Run) -> None:
    """Measures rank evaluation of examples with four choices."""
    cases = [
        {"lengths": lengths, "batch": batch, "examples": run.args.examples}
        for lengths in run.args.rank_lengths
        for batch in run.args.rank_batches
    ]
    compiled = [] if run.args.no_compile else ["once/whole"]
    inference(run, "rank", cases, ["once/none", "copies/none", *compiled])


def decode(run: Run) -> None:
    """Measures greedy decoding and beam search."""
    cases = [
        {"lengths": run.args.decode_lengths, "batch": batch, "num_beams": num_beams}
        for num_beams in (1, 4)
        for batch in run.args.decode_batches
    ]
    compiled = [] if run.args.no_compile else ["static/whole"]
    inference(run, "decode", cases, ["dynamic/none", *compiled])


def describe_machine(run: Run) -> None:
    """Records the GPU and versions; ends the run if a framework does not find the GPU."""
    fields = "--query-gpu=name,driver_version,memory.total"
    try:
        found = subprocess.run(
            ["nvidia-smi", fields, "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        found = ""
    gpu, driver, memory = found.splitlines()[0].split(", ") if found else [None] * 3
    run.machine = {
        "date": datetime.date.today().isoformat(),
        "gpu": gpu,
        "driver": driver,
        "memory": memory,
        "cpus": os.cpu_count(),
        "versions": {"Python": platform.python_version(), **installed()},
    }
    run.record(section="machine", **run.machine)
    for side in ("mtf",) if run.args.no_peer else ("mtf", "torch"):
        with run.worker(side) as worker:
            about = worker.ask("about")
        run.record(section="device", side=side, **about)
        if gpu and "cpu" in about["device"].lower():
            fail(f"nvidia-smi shows {gpu}, but {NEEDED[side][0]} finds only the CPU")


def installed() -> dict[str, str]:
    """Returns the versions of packages that are installed."""

    def versions() -> Iterator[tuple[str, str]]:
        for name in VERSIONS:
            try:
                yield name, version(name)
            except PackageNotFoundError:
                continue

    return dict(versions())


def missing(names: Sequence[str]) -> list[str]:
    """Returns the modules that are not installed."""

    def found(name: str) -> bool:
        try:
            return importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:
            return False

    return [name for name in names if not found(name)]


def fail(message: str) -> NoReturn:
    """Ends the script with a message."""
    print(f"gpu.py: {message}", file=sys.stderr)
    raise SystemExit(2)


def numbers(text: str) -> list[int]:
    """Parses "512/114"."""
    return [int(part) for part in text.split("/")]


def listed(parse: Callable[[str], Any] = str) -> Callable[[str], list[Any]]:
    """Returns a parser of values joined by commas."""
    return lambda text: [parse(part) for part in text.split(",")]


def parser() -> argparse.ArgumentParser:
    """Returns the options."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = made.add_argument
    add("--only", type=listed(), default=list(SECTIONS), help=f"some of {','.join(SECTIONS)}")
    add("--sizes", type=listed(), default=["base", "large", "xl"], help="sizes of T5 1.1, or tiny")
    add("--minutes", type=float, default=9.0, help="time of the whole run")
    add("--build-minutes", type=float, default=3.0, help="time to compile one program")
    add("--out", default="gpu.jsonl", help="file to append results to")
    add("--table", nargs="+", metavar="FILE", help="print the tables of results, and stop")
    add("--blocks", type=int, default=5, help="turns of each side")
    add("--calls", type=int, default=8, help="steps of a block, at most")
    add("--block-seconds", type=float, default=2.0, help="seconds of a block, about, at most")
    add("--share", type=float, default=0.44, help="share of the GPU's memory for each side")
    add("--no-peer", action="store_true", help="measure mtf alone, without PyTorch")
    add("--no-compile", action="store_true", help="do not use torch.compile")
    group = made.add_argument_group("train")
    add = group.add_argument
    add("--lengths", type=listed(numbers), default="512/114,1024/256", help="inputs/targets")
    add("--batch-size", type=int, help="rows of a batch; default: the largest that fits")
    add("--one-by-one", action="store_true", help="no turns; pass --share 0.9, too")
    add("--most", type=int, default=512, help="largest batch to try")
    add(
        "--variants",
        type=listed(),
        default="adamw/unrolled/none,adamw/scanned/none,adafactor/unrolled/none",
        help="OPTIMIZER/LAYERS/REMAT of mtf; the first takes turns with PyTorch",
    )
    add(
        "--peers",
        type=listed(),
        default="sdpa/float32/layers,eager/float32/layers,sdpa/float32/whole,sdpa/bfloat16/layers",
        help="ATTENTION/WEIGHTS/COMPILED of PyTorch: all in the first shape, then the fastest with "
        "float32 weights",
    )
    group = made.add_argument_group("rank and decode")
    add = group.add_argument
    add("--layers", choices=("unrolled", "scanned"), default="scanned", help="mtf's layers")
    add("--examples", type=int, default=512, help="examples of a pass")
    add("--rank-lengths", type=listed(numbers), default="120/25,350/6", help="median tokens")
    add("--rank-batches", type=listed(int), default="64", help="examples in a batch")
    add("--decode-lengths", type=numbers, default="512/64", help="inputs/decoded tokens")
    add("--decode-batches", type=listed(int), default="8,64", help="examples in a batch")
    group = made.add_argument_group("attention")
    add = group.add_argument
    add("--attention-lengths", type=listed(int), default="512,1024", help="tokens of the inputs")
    add("--attention-tokens", type=int, default=16384, help="keys of a batch")
    add("--heads", type=int, default=16, help="number of heads")
    return made


def main() -> None:
    """Parses the command line, runs the sections and prints the tables."""
    args = parser().parse_args()
    if args.table:
        texts = (Path(name).read_text() for name in args.table)
        print(tables(json.loads(line) for text in texts for line in text.splitlines()))
        return
    unknown = [name for name in args.only if name not in SECTIONS]
    if unknown:
        fail(f"unknown section {unknown[0]}; expected some of {', '.join(SECTIONS)}")
    if args.only == ["attention"]:
        args.no_peer = True
    for side in ("mtf",) if args.no_peer else ("mtf", "torch"):
        if absent := missing(NEEDED[side]):
            advice = "; or pass --no-peer" if side == "torch" else ""
            fail(f"install what provides {', '.join(absent)}{advice}")
    sys.path.insert(0, str(ROOT))
    from gpu_data import SIZES
    from gpu_training import train

    unknown = [size for size in args.sizes if size not in SIZES]
    if unknown:
        fail(f"unknown size {unknown[0]}; expected some of {', '.join(SIZES)}")
    if args.no_compile:
        args.peers = list(dict.fromkeys(f"{peer.rpartition('/')[0]}/none" for peer in args.peers))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    run = Run(args)
    try:
        describe_machine(run)
        for name in args.only:
            {"attention": attention, "train": train, "rank": rank, "decode": decode}[name](run)
    except OutOfTime:
        run.record(section="end", failed=f"stopped after {args.minutes:g} minutes")
    finally:
        print(tables(run.rows), flush=True)


if __name__ == "__main__":
    main()
