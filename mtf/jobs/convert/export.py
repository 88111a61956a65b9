"""Exports a checkpoint in another format to a new directory, and verifies the export."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from conversion import (
    Checkpoint,
    ConversionError,
    adapters,
    formats,
    huggingface,
    open_checkpoint,
)
from conversion.architecture import infer_architecture
from conversion.families import describe
from conversion.huggingface_config import read_config
from conversion.huggingface_reader import is_huggingface
from conversion.peft_writer import WEIGHTS_FILE, check_adapters, write_adapters
from conversion.safetensors_file import open_tensors
from conversion.sentencepiece_model import read_sentencepiece
from conversion.tensor import DTYPES, Index, Tensor
from conversion.tokenizer import TOKENIZER_FILES, Tokenizer, default_extra_ids, tokenizer_adds_eos
from conversion.tokenizer_file import TokenizerFile
from conversion.training_state import SLOTS, STEP, state_tensors, write_state
from mtf.base import signals
from mtf.base.errors import RunError, UserError
from mtf.base.progress import rate_bar, waiting
from mtf.base.writing import new_directory
from mtf.config.run_dir import write_job
from mtf.data.sources.hub import copied_model, model_name
from mtf.data.text.vocabularies import (
    ByteVocabulary,
    SentencePieceVocabulary,
    TokenizerVocabulary,
    Vocabulary,
    open_vocabulary,
)
from mtf.inference import opening
from mtf.jobs.convert.read_back import Written
from mtf.jobs.convert.settings import Convert
from mtf.storage import AnyPath, as_path, file_sizes, is_remote
from mtf.storage.copies import unchanged

# Whether models are verified by default; tests may set this to False.
VERIFY_BY_DEFAULT = True
_MEGABYTE = 10**6


@dataclasses.dataclass
class Plan:
    """What an export reads and writes.

    Attributes:
      source: the checkpoint to read.
      written: the directory of the model or checkpoint to write.
      notes: what has been found out, line by line.
      content: the number of tensors and parameters to write, and their type.
    """

    source: Checkpoint
    written: AnyPath
    notes: list[str]
    content: str


def export(job: Convert) -> Iterator[Plan]:
    """Checks everything that an export reads, yields a plan, and then writes and prints.

    Raises UserError, ConversionError or StorageError if the export is impossible.
    """
    exports = {"hf": _to_huggingface, "peft": _to_adapters}
    return exports.get(job.to, _to_training_state)(job, as_path(job.output))


def _to_huggingface(job: Convert, output: AnyPath) -> Iterator[Plan]:
    """Exports a Hugging Face model."""
    compares_logits, notes = _verification(job, output)
    export = _huggingface_export(job, notes)
    source, shapes = export.checkpoint, [entry.shape for entry in export.entries]
    plan = Plan(source, output, notes, _content(shapes, export.dtype))
    yield plan
    directly = is_remote(output) and not compares_logits
    if is_remote(output):
        signals.hint("run the same command again to replace the files in OUT_DIR")
    # Verification reads local files.
    with nullcontext(output) if directly else new_directory(output) as directory:
        tensors = {f"target/{name}": x for name, x in source.parameters().items()}
        recording = _recording(tensors, source.path.name, DTYPES[export.dtype])
        with unchanged(source.path), recording as (record, read):
            recorded = dataclasses.replace(source, tensors=read)
            huggingface.write_export(dataclasses.replace(export, checkpoint=recorded), directory)
        if job.verify is not False and not directly:
            _check_written(record, lambda: _opened(directory).tensors)
        if compares_logits:
            _compare_logits(export, directory)
        write_job(directory, job)
    _print_written(plan, job)
    if source.has_state:
        print("Optimizer state: dropped; Hugging Face's format has none")
    _print_usage(export, repr(str(output)))


def _to_training_state(job: Convert, output: AnyPath) -> Iterator[Plan]:
    """Exports a checkpoint to a format that can contain a training state."""
    source = opening.open_source(job.checkpoint, job.step, ema=job.ema)
    compares_logits, notes = False, list[str]()
    if source.layout == "huggingface":
        compares_logits, notes = _verification(job, source.path)
    tensors = state_tensors(
        source,
        job.to,
        dtype=job.dtype,
        optimizer=job.optimizer,
        allow_non_finite=job.allow_non_finite,
    )
    step = int(tensors[STEP].read())
    name = f"checkpoint_{step}"
    named = re.fullmatch(r"checkpoint_(\d+)", output.name)
    if named and output.name != name:
        raise UserError(
            f"{output} is the name of a checkpoint of step {int(named[1])}, but the step of "
            f"{source.path} is {step}. Pass a path that ends with {name}, or a directory "
            f"in which to create {name}."
        )
    params = [x for tensor, x in tensors.items() if tensor.startswith("target/")]
    dtypes = ", ".join(sorted({x.dtype.name for x in params}))
    content = _content([x.shape for x in params], dtypes)
    written = output if named else output / name
    plan = Plan(source, written, [*notes, *_source_notes(source)], content)
    yield plan
    with new_directory(output) as directory:
        folder = directory if named else directory / name
        folder.mkdir(exist_ok=True)
        with unchanged(source.path), _recording(tensors, name) as (record, read):
            write_state(read, job.to, source.path, folder)
        if job.verify is not False and formats.find(folder):  # mtf may not read a user's format.
            _check_written(record, lambda: _opened(folder).tensors)
        if compares_logits:
            model = huggingface.Export(
                dataclasses.replace(_opened(folder), described=source.described),
                model_type=read_config(source.path / "config.json").model_type,
                dtype=job.dtype or "float32",  # float32 represents all stored types
                **source.described,
            )
            _compare_logits(model, source.path)
        write_job(directory, job)
    _print_written(plan, job)
    state = "dropped;" if source.has_state else "none in the source;"
    num_slots = sum(tensor.startswith(SLOTS) for tensor in tensors)
    state = f"kept ({num_slots} tensors)," if num_slots else state
    print(f"Optimizer state: {state} step {step}")


def _to_adapters(job: Convert, output: AnyPath) -> Iterator[Plan]:
    """Exports the LoRA adapters, which all other formats merge into the kernels."""
    path = opening.local_source(job.checkpoint)
    source = open_checkpoint(path, job.step, ema=job.ema, merge_adapters=False)
    check_adapters(source)
    run = opening.read_run_config(open_checkpoint(path, job.step))
    lora, start = (run.model.network.lora, run.start) if run is not None else (None, None)
    start = start and (copied_model(start) or start)
    names = tuple(f"/{name}" for name in adapters.NAMES[:2])  # without the scale
    shapes = [x.shape for name, x in source.tensors.items() if name.endswith(names)]
    plan = Plan(source, output, _source_notes(source), _content(shapes, "float32"))
    yield plan
    with new_directory(output) as directory:
        weights = write_adapters(
            source,
            directory,
            base=start if start and (model_name(start) or is_huggingface(as_path(start))) else None,
            dropout_rate=0.0 if lora is None else lora.dropout_rate,
        )
        record = Written()
        for name, array in weights.items():
            record.add(name, ..., array)
        if job.verify is not False:
            _check_written(record, lambda: open_tensors(directory / WEIGHTS_FILE))
        write_job(directory, job)
    _print_written(plan, job)
    print(
        "Load it with:\n  from peft import PeftModel; model = PeftModel.from_pretrained(base, "
        f"{str(output)!r})  # base: {start or 'the initial model'}, loaded with transformers"
    )


def _content(shapes: list[tuple[int, ...]], dtype: str) -> str:
    return f"{len(shapes)} tensors, {sum(map(math.prod, shapes)):,} parameters, {dtype}"


def _print_written(plan: Plan, job: Convert) -> None:
    files = file_sizes(plan.written)
    print(
        f"Wrote {plan.written} ({job.title}): {plan.content}, {sum(files.values()):,} bytes "
        f"in {len(files)} files"
    )


def _verification(job: Convert, model: AnyPath) -> tuple[bool, list[str]]:
    """Returns whether to compare logits with those of the Hugging Face directory `model`.

    Also returns the reason if that is impossible; with --verify, raises UserError instead.
    """
    if job.verify is False or (job.verify is None and not VERIFY_BY_DEFAULT):
        return False, []
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
    return (False, [f"Logits not compared: {reason}"]) if reason else (True, [])


def _opened(directory: AnyPath) -> Checkpoint:
    """Opens an export whose directory still has a temporary name, which `open_checkpoint` refuses.

    Raises ConversionError if the directory contains no checkpoint.
    """
    if (found := formats.find(directory)) is None:
        raise ConversionError(f"{directory} contains no checkpoint.")
    checkpoint: Checkpoint = found[0].open(found[1], None)
    return checkpoint


def _check_written(record: Written, read: Callable[[], Mapping[str, Tensor]]) -> None:
    """Raises RunError if the tensors that `read` returns are not those written."""
    try:
        with waiting("reading the files back"):
            found = read()
            differ = record.differences(found)
        names = ", ".join(differ[:3])
        problem = f"{names}: {len(differ)} of {len(found)} tensors differ." if differ else ""
    except ConversionError as error:
        problem = str(error)
    if problem:
        raise RunError(
            f"The files do not contain what was written, so they were deleted. {problem} Check the "
            "disk and the memory of this machine."
        )
    print(f"Verified: the {len(found)} tensors in the files equal those that were written")


def _compare_logits(export: huggingface.Export, directory: AnyPath) -> None:
    """Compares an export with a Hugging Face model; raises RunError if they differ."""
    with waiting("comparing logits"):
        from mtf.jobs.convert.verification import compare  # This imports JAX and PyTorch.

        passed, report = compare(export, Path(str(directory)))
    print(report)
    if not passed:
        raise RunError("The logits differ, so nothing was written.")


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
        dtype=job.dtype or str(formats.output_formats()[job.to].dtype),
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


def _tokenizer(
    job: Convert, vocabulary: Vocabulary | None, vocab_size: int
) -> Tokenizer | TokenizerFile | None:
    """Returns the tokenizer given by --vocabulary or else the checkpoint; None to export none."""
    chosen = job.vocabulary
    if chosen == "none":
        return None
    if chosen is not None and chosen.endswith(".json"):
        vocabulary = open_vocabulary(chosen)
    elif chosen not in (None, "byt5"):
        model = read_sentencepiece(Path(str(chosen)).expanduser())
        return Tokenizer(model, default_extra_ids(model, vocab_size))
    if isinstance(vocabulary, ByteVocabulary):
        return Tokenizer(extra_ids=vocabulary.extra_ids)
    if isinstance(vocabulary, TokenizerVocabulary):
        path = as_path(vocabulary.path)
        return TokenizerFile(path, vocabulary.bos_token, vocabulary.eos_token)
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
def _recording(
    tensors: Mapping[str, Tensor], title: str, dtype: np.dtype[Any] | None = None
) -> Iterator[tuple[Written, dict[str, Tensor]]]:
    """Shows a progress bar, in MB, while the block reads the tensors.

    Yields a record of what is read, as it is after a cast to `dtype`, and the tensors to read.
    """
    sizes, written = list[int](), Written(dtype)
    total = sum(x.nbytes for x in tensors.values())
    with rate_bar(-(-total // _MEGABYTE), "MB") as report:

        def observe(name: str, index: Index, array: np.ndarray[Any, Any]) -> None:
            written.add(name, index, array)
            sizes.append(array.nbytes)  # Several threads call this function.
            done = sum(sizes) // _MEGABYTE
            report(done, done, title)

        yield (
            written,
            {name: x.observed(functools.partial(observe, name)) for name, x in tensors.items()},
        )
