"""Compiled training and evaluation steps (T5X: `trainer.Trainer`)."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from conversion import IncompleteCheckpoint
from mtf.base.errors import UserError
from mtf.base.progress import waiting
from mtf.checkpoints import finite
from mtf.checkpoints.restore import (
    AssignmentMap,
    check_tree,
    checkpoint_path,
    has_average,
    restore_tree,
)
from mtf.checkpoints.settings import RestoreCheckpointConfig
from mtf.checkpoints.steps import (
    RESUME_FROM_PREVIOUS,
    checkpoint_dir,
    owed_evaluations,
    saved_steps,
)
from mtf.data.packing import HostBatch, trimmed
from mtf.models import flash_attention, t5
from mtf.models.settings import ModelConfig, RematPolicy
from mtf.models.stacking import stack_layers
from mtf.models.t5 import Batch
from mtf.models.trees import Tree, flat_names, merged
from mtf.models.types import Params
from mtf.partitioning import memory
from mtf.partitioning.chips import chip_of
from mtf.partitioning.mesh import PjitPartitioner, constrain
from mtf.storage import AnyPath
from mtf.training import optimizers, schedules, settings
from mtf.training.losses import (
    PREFIX,
    custom_loss,
    normalizing_factor_and_weights,
    token_weights,
    weighted_cross_entropy,
)
from mtf.training.train_state import TrainState
from mtf.training.trained import frozen_names, split

Metrics = dict[str, jax.Array]
# The part of a device's memory that the state and the activations may take by estimate.
_USABLE = 0.7
_Shapes = tuple[tuple[str, tuple[int, ...]], ...]


def loss_fn(
    model: ModelConfig,
    params: Params,
    batch: Batch,
    weights: jax.Array,
    dropout_rng: jax.Array | None = None,
    chunk: int | None = None,
    frozen: Params | None = None,
    token_weights: jax.Array | None = None,
) -> tuple[jax.Array, Metrics]:
    """Returns the loss, summed over the tokens of a batch, and a dict of this and other sums.

    `params` contains all parameters, or only those that are not in `frozen`. `batch` is described
    in `t5.apply`. `weights`, (batch, length) float32, have already been divided by the normalizing
    factor. `chunk` is the number of target positions whose logits are computed at a time; a custom
    `loss_fn` receives all logits. If `token_weights` is set, there is also the sum "token_loss",
    which has these weights.
    """
    params = merged(params, frozen or {})
    if model.loss_fn is not None:
        logits = t5.apply(model.network, params, batch, dropout_rng=dropout_rng)
        return custom_loss(model.loss_fn, logits, batch, weights)
    sums = weighted_cross_entropy(
        t5.decoder_output(model.network, params, batch, dropout_rng),
        t5.output_kernel(model.network, params),
        batch["decoder_target_tokens"],
        weights,
        token_weights,
        z_loss=model.z_loss,
        label_smoothing=model.label_smoothing,
        chunk=chunk,
    )
    return sums.loss, {k: v for k, v in sums._asdict().items() if v is not None}


class _Weights(NamedTuple):
    """The weights of a batch's target tokens.

    Attributes:
      in_loss: the weights in the loss, (batch, length) float32, divided by `factor`.
      factor: the normalizing factor.
      per_token: the weights for the mean over tokens, if those in the loss also depend on the
        lengths of sequences; otherwise None.
    """

    in_loss: jax.Array
    factor: jax.Array | float
    per_token: jax.Array | None


@dataclasses.dataclass(frozen=True)
class Trainer:
    """Compiles and runs training and evaluation steps.

    `random_seed` is the seed for the initial parameters and for dropout.
    """

    model: ModelConfig
    optimizer: settings.AnyOptimizer
    partitioner: PjitPartitioner
    config: settings.TrainerConfig = settings.TrainerConfig()
    random_seed: int = 0

    @functools.cached_property
    def _rngs(self) -> tuple[np.ndarray, np.ndarray]:
        """The random keys for the initial parameters and for dropout."""
        init_rng, trainer_rng = jax.random.split(jax.random.PRNGKey(self.random_seed), 2)
        return np.asarray(init_rng), np.asarray(trainer_rng)

    @functools.cached_property
    def axes(self) -> Tree:
        """The logical axes of the parameters."""
        return t5.param_axes(self.model.network, stacked=self.model.network.scan_layers)

    @functools.cached_property
    def frozen(self) -> frozenset[str]:
        """The names of the parameters that are not trained (see `frozen_names` for errors)."""
        network = self.model.network
        shapes = t5.param_shapes(network, stacked=network.scan_layers)
        return frozen_names(shapes, self.config.frozen, only_adapters=network.lora is not None)

    def trained(self, tree: Tree) -> Tree:
        """Returns the trained part of a tree that contains parameters or their axes."""
        return split(tree, self.frozen)[0]

    @functools.cached_property
    def num_trained(self) -> int:
        """The number of parameters that are trained."""
        shapes = jax.tree.leaves(self.trained(self.state_shapes.params))
        return sum(math.prod(shape.shape) for shape in shapes)

    @functools.cached_property
    def optimizer_def(self) -> optimizers.Optimizer:
        """The optimizer for the parameters that are trained."""
        return optimizers.create(self.optimizer, self.model.network, self.trained(self.axes))

    def _init_states(self, params: Params) -> Tree:
        return self.optimizer_def.init(self.trained(params))

    @functools.cached_property
    def state_shapes(self) -> TrainState:
        """The shapes and dtypes of the state, computed without allocating it."""
        network = self.model.network
        params = t5.param_shapes(network, stacked=network.scan_layers)
        states = jax.eval_shape(self._init_states, params)
        ema = None if self.config.ema is None else self.trained(params)
        return TrainState(jax.ShapeDtypeStruct((), jnp.int32), params, states, ema)

    @functools.cached_property
    def state_shardings(self) -> TrainState:
        """The shardings of the state; a slot shaped like its parameter is sharded like it."""
        shapes = self.state_shapes
        state_axes = self.optimizer_def.state_axes(self.trained(shapes.params), shapes.param_states)
        params = self.partitioner.shardings(shapes.params, self.axes)
        return TrainState(
            self.partitioner.replicated,
            params,
            self.partitioner.shardings(shapes.param_states, state_axes),
            None if shapes.ema is None else self.trained(params),
        )

    @functools.cached_property
    def _jit_init(self) -> Any:
        def init(rng: jax.Array) -> TrainState:
            params = t5.init_params(self.model.network, rng)
            params = stack_layers(params) if self.model.network.scan_layers else params
            states = self._init_states(params)
            return TrainState(jnp.zeros((), jnp.int32), params, states, self._first_average(params))

        return jax.jit(init, out_shardings=self.state_shardings)

    def check_functions(self, batch: Mapping[str, Any]) -> tuple[str, ...]:
        """Checks `model.loss_fn` and the schedule; returns the names of the metrics of `loss_fn`.

        Raises UserError if either function returns a value of the wrong type, or if the network's
        attention does not support the lengths of `batch`, which may be any batch that contains the
        features of the data.
        """
        if self.model.network.attention == "pallas":
            lengths = (batch[f"{side}_input_tokens"].shape[1] for side in ("decoder", "encoder"))
            flash_attention.is_used(self.model.network, *lengths)
        names: tuple[str, ...] = ()
        if (loss_fn := self.model.loss_fn) is not None:
            rows, length = batch["decoder_target_tokens"].shape
            logits = jax.ShapeDtypeStruct((rows, length, self.model.network.vocab_size), "float32")
            weights = jax.ShapeDtypeStruct((rows, length), "float32")
            checked = functools.partial(custom_loss, loss_fn)
            _, sums = jax.eval_shape(checked, logits, batch, weights)
            names = tuple(name for name in sums if name.startswith(PREFIX))
        jax.eval_shape(self._scheduled_rate, self.state_shapes.step)
        return names

    def init_state(self) -> TrainState:
        """Returns the initial state (step 0), which is allocated on the devices."""
        rng = self._rngs[0]
        with self.partitioner.in_force():
            return self._jit_init(rng)

    def _first_average(self, params: Params) -> Tree | None:
        """Returns the initial average of the trained parameters; None if `config.ema` is None."""
        if self.config.ema is None:
            return None
        return jax.tree.map(jnp.copy, self.trained(params))

    def eval_params(self, state: TrainState) -> Params:
        """Returns the parameters to evaluate, which are averaged if `ema.evaluate` is set."""
        if state.ema is None or self.config.ema is None or not self.config.ema.evaluate:
            return state.params
        return merged(state.ema, split(state.params, self.frozen)[1])

    def restore_state(
        self,
        path: str | AnyPath,
        *,
        assignment_map: AssignmentMap = (),
        fallback_to_scratch: bool = False,
    ) -> TrainState:
        """Reads a state from a checkpoint; see `restore_tree` for the arguments and errors.

        If the checkpoint contains no average, the average starts from the restored parameters.
        """
        averages = self.config.ema is not None and has_average(path)

        def kept(state: TrainState) -> dict[str, Any]:
            return (state if averages else dataclasses.replace(state, ema=None)).state_dict()

        tree = restore_tree(
            path,
            kept(self.state_shapes),
            kept(self.state_shardings),
            initial=lambda: kept(self.init_state()),
            assignment_map=assignment_map,
            fallback_to_scratch=fallback_to_scratch,
        )
        state = TrainState.from_state_dict(tree)
        if averages:
            return state
        return dataclasses.replace(state, ema=self._first_average(state.params))

    def global_batch(self, rows: HostBatch, batch_size: int) -> Batch:
        """Returns the global batch of `batch_size` rows, of which this process has `rows`."""
        if self.config.trim_padding and jax.process_count() == 1:
            rows = trimmed(rows)
        return self.partitioner.global_batch(rows, batch_size)

    def train_step(self, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        """Performs one update; donates `state`, which must not be used afterwards."""
        with self.partitioner.in_force():
            step = self._compiled_train_steps.get(_shapes(batch), self._jit_train_step)
            return step(state, batch, self._jit_scheduled_rate(state.step), self._rngs[1])

    def eval_step(self, params: Params, batch: Batch) -> Metrics:
        """Evaluates one batch without dropout; returns the sums from which metrics are computed."""
        with self.partitioner.in_force():
            return self._jit_eval_step(params, batch)

    def compile(self, state: Any, batch: Any) -> Any:
        """Compiles the training step for a state and a global batch, or for their shapes."""
        with self.partitioner.in_force():
            compiled = self.lower(state, batch).compile()
        self._compiled_train_steps[_shapes(batch)] = compiled
        return compiled

    def is_compiled(self, batch: Any) -> bool:
        """Returns whether the training step is compiled for the shapes of a global batch."""
        return _shapes(batch) in self._compiled_train_steps

    def lower(self, state: Any, batch: Any) -> Any:
        """Lowers the training step for a state and a global batch, or for their shapes."""
        # The key is computed before the mesh is in force, because the mesh may be abstract.
        rate, key = jax.eval_shape(self._scheduled_rate, state.step), self._rngs[1]
        with self.partitioner.in_force():
            return self._jit_train_step.lower(state, batch, rate, key)

    def remat_policy(self, batch: Any) -> RematPolicy:
        """Returns what the training step recomputes for a global batch, or for its shapes.

        This is `remat_policy` of the network, or what "auto" stands for. On GPUs and TPUs, "none"
        is not chosen: a scan that stacks more activations moves more bytes than "minimal" does.
        The choice depends on the kind of device, not on the memory that it reports, so that it is
        the same in all processes.
        """
        policy = self.model.network.remat_policy
        if policy != "auto":
            return policy
        mesh, shapes, shardings = self.partitioner.mesh, self.state_shapes, self.state_shardings
        device = mesh.devices.flat[0]
        chip = chip_of(device.device_kind)
        available = chip.memory // chip.devices if chip else memory.device_bytes(mesh.local_devices)
        left = _USABLE * (available or 0) - memory.num_bytes(shapes, shardings)
        left -= memory.num_bytes(self.trained(shapes.params), self.trained(shardings.params))
        policies: tuple[RematPolicy, ...] = ("none", "minimal")
        if device.platform != "cpu":
            policies = policies[1:]
        return next((each for each in policies if self.saved_bytes(batch, each) <= left), "full")

    def saved_bytes(self, batch: Any, remat_policy: RematPolicy) -> int:
        """Returns the bytes of activations that a device keeps for the backward pass, by estimate.

        The loss of a global batch, or of its shapes, is traced but not compiled. The partitioner
        must be in force.
        """
        shapes, network = self.state_shapes.params, self.model.network
        model = _with_policy(self.model, remat_policy)
        number = self.config.num_microbatches
        rows = {
            name: jax.ShapeDtypeStruct((x.shape[0] // number, *x.shape[1:]), x.dtype)
            for name, x in batch.items()
        }

        def saved(params: Params, rows: Batch, key: jax.Array) -> Any:
            trained, frozen = split(params, self.frozen)
            weights = self._weights(rows)
            rest = (weights.in_loss, key, self._chunk(rows), frozen, weights.per_token)
            return jax.vjp(lambda trained: loss_fn(model, trained, rows, *rest)[0], trained)[1]

        arrays = jax.tree.leaves(jax.eval_shape(saved, shapes, rows, self._rngs[1]))
        parameters = {x.shape for x in jax.tree.leaves(shapes)}
        of_model = {network.mlp_dim, network.num_heads}
        num_bytes = sum(
            math.prod(x.shape)
            * x.dtype.itemsize
            // (self.partitioner.mesh.shape["model"] if of_model & {*x.shape} else 1)
            for x in arrays
            if x.shape not in parameters
        )
        return num_bytes // self.partitioner.num_data_shards

    @functools.cached_property
    def _compiled_train_steps(self) -> dict[_Shapes, Any]:
        return {}

    @functools.cached_property
    def _jit_train_step(self) -> Any:
        return jax.jit(
            self._train_step,
            donate_argnums=0,
            in_shardings=(
                self.state_shardings,
                self.partitioner.batch,
                self.partitioner.replicated,
                self.partitioner.replicated,
            ),
            out_shardings=(self.state_shardings, self.partitioner.replicated),
        )

    def _scheduled_rate(self, step: jax.Array) -> jax.Array | None:
        schedule = self.optimizer_def.schedule
        return None if schedule is None else schedules.learning_rate(schedule, step)

    @functools.cached_property
    def _jit_scheduled_rate(self) -> Any:
        return jax.jit(self._scheduled_rate, out_shardings=self.partitioner.replicated)

    @functools.cached_property
    def _jit_eval_step(self) -> Any:
        return jax.jit(
            self._eval_step,
            in_shardings=(self.state_shardings.params, self.partitioner.batch),
            out_shardings=self.partitioner.replicated,
        )

    def _train_step(
        self, state: TrainState, batch: Batch, rate: jax.Array | None, dropout_key: jax.Array
    ) -> tuple[TrainState, Metrics]:
        # The learning rate and the key are arguments, not constants, so that runs that differ only
        # in the schedule or the seed compile the same program.
        dropout_rng = None
        network = self.model.network
        if network.dropout_rate > 0 or (network.lora and network.lora.dropout_rate > 0):
            dropout_rng = jax.random.fold_in(dropout_key, state.step)
        weights = self._weights(batch)
        trained, frozen = split(state.params, self.frozen)
        grads, sums = self._gradients(trained, frozen, batch, weights, dropout_rng)
        norm = optax.tree.norm(grads)
        if (threshold := self.optimizer_def.clip_threshold) is not None:
            scale = jnp.minimum(1.0, threshold / norm)
            grads = jax.tree.map(lambda g: g * scale, grads)
        params, param_states = self.optimizer_def.update(
            state.step, rate, sums["loss"], grads, trained, state.param_states
        )
        rate = self.optimizer_def.learning_rate(rate, param_states)
        metrics = {**self._metrics(batch, sums, weights), "weight_gradient_norm": norm}
        if rate is not None:
            metrics["learning_rate"] = rate
        new = TrainState(
            state.step + 1, merged(params, frozen), param_states, self._averaged(state.ema, params)
        )
        if self.config.skip_nonfinite_updates:
            good = jnp.isfinite(sums["loss"]) & jnp.isfinite(norm)
            old = dataclasses.replace(state, step=new.step)
            new = jax.tree.map(lambda n, o: jnp.where(good, n, o), new, old)
            metrics["skipped_updates"] = 1.0 - good.astype(jnp.float32)
        return new, metrics

    def _averaged(self, ema: Tree | None, params: Params) -> Tree | None:
        if ema is None or self.config.ema is None:
            return None
        decay = self.config.ema.decay
        return jax.tree.map(lambda mean, new: decay * mean + (1.0 - decay) * new, ema, params)

    def _eval_step(self, params: Params, batch: Batch) -> Metrics:
        weights = self._weights(batch)
        _, sums = loss_fn(
            self.model,
            params,
            batch,
            weights.in_loss,
            chunk=self._chunk(batch),
            token_weights=weights.per_token,
        )
        return self._metrics(batch, sums, weights)

    def _weights(self, batch: Batch) -> _Weights:
        choice = self.model.loss_normalizing_factor
        factor, weights = normalizing_factor_and_weights(choice, batch)
        per_token = None
        if choice == "AVERAGE_PER_SEQUENCE" and self.model.loss_fn is None:
            per_token = token_weights(batch)
        return _Weights(weights / factor, factor, per_token)

    def _metrics(self, batch: Batch, sums: Metrics, weights: _Weights) -> Metrics:
        """Returns the sums over a batch from which metrics are computed."""
        targets = batch["decoder_target_tokens"]
        weighted = (batch.get("decoder_loss_weights", targets) > 0).astype(jnp.float32)
        metrics = {
            "num_target_tokens": jnp.float32(targets.size),
            "num_weighted_tokens": jnp.sum(weighted),
            "loss_weights": jnp.sum(weights.in_loss),
        }
        for side, segments in zip(("encoder", "decoder"), t5.segments(batch), strict=True):
            metrics[f"num_tokens/{side}"] = jnp.float32(segments.size)
            nonpadding = jnp.sum((segments > 0).astype(jnp.float32))
            metrics[f"num_nonpadding_tokens/{side}"] = nonpadding
            # Segments are numbered from 1 in each row.
            num_examples = jnp.sum(jnp.max(segments, axis=-1)).astype(jnp.float32)
            metrics[f"num_examples/{side}"] = num_examples
        metrics |= {**sums, "normalizing_factor": jnp.float32(weights.factor)}
        if weights.per_token is not None:
            metrics["token_weights"] = jnp.sum(weights.per_token)
        return metrics

    def _chunk(self, batch: Batch) -> int | None:
        """Returns the number of target positions per chunk of logits; None for a single chunk."""
        rows, length = batch["decoder_target_tokens"].shape
        shape = rows, self.model.network.vocab_size
        sharding = self.partitioner.sharding(("batch", "vocab"), shape)
        num_positions = self.config.loss_chunk_elements // math.prod(sharding.shard_shape(shape))
        return None if num_positions >= length else max(1, num_positions)

    def _gradients(
        self,
        params: Params,
        frozen: Params,
        batch: Batch,
        weights: _Weights,
        dropout_rng: jax.Array | None,
    ) -> tuple[Params, Metrics]:
        """Returns the gradients for `params` and the sums for metrics, added over microbatches."""
        grad_fn = jax.grad(loss_fn, argnums=1, has_aux=True)
        model = _with_policy(self.model, self.remat_policy(batch))
        num_microbatches = self.config.num_microbatches
        if num_microbatches == 1:
            rest = (dropout_rng, self._chunk(batch), frozen, weights.per_token)
            return grad_fn(model, params, batch, weights.in_loss, *rest)

        def split(x: jax.Array) -> jax.Array:
            """Reshapes (batch, …) to (microbatches, rows, …), keeping each row on its device."""
            x = x.reshape(x.shape[0] // num_microbatches, num_microbatches, *x.shape[1:])
            return constrain(jnp.swapaxes(x, 0, 1), None, "batch", *(None,) * (x.ndim - 2))

        parts = jax.tree.map(split, (batch, weights.in_loss, weights.per_token))
        first = jax.tree.map(lambda x: x[0], parts)
        chunk = self._chunk(first[0])

        def of_part(part: Any, i: jax.Array | int) -> tuple[Params, Metrics]:
            rows, in_loss, per_token = part
            rng = None if dropout_rng is None else jax.random.fold_in(dropout_rng, i)
            return grad_fn(model, params, rows, in_loss, rng, chunk, frozen, per_token)

        def body(carry: Any, xs: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, carry, of_part(*xs)), None

        zero = jax.tree.map(jnp.zeros_like, jax.eval_shape(of_part, first, 0))
        (grads, sums), _ = jax.lax.scan(body, zero, (parts, jnp.arange(num_microbatches)))
        return grads, sums


def _with_policy(model: ModelConfig, remat_policy: RematPolicy) -> ModelConfig:
    network = dataclasses.replace(model.network, remat_policy=remat_policy)
    return dataclasses.replace(model, network=network)


def _shapes(batch: Any) -> _Shapes:
    return tuple((name, batch[name].shape) for name in sorted(batch))


def starting_state(
    trainer: Trainer, run_dir: AnyPath, restore: RestoreCheckpointConfig | None, train_steps: int
) -> TrainState:
    """Returns the state from which a run starts.

    The state is read from the latest checkpoint of the run or, if there is none, from the
    checkpoint that `restore` specifies. If `restore` is None too, the state is newly initialized.

    Raises UserError if the checkpoint does not fit the model, contains NaN or infinity, is not at
    `restore.step`, or is already at `train_steps`.
    """
    start = _start(run_dir, restore)
    is_first = jax.process_index() == 0
    if start is None:
        with waiting("initializing the parameters", shown=is_first):
            return trainer.init_state()
    path, restore, advice = start
    with _advising(advice), waiting(f"restoring {path}", shown=is_first):
        state = trainer.restore_state(
            path,
            assignment_map=restore.assignment_map,
            fallback_to_scratch=restore.fallback_to_scratch,
        )
    _check_step(int(state.step), run_dir, restore, train_steps)
    bad = finite.not_finite(flat_names(state.state_dict()))
    if bad:
        raise UserError(
            f"The checkpoint {path} contains NaN or infinity in {finite.shown(bad)}. {advice}"
        )
    return state


def check_start(
    trainer: Trainer,
    run_dir: AnyPath | None,
    restore: RestoreCheckpointConfig | None,
    train_steps: int,
) -> str:
    """Checks that `starting_state` will succeed, without reading arrays.

    Returns a description of the initial checkpoint. Raises UserError if the checkpoint cannot be
    used. NaN and infinity are not detected.
    """
    start = _start(run_dir, restore)
    if start is None:
        return "from scratch"
    path, restore, advice = start
    with _advising(advice):
        shapes = trainer.state_shapes
        if not has_average(path):
            shapes = dataclasses.replace(shapes, ema=None)
        step, fit = check_tree(
            path,
            shapes.state_dict(),
            assignment_map=restore.assignment_map,
            fallback_to_scratch=restore.fallback_to_scratch,
        )
    _check_step(step, run_dir, restore, train_steps)
    return f"{path} {fit}"


@contextlib.contextmanager
def _advising(advice: str) -> Iterator[None]:
    """Adds advice to error messages about incomplete checkpoints."""
    try:
        yield
    except UserError as error:
        if isinstance(error.__cause__, IncompleteCheckpoint):
            raise UserError(f"{error} If it is a copy, copy it again. {advice}") from error
        raise


def _start(
    run_dir: AnyPath | None, restore: RestoreCheckpointConfig | None
) -> tuple[AnyPath, RestoreCheckpointConfig, str] | None:
    """Returns the path of the initial checkpoint, its settings and advice for error messages.

    Returns None if the run starts from scratch.
    """
    saved = [] if run_dir is None else saved_steps(run_dir)
    if run_dir is not None and saved:
        path = checkpoint_dir(run_dir.resolve(), saved[-1])
        return path, RestoreCheckpointConfig(str(path), "specific"), RESUME_FROM_PREVIOUS
    if restore is None:
        return None
    advice = "Set checkpoint.restore.path to an earlier checkpoint."
    return checkpoint_path(restore), restore, advice


def _check_step(
    step: int, run_dir: AnyPath | None, restore: RestoreCheckpointConfig, train_steps: int
) -> None:
    """Raises UserError if `step` is not `restore.step`, or if no steps are left to train."""
    if restore.step is not None and restore.step != step:
        steps, left = train_steps - restore.step, train_steps - step
        advice = f"Pass --set checkpoint.restore.step={step}"
        if steps > 0:
            would = f"train for {left} steps instead of {steps}" if left > 0 else "not train"
            advice = f"With train_steps={train_steps}, the run would {would}. To train for {steps} "
            advice += f"steps, pass --set checkpoint.restore.step={step} train_steps={step + steps}"
        raise UserError(
            f"checkpoint.restore.step={restore.step} is the expected step, but {restore.path} is "
            f"at step {step}. {advice}"
        )
    if step >= train_steps and not (run_dir is not None and owed_evaluations(run_dir, step)):
        raise UserError(
            f"train_steps {train_steps} is the total number of steps, but the checkpoint to start "
            f"from is already at step {step}, so there is nothing to train. To train for "
            f"{train_steps} more steps, set train_steps={step + train_steps}."
        )
