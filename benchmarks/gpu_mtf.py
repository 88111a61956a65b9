"""The worker of gpu.py that runs mtf."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from gpu_data import Rows, decoding_inputs, network, rank_examples, training_rows
from gpu_workers import Failed, Side, serve

from mtf.decoding.generate import generate
from mtf.decoding.settings import DecodingConfig
from mtf.inference.predictor import Predictor
from mtf.models import t5
from mtf.models.settings import ModelConfig
from mtf.models.stacking import stack_layers
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.settings import PartitionerConfig
from mtf.training.settings import AdafactorConfig, AdamWConfig, ScheduleConfig
from mtf.training.trainer import Trainer

# What a program may use where JAX does not know the device's memory, as on CPUs.
_UNKNOWN_MEMORY = 2**30


class Mtf(Side):
    """mtf's training step, rank evaluation and decoding."""

    def __init__(self) -> None:
        super().__init__()
        self._partitioner = PjitPartitioner.create(PartitionerConfig())
        self._device: Any = jax.devices()[0]
        self._loaded: tuple[Any, Any] = (None, None)

    def about(self) -> dict[str, Any]:
        """Returns the device and its memory."""
        return {"device": self._device.device_kind, "limit_gib": self._limit / 2**30}

    @property
    def _limit(self) -> int:
        stats: Mapping[str, int] = self._device.memory_stats() or {}
        return stats.get("bytes_limit", _UNKNOWN_MEMORY)

    def _trainer(self, size: str, variant: str) -> Trainer:
        """Returns the trainer of a variant: OPTIMIZER/LAYERS/REMAT."""
        optimizer, layers, remat = variant.split("/")
        changed = network(size, scan_layers=layers == "scanned", remat_policy=remat)
        model = ModelConfig(changed, loss_normalizing_factor="NUM_REAL_TARGET_TOKENS")
        schedule = ScheduleConfig("constant", base_learning_rate=1e-4)
        made: AdafactorConfig | AdamWConfig = AdafactorConfig(schedule)
        if optimizer == "adamw":
            made = AdamWConfig(schedule, weight_decay_rate=0.01)
        return Trainer(model, made, self._partitioner)

    def _compiled(self, trainer: Trainer, batch: int, lengths: Sequence[int]) -> tuple[Any, int]:
        """Compiles the step without allocating; returns it with its bytes on the device."""
        inputs, targets = ((batch, length) for length in lengths)
        shapes = _batch(Rows(*(np.zeros(n, np.int32) for n in (inputs, targets) * 2)))
        described = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in shapes.items()}
        compiled = trainer.compile(trainer.state_shapes, described)
        used = compiled.memory_analysis()
        outputs = used.output_size_in_bytes - used.alias_size_in_bytes
        return compiled, used.argument_size_in_bytes + outputs + used.temp_size_in_bytes

    def largest(self, size: str, lengths: Sequence[int], variant: str, most: int) -> dict[str, Any]:
        """Returns the largest power of two that fits as a batch, at most `most`; 0: none.

        Two programs for small batches show the memory of a row. Their layers are scanned, which
        compiles fast and takes about the same memory.
        """
        optimizer, _, remat = variant.split("/")
        trainer = self._trainer(size, f"{optimizer}/scanned/{remat}")
        few, more = (4, 8) if most >= 8 else (1, 2)
        a, b = (self._compiled(trainer, batch, lengths)[1] for batch in (few, more))
        of_row = (b - a) / (more - few)
        fitting = (0.95 * self._limit - (a - few * of_row)) / max(1.0, of_row)
        return {"batch": min(most, 1 << int(fitting).bit_length() - 1) if fitting >= 1 else 0}

    def train(self, size: str, lengths: Sequence[int], variant: str, batch: int) -> dict[str, Any]:
        """Builds a training step."""
        self.free()
        trainer = self._trainer(size, variant)
        started = time.perf_counter()
        _, used = self._compiled(trainer, batch, lengths)
        compile_seconds = time.perf_counter() - started
        if used > self._limit:
            raise Failed(f"RESOURCE_EXHAUSTED: the program needs {used / 2**30:.1f} GiB")
        state = trainer.init_state()
        data = itertools.cycle([_batch(rows) for rows in training_rows(size, batch, *lengths)])
        metrics: Any = None

        def step() -> None:
            nonlocal state, metrics
            rows = self._partitioner.global_batch(next(data), batch)
            state, metrics = trainer.train_step(state, rows)

        def wait() -> None:
            jax.block_until_ready((state.step, metrics))

        done = self.built(step, wait, compile=compile_seconds, gib=used / 2**30)
        loss = float(metrics["loss"])
        if not np.isfinite(loss):
            raise Failed(f"the loss is {loss}")
        return {**done, "loss": loss, **self._allocated()}

    def _allocated(self) -> dict[str, float]:
        """Returns the most memory allocated by this process so far, if known."""
        stats = self._device.memory_stats() or {}
        return {"allocated_gib": stats.get("peak_bytes_in_use", 0) / 2**30}

    def _model(self, size: str, layers: str) -> tuple[ModelConfig, t5.Params]:
        """Returns a network with random parameters, kept for later requests."""
        if self._loaded[0] != (size, layers):
            self._loaded = (None, None)
            model = ModelConfig(network(size, scan_layers=layers == "scanned"))

            def init(rng: jax.Array) -> t5.Params:
                params = t5.init_params(model.network, rng)
                return stack_layers(params) if model.network.scan_layers else params

            params = jax.block_until_ready(jax.jit(init)(jax.random.PRNGKey(0)))
            self._loaded = (size, layers), (model, params)
        return self._loaded[1]

    def rank(
        self, size: str, lengths: Sequence[int], batch: int, examples: int, layers: str
    ) -> dict[str, Any]:
        """Builds a pass of rank evaluation; `lengths` are medians of tokens."""
        self.free()
        model, params = self._model(size, layers)
        predictor = Predictor(model, params, None, self._partitioner, batch_size=batch)
        data = rank_examples(size, examples, *lengths)

        def score() -> None:
            scores = [s.log_likelihoods for s in predictor.log_likelihoods(data)]
            assert len(scores) == examples

        return self.built(score)

    def decode(
        self, size: str, lengths: Sequence[int], batch: int, num_beams: int, layers: str
    ) -> dict[str, Any]:
        """Builds the decoding of a batch."""
        self.free()
        model, params = self._model(size, layers)
        tokens = decoding_inputs(size, batch, lengths[0])
        decoding = DecodingConfig(
            "greedy" if num_beams == 1 else "beam", max_length=lengths[1], num_beams=num_beams or 1
        )
        run = functools.partial(generate, model.network, params, tokens, decoding, eos_id=-1)
        return self.built(lambda: jax.block_until_ready(run().tokens))


def _batch(rows: Rows) -> dict[str, np.ndarray]:
    """Returns packed rows under the names that the trainer takes."""
    first = np.diff(rows.target_segments, axis=1, prepend=0) > 0
    shifted = np.pad(rows.targets, ((0, 0), (1, 0)))[:, :-1]
    return {
        "encoder_input_tokens": rows.inputs,
        "encoder_segment_ids": rows.input_segments,
        "decoder_input_tokens": np.where(first, 0, shifted),
        "decoder_target_tokens": rows.targets,
        "decoder_segment_ids": rows.target_segments,
        "decoder_loss_weights": np.ones_like(rows.targets),
    }


if __name__ == "__main__":
    serve(Mtf)
