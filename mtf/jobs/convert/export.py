"""Exports a checkpoint in another format to a new directory, and verifies the export."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from conversion import Checkpoint, huggingface, open_checkpoint
from conversion.architecture import infer_architecture
from conversion.checkpoint import list_checkpoints
from conversion.families import describe
from conversion.huggingface_config import read_config
from conversion.inspection import has_state
from conversion.peft_writer import write_adapters
from conversion.sentencepiece_model import read_sentencepiece
from conversion.tokenizer import TOKENIZER_FILES, Tokenizer, default_extra_ids, tokenizer_adds_eos
from conversion.training_state import StateExport, write_state
from mtf.base import signals
from mtf.base.errors import UserError, conversion_as_user_errors
from mtf.base.progress import rate_bar
from mtf.base.writing import new_directory
from mtf.cli.convert import FORMATS
from mtf.data.sources.hub import copied_model
from mtf.data.text.vocabularies import ByteVocabulary, SentencePieceVocabulary, Vocabulary
from mtf.inference import opening
from mtf.jobs.convert import hub
from mtf.storage import UNFINISHED, AnyPath, as_path, file_sizes, is_remote

_MEGABYTE = 10**6
_STEP_NAME = re.compile(r"checkpoint_(\d+)")


def export_all(options: argparse.Namespace) -> int:
    """Converts each `checkpoint_STEP` in a directory to a directory of the same name in OUT_DIR.

    Skips outputs that already exist and are complete. If a conversion fails, the others still run.
    Returns 1 if any failed, otherwise 0. Raises RunError if the disk is full.
    """
    found = list_checkpoints(options.checkpoint) if as_path(options.checkpoint).is_dir() else []
    if not found:
        raise UserError(
            f"--all: {options.checkpoint} has no directories named checkpoint_STEP. Pass a run "
            "directory or a directory of checkpoints, or leave out --all."
        )
    failed: list[str] = []
    for number, (_, path) in enumerate(found, start=1):
        out = as_path(options.out_dir) / path.name
        one = {"checkpoint": str(path), "out_dir": str(out)}
        print(f"[{number}/{len(found)}] {path.name}", flush=True)
        try:
            if out.is_dir() and any(out.iterdir()) and not (out / UNFINISHED).is_file():
                print(f"Skipped {out}, which already exists")
            elif export_one(argparse.Namespace(**{**vars(options), **one})):
                failed.append(path.name)
        except UserError as error:
            failed.append(path.name)
            print(f"error: {error}", file=sys.stderr)
    print(f"{len(found) - len(failed)} of {len(found)} checkpoints are in {options.out_dir}")
    if failed:
        print(f"error: {len(failed)} failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


@conversion_as_user_errors()
def export_one(options: argparse.Namespace) -> int:
    """Converts one checkpoint; returns 1 if its verification failed, otherwise 0."""
    out_dir = as_path(options.out_dir)
    if options.push_to_hub is not None:
        hub.check_repo(options.push_to_hub, out_dir)
    huggingface.check_output(out_dir)
    exports = {"hf": _to_huggingface, "peft": _to_adapters}
    try:
        exports.get(options.to, _to_training_state)(options, out_dir)
    except _VerificationFailed:
        return 1
    if options.push_to_hub is not None:
        hub.push(out_dir, options.push_to_hub)
    return 0


def _to_huggingface(options: argparse.Namespace, out_dir: AnyPath) -> None:
    """Exports a Hugging Face model."""
    verified = _is_verified(options, out_dir)
    export = _huggingface_export(options)
    directly = is_remote(out_dir) and not verified
    if is_remote(out_dir):
        signals.hint("run the same command again to replace the files in OUT_DIR")
    # Verification reads local files.
    with nullcontext(out_dir) if directly else new_directory(out_dir) as directory:
        with _bytes_bar(export.checkpoint, export.checkpoint.path.name, "target/"):
            huggingface.write_export(export, directory)
        if verified:
            _verify(export, directory)
    shapes = [entry.shape for entry in export.entries]
    _print_written(out_dir, options.to, shapes, export.dtype)
    if has_state(export.checkpoint):
        print("Optimizer state: dropped; Hugging Face's format has none")
    _print_usage(export, repr(str(out_dir)))


def _to_training_state(options: argparse.Namespace, out_dir: AnyPath) -> None:
    """Exports a checkpoint to a format that can contain a training state."""
    source = opening.open_source(options.checkpoint, options.step, ema=options.ema)
    if options.verify and source.layout != "huggingface":
        raise UserError(
            f"--verify cannot be used with --to {options.to}, unless CHECKPOINT is a Hugging Face "
            "model."
        )
    verified = source.layout == "huggingface" and _is_verified(options, source.path)
    export = StateExport(
        source,
        options.to,
        dtype=options.dtype,
        optimizer=options.optimizer,
        allow_non_finite=options.allow_non_finite,
    )
    name = f"checkpoint_{export.step}"
    named = _STEP_NAME.fullmatch(out_dir.name)
    if named and out_dir.name != name:
        raise UserError(
            f"{out_dir} is the name of a checkpoint of step {int(named[1])}, but the step of "
            f"{source.path} is {export.step}. Pass a path that ends with {name}, or a directory "
            f"in which to create {name}."
        )
    _print_source(source)
    with new_directory(out_dir) as directory:
        folder = directory if named else directory / name
        folder.mkdir(exist_ok=True)
        with _bytes_bar(export, name):
            write_state(export, folder)
        if verified:
            model = huggingface.Export(
                dataclasses.replace(open_checkpoint(folder), described=source.described),
                model_type=read_config(source.path / "config.json").model_type,
                dtype=options.dtype or "float32",  # float32 represents all stored types
                **source.described,
            )
            _verify(model, source.path)
    shapes = [x.shape for name, x in export.tensors.items() if name.startswith("target/")]
    written = out_dir if named else out_dir / name
    _print_written(written, options.to, shapes, export.dtype_names)
    state = "dropped;" if has_state(source) else "none in the source;"
    state = f"kept ({export.num_slots} tensors)," if export.num_slots else state
    print(f"Optimizer state: {state} step {export.step}")


def _to_adapters(options: argparse.Namespace, out_dir: AnyPath) -> None:
    """Exports the LoRA adapters, which all other formats merge into the kernels."""
    source = opening.local_source(options.checkpoint)
    checkpoint = open_checkpoint(source, options.step, ema=options.ema, merge_adapters=False)
    run = opening.read_run_config(open_checkpoint(source, options.step))
    lora, start = (run.model.network.lora, run.start) if run is not None else (None, None)
    start = start and (copied_model(start) or start)
    _print_source(checkpoint)
    with new_directory(out_dir) as directory:
        number = write_adapters(
            checkpoint,
            directory,
            base=start if start is not None and opening.is_for_transformers(start) else None,
            dropout_rate=0.0 if lora is None else lora.dropout_rate,
        )
    print(
        f"Wrote {out_dir} (LoRA adapters for PEFT): {number:,} parameters, float32\nLoad it with:\n"
        "  from peft import PeftModel; model = PeftModel.from_pretrained(base, "
        f"{str(out_dir)!r})  # base: {start or 'the initial model'}, loaded with transformers"
    )


def _print_written(out: AnyPath, to: str, shapes: list[tuple[int, ...]], dtype: str) -> None:
    files = file_sizes(out)
    print(
        f"Wrote {out} ({FORMATS[to]}): {len(shapes)} tensors, {sum(map(math.prod, shapes)):,} "
        f"parameters, {dtype}, {sum(files.values()):,} bytes in {len(files)} files"
    )


class _VerificationFailed(Exception):
    """Raised if an exported model fails verification."""


def _is_verified(options: argparse.Namespace, model: AnyPath) -> bool:
    """Returns whether to verify a conversion from or to the Hugging Face directory `model`.

    Prints the reason if the model cannot be verified; with --verify, raises UserError instead.
    """
    if options.verify is False:
        return False
    missing = [name for name in ("torch", "transformers") if not importlib.util.find_spec(name)]
    remote, asked = is_remote(model), options.verify
    reasons = {
        f"{' and '.join(missing)} not installed (pip install 'mtf-jax[torch]')": missing,
        f"{model} is not on this machine; copy it first": remote and options.to != "hf",
        "OUT_DIR is remote; pass --verify to write to this machine first": remote and not asked,
        "NaN and infinity are allowed": options.allow_non_finite and not asked,
    }
    reason = next((text for text, applies in reasons.items() if applies), None)
    if reason and asked:
        raise UserError(f"--verify: {reason}.")
    if reason:
        print(f"Not verified: {reason}")
    return reason is None


def _verify(export: huggingface.Export, directory: AnyPath) -> None:
    """Compares an export with a Hugging Face model; raises _VerificationFailed if they differ."""
    from mtf.jobs.convert.verification import compare  # This imports JAX and PyTorch.

    passed, report = compare(export, Path(str(directory)))
    print(report)
    if not passed:
        raise _VerificationFailed


def _huggingface_export(options: argparse.Namespace) -> huggingface.Export:
    """Returns the settings of an export; prints its source and any assumed settings."""
    checkpoint = opening.open_source(options.checkpoint, options.step, ema=options.ema)
    is_huggingface = checkpoint.layout == "huggingface"
    checkpoint, model_type = opening.with_huggingface_config(checkpoint, options.config)
    run = None if model_type else opening.read_run_config(checkpoint, options.config)
    vocab_size = infer_architecture(checkpoint).vocab_size
    has_tokenizer = any((checkpoint.path / name).is_file() for name in TOKENIZER_FILES)
    vocabulary: Vocabulary | None = None
    if run is not None:
        described, vocabulary, add_eos = run.described, run.vocabulary, run.inputs_add_eos
    else:
        described = checkpoint.described
        add_eos = tokenizer_adds_eos(checkpoint.path) if is_huggingface else True
        if is_huggingface and options.vocabulary is None and has_tokenizer:
            vocabulary = opening.huggingface_vocabulary(checkpoint.path, vocab_size)
    export = huggingface.Export(
        checkpoint,
        model_type=options.model_type or model_type,
        tokenizer=_tokenizer(options, vocabulary, vocab_size),
        dtype=options.dtype,
        max_shard_size=options.max_shard_size,
        inputs_add_eos=add_eos,
        allow_non_finite=options.allow_non_finite,
        is_assumed=run is None and not (is_huggingface and has_tokenizer),
        **described,
    )
    _print_source(checkpoint)
    print(f"The network has {describe(export.architecture)}")
    if model_type:
        eos = "" if is_huggingface else ". Inputs are assumed to end with EOS"
        print(f"The settings are those in {options.config}{eos}")
    elif run is None and not is_huggingface:
        wrong = "If any of these is wrong, pass --config PATH; --verify cannot detect it."
        print(f"{opening.assumed(export, add_eos)}. {wrong}")
    return export


def _tokenizer(
    options: argparse.Namespace, vocabulary: Vocabulary | None, vocab_size: int
) -> Tokenizer | None:
    """Returns the tokenizer given by --vocabulary or else the checkpoint; None to export none."""
    chosen = options.vocabulary
    if chosen == "none":
        return None
    if chosen not in (None, "byt5"):
        model = read_sentencepiece(Path(chosen).expanduser())
        return Tokenizer(model, default_extra_ids(model, vocab_size))
    if isinstance(vocabulary, ByteVocabulary):
        return Tokenizer(extra_ids=vocabulary.extra_ids)
    if chosen is None and isinstance(vocabulary, SentencePieceVocabulary):
        if not vocabulary.file.is_file():
            raise UserError(
                f"The run's vocabulary {vocabulary.file} does not exist. Pass the file with "
                "--vocabulary PATH.model, or export without a tokenizer with --vocabulary none."
            )
        return Tokenizer(read_sentencepiece(vocabulary.file), vocabulary.num_added_ids)
    return Tokenizer() if "byt5" in (chosen, options.model_type) else None


def _print_source(checkpoint: Checkpoint) -> None:
    print(f"Reading {checkpoint.title}")
    if checkpoint.num_merged:
        print(f"LoRA adapters: merged into {checkpoint.num_merged} kernels")


def _print_usage(export: huggingface.Export, out: str) -> None:
    """Prints how to load an export with `transformers`; `out` is its quoted path."""
    name, has_tokenizer = export.class_name, export.tokenizer is not None
    if not has_tokenizer:
        print("No tokenizer was written. To write one, pass its model with --vocabulary.")
    # `transformers` reads only local directories.
    print("Copy it to this machine, then load it with:" if "://" in out else "Load it with:")
    print(f"  from transformers import {'AutoTokenizer, ' * has_tokenizer}{name}")
    print(f"  model = {name}.from_pretrained({out})")
    if export.model_type == "umt5" and not export.architecture.logits_via_embedding:
        print(
            "  model.config.tie_word_embeddings = False  # transformers 5 scales umT5's logits by "
            f"{export.architecture.emb_dim}**-0.5 otherwise"
        )
    if has_tokenizer:
        print(f"  tokenizer = AutoTokenizer.from_pretrained({out})")
    if not export.inputs_add_eos:
        print(f"Inputs did not end with EOS in training; see {huggingface.CARD} for the effects.")


@contextmanager
def _bytes_bar(holder: Checkpoint | StateExport, title: str, root: str = "") -> Iterator[None]:
    """Shows a progress bar, in MB, while the block reads tensors whose names start with `root`."""
    before, sizes = holder.tensors, list[int]()
    total = sum(x.nbytes for name, x in before.items() if name.startswith(root))
    with rate_bar(-(-total // _MEGABYTE), "MB") as report:

        def advance(size: int) -> None:  # Several threads call this function.
            sizes.append(size)
            done = sum(sizes) // _MEGABYTE
            report(done, done, title)

        holder.tensors = {name: tensor.reporting(advance) for name, tensor in before.items()}
        try:
            yield
        finally:
            holder.tensors = before
