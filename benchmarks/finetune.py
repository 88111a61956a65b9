"""Fine-tunes one random model with mtf and with transformers' Seq2SeqTrainer, side by side.

Both start from the same Hugging Face directory, a random T5 1.1, mT5, ByT5 or umT5 that
transformers writes, and make the same updates on the same batches in the same order: AdamW at a
constant learning rate, no dropout, the mean loss over the tokens of a batch. The sides take turns
in blocks of steps on the device that is there. PyTorch's AdamW is fused, its attention is
`scaled_dot_product_attention`, and it pads batches to their longest row, as
`DataCollatorForSeq2Seq` does (`--torch-padding fixed`: to the full lengths). mtf pads to one of a
few lengths, as `recipes.finetune` does (`trainer.trim_padding`), and compiles before it trains.

ByT5 reads bytes. The other models have a SentencePiece vocabulary, which is trained on the training
data unless `--vocabulary` names one.

Prints the losses of the first steps and their largest relative difference, the median time of a
step and its CPU time with their ratios, and the accuracy of greedy predictions on the validation
data at the end of each side. With `--minutes`, each side ends after so much time of its own, in
which mtf also compiles. Without `--train`, the data are made up. Needs the extra `torch` and
accelerate:

    pip install -e '.[torch]' accelerate && python benchmarks/finetune.py
    python benchmarks/finetune.py --architecture umt5 --train train.tsv --validation dev.tsv
"""

from __future__ import annotations

import argparse
import io
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from sides import (
    answer,
    ask,
    device,
    new_parser,
    report,
    start,
    torch_device,
    torch_sizes,
    torch_versions,
)

import mtf

SIDES = ("mtf", "torch")
ARCHITECTURES = {
    "t5_1_1": ("T5 1.1", "T5"),
    "mt5": ("mT5", "MT5"),
    "byt5": ("ByT5", "T5"),
    "umt5": ("umT5", "UMT5"),
}  # the name, and that of the class in transformers
NUM_SHOWN = 20
EOS = 1
WORDS = {
    "animal": "cat dog horse sheep cow goat",
    "colour": "red blue green white black grey",
    "fruit": "apple pear plum cherry lemon fig",
}


