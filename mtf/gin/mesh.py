"""Translates runs of `t5_mesh_transformer` (Mesh TensorFlow)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from mtf.builders import model, vocabulary
from mtf.errors import UserError
from mtf.gin import jobs, objectives
from mtf.gin.expressions import ConfigOf
from mtf.gin.mesh_table import IGNORED, MESH, RAMP, SCHEDULES, STACKED
from mtf.gin.reading import Bindings, Reference
from mtf.gin.t5x_table import T5X_MODULES
from mtf.gin.walking import Walk
from mtf.jobs import Evaluate, Infer, Train

# Configurables that only a reference from another one calls.
_REFERRED = ("AdafactorOptimizer", "mesh_train_dataset_fn", "tsv_dataset_fn", "decode_from_file")
_SHARED_SIZES = ("emb_dim", "num_heads", "head_dim", "mlp_dim", "mlp_activations")


def is_mesh(bindings: Bindings) -> bool:
    """Returns whether the gin files are t5_mesh_transformer's."""
    own = MESH.keys() - T5X_MODULES.keys()
    return any(configurable in own for _, configurable, _ in bindings.parameters)


def translate(
    bindings: Bindings,
    model_dir: str | None,
    on_tpu: bool,
    sources: jobs.Sources,
    remark: Callable[[str], None],
) -> tuple[Walk, ConfigOf]:
    """Returns the settings and the job of a run; UserError if it has no equivalent.

    Args:
      bindings: all bindings, after the package's defaults.
      model_dir: the run directory, a flag of the command.
      on_tpu: whether the command names a TPU; without one, activations are float32.
      sources: what the command line says about the data.
      remark: adds a sentence to the recipe.
    """
    objectives.set_targets_length(bindings)
    walk = Walk(bindings, MESH)
    walk.use(*IGNORED)
    bound = {configurable for _, configurable, _ in bindings.parameters}
    encoder = _stack(walk, bound, "encoder")
    decoder = _stack(walk, bound, "decoder")
    differs = [name for name in _SHARED_SIZES if encoder.get(name) != decoder.get(name)]
    if differs:
        raise UserError(
            f"The encoder and the decoder differ in {', '.join(differs)}; mtf has one value for "
            "both."
        )
    walk.settings["model.network.num_encoder_layers"] = encoder["num_layers"]
    for name in MESH:
        if name in bound and name not in (*STACKED, *SCHEDULES, *_REFERRED):
            walk.section(name, name)
    settings = walk.settings
    settings["model.network.num_decoder_layers"] = decoder["num_layers"]
    mode = settings.get("mesh.mode", "train")
    job = {"train": Train, "infer": Infer}.get(str(mode), Evaluate)
    if mode == "train":
        _schedule(walk, remark)
    else:
        walk.use(*SCHEDULES, "mesh_train_dataset_fn")
    walk.finish(job)
    if settings.get("mesh.model_type", "bitransformer") != "bitransformer":
        raise UserError(
            f"run.model_type = {settings['mesh.model_type']!r} has no equivalent; mtf has only "
            "encoder-decoder models ('bitransformer')."
        )
    if mode == "train" and settings.get("train_steps") is None:
        raise UserError(
            "run.train_steps is not bound. Set it with --gin_param='run.train_steps = N'."
            + walk.not_understood()
        )
    if not on_tpu:
        settings["model.network.dtype"] = "float32"
    if "mesh.dropout_rate" in settings:
        settings["model.network.dropout_rate"] = settings["mesh.dropout_rate"]
    _batches(settings)
    if mode == "train" and _is_unsupervised(settings):
        _set_objective(walk, remark)
    split = settings.get("mesh.split", "train")
    _words(settings, mode)
    if mode == "train":
        settings |= {"model_dir": model_dir, "data.split": split}
        return walk, jobs.train(settings, sources, remark)
    settings |= {"checkpoint": model_dir, "data.eval_split": split}
    if mode == "score_eval":  # Ranks answer choices; nothing is decoded.
        settings.pop("decoding.max_length", None)
    else:
        _decoding(settings)
    step = settings.get("mesh.eval_step")
    if mode in ("eval", "score_eval"):
        settings["checkpoint_steps"] = None if step in (None, -1) else _steps(step)
        return walk, jobs.evaluation(settings, sources, remark)
    if mode == "infer":
        if isinstance(step, int) and step >= 0:
            settings["step"] = step
        elif step == "all":
            remark("Only the latest checkpoint is decoded; set `step` for another.")
        settings["mode"] = "predict"
        settings.pop("data.mixture_or_task_name", None)
        if settings.get("mesh.output"):
            settings["output_dir"] = str(PurePosixPath(settings["mesh.output"]).parent)
        return walk, jobs.inference(settings, sources, remark)
    raise UserError(
        f"run.mode = {mode!r} has no equivalent; expected train, eval, score_eval or infer."
    )


