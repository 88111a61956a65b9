"""Runs and describes a T5X config. Importing this module imports JAX and T5X."""

from __future__ import annotations

# isort: off
from mtf.t5x import compatibility  # noqa: F401  # must precede the import of T5X
# isort: on

import copy
import functools
import json
from typing import Any

import fiddle as fdl
import jax
from absl import logging as absl_logging
from fiddle.experimental import serialization
from t5x import train_state

from mtf.base.processes.heartbeat import Heartbeat
from mtf.base.run_end import RunEnd, write_end
from mtf.base.writing import T5X_CONFIG_FILE, write_atomically
from mtf.storage import AnyPath
from mtf.t5x import unsupported
from mtf.t5x.logs import LOG_FILE, More, logged, more_metrics
from mtf.t5x.partitioning import check_devices as check_devices


def describe(config: fdl.Config, lowered: fdl.Config) -> dict[str, str]:
    """Returns the dry run's rows about T5X; builds T5X's model without allocating arrays."""
    # Hide T5X's harmless warning that it does not use the factor rules for matrices.
    absl_logging.set_verbosity(absl_logging.ERROR)
    state = state_shapes(lowered)

    size = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    function = fdl.get_callable(lowered)
    rows = {"T5X": f"{function.__module__}.{function.__qualname__}, {size:,} parameters"}
    ignored = ", ".join(path for path, _ in unsupported.notes(config))
    return rows | ({"ignored by T5X": ignored} if ignored else {})


def state_shapes(lowered: fdl.Config) -> Any:
    """Returns the shapes of T5X's train state without creating arrays or reading a vocabulary."""
    # The copy of the model has no vocabulary, because the vocabulary file may be remote.
    model = copy.deepcopy(lowered.model)
    model.input_vocabulary = model.output_vocabulary = None
    built = fdl.build(model)
    trains = hasattr(lowered, "train_dataset_cfg")
    data = lowered.train_dataset_cfg if trains else lowered.dataset_cfg
    lengths, rows = data.task_feature_lengths, data.batch_size
    shapes = {
        f"{side}_input_tokens": (rows, lengths[feature])
        for side, feature in (("encoder", "inputs"), ("decoder", "targets"))
    }

    def create() -> Any:
        variables = built.get_initial_variables(jax.random.PRNGKey(0), shapes)
        if built.optimizer_def is None:
            return train_state.InferenceState.create(variables)
        return train_state.FlaxOptimTrainState.create(built.optimizer_def, variables)

    return jax.eval_shape(create)


def run(lowered: fdl.Config, folder: AnyPath) -> None:
    """Runs T5X in `folder`. For training, `folder` must already contain the job's config."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = json.loads(serialization.dump_json(lowered))
    write_atomically(folder / T5X_CONFIG_FILE, f"{json.dumps(stored, indent=1)}\n")
    trains = "model_dir" in lowered.__signature_info__.parameters
    more: More = dict
    if trains:
        data, factor = lowered.train_dataset_cfg, lowered.model.loss_normalizing_factor
        tokens = data.batch_size * data.task_feature_lengths["targets"]
        more = functools.partial(more_metrics, factor=factor, tokens_per_batch=tokens)
    with (
        # This heartbeat does not detect hangs, because T5X does not report progress.
        Heartbeat(jax.process_index(), jax.process_count()) as heartbeat,
        heartbeat.recorded_in(folder),
        logged(folder, more),
    ):
        heartbeat.beat("running T5X")
        print(f"Running T5X in {folder}. Its log is {folder / LOG_FILE}.", flush=True)
        function = fdl.build(fdl.cast(fdl.Partial, lowered))
        if trains:
            step, _ = function()
            if jax.process_index() == 0:
                write_end(folder, RunEnd("finished"))
            print(f"run directory  {folder} (T5X, step {step})", flush=True)
            return
        function()
    for results in sorted(map(str, folder.glob("*.jsonl-*-of-*[0-9]"))):
        print(f"results  {results}", flush=True)
    files: list[AnyPath] = [*(folder / "inference_eval").glob("*-metrics.jsonl")]
    for file in sorted(files, key=str):
        metrics = json.loads(file.read_text(encoding="utf-8").splitlines()[-1])
        values = "  ".join(
            f"{name} {value:.2f}" for name, value in metrics.items() if isinstance(value, float)
        )
        print(f"{file.name.removesuffix('-metrics.jsonl')}  {values}", flush=True)
