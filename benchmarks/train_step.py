"""Times a training step against Hugging Face PyTorch or T5X: T5 1.1 small, float32.

Each side lives in a process of its own with the same number of threads. The sides take turns in
blocks of steps, so that both meet the same disturbances; the first step of a block is not counted,
as an idle process's memory may have been reclaimed. The ratio is of the medians.

PyTorch runs at its best: denormal numbers are flushed to zero, as XLA does (otherwise its step on
random tokens slows down several times within three steps), attention is
`scaled_dot_product_attention`, AdamW is fused. `--torch-compile` compiles its forward and backward
pass with torch.compile. `--torch-malloc` lets glibc's malloc keep freed memory in its process, as
mtf does in its own. Needs the extra `torch`:

    pip install -e '.[torch]' && python benchmarks/train_step.py

The optimizer is AdamW. With `--peer t5x`, the peer is T5X, where it is installed, and both sides
use Adafactor.
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
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import t5x_peer

PEERS = ("torch", "t5x")
SIDES = ("mtf", *PEERS)
VOCAB = 32128


def main() -> None:
    """Parses the command line and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=6, help="turns of each side")
    parser.add_argument("--steps", type=int, default=4, help="timed steps of a block")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--inputs-length", type=int, default=128)
    parser.add_argument("--targets-length", type=int, default=64)
    parser.add_argument("--scan-layers", action="store_true", help="scan ours instead of unrolling")
    parser.add_argument("--peer", choices=PEERS, default="torch", help="the other side")
    parser.add_argument("--only", choices=SIDES, help="time one side alone")
    parser.add_argument("--torch-compile", action="store_true", help="use torch.compile")
    parser.add_argument("--torch-malloc", action="store_true", help="keep freed memory")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        serve(args)
    else:
        compare(args)


def compare(args: argparse.Namespace) -> None:
    """Runs both sides, a block of steps of each in turn."""
    sides = (args.only,) if args.only else ("mtf", args.peer)
    if "t5x" in sides:
        t5x_peer.check_installed()
    workers, ready = {}, {}
    for side in sides:
        workers[side] = start(__file__, side, args)
        ready[side] = answer(workers[side])
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    processor: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(args.blocks):
        for side in sides:
            for i in range(args.steps + 1):
                ask(workers[side], "step")
                took = answer(workers[side])
                if i:
                    seconds[side].append(took["seconds"])
                    processor[side].append(took["processor"])
    print(
        f"machine   {platform.machine()}, {args.threads} threads, "
        f"Python {platform.python_version()}"
    )
    optimizer = "Adafactor" if args.peer == "t5x" else "AdamW"
    print(
        f"shape     T5 1.1 small, batch {args.batch_size} × {args.inputs_length}/"
        f"{args.targets_length}, float32, {optimizer}"
    )
    columns = ("parameters", "median s", "min s", "max s", "compile s", "processor s", "peak GiB")
    print(f"{'':8}" + "".join(f"{name:>12}" for name in columns) + "  versions")
    for side in sides:
        ask(workers[side], "stop")
        end = answer(workers[side])
        workers[side].wait()
        times = seconds[side]
        about = ready[side]
        print(
            f"{side:8}{about['parameters']:12,}{statistics.median(times):12.3f}"
            f"{min(times):12.3f}{max(times):12.3f}{about['compile']:12.1f}"
            f"{statistics.median(processor[side]):12.2f}{end['peak_gib']:12.2f}"
            f"  {about['versions']}"
        )
    if len(sides) == 2:
        pairs = [a / b for a, b in zip(seconds["mtf"], seconds[args.peer], strict=True)]
        medians, processors = (
            [statistics.median(of[side]) for side in sides] for of in (seconds, processor)
        )
        print(
            f"ratio     mtf / {args.peer} {medians[0] / medians[1]:.3f} (of medians; "
            f"pair by pair median {statistics.median(pairs):.3f}; "
            f"processor time {processors[0] / processors[1]:.3f})"
        )


def start(script: str, side: str, args: argparse.Namespace) -> subprocess.Popen[str]:
    """Starts a worker: the same script and options with `--side`, on `args.threads` CPUs."""
    environment = dict(
        os.environ, OMP_NUM_THREADS=str(args.threads), TOKENIZERS_PARALLELISM="false"
    )
    cpus = sorted(os.sched_getaffinity(0))[: args.threads]
    return subprocess.Popen(
        [sys.executable, script, *sys.argv[1:], "--side", side],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),
    )


def torch_at_its_best(args: argparse.Namespace) -> None:
    """Sets what makes PyTorch fast on CPUs, before its threads start."""
    import torch

    if args.torch_malloc:
        from mtf.malloc import keep_freed_memory

        keep_freed_memory()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)


def ask(worker: subprocess.Popen[str], word: str) -> None:
    """Sends one line to a worker."""
    assert worker.stdin is not None
    worker.stdin.write(word + "\n")
    worker.stdin.flush()


