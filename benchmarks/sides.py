"""Runs mtf and a peer on the device that is there, each in a process of its own, in turns.

Both sides use the same CPUs, and one GPU if there is one. PyTorch runs at its best for the device:
`torch.compile`, TF32 and static caches on a GPU; flushed denormal numbers on CPUs, as in XLA
(otherwise its step on random tokens slows down several times within three steps).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from conversion.families import T5_1_1_SIZES, T5_VOCAB_SIZE, Size

PEERS = ("torch", "t5x")
SIDES = ("mtf", *PEERS)
SIZES = {"tiny": Size(2, 2, 128, 256, 4, 32), "mini": Size(4, 4, 256, 512, 4), **T5_1_1_SIZES}
Runs = dict[str, Callable[[], None]]


def new_parser(
    description: str | None, *, batch: int, size: str = "small"
) -> argparse.ArgumentParser:
    """Returns a parser with the options that all benchmarks have."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    add = parser.add_argument
    add("--size", choices=SIZES, default=size, help=f"of T5 1.1 (default: {size})")
    dtypes = "of activations (default: float32)"
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help=dtypes)
    add("--batch", type=int, default=batch, help=f"rows at a time (default: {batch})")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="CPUs of each side")
    add("--side", choices=SIDES, help=argparse.SUPPRESS)
    return parser


def new_step_parser(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser with the options of training steps and of decoding, against a peer."""
    parser = new_parser(description, batch=8)
    parser.add_argument("--inputs-length", type=int, default=128)
    parser.add_argument("--targets-length", type=int, default=64)
    parser.add_argument("--peer", choices=PEERS, default="torch", help="the other side")
    return parser


def start(script: str, side: str, args: argparse.Namespace, *more: str) -> subprocess.Popen[str]:
    """Starts a side: the same script and options with `--side`, on `args.threads` CPUs."""
    cpus = sorted(os.sched_getaffinity(0))[: args.threads]
    environment = {
        "CUDA_VISIBLE_DEVICES": "0",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # Both sides share the GPU's memory.
        "OMP_NUM_THREADS": str(args.threads),
        "TOKENIZERS_PARALLELISM": "false",
    }
    return subprocess.Popen(
        [sys.executable, script, *sys.argv[1:], *more, "--side", side],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**environment, **os.environ},
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),
    )


def ask(side: subprocess.Popen[str], message: Any) -> Any:
    """Sends a message to a side and returns its report."""
    assert side.stdin is not None
    side.stdin.write(json.dumps(message) + "\n")
    side.stdin.flush()
    return answer(side)


def answer(side: subprocess.Popen[str]) -> Any:
    """Returns a side's next report; what else it prints is skipped."""
    assert side.stdout is not None
    for line in side.stdout:
        if line.startswith("report "):
            return json.loads(line.removeprefix("report "))
    raise SystemExit(f"a side ended early, with exit status {side.wait()}")


def report(value: Any) -> None:
    """Sends a report to the parent."""
    print(f"report {json.dumps(value)}", flush=True)


def serve(args: argparse.Namespace, runs: Runs, about: Mapping[str, Any]) -> None:
    """Runs each of `runs` twice, then one for each name that the parent sends, and times it."""
    for run in runs.values():
        run()
        run()
    report({"device": device(args.side), **about})
    for line in sys.stdin:
        name = json.loads(line)
        if name is None:
            report({"peak_gib": peak_gib(args.side)})
            return
        started, processor = time.perf_counter(), time.process_time()
        runs[name]()
        seconds = time.perf_counter() - started
        report({"seconds": seconds, "processor": time.process_time() - processor})


def device(side: str) -> str:
    """Returns the name of the device that a side uses."""
    if side == "torch":
        import torch

        return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    import jax

    return str(jax.devices()[0].device_kind)


def peak_gib(side: str) -> float:
    """Returns the peak memory of this process in GiB: on its accelerator, or else on the host."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if side == "torch":
        import torch

        if torch.cuda.is_available():
            peak = torch.cuda.max_memory_allocated()
    else:
        import jax

        peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", peak)
    return peak / 2**30


def heading(args: argparse.Namespace, about: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the lines that name the machine, the versions and the model."""
    devices = ", ".join(dict.fromkeys(each["device"] for each in about.values()))
    versions = ", ".join(each["versions"] for each in about.values())
    return (
        f"machine   {platform.machine()}, {args.threads} threads, {devices}; "
        f"Python {platform.python_version()}, {versions}\n"
        f"model     T5 1.1 {args.size}, {args.dtype}, batch {args.batch}"
    )


def ratio(
    name: str, ours: Sequence[Mapping[str, float]], others: Sequence[Mapping[str, float]]
) -> str:
    """Returns the ratios of the medians of two lists of times."""
    seconds, processor = (
        statistics.median(x[key] for x in ours) / statistics.median(x[key] for x in others)
        for key in ("seconds", "processor")
    )
    pairs = (x["seconds"] / y["seconds"] for x, y in zip(ours, others, strict=True))
    return (
        f"ratio     {name} {seconds:.3f} (of medians; pair by pair median "
        f"{statistics.median(pairs):.3f}; CPU time {processor:.3f})"
    )


def mtf_model(args: argparse.Namespace, **network: Any) -> Any:
    """Returns mtf's model of `args.size`, without dropout."""
    import fiddle as fdl

    from mtf import builders

    config = builders.model.t5_1_1("small", dropout_rate=0.0, dtype=args.dtype)
    for name, value in {**SIZES[args.size]._asdict(), **network}.items():
        setattr(config.network, name, value)
    return fdl.build(config)


def torch_device(args: argparse.Namespace) -> Any:
    """Returns PyTorch's device, with the settings that make it fast there."""
    import torch

    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    torch.set_float32_matmul_precision("high")  # TF32 on GPUs, as XLA does by default
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def torch_model(args: argparse.Namespace) -> Any:
    """Returns transformers' random model of `args.size`, without dropout; attention is SDPA."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=T5_VOCAB_SIZE, **torch_sizes(args.size))
    model = T5ForConditionalGeneration(config)
    if model.lm_head.weight is model.shared.weight:  # Transformers 5 ties them whatever is asked.
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return model


def torch_sizes(size: str) -> dict[str, Any]:
    """Returns the values of T5 1.1 for a config of transformers."""
    return {
        "d_model": SIZES[size].emb_dim,
        "d_kv": SIZES[size].head_dim,
        "d_ff": SIZES[size].mlp_dim,
        "num_layers": SIZES[size].num_encoder_layers,
        "num_decoder_layers": SIZES[size].num_decoder_layers,
        "num_heads": SIZES[size].num_heads,
        "feed_forward_proj": "gated-gelu",
        "dropout_rate": 0.0,
        "tie_word_embeddings": False,
        "decoder_start_token_id": 0,
    }


def torch_versions() -> str:
    """Returns the versions of PyTorch and transformers."""
    return f"torch {version('torch')}, transformers {version('transformers')}"
