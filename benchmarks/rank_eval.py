"""Times rank evaluation of T5 1.1 against a PyTorch scorer, on the device that is there.

The scorer does what T0's evaluation script does: it takes batches of examples in their order, pads
them to the longest row, and encodes the inputs once for each choice; on a GPU, it is compiled. Both
sides have the same random weights (ours, exported by `mtf.convert`) and score the same examples in
turns. The ratio is that of the medians. Shapes are compiled in a first pass, which is shown. Needs
the extra `torch`:

    pip install -e '.[torch]' && python benchmarks/rank_eval.py
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from sides import (
    SIZES,
    answer,
    ask,
    device,
    heading,
    mtf_model,
    new_parser,
    peak_gib,
    report,
    start,
    torch_device,
    torch_versions,
)

SIDES = ("mtf", "torch")


class Case(NamedTuple):
    """Examples of one kind: number of choices, median tokens of inputs and of a choice."""

    num_choices: int
    inputs: int
    targets: int
    like: str


# As prompts over such datasets are, in T5's vocabulary; lengths spread log-normally around these.
CASES = {
    "2-short": Case(2, 90, 2, "RTE, BoolQ: yes or no"),
    "2-long": Case(2, 45, 8, "COPA, PIQA: a sentence"),
    "4-short": Case(4, 90, 4, "ARC, OpenBookQA, SciQ: a few words"),
    "4-long": Case(4, 120, 25, "HellaSwag: the end of a story"),
    "5-short": Case(5, 60, 3, "CommonsenseQA, CoS-E: a word or two"),
}
# Prompts whose rows are scored with --data-dir.
TASKS = {
    "rte": ("super_glue_rte_GPT_3_style_score_eval", "super_glue/rte"),
    "copa": ("super_glue_copa_C1_or_C2_premise_so_because__score_eval", "super_glue/copa"),
    "winogrande": ("winogrande_winogrande_xl_fill_in_the_blank_score_eval", "winogrande"),
}


def main() -> None:
    """Parses the command line and prints the table."""
    parser = new_parser(__doc__, batch=32)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--examples", type=int, default=128, help="of each case")
    parser.add_argument("--passes", type=int, default=3, help="timed passes of each side")
    parser.add_argument("--torch-batch", type=int, default=8, help="examples at a time, PyTorch's")
    parser.add_argument("--data-dir", help="a mirror of the datasets: real rows instead")
    parser.add_argument("--vocabulary", help="T5's SentencePiece model, for --data-dir")
    parser.add_argument("--models", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        serve(args)
    else:
        with tempfile.TemporaryDirectory() as models:
            compare(args, models)


def compare(args: argparse.Namespace, models: str) -> None:
    """Runs both sides, a pass of each in turn, case by case."""
    workers, about = {}, {}
    for side in SIDES:  # mtf writes the model that PyTorch reads.
        workers[side] = start(__file__, side, args, "--models", models)
        about[side] = answer(workers[side])
    print(f"{heading(args, about)} (mtf), {args.torch_batch} (torch)")
    columns = ("examples", "choices", "inputs", "targets", "first s", "mtf s", "torch s", "ratio")
    print(f"{'':12}" + "".join(f"{name:>9}" for name in columns) + f"{'max |Δ|':>10}  agree")
    for case in TASKS if args.data_dir else args.cases:
        first = {side: ask(workers[side], case) for side in SIDES}
        seconds: dict[str, list[float]] = {side: [] for side in SIDES}
        scores: dict[str, list[list[float]]] = {}
        for _ in range(args.passes):
            for side in SIDES:
                done = ask(workers[side], case)
                seconds[side].append(done["seconds"])
                scores[side] = done["scores"]
        shape = first["mtf"]["shape"]
        medians = {side: statistics.median(seconds[side]) for side in SIDES}
        pairs = list(zip(scores["mtf"], scores["torch"], strict=True))
        difference = max(abs(a - b) for x, y in pairs for a, b in zip(x, y, strict=True))
        agree = sum(x.index(max(x)) == y.index(max(y)) for x, y in pairs) / len(pairs)
        print(
            f"{case:12}{shape['examples']:9,}{shape['choices']:9.1f}{shape['inputs']:9.1f}"
            f"{shape['targets']:9.1f}{first['mtf']['seconds']:9.2f}{medians['mtf']:9.2f}"
            f"{medians['torch']:9.2f}{medians['torch'] / medians['mtf']:9.2f}"
            f"{difference:10.1e}  {agree:.1%}",
            flush=True,
        )
    for side in SIDES:
        print(f"peak      {side} {ask(workers[side], None)['peak_gib']:.2f} GiB")
        workers[side].wait()


def prepare(args: argparse.Namespace) -> None:
    """Writes random parameters as a checkpoint of ours, and exports it to Hugging Face."""
    import jax

    import recipes
    from mtf import config, convert
    from mtf.checkpoints.manager import CheckpointManager
    from mtf.checkpoints.settings import SaveCheckpointConfig
    from mtf.models import t5
    from mtf.training.train_state import TrainState

    models, recipe = Path(args.models), recipes.t5_1_1_small_c4()
    for name, value in SIZES[args.size]._asdict().items():
        setattr(recipe.model.network, name, value)
    config.write_run_dir(models / "run", recipe, "benchmarks/rank_eval.py")
    params = t5.init_params(mtf_model(args).network, jax.random.PRNGKey(0))
    checkpoints = CheckpointManager(models / "run", SaveCheckpointConfig())
    checkpoints.save(1, TrainState(jax.numpy.int32(1), params, {}).state_dict(), {})
    checkpoints.close()
    with contextlib.redirect_stdout(sys.stderr):
        failed = convert.main(
            [str(models / "run"), str(models / "hf"), "--to", "hf", "--vocabulary", "none"]
        )
    if failed:
        raise SystemExit("the export failed")


def serve(args: argparse.Namespace) -> None:
    """Loads a side's model, then scores the examples of each case that the parent sends."""
    score, about = {"mtf": mtf_scorer, "torch": torch_scorer}[args.side](args)
    report({"device": device(args.side), **about})
    data: dict[str, Any] = {}
    for case in map(json.loads, sys.stdin):
        if case is None:
            report({"peak_gib": peak_gib(args.side)})
            return
        if case not in data:
            data[case] = real(args, case) if args.data_dir else synthetic(args, case)
        examples = data[case]
        start = time.perf_counter()
        scores = score(examples)
        seconds = time.perf_counter() - start
        targets = [len(target) for _, choices in examples for target in choices]
        shape = {
            "examples": len(examples),
            "choices": len(targets) / len(examples),
            "inputs": statistics.mean(len(inputs) for inputs, _ in examples),
            "targets": statistics.mean(targets),
        }
        report({"seconds": seconds, "scores": scores, "shape": shape})