def _is_unsupervised(settings: dict[str, Any]) -> bool:
    """Returns whether gin binds the preprocessing of the mixture."""
    return settings.get("mesh.train_mixture") in objectives.TASKS


def _set_objective(walk: Walk, remark: Callable[[str], None]) -> None:
    settings = walk.settings
    objective = objectives.objective(walk)
    settings["data.objective"] = objective
    walk.forget("unsupervised")
    lengths = settings["data.task_feature_lengths"]
    needed = objectives.needed_targets(objective, lengths["inputs"])
    if lengths["targets"] < needed:
        remark(
            f"The length of targets is {needed} instead of {lengths['targets']}, because mtf does "
            "not truncate the targets of this objective."
        )
        settings["data.task_feature_lengths"] = lengths | {"targets": needed}


def _steps(step: Any) -> Any:
    return tuple(step) if isinstance(step, list | tuple) else step


def _stack(walk: Walk, bound: set[str], stack: str) -> Mapping[str, Any]:
    """Translates the parameters of the encoder or the decoder, and returns its sizes."""
    for name in STACKED:
        walk.section(name, name, stack)
    sizes = {name: walk.settings.get(f"model.network.{name}") for name in _SHARED_SIZES}
    return sizes | {"num_layers": walk.settings.get("mesh.num_layers")}


def _schedule(walk: Walk, remark: Callable[[str], None]) -> None:
    """Adds the settings of a schedule, one function or a product of several."""
    settings = walk.settings
    given = settings.get("mesh.schedule")
    parts = given if isinstance(given, list | tuple) else [given]
    base, factors = 1.0, ["constant"]
    for part in parts:
        name = part.configurable if isinstance(part, Reference) else part
        if name in SCHEDULES:
            walk.section(name, name)
        if isinstance(name, int | float):
            base *= name
        elif name not in SCHEDULES:
            raise UserError(f"run.learning_rate_schedule = {given!r} has no equivalent.")
        if name in ("truncated_rsqrt", "learning_rate_schedule_noam"):
            factors.append("rsqrt_decay")
    for name in ("constant_learning_rate", "constant", "multiplier"):
        base *= settings.get(f"mesh.rate.{name}", 1.0)
    if settings.get("mesh.rate.ramp"):
        remark(f"The schedule {given} has no exact equivalent: {RAMP}.")
    if "rsqrt_decay" in factors:
        warmup = settings.get("mesh.rate.warmup_steps", 10_000)
        settings["optimizer.learning_rate.warmup_steps"] = warmup
    settings["optimizer.learning_rate.factors"] = " * ".join(factors)
    settings["optimizer.learning_rate.base_learning_rate"] = base


