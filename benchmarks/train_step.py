"""Times a training step of T5 1.1 against Hugging Face PyTorch or T5X, on the device that is there.

The sides take turns in blocks of steps, so that both meet the same disturbances; the first step of
a block is not counted, as an idle process's memory may have been reclaimed. The optimizer is AdamW.
PyTorch's AdamW is fused, and its attention is `scaled_dot_product_attention`. With bfloat16, both
sides keep parameters in float32 (PyTorch by autocast). Needs the extra `torch`:

    pip install -e '.[torch]' && python benchmarks/train_step.py
    python benchmarks/train_step.py --size base --dtype bfloat16 --batch 64 \\
        --inputs-length 512 --targets-length 114

With `--peer t5x`, the peer is T5X, where it is installed, and both sides use Adafactor.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import sides
import t5x_peer

from conversion.families import T5_VOCAB_SIZE

Step = tuple[Callable[[], None], dict[str, Any]]


def main() -> None:
    """Parses the command line and prints the table."""
    parser = sides.new_step_parser(__doc__)
    parser.add_argument("--blocks", type=int, default=6, help="turns of each side")
    parser.add_argument("--steps", type=int, default=4, help="timed steps of a block")
    parser.add_argument("--scan-layers", action="store_true", help="scan ours instead of unrolling")
    parser.add_argument("--only", choices=sides.SIDES, help="time one side alone")
    args = parser.parse_args()
    if not args.side:
        compare(args)
        return
    step, about = {"mtf": mtf_step, "torch": torch_step, "t5x": t5x_step}[args.side](args)
    sides.serve(args, {"step": step}, about)


def compare(args: argparse.Namespace) -> None:
    """Runs both sides, a block of steps of each in turn."""
    names = (args.only,) if args.only else ("mtf", args.peer)
    if "t5x" in names:
        t5x_peer.check_installed()
    workers, about = {}, {}
    for side in names:
        workers[side] = sides.start(__file__, side, args)
        about[side] = sides.answer(workers[side])
    times: dict[str, list[dict[str, float]]] = {side: [] for side in names}
    for _ in range(args.blocks):
        for side in names:
            block = [sides.ask(workers[side], "step") for _ in range(args.steps + 1)]
            times[side] += block[1:]
    optimizer = "Adafactor" if args.peer == "t5x" else "AdamW"
    print(f"{sides.heading(args, about)} × {args.inputs_length}/{args.targets_length}, {optimizer}")
    columns = ("parameters", "median s", "min s", "max s", "compile s", "CPU s", "peak GiB")
    print(f"{'':8}" + "".join(f"{column:>13}" for column in columns))
    for side in names:
        seconds = [each["seconds"] for each in times[side]]
        print(
            f"{side:8}{about[side]['parameters']:13,}{statistics.median(seconds):13.4f}"
            f"{min(seconds):13.4f}{max(seconds):13.4f}{about[side]['compile']:13.1f}"
            f"{statistics.median(each['processor'] for each in times[side]):13.3f}"
            f"{sides.ask(workers[side], None)['peak_gib']:13.2f}"
        )
        workers[side].wait()
    if len(names) == 2:
        print(sides.ratio(f"mtf / {args.peer}", times["mtf"], times[args.peer]))


def batches(args: argparse.Namespace) -> Iterator[tuple[Any, Any]]:
    """Yields the same random inputs and targets on both sides, (batch, length) without padding."""
    import numpy as np

    rng = np.random.default_rng(0)
    while True:
        yield (
            rng.integers(2, T5_VOCAB_SIZE, (args.batch, args.inputs_length)),
            rng.integers(2, T5_VOCAB_SIZE, (args.batch, args.targets_length)),
        )


def mtf_step(args: argparse.Namespace) -> Step:
    """Returns our training step, as the training loop calls it."""
    import dataclasses

    import fiddle as fdl
    import jax

    from mtf import builders
    from mtf.models.t5 import num_parameters
    from mtf.partitioning.mesh import PjitPartitioner
    from mtf.partitioning.settings import PartitionerConfig
    from mtf.training.settings import AdafactorConfig, AdamWConfig
    from mtf.training.trainer import Trainer

    model = sides.mtf_model(args, scan_layers=args.scan_layers)
    model = dataclasses.replace(model, loss_normalizing_factor="NUM_REAL_TARGET_TOKENS")
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
        return partitioner.global_batch(t5x_peer.features(*next(data)), args.batch)

    def step() -> None:
        nonlocal state
        state, metrics = trainer.train_step(state, rows())
        jax.block_until_ready((state.step, metrics))

    started = time.perf_counter()
    trainer.compile(state, rows())
    return step, {
        "versions": f"jax {version('jax')}",
        "parameters": num_parameters(model.network),
        "compile": time.perf_counter() - started,
    }


def t5x_step(args: argparse.Namespace) -> Step:
    """Returns T5X's training step."""
    return t5x_peer.training_step(args, batches(args))


def torch_step(args: argparse.Namespace) -> Step:
    """Returns the usual PyTorch training step of a Transformers model."""
    import torch

    device = sides.torch_device(args)
    model = sides.torch_model(args).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    forward = torch.compile(model, dynamic=False) if device.type == "cuda" else model
    data = batches(args)

    def step() -> None:
        inputs, targets = (torch.from_numpy(tokens).to(device) for tokens in next(data))
        with torch.autocast(device.type, torch.bfloat16, enabled=args.dtype == "bfloat16"):
            loss = forward(input_ids=inputs, labels=targets).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    started = time.perf_counter()
    step()
    return step, {
        "versions": sides.torch_versions(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "compile": time.perf_counter() - started if device.type == "cuda" else 0.0,
    }


if __name__ == "__main__":
    main()