def answer(worker: subprocess.Popen[str]) -> dict[str, Any]:
    """Reads one line of JSON from a worker."""
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise SystemExit(f"a worker ended early, exit status {worker.wait()}")
    return json.loads(line)


def serve(args: argparse.Namespace) -> None:
    """One side: builds its step, then runs one for each line of input."""
    step, about = {"mtf": mtf_step, "torch": torch_step, "t5x": t5x_step}[args.side](args)
    step()
    step()
    say(about)
    for line in sys.stdin:
        if line.strip() == "stop":
            break
        started, processor = time.perf_counter(), time.process_time()
        step()
        say(
            {
                "seconds": time.perf_counter() - started,
                "processor": time.process_time() - processor,
            }
        )
    say({"peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20})


def say(message: dict[str, Any]) -> None:
    """Writes one line of JSON."""
    print(json.dumps(message), flush=True)


def batches(args: argparse.Namespace) -> Iterator[tuple[Any, Any]]:
    """The same random tokens for both sides: inputs and targets without padding."""
    import numpy as np

    rng = np.random.default_rng(0)
    while True:
        yield (
            rng.integers(2, VOCAB, (args.batch_size, args.inputs_length)),
            rng.integers(2, VOCAB, (args.batch_size, args.targets_length)),
        )


def mtf_step(args: argparse.Namespace) -> tuple[Callable[[], None], dict[str, Any]]:
    """Our training step, as the training loop calls it."""
    import dataclasses

    import fiddle as fdl
    import jax
    import numpy as np

    from mtf import builders
    from mtf.models.t5 import num_parameters
    from mtf.partitioning.mesh import PjitPartitioner
    from mtf.partitioning.settings import PartitionerConfig
    from mtf.training.settings import AdafactorConfig, AdamWConfig
    from mtf.training.trainer import Trainer

    model = fdl.build(builders.model.t5_1_1("small", dropout_rate=0.0, dtype="float32"))
    network = dataclasses.replace(model.network, scan_layers=args.scan_layers)
    model = dataclasses.replace(
        model, network=network, loss_normalizing_factor="NUM_REAL_TARGET_TOKENS"
    )
    schedule = builders.schedule.constant(1e-4)
    optimizer = fdl.build(
        fdl.Config(AdafactorConfig, schedule)
        if args.peer == "t5x"
        else fdl.Config(AdamWConfig, schedule, weight_decay_rate=0.01)
    )
    partitioner = PjitPartitioner.create(PartitionerConfig())
    trainer = Trainer(model, optimizer, partitioner)
    state = trainer.init_state()
    data = batches(args)

    def rows() -> dict[str, Any]:
        inputs, targets = next(data)
        local = {
            "encoder_input_tokens": inputs.astype(np.int32),
            "decoder_input_tokens": np.pad(targets, ((0, 0), (1, 0)))[:, :-1].astype(np.int32),
            "decoder_target_tokens": targets.astype(np.int32),
            "decoder_loss_weights": np.ones_like(targets, np.int32),
        }
        return partitioner.global_batch(local, args.batch_size)

    def step() -> None:
        nonlocal state
        state, metrics = trainer.train_step(state, rows())
        jax.block_until_ready((state.step, metrics))

    started = time.perf_counter()
    trainer.compile(state, rows())
    return step, {
        "versions": f"jax {version('jax')}",
        "parameters": num_parameters(network),
        "compile": time.perf_counter() - started,
    }


def t5x_step(args: argparse.Namespace) -> tuple[Callable[[], None], dict[str, Any]]:
    """T5X's training step."""
    return t5x_peer.training_step(args, batches(args))


def torch_step(args: argparse.Namespace) -> tuple[Callable[[], None], dict[str, Any]]:
    """The usual PyTorch training step of a Transformers model."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    torch_at_its_best(args)
    config = T5Config(
        vocab_size=VOCAB,
        d_model=512,
        d_kv=64,
        d_ff=1024,
        num_layers=8,
        num_heads=6,
        feed_forward_proj="gated-gelu",
        dropout_rate=0.0,
        tie_word_embeddings=False,
        decoder_start_token_id=0,
    )
    model = T5ForConditionalGeneration(config).train()
    if model.lm_head.weight is model.shared.weight:  # Transformers 5 ties them whatever is asked
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    num_parameters = sum(p.numel() for p in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    forward = torch.compile(model) if args.torch_compile else model
    data = batches(args)

    def step() -> None:
        inputs, targets = next(data)
        loss = forward(input_ids=torch.from_numpy(inputs), labels=torch.from_numpy(targets)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    versions = f"torch {version('torch')}, transformers {version('transformers')}"
    return step, {"versions": versions, "parameters": num_parameters, "compile": 0.0}


if __name__ == "__main__":
    main()
