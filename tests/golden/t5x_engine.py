"""Runs the parity suite's cases in T5X. Imports T5X, TensorFlow and SeqIO when first called."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mtf.t5x import adapters
from tests.golden import cases
from tests.golden.cases import Batch, Case

Tree = dict[str, Any]
Start = Callable[[str, tuple[int, ...]], np.ndarray]


@functools.cache
def _t5x() -> Any:
    from mtf.t5x import compatibility  # noqa: F401, I001  # before T5X is imported
    import t5x.trainer
    import t5x.utils  # With `trainer`, it imports the other modules.
    from absl import logging

    logging.set_verbosity(logging.ERROR)
    return t5x


class Engine:
    """A case in T5X, on all devices of this process.

    `trainer` is the dotted name of the class that trains; `optimizer` replaces the case's.
    """

    def __init__(
        self,
        case: Case,
        decode: str = "beam",
        network: str = "t5",
        trainer: str = "t5x.trainer.Trainer",
        optimizer: Any = None,
    ):
        t5x = _t5x()
        import jax
        import jax.numpy as jnp
        import seqio

        self.case = case
        networks = importlib.import_module(f"t5x.examples.{network}.network")
        fields = {**case.network, "dtype": jnp.dtype(case.network["dtype"])}
        module = networks.Transformer(networks.T5Config(**fields))
        functions = {
            "beam": t5x.decoding.beam_search,
            # Without rescaling, scores are those of the model, not of the only token left.
            "greedy": functools.partial(
                t5x.decoding.temperature_sample, topk=1, rescale_log_probs=False
            ),
        }
        optimizer = optimizer or _optimizer(case)
        vocabulary = seqio.ByteVocabulary()
        self.model = t5x.models.EncoderDecoderModel(
            module,
            vocabulary,
            vocabulary,
            optimizer,
            decode_fn=functions[decode],
            **{**cases.MODEL_DEFAULTS, **case.model},
        )
        self.partitioner = t5x.partitioning.PjitPartitioner(
            num_partitions=1, logical_axis_rules=t5x.partitioning.standard_logical_axis_rules()
        )
        example = cases.batches(case.packed)[0]
        self.initializer = t5x.utils.TrainStateInitializer(
            optimizer,
            self.model.get_initial_variables,
            {name: array.shape for name, array in example.items()},
            self.partitioner,
            dict.fromkeys(example, jnp.int32),
        )
        self._trainer = functools.partial(
            adapters.symbol(trainer),
            self.model,
            partitioner=self.partitioner,
            eval_names=["held_out"],
            summary_dir=None,
            train_state_axes=self.initializer.train_state_axes,
            rng=jax.random.PRNGKey(0),
            learning_rate_fn=t5x.utils.create_learning_rate_scheduler(**case.schedule),
            num_microbatches=case.num_microbatches,
        )

    def start(self, rule: Start = cases.start) -> Any:
        """Returns the state at step 0."""
        import flax.traverse_util as flat
        import jax

        shapes = self.initializer.global_train_state_shape
        tree = flat.flatten_dict(shapes.state_dict(), sep="/")

        def value(name: str, shape: Any) -> np.ndarray:
            if name.startswith("target/"):
                return rule(name.removeprefix("target/"), shape.shape)
            return np.zeros(shape.shape, shape.dtype)

        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        values = {name: value(name, leaf) for name, leaf in tree.items()}
        return zeros.restore_state(flat.unflatten_dict(values, sep="/"))

    def trainer(self, state: Any) -> Any:
        """Returns a T5X trainer at a state."""
        return self._trainer(train_state=state)

    def losses(self, trainer: Any, batches: Iterable[Batch]) -> Iterator[float]:
        """Trains on batches; yields the loss of each step."""
        for batch in batches:
            summary = trainer.train(iter([batch]), 1).result()
            yield float(np.float32(summary["loss"].value))

    def evaluate(self, trainer: Any) -> dict[str, float]:
        """Returns the metrics of held-out batches, without those of time."""
        batches = iter(cases.eval_batches(self.case.packed))
        summary = trainer.eval({"held_out": batches})["held_out"]
        return {
            name: float(np.float32(scalar.value))
            for name, scalar in summary.items()
            if not name.startswith("timing/")
        }

    def flat(self, state: Any) -> dict[str, np.ndarray]:
        """Returns a state as T5X's names → arrays."""
        import flax.traverse_util as flat

        tree = flat.flatten_dict(state.state_dict(), sep="/")
        return {name: np.asarray(value) for name, value in tree.items()}

    def scores(self, params: Any, batch: Batch) -> list[float]:
        """Returns the log-likelihood of each row's targets."""
        import jax

        return [float(x) for x in np.asarray(jax.jit(self.model.score_batch)(params, batch))]

    def decoded(self, params: Any, batch: Batch, num_decodes: int) -> tuple[Any, Any]:
        """Returns tokens (batch, decodes, length) and scores (batch, decodes), best first."""
        import jax

        predict = functools.partial(
            self.model.predict_batch_with_aux, return_all_decodes=True, num_decodes=num_decodes
        )
        tokens, aux = jax.jit(predict)(params, batch)
        return np.asarray(tokens)[:, ::-1], np.asarray(aux["scores"])[:, ::-1]

    def save(self, state: Any, directory: Path, layout: str) -> None:
        """Writes checkpoint_STEP; `layout` is "zarr" (zarr and msgpack) or "orbax"."""
        manager = self._manager(directory, layout, state)
        manager.save(state)
        if layout == "orbax":
            manager.wait_until_finished()
            manager.close()

    def restore(self, path: Path, layout: str) -> Any:
        """Returns the state of a checkpoint, read by T5X."""
        shapes = self.initializer.global_train_state_shape
        return self._manager(path.parent, layout, shapes).restore(path=str(path))

    def restore_for_inference(self, path: Path, layout: str) -> Any:
        """Returns the parameters and step of a checkpoint, read as T5X's `infer` reads them."""
        states = importlib.import_module("t5x.train_state")
        shapes = self.initializer.global_train_state_shape
        inference = states.InferenceState(shapes.step, shapes.params, shapes.params_axes)
        return self._manager(path.parent, layout, inference).restore(path=str(path))

    def _manager(self, directory: Path, layout: str, state: Any) -> Any:
        checkpoints = importlib.import_module("t5x.checkpoints")
        kind = {
            "zarr": checkpoints.Checkpointer,
            "orbax": checkpoints.OrbaxCheckpointManagerInterface,
        }[layout]
        if layout == "zarr":
            return kind(state, self.partitioner, str(directory))
        return kind(str(directory), state, self.partitioner)


def _optimizer(case: Case) -> Any:
    """Returns T5X's Adafactor or, in T5X's wrapper, optax's AdamW, which decays matrices only."""
    t5x = _t5x()
    import jax
    import optax

    if case.adamw is None:
        rules = t5x.adafactor.standard_logical_factor_rules()
        return t5x.adafactor.Adafactor(logical_factor_rules=rules, **case.optimizer)
    adamw = optax.adamw(
        t5x.utils.create_learning_rate_scheduler(**case.schedule),
        *(case.adamw[name] for name in ("beta1", "beta2", "epsilon")),
        weight_decay=case.adamw["weight_decay_rate"],
        mask=lambda params: jax.tree.map(lambda param: param.ndim >= 2, params),
    )
    clip = optax.clip_by_global_norm(case.adamw["global_norm_clip_threshold"])
    return t5x.optimizers.OptaxWrapper(optax.chain(clip, adamw))


def scanned_engine() -> Engine:
    """Returns T5X's network with stacked layers, which has a position bias in every layer."""
    return Engine(cases.Case(optimizer={"min_dim_size_to_factor": 32}), network="scalable_t5")
