"""Fine-tunes one random model with mtf and with transformers' Seq2SeqTrainer, side by side.

Both start from the same Hugging Face directory (a random T5 1.1 over bytes), and make the same
updates on the same batches in the same order: AdamW at a constant learning rate, float32, no
dropout, the mean loss over the tokens of a batch. The sides are processes of their own, with the
same number of threads, and take turns in blocks of steps. PyTorch runs at its best: denormal
numbers are flushed to zero, attention is `scaled_dot_product_attention`, AdamW is fused.

Prints the losses of the first steps and their largest relative difference, the median time of a
step with the ratio, and the accuracy of greedy predictions on the validation data at the end of
each side. Without `--train`, the data are made up. Needs the extra `torch` and accelerate:

    pip install -e '.[torch]' accelerate && python benchmarks/finetune.py
    python benchmarks/finetune.py --train train.tsv --validation dev.tsv --steps 2000
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import mtf

SIDES = ("mtf", "torch")
SIZES = {
    "tiny": {"d_model": 128, "d_ff": 256, "num_heads": 4, "d_kv": 32, "num_layers": 2},
    "mini": {"d_model": 256, "d_ff": 512, "num_heads": 4, "d_kv": 64, "num_layers": 4},
    "small": {"d_model": 512, "d_ff": 1024, "num_heads": 6, "d_kv": 64, "num_layers": 8},
}
NUM_SHOWN = 20
WORDS = {
    "animal": "cat dog horse sheep cow goat",
    "colour": "red blue green white black grey",
    "fruit": "apple pear plum cherry lemon fig",
}


def main() -> None:
    """Parses the command line and prints the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--train", metavar="FILE.tsv", help="inputs and targets, separated by a tab")
    add("--validation", metavar="FILE.tsv", help="the same, to measure the accuracy")
    add("--size", choices=SIZES, default="mini", help="of the random model")
    add("--steps", type=int, default=100)
    add("--block", type=int, default=10, help="steps of a turn")
    add("--batch-size", type=int, default=32)
    add("--learning-rate", type=float, default=1e-3)
    add("--inputs-length", type=int, default=96)
    add("--targets-length", type=int, default=16)
    add("--threads", type=int, default=2)
    add("--side", choices=SIDES, help=argparse.SUPPRESS)
    add("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        serve(args)
    else:
        with tempfile.TemporaryDirectory() as folder:
            args.folder = Path(folder)
            compare(args)


def compare(args: argparse.Namespace) -> None:
    """Prepares the data, starts both sides, gives them turns and prints what they report."""
    for kind in ("train", "validation"):
        file, given = args.folder / f"{kind}.tsv", getattr(args, kind)
        file.write_text(Path(given).read_text() if given else made_up(kind))
    sides = {name: start(name, args) for name in SIDES}
    for name in SIDES:  # mtf writes the batches that PyTorch reads.
        assert answer(sides[name]) == "ready", name
    losses: dict[str, list[float]] = {name: [] for name in SIDES}
    seconds: dict[str, list[float]] = {name: [] for name in SIDES}
    while (done := len(losses["mtf"])) < args.steps:
        for name in SIDES:
            report = ask(sides[name], min(args.block, args.steps - done))
            losses[name] += report["losses"]
            seconds[name] += report["seconds"][1:]  # The other side has used the caches.
    scores = {name: ask(sides[name], 0) for name in SIDES}

    packages = ("jax", "torch", "transformers")
    print(
        f"mtf {mtf.__version__}, "
        + ", ".join(f"{package} {version(package)}" for package in packages)
    )
    print(
        f"random T5 1.1 {args.size}, {args.steps} steps of {args.batch_size} × "
        f"{args.inputs_length}/{args.targets_length} bytes, {args.threads} threads\n"
    )
    print("step        mtf      torch  difference")
    pairs = list(zip(losses["mtf"], losses["torch"], strict=True))
    for step, (ours, other) in enumerate(pairs[:NUM_SHOWN], 1):
        print(f"{step:4} {ours:10.6f} {other:10.6f}  {abs(ours - other) / other:10.1e}")
    differences = [abs(ours - other) / other for ours, other in pairs[:NUM_SHOWN]]
    print(f"largest relative difference of the first {len(differences)}: {max(differences):.1e}\n")
    medians = {name: statistics.median(seconds[name]) for name in SIDES}
    for name in SIDES:
        shown = scores[name]
        print(
            f"{name:6} {medians[name] * 1e3:8.1f} ms per step   last loss {losses[name][-1]:.4f}   "
            f"accuracy {shown['accuracy']:.1f}% of {shown['count']}"
        )
    print(f"mtf / torch: {medians['mtf'] / medians['torch']:.3f}")


def made_up(kind: str) -> str:
    """Returns lines of words, whose target is the kind to which most of them belong."""
    rng = random.Random(kind)
    lines = []
    for _ in range(2000 if kind == "train" else 200):
        label, other = rng.sample(sorted(WORDS), 2)
        words = rng.choices(WORDS[label].split(), k=4) + rng.choices(WORDS[other].split(), k=2)
        rng.shuffle(words)
        lines.append(f"{' '.join(words)}\t{label}\n")
    return "".join(lines)


def start(name: str, args: argparse.Namespace) -> subprocess.Popen[str]:
    """Starts a side, with the same number of threads for every library."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: args.threads]))
    settings = [f"--{key.replace('_', '-')}={value}" for key, value in vars(args).items() if value]
    return subprocess.Popen(
        ["taskset", "-c", cores, sys.executable, __file__, *settings, f"--side={name}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(args.threads), "JAX_PLATFORMS": "cpu"},
    )


def ask(side: subprocess.Popen[str], steps: int) -> Any:
    """Lets a side make some steps, or, with 0, evaluate; returns its report."""
    assert side.stdin is not None
    side.stdin.write(f"{steps}\n")
    side.stdin.flush()
    return answer(side)


def answer(side: subprocess.Popen[str]) -> Any:
    """Returns a side's next report."""
    assert side.stdout is not None
    for line in side.stdout:
        if line.startswith("report "):
            return json.loads(line.removeprefix("report "))
    raise RuntimeError(f"a side ended with status {side.wait()}")


def report(value: Any) -> None:
    """Sends a report to the parent."""
    print(f"report {json.dumps(value)}", flush=True)


def turns() -> Iterator[int]:
    """Yields numbers of steps until the parent asks for an evaluation."""
    for line in sys.stdin:
        if not int(line):
            return
        yield int(line)


def validation(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Returns the inputs and the targets of the validation data."""
    lines = (args.folder / "validation.tsv").read_text().splitlines()
    inputs, targets = zip(*(line.split("\t") for line in lines), strict=True)
    return list(inputs), list(targets)


def report_accuracy(args: argparse.Namespace, predict: Callable[[list[str]], list[str]]) -> None:
    """Reports how many predictions equal their targets."""
    inputs, targets = validation(args)
    predictions = predict(inputs)
    correct = sum(p == t for p, t in zip(predictions, targets, strict=True))
    report({"accuracy": 100 * correct / len(targets), "count": len(targets)})


def serve(args: argparse.Namespace) -> None:
    """Runs one side."""
    {"mtf": serve_mtf, "torch": serve_torch}[args.side](args)


def serve_mtf(args: argparse.Namespace) -> None:
    """Writes the model and the batches, and trains with mtf."""
    write_model(args)
    import fiddle as fdl

    import recipes
    from mtf import builders, loaders
    from mtf.decoding.settings import DecodingConfig
    from mtf.inference.predictor import Predictor
    from mtf.partitioning.mesh import PjitPartitioner
    from mtf.training import AdamWConfig
    from mtf.training.trainer import Trainer, starting_state

    config = recipes.finetune(
        str(args.folder / "model"),
        str(args.folder / "train.tsv"),
        steps=args.steps,
        batch_size=args.batch_size,
        inputs_length=args.inputs_length,
        targets_length=args.targets_length,
        dropout_rate=0.0,
        dtype="float32",
    )
    config.model.z_loss = 0.0
    config.optimizer = fdl.Config(AdamWConfig, builders.schedule.constant(args.learning_rate))
    job = fdl.build(config)
    stream = loaders.make_train_iterator(job.data, batch_size=args.batch_size)
    batches = [next(stream) for _ in range(args.steps)]
    np.savez(
        args.folder / "batches.npz",
        inputs=np.stack([batch["encoder_input_tokens"] for batch in batches]),
        targets=np.stack([batch["decoder_target_tokens"] for batch in batches]),
    )
    partitioner = PjitPartitioner.create(job.partitioner)
    trainer = Trainer(job.model, job.optimizer, partitioner, job.trainer)
    state = starting_state(trainer, args.folder / "run", job.checkpoint.restore, args.steps)
    trainer.compile(state, partitioner.global_batch(batches[0], args.batch_size))
    report("ready")

    left = iter(batches)
    for number in turns():
        losses, seconds = [], []
        for _ in range(number):
            began = time.perf_counter()
            batch = partitioner.global_batch(next(left), args.batch_size)
            state, metrics = trainer.train_step(state, batch)
            losses.append(float(metrics["loss"]))
            seconds.append(time.perf_counter() - began)
        report({"losses": losses, "seconds": seconds})

    def predict(inputs: list[str]) -> list[str]:
        vocabulary = job.data.vocabulary
        predictor = Predictor(job.model, state.params, vocabulary, partitioner)
        ids = [[*vocabulary.encode(text), vocabulary.eos_id] for text in inputs]
        found = predictor.generate(ids, DecodingConfig(max_length=args.targets_length))
        return [vocabulary.decode(generated.ids) for generated, *_ in found]

    report_accuracy(args, predict)


def write_model(args: argparse.Namespace) -> None:
    """Writes a random T5 1.1 over bytes in Hugging Face's format."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=384,
        **SIZES[args.size],
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    model = transformers.T5ForConditionalGeneration(config)
    # A new model of transformers 5 is tied whatever its config says; one that is read with an
    # output projection of its own is not. The initial values are T5X's.
    initial = torch.randn(config.vocab_size, config.d_model) * config.d_model**-0.5
    model.lm_head.weight = torch.nn.Parameter(initial)
    model.save_pretrained(args.folder / "model")
    transformers.ByT5Tokenizer().save_pretrained(args.folder / "model")


def serve_torch(args: argparse.Namespace) -> None:
    """Trains with Seq2SeqTrainer."""
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    while not (args.folder / "batches.npz").exists():
        time.sleep(0.2)
    time.sleep(1.0)  # The file is complete.
    stored = np.load(args.folder / "batches.npz")
    inputs = stored["inputs"].reshape(-1, args.inputs_length)
    targets = stored["targets"].reshape(-1, args.targets_length)
    rows = [
        {
            "input_ids": torch.from_numpy(own.astype(np.int64)),
            "attention_mask": torch.from_numpy((own > 0).astype(np.int64)),
            "labels": torch.from_numpy(np.where(other > 0, other, -100).astype(np.int64)),
        }
        for own, other in zip(inputs, targets, strict=True)
    ]
    model = transformers.T5ForConditionalGeneration.from_pretrained(
        args.folder / "model", attn_implementation="sdpa"
    )
    assert model.lm_head.weight is not model.shared.weight
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.folder / "model")
    waiting, losses, seconds = turns(), [], []

    class InTurns(transformers.TrainerCallback):  # type: ignore[misc]
        """Makes as many steps as the parent asks for, and reports them."""

        left = 0
        began = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if not self.left:
                self.left = next(waiting)
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(time.perf_counter() - self.began)
            self.left -= 1
            if not self.left:
                report({"losses": [float(loss) for loss in losses], "seconds": list(seconds)})
                losses.clear()
                seconds.clear()

    class InOrder(transformers.Seq2SeqTrainer):  # type: ignore[misc]
        """Takes the rows in their order, and keeps the losses."""

        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(rows)

        def training_step(self, *arguments: Any, **keywords: Any) -> Any:
            loss = super().training_step(*arguments, **keywords)
            losses.append(loss)
            return loss

    settings = transformers.Seq2SeqTrainingArguments(
        output_dir=str(args.folder / "torch"),
        per_device_train_batch_size=args.batch_size,
        max_steps=args.steps,
        learning_rate=args.learning_rate,
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        weight_decay=0.0,
        max_grad_norm=0.0,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = InOrder(model=model, args=settings, train_dataset=rows, callbacks=[InTurns()])
    report("ready")
    trainer.train()
    for _ in waiting:
        raise AssertionError("more steps than batches")

    def predict(texts: list[str]) -> list[str]:
        model.eval()
        found = []
        for first in range(0, len(texts), args.batch_size):
            batch = tokenizer(
                texts[first : first + args.batch_size], return_tensors="pt", padding=True
            )
            with torch.no_grad():
                ids = model.generate(
                    **batch, max_new_tokens=args.targets_length, do_sample=False, num_beams=1
                )
            found += tokenizer.batch_decode(ids, skip_special_tokens=True)
        return found

    report_accuracy(args, predict)


if __name__ == "__main__":
    main()
