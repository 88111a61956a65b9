"""Checks that this version computes what another one does, bit for bit.

    git worktree add ../before COMMIT
    python -m tests.stress.same_as ../before

Both are used through the command line alone, which outlives names inside the package: training on
documents, pairs, corpora, a stream, caches and prompts; a resume; an export; rank evaluation;
scored, greedily decoded, sampled and beam-searched texts. Compared are losses, every tensor of
every checkpoint, the places in the data, and the bytes of caches, exports and results.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet

from tests import made_up, small
from tests.small import ROOT
from tests.tasks.prompts.helpers import YAML, write_tree

NETWORK = (
    "model.network.emb_dim=32 model.network.mlp_dim=64 model.network.num_heads=2 "
    "model.network.head_dim=16 model.network.num_encoder_layers=2 "
    "model.network.num_decoder_layers=2 model.network.dtype=float32 "
)
SHORT = (
    "train_steps=8 batch_size=8 trainer.stats_period=1 checkpoint.save.period=4 num_samples=0 "
    "trainer.num_microbatches=1 partitioner.num_partitions=1 "
)
BYTES = "data.vocabulary=@mtf.data.ByteVocabulary(extra_ids=125) "
LENGTHS = "data.task_feature_lengths.inputs=64 data.task_feature_lengths.targets=32 "
INFER = "recipes.infer(checkpoint='run', files='texts.txt')"

# A command's module, its recipe or first arguments, and what is set.
COMMANDS = (
    (
        "run",
        "recipes.pretrain_text",
        "train_steps=50 trainer.stats_period=1 model_dir=run " + NETWORK,
    ),
    ("run", "--from run", "train_steps=60"),
    (
        "run",
        "recipes.pretrain_text(files='pairs.tsv')",
        "model_dir=pairs data.pack=False model.network.scan_layers=True " + NETWORK + SHORT,
    ),
    (
        "run",
        "recipes.mt5_lm_adapt(size='small', files={'a': 'a.txt', 'b': 'b.txt'})",
        "checkpoint.restore=None model_dir=corpora " + BYTES + NETWORK + SHORT + LENGTHS,
    ),
    ("cache", "c4_v220_span_corruption --output cache --data-dir mirror --vocabulary byt5", ""),
    (
        "run",
        "recipes.t5_1_1_small_c4(cache_dir='cache')",
        "model_dir=cached data.vocabulary=@mtf.data.ByteVocabulary " + NETWORK + SHORT + LENGTHS,
    ),
    (
        "run",
        "recipes.pretrain_text(files='pairs.tsv')",
        "evaluator=@mtf.evaluation.InferEvalConfig(period=4,num_examples=8) "
        "model_dir=packed data.pack=True " + NETWORK + SHORT,
    ),
    (
        "run",
        "recipes.pretrain_text(files='a.txt')",
        "data.objective=@mtf.data.BertStyle model_dir=bert "
        + NETWORK
        + SHORT
        + LENGTHS.replace("32", "64"),
    ),
    (
        "run",
        "recipes.pretrain_text(files='a.txt')",
        "data.objective=@mtf.data.IidDenoising model_dir=iid "
        + NETWORK
        + SHORT
        + LENGTHS.replace("32", "64"),
    ),
    (
        "run",
        "recipes.pretrain_text",
        "data=@mtf.data.HubStreamConfig(dataset=text,num_streams=2,"
        "vocabulary=@mtf.data.ByteVocabulary,eval_documents=8,window_documents=16,"
        "task_feature_lengths={'inputs':64,'targets':32}) model_dir=stream "
        "data.data_files={'train':'*.txt','validation':'b.txt'} " + NETWORK + SHORT,
    ),
    (
        "cache",
        "c4_v220_span_corruption --output seqio --data-dir mirror --vocabulary byt5 --format seqio",
        "",
    ),
    (
        "cache",
        "c4_v220_span_corruption --output from_seqio --vocabulary byt5 --from-seqio seqio",
        "",
    ),
    ("convert", "run exported --to hf --vocabulary byt5", ""),
    ("run", "recipes.t0_eval(checkpoint='run', files='ranked.jsonl')", "output_dir=ranked"),
    ("run", INFER, "mode=score files=pairs.tsv output_dir=scored"),
    ("run", INFER, "output_dir=searched"),
    ("run", INFER, "decoding.method=greedy decoding.max_length=32 output_dir=greedy"),
    ("run", INFER, "decoding.method=beam decoding.num_beams=4 output_dir=beams"),
    ("run", INFER, "decoding.method=sample decoding.top_k=8 output_dir=sampled"),
    ("cache", "fruit_which_is_it_score_eval --output prompts --vocabulary t5.spiece.model", ""),
    ("cache", "fruit_which_is_it --output prompts --vocabulary t5.spiece.model", ""),
    (
        "run",
        "recipes.t0pp_xxl(cache_dir='prompts')",
        "checkpoint.restore=None model_dir=prompted data.vocabulary.path=t5.spiece.model "
        "data.mixture_or_task_name=fruit_which_is_it model.network.vocab_size=640 "
        + NETWORK
        + SHORT,
    ),
    (
        "run",
        "recipes.t0_eval(checkpoint='prompted/checkpoints/checkpoint_8')",
        "data.mixture_or_task_name=fruit_which_is_it_score_eval output_dir=ranked_prompts "
        "partitioner.num_partitions=1 batch_size=8 data.vocabulary.path=t5.spiece.model",
    ),
    (
        "run",
        "recipes.infer(checkpoint='prompted',mixture_or_task_name='fruit_which_is_it')",
        "output_dir=task decoding.max_length=16",
    ),
)
WORDS = ("the", "of", "a", "cat", "dog", "runs", "blue", "tree", "walks", "and", "sings", "one")
RUNS = ("run", "pairs", "corpora", "cached", "packed", "bert", "iid", "stream", "prompted")
# Folders whose files are compared byte by byte; of JSON, all that is not about time and place.
FOLDERS = (
    *("cache", "seqio", "from_seqio", "exported", "ranked", "scored", "searched", "greedy"),
    *("beams", "sampled", "prompts", "ranked_prompts", "task"),
)
NOT_COMPARED = {
    *("environment.json", "config.py", "config.json", "config.txt", "overrides.txt"),
    *("mtf_job.json", "checksums.json"),
}
OF_THE_MOMENT = ("second", "time", "date", "path", "command", "version", "per_s")


def write_data(folder: Path) -> None:
    """Writes texts, pairs, ranked examples, a mirror, prompts and pieces, always the same."""
    rng = random.Random(0)

    def text() -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(5, 60)))

    for name in ("texts", "a", "b"):
        lines = [text() for _ in range(60)]
        (folder / f"{name}.txt").write_text("\n".join(lines))
    (folder / "pairs.tsv").write_text("\n".join(f"{text()}\t{text()[:30]}" for _ in range(80)))
    ranked = [{"inputs": text(), "choices": WORDS[:4], "label": n % 4} for n in range(40)]
    (folder / "ranked.jsonl").write_text("\n".join(map(json.dumps, ranked)))
    for split in ("train", "validation"):
        file = folder / "mirror" / "c4" / "en" / f"{split}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.table({"text": [text() for _ in range(90)]}), file)
        fruit = [{"thing": rng.choice(WORDS), "text": text(), "label": n % 2} for n in range(60)]
        file = folder / "mirror" / "fruit" / f"{split}.parquet"
        file.parent.mkdir(exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(fruit), file)
    write_tree(folder / "templates", {"fruit": YAML})
    (folder / "t5.spiece.model").write_bytes(made_up.t5_model().read_bytes())


def command(module: str, first: str, settings: str) -> list[str]:
    """The arguments of a command line."""
    arguments = first.split(" ") if module != "run" or first.startswith("--") else [first]
    return ["-m", f"mtf.{module}", *arguments] + (["--set", *settings.split()] if settings else [])


def use(checkout: Path, folder: Path) -> None:
    """Runs every command with the code of a checkout."""
    write_data(folder)
    variables = {"PYTHONPATH": str(checkout), "JAX_PLATFORMS": "cpu"}
    variables |= {"MTF_PROMPTS": "templates", "MTF_DATA_DIR": "mirror"}
    for each in COMMANDS:
        arguments = command(*each)
        done = small.python(*arguments, cwd=folder, status=None, **variables)
        if done.returncode:
            raise SystemExit(f"{checkout}: {' '.join(arguments)}\n{done.stdout}{done.stderr}")


def differences(old: Path, new: Path) -> list[str]:
    """What the two have computed otherwise."""
    found = []
    for name in RUNS:
        steps = small.steps(old / name)
        if not steps or steps != small.steps(new / name):
            found.append(f"{name}: the saved steps are {steps} and {small.steps(new / name)}")
            continue
        for step in steps:
            if small.read_checkpoint(old / name, step) != small.read_checkpoint(new / name, step):
                found.append(f"{name}, step {step}: tensors")
            if small.read_data_state(old / name, step) != small.read_data_state(new / name, step):
                found.append(f"{name}, step {step}: the place in the data")
        if small.read_metrics(old / name) != small.read_metrics(new / name):
            found.append(f"{name}: losses")
    for name in FOLDERS:
        there = files(old, name)
        if there != files(new, name):
            found.append(f"{name}: other files")
            continue
        found += [str(file) for file in there if content(old, file) != content(new, file)]
    return found


def files(folder: Path, name: str) -> list[Path]:
    """The files that a command has written to a folder, relative to `folder`."""
    found = [file for file in (folder / name).rglob("*") if file.is_file()]
    return sorted(
        file.relative_to(folder)
        for file in found
        if file.name not in NOT_COMPARED and not file.name.startswith("events.out.tfevents")
    )


def content(folder: Path, file: Path) -> object:
    """What of a file is not about time and place; `file` is relative to `folder`."""
    content = (folder / file).read_bytes().replace(str(folder).encode(), b"FOLDER")
    if ".json" not in file.name and file.suffix != ".md":
        return content
    lines = content.decode().splitlines()
    return [line for line in lines if not any(word in line.lower() for word in OF_THE_MOMENT)]


def main(argv: Sequence[str] | None = None) -> int:
    """Compares this checkout with another; returns 1 where they differ."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress.same_as")
    parser.add_argument("checkout", type=Path, help="the other version")
    options = parser.parse_args(argv)
    other = options.checkout.resolve()
    with tempfile.TemporaryDirectory(prefix="mtf-same-") as name:
        old, new = Path(name, "old"), Path(name, "new")
        for checkout, folder in ((other, old), (ROOT, new)):
            folder.mkdir()
            use(checkout, folder)
        found = differences(old, new)
        for line in found:
            print(f"differs: {line}")
        if not found:
            print(f"the same: {', '.join((*RUNS, *FOLDERS))}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