def _batches(settings: dict[str, Any]) -> None:
    """Computes the batch size and the number of microbatches, as Mesh TensorFlow does."""
    lengths = settings["data.task_feature_lengths"]
    if not lengths:
        raise UserError("run.sequence_length is empty; expected the lengths of inputs and targets.")
    if min(lengths.values()) < 1:
        raise UserError(f"run.sequence_length = {lengths!r}: lengths must be at least 1.")
    length = max(lengths.values())
    partitions = settings.get("partitioner.num_partitions") or 1
    cores = _cores(settings.get("mesh.tpu_topology"))
    replicas = max(1, cores // partitions)
    shape = settings.get("mesh.mesh_shape")
    if isinstance(shape, str) and shape:
        parts = [part.partition(":") for part in shape.replace(";", ",").split(",")]
        sizes = {name.strip(): number for name, _, number in parts}
        if not all(number.strip().isdigit() for number in sizes.values()):
            raise UserError(f"run.mesh_shape = {shape!r}: expected text such as 'model:2,batch:4'.")
        replicas = int(sizes.get("batch", 1))
        settings["partitioner.num_partitions"] = int(sizes.get("model", 1))
    given = settings["mesh.batch_size"]
    kind, number = given if isinstance(given, list | tuple) else ("sequences_per_batch", given)
    sequences = {
        "tokens_per_batch": number // length,
        "tokens_per_replica": max(1, number // length) * replicas,
        "sequences_per_batch": number,
        "sequences_per_replica": number * replicas,
    }
    if kind not in sequences:
        raise UserError(f"run.batch_size = {given!r}: expected one of {', '.join(sequences)}.")
    settings["batch_size"] = sequences[kind]
    tokens = settings.get("mesh.tokens_per_microbatch")
    if tokens is not None:
        per_replica = max(1, sequences[kind] // replicas)
        size = max(1, tokens // length)
        while per_replica % size:
            size -= 1
        settings["trainer.num_microbatches"] = per_replica // size


def _cores(topology: Any) -> int:
    """Returns the cores of a TPU, named as "v3-512" or "16x16" chips."""
    text = str(topology or "1")
    if "-" in text:
        text = text.rpartition("-")[2]
        return int(text) if text.isdigit() else 1
    sides = text.split("x")
    if len(sides) > 1 and all(side.isdigit() for side in sides):
        return 2 * math.prod(map(int, sides))
    return 1


def _words(settings: dict[str, Any], mode: str) -> None:
    """Sets mixture, vocabulary and its size, which are those of the mixture in the original."""
    role = "train" if mode == "train" else "eval"
    name = settings.get(f"mesh.{role}_mixture") or settings.get("mesh.train_mixture")
    if name is not None:
        settings["data.mixture_or_task_name"] = name
    elif mode != "infer" and "data.files" not in settings:
        raise UserError(
            "No mixture is bound. Set it with --gin_param=\"MIXTURE_NAME = 'NAME'\", after "
            "--gin_file=dataset.gin."
        )
    start = settings.get("checkpoint.restore.path") or ""
    multilingual = str(name).startswith(("mt5", "mc4")) or "/mt5/" in start
    path = vocabulary.MT5_PATH if multilingual else vocabulary.T5_PATH
    settings["data.vocabulary.path"] = settings.get("data.vocabulary.path") or path
    size = model.MT5_VOCAB_SIZE if multilingual else model.T5_VOCAB_SIZE
    settings["model.network.vocab_size"] = size


def _decoding(settings: dict[str, Any]) -> None:
    """One beam is greedy decoding, or sampling if there is a temperature."""
    beams = settings.pop("decoding.num_beams", 1)
    temperature = settings.pop("decoding.temperature", 0.0)
    penalty = settings.pop("decoding.length_penalty", None)
    top_k = settings.pop("decoding.top_k", -1)
    settings.pop("decoding.method", None)
    if beams > 1:
        settings |= {"decoding.num_beams": beams}
        if penalty is not None:
            settings["decoding.length_penalty"] = penalty
    elif temperature:
        settings |= {"decoding.method": "sample", "decoding.temperature": temperature}
        settings["decoding.top_k"] = max(0, top_k)
    else:
        settings["decoding.method"] = "greedy"
