"""The programs that a plan compiles: those that the job of a recipe runs. Imports JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from mtf.decoding.generate import generate
from mtf.decoding.settings import DecodingConfig, one_beam
from mtf.errors import UserError
from mtf.inference.predictor import logits_chunk, token_log_likelihoods
from mtf.jobs import Evaluate, Infer, Train
from mtf.models import t5
from mtf.models.settings import T5Config
from mtf.partitioning import memory
from mtf.partitioning.mesh import PjitPartitioner
from mtf.training.flops import train_step_flops
from mtf.training.trainer import Trainer

KINDS = ("train", "rank", "decode")


@dataclasses.dataclass(frozen=True)
class Program:
    """A program for the devices of a mesh.

    Attributes:
      kind: one of KINDS.
      partitioner: the mesh.
      lower: traces the program; allocates nothing.
      parts: name → bytes that each device needs for it in any case.
      formula_flops: FLOPs of the matrix products on all devices, without recomputation.
      tokens: input and target positions in a run of the program.
      steps: runs of the program that the job makes; None: not known.
    """

    kind: str
    partitioner: PjitPartitioner
    lower: Callable[[], Any]
    parts: Mapping[str, int]
    formula_flops: float
    tokens: int
    steps: int | None


def program_of(
    job: Any, kind: str | None, network: T5Config | None, devices: Sequence[Any]
) -> Program:
    """Returns the program of a job for some devices.

    Args:
      job: a job of training, evaluation or inference.
      kind: one of KINDS; None: the one that the job mainly runs.
      network: the network of an evaluation or inference job, whose checkpoint need not be here.
      devices: the devices, which need not be here.

    Raises:
      UserError: the devices cannot be divided as the job says, or the job does not run the program.
    """
    if isinstance(job, Train) and kind in (None, "train"):
        return _train(job, devices)
    if kind == "train" or not isinstance(job, Train | Evaluate | Infer):
        raise UserError(f"A {type(job).__name__} does not train; leave out --program train.")
    if kind is None:
        kind = _main_kind(job)
    if isinstance(job, Train):
        network, rows = job.model.network, job.batch_size // job.trainer.num_microbatches
        dtype, lengths = network.dtype, job.data.task_feature_lengths
        decoding = job.evaluator.decoding if job.evaluator is not None else None
    else:
        if network is None:
            raise UserError(
                "The network is that of a checkpoint. Name a training recipe with this network: "
                "--network recipes.t0pp_xxl"
            )
        rows, dtype, decoding = job.batch_size, job.dtype, job.decoding
        data = job.data if isinstance(job, Evaluate) else job
        lengths = data.task_feature_lengths
    scanned = dataclasses.replace(network, dtype=dtype, scan_layers=devices[0].platform != "cpu")
    partitioner = PjitPartitioner.create(job.partitioner, devices)
    decoding = decoding or one_beam(lengths["targets"])
    return _inference(kind, scanned, partitioner, rows, lengths, decoding)


def _main_kind(job: Train | Evaluate | Infer) -> str:
    if isinstance(job, Infer):
        return "rank" if job.mode == "score" else "decode"
    name = getattr(job.data, "mixture_or_task_name", "_score_eval")
    return "rank" if name.endswith("_score_eval") else "decode"


def _train(job: Train, devices: Sequence[Any]) -> Program:
    partitioner = PjitPartitioner.create(job.partitioner, devices)
    microbatches = job.trainer.num_microbatches
    partitioner.check_batch_size(job.batch_size, microbatches)
    trainer = Trainer(job.model, job.optimizer, partitioner, job.trainer, job.random_seed)
    lengths = job.data.task_feature_lengths
    features = {
        "encoder_input_tokens": "inputs",
        "decoder_input_tokens": "targets",
        "decoder_target_tokens": "targets",
        "decoder_loss_weights": "targets",
    }
    if job.data.pack:
        for side, feature in (("encoder", "inputs"), ("decoder", "targets")):
            features |= {f"{side}_segment_ids": feature, f"{side}_positions": feature}
    batch = _arrays(
        {name: (job.batch_size, lengths[feature]) for name, feature in features.items()}
    )
    shapes, shardings = trainer.state_shapes, trainer.state_shardings
    params = memory.num_bytes(shapes.params, shardings.params)
    gradients = memory.num_bytes(trainer.trained(shapes.params), trainer.trained(shardings.params))
    inputs, targets = lengths["inputs"], lengths["targets"]
    start = job.checkpoint.restore.step if job.checkpoint.restore is not None else 0
    return Program(
        "train",
        partitioner,
        lambda: trainer.lower(shapes, batch),
        {
            "parameters": params,
            "optimizer state": memory.num_bytes(shapes.param_states, shardings.param_states),
            # The sum over the microbatches, and one of them.
            "gradients": gradients * (1 if microbatches == 1 else 2),
        },
        train_step_flops(job.model.network, job.batch_size, inputs, targets),
        job.batch_size * (inputs + targets),
        job.train_steps - (start or 0),
    )


def _inference(
    kind: str,
    network: T5Config,
    partitioner: PjitPartitioner,
    rows: int,
    lengths: Mapping[str, int],
    decoding: DecodingConfig,
) -> Program:
    parts = partitioner.num_data_shards
    rows = -(-rows // parts) * parts
    inputs, targets = lengths["inputs"], lengths["targets"]
    shapes = t5.param_shapes(network, stacked=network.scan_layers)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.dtype(network.dtype)), shapes)
    axes = t5.param_axes(network, stacked=network.scan_layers)
    shardings = partitioner.shardings(shapes, axes)
    if kind == "decode":
        targets = decoding.max_length
        batch = _arrays({"encoder_input_tokens": (rows, inputs)})
        batch["seeds"] = jax.ShapeDtypeStruct((rows,), jnp.uint32)

        def run(params: t5.Params, batch: Mapping[str, Any]) -> Any:
            return generate(network, params, decoding=decoding, **batch)
    else:
        names = ("input_tokens", "target_tokens", "segment_ids")
        features = {f"decoder_{name}": (rows, targets) for name in names}
        features |= {"encoder_input_tokens": (rows, inputs), "encoder_segment_ids": (rows, inputs)}
        batch = _arrays({**features, "cross_segment_ids": (rows, targets)})
        chunk = logits_chunk(targets, rows // parts, network.vocab_size)

        def run(params: t5.Params, batch: Mapping[str, Any]) -> Any:
            return token_log_likelihoods(network, params, batch, chunk=chunk)

    def lower() -> Any:
        with partitioner.in_force():
            jitted = jax.jit(
                run,
                in_shardings=(shardings, partitioner.batch),
                out_shardings=partitioner.replicated,
            )
            return jitted.lower(shapes, batch)

    return Program(
        kind,
        partitioner,
        lower,
        {"parameters": memory.num_bytes(shapes, shardings)},
        train_step_flops(network, rows, inputs, targets) / 3,
        rows * (inputs + targets) if kind == "rank" else rows * targets,
        None,
    )


def _arrays(shapes: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    return {name: jax.ShapeDtypeStruct(shape, jnp.int32) for name, shape in shapes.items()}
