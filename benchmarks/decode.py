"""Times decoding of T5 1.1, greedy and with 4 beams and without EOS, on the device that is there.

Greedy decoding of a batch is compared with our own training step at the same shape (AdamW), and
both methods with transformers' `generate`, or with T5X (`--peer t5x`, where it is installed). The
sides take turns; CPU time is shown beside the seconds because a busy machine changes it less. On a
GPU, PyTorch has a static cache and a compiled step. Needs the extra `torch`:

    pip install -e '.[torch]' && python benchmarks/decode.py
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import sides
import t5x_peer
from train_step import mtf_step

from conversion.families import T5_VOCAB_SIZE


def main() -> None:
    """Parses the command line and prints the table."""
    parser = sides.new_step_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=7, help="timed runs of each kind")
    args = parser.parse_args()
    if not args.side:
        compare(args)
        return
    runs, versions = {"mtf": mtf_runs, "torch": torch_runs, "t5x": t5x_runs}[args.side](args)
    sides.serve(args, runs, {"versions": versions})


def compare(args: argparse.Namespace) -> None:
    """Runs both sides, one run of each kind in turn."""
    peer = args.peer
    if peer == "t5x":
        t5x_peer.check_installed()
    kinds = {
        "training step": "mtf",
        "mtf greedy": "mtf",
        f"{peer} greedy": peer,
        "mtf beam 4": "mtf",
        f"{peer} beam 4": peer,
    }
    workers = {side: sides.start(__file__, side, args) for side in ("mtf", peer)}
    about = {side: sides.answer(worker) for side, worker in workers.items()}
    times: dict[str, list[dict[str, float]]] = {name: [] for name in kinds}
    for _ in range(args.repeats):
        for name, side in kinds.items():
            times[name].append(sides.ask(workers[side], name))
    for worker in workers.values():
        sides.ask(worker, None)
        worker.wait()
    print(f"{sides.heading(args, about)} × {args.targets_length} tokens from {args.inputs_length}")
    columns = ("median s", "min s", "max s", "CPU s")
    print(f"{'':16}" + "".join(f"{name:>13}" for name in columns))
    for name in kinds:
        seconds = [run["seconds"] for run in times[name]]
        processor = statistics.median(run["processor"] for run in times[name])
        print(
            f"{name:16}{statistics.median(seconds):13.4f}{min(seconds):13.4f}"
            f"{max(seconds):13.4f}{processor:13.3f}"
        )
    for ours, other in (
        ("mtf greedy", "training step"),
        ("mtf greedy", f"{peer} greedy"),
        ("mtf beam 4", f"{peer} beam 4"),
    ):
        print(sides.ratio(f"{ours} / {other}", times[ours], times[other]))


def inputs(args: argparse.Namespace) -> Any:
    """Returns the same random tokens on both sides, (batch, length) without padding."""
    import numpy as np

    return np.random.default_rng(1).integers(2, T5_VOCAB_SIZE, (args.batch, args.inputs_length))


def mtf_runs(args: argparse.Namespace) -> tuple[sides.Runs, str]:
    """Returns our training step, and our decoding with unrolled layers."""
    import jax
    import numpy as np

    from mtf.inference.decoding.generate import generate
    from mtf.inference.decoding.settings import DecodingConfig
    from mtf.models import t5

    args.scan_layers = False
    step, _ = mtf_step(args)
    network = sides.mtf_model(args, scan_layers=False).network
    params = jax.jit(t5.init_params, static_argnums=0)(network, jax.random.PRNGKey(0))
    params = jax.tree.map(lambda x: x.astype(args.dtype), params)  # as inference jobs load them
    tokens = inputs(args).astype(np.int32)

    def decode(decoding: DecodingConfig) -> Callable[[], None]:
        return lambda: jax.block_until_ready(
            generate(network, params, tokens, decoding, eos_id=-1).tokens
        )

    length = args.targets_length
    runs = {
        "training step": step,
        "mtf greedy": decode(DecodingConfig(max_length=length)),
        "mtf beam 4": decode(DecodingConfig(method="beam", max_length=length)),
    }
    return runs, f"jax {version('jax')}"


def t5x_runs(args: argparse.Namespace) -> tuple[sides.Runs, str]:
    """Returns T5X's decoding."""
    return t5x_peer.decoding_runs(args, inputs(args))


def torch_runs(args: argparse.Namespace) -> tuple[sides.Runs, str]:
    """Returns transformers' `generate` with its cache."""
    import torch

    device = sides.torch_device(args)
    model = sides.torch_model(args).to(device, getattr(torch, args.dtype)).eval()
    tokens = torch.from_numpy(inputs(args)).to(device)
    # `generate` compiles its step on GPUs if the cache is static.
    static = {"cache_implementation": "static"} if device.type == "cuda" else {}

    def decode(num_beams: int) -> Callable[[], None]:
        # Compiled code writes to a static cache, which inference mode does not allow.
        @(torch.no_grad() if static else torch.inference_mode())
        def run() -> None:
            out = model.generate(
                input_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=args.targets_length,
                num_beams=num_beams,
                do_sample=False,
                use_cache=True,
                eos_token_id=None,
                **static,
            )
            assert out.cpu().shape == (args.batch, args.targets_length + 1)

        return run

    return {"torch greedy": decode(1), "torch beam 4": decode(4)}, sides.torch_versions()


if __name__ == "__main__":
    main()