def main() -> None:
    """Parses the command line and prints the comparison."""
    parser = new_parser(__doc__, batch=32, size="mini")
    add = parser.add_argument
    add("--train", metavar="FILE.tsv", help="inputs and targets, separated by a tab")
    add("--validation", metavar="FILE.tsv", help="the same, to measure the accuracy")
    add("--architecture", choices=ARCHITECTURES, default="t5_1_1")
    add("--vocabulary", metavar="FILE.model", help="SentencePiece model; default: a new one")
    add("--pieces", type=int, default=1000, help="size of a new SentencePiece model")
    add("--steps", type=int, default=100)
    add("--minutes", type=float, help="time of each side; --steps is then the largest number")
    add("--block", type=int, default=10, help="steps of a turn")
    add("--learning-rate", type=float, default=1e-3)
    add("--inputs-length", type=int, help="in tokens; default: 96 bytes or 32 pieces")
    add("--targets-length", type=int, help="in tokens; default: 16 bytes or 8 pieces")
    add("--torch-padding", choices=("longest", "fixed"), default="longest")
    add("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    lengths = (96, 16) if args.architecture == "byt5" else (32, 8)
    args.inputs_length = args.inputs_length or lengths[0]
    args.targets_length = args.targets_length or lengths[1]
    if args.side:
        serve(args)
    else:
        with tempfile.TemporaryDirectory() as folder:
            args.folder = Path(folder)
            compare(args)


def compare(args: argparse.Namespace) -> None:
    """Writes the data and the model, lets both sides train in turns, and prints their reports."""
    for kind in ("train", "validation"):
        file, given = args.folder / f"{kind}.tsv", getattr(args, kind)
        file.write_text(Path(given).read_text() if given else made_up(kind))
    write_model(args)
    sides, used, about = {}, {}, {}
    for name in SIDES:  # mtf writes the batches that PyTorch reads.
        sides[name] = start(__file__, name, args, "--folder", str(args.folder))
        about[name] = answer(sides[name])
        used[name] = about[name]["compile"]
    losses: dict[str, list[float]] = {name: [] for name in SIDES}
    seconds: dict[str, list[float]] = {name: [] for name in SIDES}
    processor: dict[str, list[float]] = {name: [] for name in SIDES}
    limit = args.minutes * 60 if args.minutes else math.inf
    active = list(SIDES)
    while active:
        for name in active:
            report = ask(sides[name], min(args.block, args.steps - len(losses[name])))
            losses[name] += report["losses"]
            used[name] += sum(report["seconds"])
            seconds[name] += report["seconds"][1:]  # The other side has used the caches.
            processor[name] += report["processor"][1:]
        active = [n for n in active if len(losses[n]) < args.steps and used[n] < limit]
    scores = {name: ask(sides[name], 0) for name in SIDES}

    devices = ", ".join(dict.fromkeys(each["device"] for each in about.values()))
    print(
        f"{', '.join(each['versions'] for each in about.values())}\n"
        f"{ARCHITECTURES[args.architecture][0]} {args.size}, {args.dtype}, steps of "
        f"{args.batch} × {args.inputs_length}/{args.targets_length} tokens "
        f"(torch: {args.torch_padding}), {devices}, {args.threads} threads\n"
    )
    print("step        mtf      torch  difference")
    pairs = list(zip(*(losses[name][:NUM_SHOWN] for name in SIDES), strict=True))
    for step, (ours, other) in enumerate(pairs, 1):
        print(f"{step:4} {ours:10.6f} {other:10.6f}  {abs(ours - other) / other:10.1e}")
    differences = [abs(ours - other) / other for ours, other in pairs]
    print(f"largest relative difference of the first {len(differences)}: {max(differences):.1e}\n")
    medians, processors = (
        {name: statistics.median(of[name]) for name in SIDES} for of in (seconds, processor)
    )
    for name in SIDES:
        shown, last = scores[name], statistics.mean(losses[name][-NUM_SHOWN:])
        step, cpu = medians[name] * 1e3, processors[name] * 1e3
        print(
            f"{name:6} {len(losses[name])} steps in {used[name]:.0f} s   "
            f"{step:.1f} ms per step ({cpu:.1f} ms of CPU time)   "
            f"mean loss of the last {NUM_SHOWN} steps {last:.4f}   "
            f"accuracy {shown['accuracy']:.1f}% of {shown['count']}"
        )
    print(
        f"mtf / torch: {medians['mtf'] / medians['torch']:.3f} "
        f"(CPU time {processors['mtf'] / processors['torch']:.3f})"
    )


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


def turns() -> Iterator[int]:
    """Yields numbers of steps until the parent asks for an evaluation."""
    for line in map(int, sys.stdin):
        if not line:
            return
        yield line


class Clock:
    """Measures steps: seconds and, of all threads, seconds of CPU time."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.processor: list[float] = []

    def start(self) -> None:
        self.began = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        self.seconds.append(time.perf_counter() - self.began[0])
        self.processor.append(time.process_time() - self.began[1])

    def report(self, losses: list[float]) -> None:
        """Reports the steps since the last report."""
        report({"losses": losses, "seconds": self.seconds, "processor": self.processor})
        self.seconds.clear()
        self.processor.clear()


def report_accuracy(args: argparse.Namespace, predict: Callable[[Any], list[list[int]]]) -> None:
    """Reports how many predictions, as ids, equal their targets."""
    stored = np.load(args.folder / "batches.npz")
    targets = [[int(i) for i in row if i > EOS] for row in stored["validation_targets"]]
    predictions = [[i for i in row if i > EOS] for row in predict(stored["validation_inputs"])]
    correct = sum(p == t for p, t in zip(predictions, targets, strict=True))
    report({"accuracy": 100 * correct / len(targets), "count": len(targets)})


def serve(args: argparse.Namespace) -> None:
    """Runs one side."""
    {"mtf": serve_mtf, "torch": serve_torch}[args.side](args)


def serve_mtf(args: argparse.Namespace) -> None:
    """Writes the batches, and trains with mtf."""
    import fiddle as fdl

    import recipes
    from mtf import builders
    from mtf.data import loaders
    from mtf.data.packing import trimmed
    from mtf.inference.decoding.settings import DecodingConfig
    from mtf.inference.predictor import Predictor
    from mtf.partitioning.mesh import PjitPartitioner
    from mtf.training import AdamWConfig
    from mtf.training.trainer import Trainer, starting_state

    config = recipes.finetune(
        str(args.folder / "model"),
        str(args.folder / "train.tsv"),
        steps=args.steps,
        batch_size=args.batch,
        lengths=(args.inputs_length, args.targets_length),
    )
    config.model.network.dropout_rate, config.model.network.dtype = 0.0, args.dtype
    config.model.z_loss = 0.0
    config.optimizer = fdl.Config(AdamWConfig, builders.schedule.constant(args.learning_rate))
    job = fdl.build(config)
    partitioner = PjitPartitioner.create(job.partitioner)  # before any thread, as in a run
    stream = loaders.make_train_iterator(job.data, batch_size=args.batch)
    batches = [next(stream) for _ in range(args.steps)]
    lines = (args.folder / "validation.tsv").read_text().splitlines()
    held_out = zip(*(line.split("\t") for line in lines), strict=True)
    held_inputs, held_targets = (
        padded([job.data.vocabulary.encode(text) for text in texts], length)
        for texts, length in zip(held_out, (args.inputs_length, args.targets_length), strict=True)
    )
    np.savez(
        args.folder / "batches.npz",
        validation_inputs=held_inputs,
        validation_targets=held_targets,
        inputs=np.stack([batch["encoder_input_tokens"] for batch in batches]),
        targets=np.stack([batch["decoder_target_tokens"] for batch in batches]),
    )
    trainer = Trainer(job.model, job.optimizer, partitioner, job.trainer)
    state = starting_state(trainer, args.folder / "run", job.checkpoint.restore, args.steps)
    shapes = {
        batch["encoder_input_tokens"].shape + batch["decoder_input_tokens"].shape: batch
        for batch in map(trimmed, batches)
    }
    began = time.perf_counter()
    for batch in shapes.values():
        trainer.compile(state, partitioner.global_batch(batch, args.batch))
    seconds = time.perf_counter() - began
    versions = f"mtf {mtf.__version__}, jax {version('jax')}"
    report({"compile": seconds, "device": device("mtf"), "versions": versions})

    left, clock = iter(batches), Clock()
    for number in turns():
        losses = []
        for _ in range(number):
            clock.start()
            batch = partitioner.global_batch(trimmed(next(left)), args.batch)
            state, metrics = trainer.train_step(state, batch)
            losses.append(float(metrics["loss"]))
            clock.stop()
        clock.report(losses)

    def predict(inputs: Any) -> list[list[int]]:
        predictor = Predictor(job.model, state.params, job.data.vocabulary, partitioner)
        ids = [[int(i) for i in row if i] for row in inputs]
        found = predictor.generate(ids, DecodingConfig(max_length=args.targets_length))
        return [list(generated.ids) for generated, *_ in found]

    report_accuracy(args, predict)


def padded(rows: list[list[int]], length: int) -> Any:
    """Returns rows of ids with EOS, cut and padded to a length."""
    rows = [[*row[: length - 1], EOS] for row in rows]
    return np.array([row + [0] * (length - len(row)) for row in rows])


def write_model(args: argparse.Namespace) -> None:
    """Writes a random model in Hugging Face's format."""
    import torch
    import transformers

    directory = args.folder / "model"
    directory.mkdir()
    sizes = torch_sizes(args.size)
    if args.architecture == "byt5":
        sizes["num_decoder_layers"] = sizes["num_layers"] // 2
        sizes["num_layers"] += sizes["num_layers"] // 2
        num_ids = 384
        transformers.ByT5Tokenizer().save_pretrained(directory)
    else:
        model_file = Path(args.vocabulary).read_bytes() if args.vocabulary else new_pieces(args)
        (directory / "spiece.model").write_bytes(model_file)
        num_ids = -(-(num_pieces(model_file) + 100) // 128) * 128
    name = ARCHITECTURES[args.architecture][1]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(vocab_size=num_ids, **sizes)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    # A new model of transformers 5 is tied whatever its config says; one that is read with an
    # output projection of its own is not. The initial values are T5X's.
    initial = torch.randn(config.vocab_size, config.d_model) * config.d_model**-0.5
    model.lm_head.weight = torch.nn.Parameter(initial)
    model.save_pretrained(directory)
    # As in the released files; transformers 5 writes true.
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tie_word_embeddings": False}))


def new_pieces(args: argparse.Namespace) -> bytes:
    """Trains a SentencePiece model on the inputs and targets of the training data."""
    import sentencepiece

    texts = (args.folder / "train.tsv").read_text().replace("\t", "\n").splitlines()
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=args.pieces,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=EOS,
        unk_id=2,
        bos_id=-1,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


def num_pieces(model_file: bytes) -> int:
    """Returns the number of pieces of a SentencePiece model."""
    import sentencepiece

    return int(sentencepiece.SentencePieceProcessor(model_proto=model_file).vocab_size())


def serve_torch(args: argparse.Namespace) -> None:
    """Trains with Seq2SeqTrainer."""
    import torch
    import transformers

    on_gpu = torch_device(args).type == "cuda"
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
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        args.folder / "model", attn_implementation="sdpa"
    )
    assert model.lm_head.weight is not model.shared.weight
    # Transformers 5 sets it whatever the file says, and then scales umT5's logits.
    model.config.tie_word_embeddings = False
    waiting, losses, clock = turns(), [], Clock()

    def collated(batch: list[dict[str, Any]]) -> dict[str, Any]:
        """Returns a batch, cut after its longest row."""
        tensors = {name: torch.stack([row[name] for row in batch]) for name in batch[0]}
        if args.torch_padding == "fixed":
            return tensors
        longest = int(tensors["attention_mask"].sum(-1).max())
        longest_target = int((tensors["labels"] >= 0).sum(-1).max())
        return {
            name: tensor[:, : longest_target if name == "labels" else longest].contiguous()
            for name, tensor in tensors.items()
        }

    class InTurns(transformers.TrainerCallback):  # type: ignore[misc]
        """Makes as many steps as the parent asks for, and reports them."""

        left = 0

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.left = next(waiting)

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            clock.start()

        def on_step_end(self, _: Any, __: Any, control: Any, **___: Any) -> None:
            clock.stop()
            self.left -= 1
            if not self.left:
                clock.report([float(loss) for loss in losses])
                losses.clear()
                self.left = next(waiting, 0)
                control.should_training_stop = not self.left

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
        per_device_train_batch_size=args.batch,
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
        use_cpu=not on_gpu,
        bf16=args.dtype == "bfloat16",
        torch_compile=on_gpu,
    )
    trainer = InOrder(
        model=model,
        args=settings,
        train_dataset=rows,
        data_collator=collated,
        callbacks=[InTurns()],
    )
    report({"compile": 0.0, "device": device("torch"), "versions": torch_versions()})
    trainer.train()

    def predict(inputs: Any) -> list[list[int]]:
        model.eval()
        found: list[list[int]] = []
        for first in range(0, len(inputs), args.batch):
            ids = torch.from_numpy(inputs[first : first + args.batch]).to(model.device)
            with torch.no_grad():
                found += model.generate(
                    ids,
                    attention_mask=(ids > 0).long(),
                    max_new_tokens=args.targets_length,
                    do_sample=False,
                    num_beams=1,
                ).tolist()
        return found

    report_accuracy(args, predict)


if __name__ == "__main__":
    main()
