"""Checks a conversion to each format, and prepares the functions that write and verify it."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from conversion import Checkpoint, adapters, huggingface, open_checkpoint
from conversion.architecture import infer_architecture
from conversion.families import describe
from conversion.huggingface_config import read_config
from conversion.inspection import has_state
from conversion.peft_writer import check_adapters, write_adapters
from conversion.sentencepiece_model import read_sentencepiece
from conversion.tokenizer import TOKENIZER_FILES, Tokenizer, default_extra_ids, tokenizer_adds_eos
from conversion.training_state import Format, StateExport, write_state
from mtf.base.errors import UserError, conversion_as_user_errors
from mtf.base.progress import rate_bar
from mtf.data.sources.hub import copied_model
from mtf.data.text.vocabularies import ByteVocabulary, SentencePieceVocabulary, Vocabulary
from mtf.inference import opening
from mtf.jobs.convert.formats import DTYPES
from mtf.jobs.convert.settings import Convert
from mtf.storage import AnyPath, as_path, is_remote

# Whether models are verified by default; tests may set this to False.
VERIFY_BY_DEFAULT = True
_MEGABYTE = 10**6
_STEP_NAME = re.compile(r"checkpoint_(\d+)")


@dataclasses.dataclass
class Export:
    """A conversion that has been checked; nothing has been written.

    Attributes:
      source: the checkpoint to read.
      written: the directory of the model or checkpoint to write.
      notes: lines to print before writing, such as the source and assumed settings.
      content: the number of tensors and parameters to write and their type.
      write: writes the files to a directory.
      usage: lines to print after writing, such as how to load the result.
      compared: for the directory of the files, returns a checkpoint and the Hugging Face directory
        with which verification compares it; None to verify nothing.
    """

    source: Checkpoint
    written: AnyPath
    notes: list[str]
    content: str
    write: Callable[[AnyPath], None]
    usage: list[str]
    compared: Callable[[AnyPath], tuple[huggingface.Export, AnyPath]] | None = None


@conversion_as_user_errors()
def prepare(job: Convert) -> Export:
    """Opens and checks the checkpoint; raises UserError if it cannot be converted."""
    output = as_path(job.output)
    exports = {"hf": _to_huggingface, "peft": _to_adapters}
    return exports.get(job.to, _to_training_state)(job, output)


def _to_huggingface(job: Convert, output: AnyPath) -> Export:
    notes: list[str] = []
    is_verified = _is_verified(job, output, notes)
    export = _huggingface_export(job, notes)
    source = export.checkpoint

    def write(directory: AnyPath) -> None:
        with _bytes_bar(source, source.path.name, "target/"):
            huggingface.write_export(export, directory)

    dropped = "Optimizer state: dropped; Hugging Face's format has none"
    return Export(
        source,
        output,
        notes,
        _content([entry.shape for entry in export.entries], export.dtype),
        write,
        [dropped] * has_state(source) + _usage(export, repr(str(output))),
        (lambda directory: (export, directory)) if is_verified else None,
    )


def _to_training_state(job: Convert, output: AnyPath) -> Export:
    """Prepares a checkpoint in a format that can contain a training state."""
    source = opening.open_source(job.checkpoint, job.step, ema=job.ema)
    if job.verify and source.layout != "huggingface":
        raise UserError(
            f"--verify cannot be used with --to {job.to}, unless CHECKPOINT is a Hugging Face "
            "model."
        )
    notes: list[str] = []
    is_verified = source.layout == "huggingface" and _is_verified(job, source.path, notes)
    export = StateExport(
        source,
        cast(Format, job.to),
        dtype=job.dtype,
        optimizer=job.optimizer,
        allow_non_finite=job.allow_non_finite,
    )
    name = f"checkpoint_{export.step}"
    named = _STEP_NAME.fullmatch(output.name)
    if named and output.name != name:
        raise UserError(
            f"{output} is the name of a checkpoint of step {int(named[1])}, but the step of "
            f"{source.path} is {export.step}. Pass a path that ends with {name}, or a directory "
            f"in which to create {name}."
        )

    def folder(directory: AnyPath) -> AnyPath:
        return directory if named else directory / name

    def write(directory: AnyPath) -> None:
        folder(directory).mkdir(exist_ok=True)
        with _bytes_bar(export, name):
            write_state(export, Path(str(folder(directory))))

    def compared(directory: AnyPath) -> tuple[huggingface.Export, AnyPath]:
        model = huggingface.Export(
            dataclasses.replace(open_checkpoint(folder(directory)), described=source.described),
            model_type=read_config(source.path / "config.json").model_type,
            dtype=job.dtype or "float32",  # float32 represents all stored types
            **source.described,
        )
        return model, source.path

    shapes = [x.shape for tensor, x in export.tensors.items() if tensor.startswith("target/")]
    state = "dropped;" if has_state(source) else "none in the source;"
    state = f"kept ({export.num_slots} tensors)," if export.num_slots else state
    return Export(
        source,
        folder(output),
        [*notes, *_source_notes(source)],
        _content(shapes, export.dtype_names),
        write,
        [f"Optimizer state: {state} step {export.step}"],
        compared if is_verified else None,
    )


def _to_adapters(job: Convert, output: AnyPath) -> Export:
    """Prepares the LoRA adapters, which all other formats merge into the kernels."""
    path = opening.local_source(job.checkpoint)
    source = open_checkpoint(path, job.step, ema=job.ema, merge_adapters=False)
    check_adapters(source)
    run = opening.read_run_config(open_checkpoint(path, job.step))
    lora, start = (run.model.network.lora, run.start) if run is not None else (None, None)
    start = start and (copied_model(start) or start)

    def write(directory: AnyPath) -> None:
        write_adapters(
            source,
            Path(str(directory)),
            base=start if start is not None and opening.is_for_transformers(start) else None,
            dropout_rate=0.0 if lora is None else lora.dropout_rate,
        )

    names = tuple(f"/{name}" for name in adapters.NAMES[:2])  # without the scale
    shapes = [x.shape for name, x in source.tensors.items() if name.endswith(names)]
    return Export(
        source,
        output,
        _source_notes(source),
        _content(shapes, "float32"),
        write,
        [
            "Load it with:",
            "  from peft import PeftModel; model = PeftModel.from_pretrained(base, "
            f"{str(output)!r})  # base: {start or 'the initial model'}, loaded with transformers",
        ],
    )


def _content(shapes: list[tuple[int, ...]], dtype: str) -> str:
    return f"{len(shapes)} tensors, {sum(map(math.prod, shapes)):,} parameters, {dtype}"


def _is_verified(job: Convert, model: AnyPath, notes: list[str]) -> bool:
    """Returns whether to verify a conversion from or to the Hugging Face directory `model`.

    Notes the reason if the model cannot be verified; with --verify, raises UserError instead.
    """
    if job.verify is False or (job.verify is None and not VERIFY_BY_DEFAULT):
        return False
    missing = [name for name in ("torch", "transformers") if not importlib.util.find_spec(name)]
    remote, asked = is_remote(model), job.verify
    reasons = {
        f"{' and '.join(missing)} not installed (pip install 'mtf-jax[torch]')": missing,
        f"{model} is not on this machine; copy it first": remote and job.to != "hf",
        "OUT_DIR is remote; pass --verify to write to this machine first": remote and not asked,
        "NaN and infinity are allowed": job.allow_non_finite and not asked,
    }
    reason = next((text for text, applies in reasons.items() if applies), None)
    if reason and asked:
        raise UserError(f"--verify: {reason}.")
    if reason:
        notes.append(f"Not verified: {reason}")
    return reason is None


def _huggingface_export(job: Convert, notes: list[str]) -> huggingface.Export:
    """Returns the settings of an export; notes its source and any assumed settings."""
    checkpoint = opening.open_source(job.checkpoint, job.step, ema=job.ema)
    is_huggingface = checkpoint.layout == "huggingface"
    checkpoint, model_type = opening.with_huggingface_config(checkpoint, job.config)
    run = None if model_type else opening.read_run_config(checkpoint, job.config)
    vocab_size = infer_architecture(checkpoint).vocab_size
    has_tokenizer = any((checkpoint.path / name).is_file() for name in TOKENIZER_FILES)
    vocabulary: Vocabulary | None = None
    if run is not None:
        described, vocabulary, add_eos = run.described, run.vocabulary, run.inputs_add_eos
    else:
        described = checkpoint.described
        add_eos = tokenizer_adds_eos(checkpoint.path) if is_huggingface else True
        if is_huggingface and job.vocabulary is None and has_tokenizer:
            vocabulary = opening.huggingface_vocabulary(checkpoint.path, vocab_size)
    export = huggingface.Export(
        checkpoint,
        model_type=job.model_type or model_type,
        tokenizer=_tokenizer(job, vocabulary, vocab_size),
        dtype=job.dtype or DTYPES[job.to],
        max_shard_size=job.max_shard_bytes,
        inputs_add_eos=add_eos,
        allow_non_finite=job.allow_non_finite,
        is_assumed=run is None and not (is_huggingface and has_tokenizer),
        **described,
    )
    notes += [*_source_notes(checkpoint), f"The network has {describe(export.architecture)}"]
    if model_type:
        eos = "" if is_huggingface else ". Inputs are assumed to end with EOS"
        notes.append(f"The settings are those in {job.config}{eos}")
    elif run is None and not is_huggingface:
        wrong = "If any of these is wrong, pass --config PATH; --verify cannot detect it."
        notes.append(f"{opening.assumed(export, add_eos)}. {wrong}")
    return export


def _tokenizer(job: Convert, vocabulary: Vocabulary | None, vocab_size: int) -> Tokenizer | None:
    """Returns the tokenizer given by --vocabulary or else the checkpoint; None to export none."""
    chosen = job.vocabulary
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
    return Tokenizer() if "byt5" in (chosen, job.model_type) else None


def _source_notes(checkpoint: Checkpoint) -> list[str]:
    merged = f"LoRA adapters: merged into {checkpoint.num_merged} kernels"
    return [f"Reading {checkpoint.title}", *([merged] if checkpoint.num_merged else [])]


def _usage(export: huggingface.Export, out: str) -> list[str]:
    """Returns how to load an export with `transformers`; `out` is its quoted path."""
    name, has_tokenizer = export.class_name, export.tokenizer is not None
    lines = []
    if not has_tokenizer:
        lines.append("No tokenizer was written. To write one, pass its model with --vocabulary.")
    # `transformers` reads only local directories.
    lines += [
        "Copy it to this machine, then load it with:" if "://" in out else "Load it with:",
        f"  from transformers import {'AutoTokenizer, ' * has_tokenizer}{name}",
        f"  model = {name}.from_pretrained({out})",
    ]
    if export.model_type == "umt5" and not export.architecture.logits_via_embedding:
        lines.append(
            "  model.config.tie_word_embeddings = False  # transformers 5 scales umT5's logits by "
            f"{export.architecture.emb_dim}**-0.5 otherwise"
        )
    if has_tokenizer:
        lines.append(f"  tokenizer = AutoTokenizer.from_pretrained({out})")
    if not export.inputs_add_eos:
        lines.append(
            f"Inputs did not end with EOS in training; see {huggingface.CARD} for the effects."
        )
    return lines


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