Examples = list[tuple[list[int], list[list[int]]]]


def synthetic(args: argparse.Namespace, name: str) -> Examples:
    """Returns random tokens in realistic lengths; targets end with EOS, inputs do not."""
    import numpy as np

    case = CASES[name]
    rng = np.random.default_rng(sum(name.encode()))

    def tokens(median: int) -> list[int]:
        length = max(1, round(median * float(rng.lognormal(0.0, 0.35))))
        return rng.integers(2, 32000, length).tolist()

    return [
        (tokens(case.inputs), [[*tokens(case.targets), 1] for _ in range(case.num_choices)])
        for _ in range(args.examples)
    ]


def real(args: argparse.Namespace, name: str) -> Examples:
    """Returns the first validation examples of a prompt."""
    from mtf.data.settings import TaskMixtureConfig
    from mtf.data.text.vocabularies import SentencePieceVocabulary
    from mtf.evaluation.tasks import evaluation_tasks

    data = TaskMixtureConfig(
        vocabulary=SentencePieceVocabulary(args.vocabulary),
        task_feature_lengths={"inputs": 1024, "targets": 256},
        mixture_or_task_name=TASKS[name][0],
        data_dir=args.data_dir,
    )
    (task,) = evaluation_tasks(data)
    assert task.load is not None
    return [(e.inputs, e.choices) for e in task.load().examples[: args.examples]]


Scorer = Callable[[Examples], list[list[float]]]


def mtf_scorer(args: argparse.Namespace) -> tuple[Scorer, dict[str, Any]]:
    """Returns our scorer, as the evaluation job calls it."""
    prepare(args)
    from mtf.data.text.vocabularies import ByteVocabulary
    from mtf.inference.loading import load_model
    from mtf.inference.opening import open_model
    from mtf.inference.predictor import Predictor

    # The examples are ids already; the checkpoint wants a vocabulary of its size.
    vocabulary = ByteVocabulary(extra_ids=32128 - 259)
    opened = open_model(Path(args.models, "run"), vocabulary=vocabulary)
    loaded = load_model(opened, dtype=args.dtype)
    predictor = Predictor(
        loaded.model,
        loaded.params,
        loaded.vocabulary,
        loaded.partitioner,
        batch_size=args.batch,
    )

    def score(examples: Examples) -> list[list[float]]:
        return [s.log_likelihoods.tolist() for s in predictor.log_likelihoods(examples)]

    return score, {"versions": f"jax {version('jax')}"}


def torch_scorer(args: argparse.Namespace) -> tuple[Scorer, dict[str, Any]]:
    """Returns a scorer with a Transformers model; each choice has a copy of the inputs."""
    import torch
    from transformers import AutoModelForSeq2SeqLM

    device = torch_device(args)
    model = AutoModelForSeq2SeqLM.from_pretrained(
        Path(args.models, "hf"), dtype=getattr(torch, args.dtype)
    )
    model.to(device).eval()
    forward = torch.compile(model, dynamic=True) if device.type == "cuda" else model

    def padded(rows: list[list[int]]) -> torch.Tensor:
        tensors = [torch.tensor(row) for row in rows]
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True).to(device)

    @torch.inference_mode()
    def score_batch(examples: Examples) -> list[list[float]]:
        inputs = padded([ids for ids, choices in examples for _ in choices])
        targets = padded([choice for _, choices in examples for choice in choices])
        logits = forward(
            input_ids=inputs,
            attention_mask=(inputs > 0).long(),
            labels=targets.masked_fill(targets == 0, -100),
        ).logits.float()
        of_tokens = torch.log_softmax(logits, dim=-1).gather(-1, targets[..., None])[..., 0]
        sums = (of_tokens * (targets > 0)).sum(-1).tolist()
        return [[sums.pop(0) for _ in choices] for _, choices in examples]

    def score(examples: Examples) -> list[list[float]]:
        size = args.torch_batch
        starts = range(0, len(examples), size)
        return [x for start in starts for x in score_batch(examples[start : start + size])]

    return score, {"versions": torch_versions()}


if __name__ == "__main__":
    main()
