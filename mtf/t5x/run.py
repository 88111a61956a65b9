"""Runs and describes a job with T5X (`python -m mtf.run RECIPE --engine t5x`)."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import fiddle as fdl

import conversion
from mtf.cluster.heartbeat import Heartbeat
from mtf.config import codegen, serialize, show
from mtf.config.run_dir import new_run_dir
from mtf.storage import AnyPath, as_path
from mtf.t5x import lowering, unsupported
from mtf.t5x.adapters import absolute_path
from mtf.t5x.logs import LOG_FILE, More, logged, loss_per_target_token
from mtf.writing import T5X_CONFIG_FILE, write_atomically

_IMPORT = "import mtf.t5x.compatibility  # noqa: F401  # before T5X is imported\n"
_RUN = "fdl.build(fdl.cast(fdl.Partial, config()))()"


def as_python(config: fdl.Config, name: str) -> str:
    """Returns T5X's config of a job as a module that runs it, in `runs/NAME-t5x` by default."""
    lowered = lowering.lower(config)
    _set_directory(lowered, f"runs/{name}-t5x")
    title = f"T5X's config of {name}."
    return codegen.write_module(lowered, title, imports=_IMPORT, run=_RUN)


def _directory_field(lowered: fdl.Config) -> str:
    return "model_dir" if "model_dir" in lowered.__signature_info__.parameters else "output_dir"


def _set_directory(lowered: fdl.Config, default: str) -> str:
    """Makes the directory to which T5X writes absolute, as Orbax requires; returns it as given."""
    field = _directory_field(lowered)
    folder = getattr(lowered, field) or default
    setattr(lowered, field, absolute_path(folder))
    return folder


def as_json(config: fdl.Config) -> str:
    """Returns T5X's config of a job as JSON; T5X's own defaults are left out."""
    return show.as_json(lowering.lower(config), defaults=False)


def as_flat_text(config: fdl.Config) -> str:
    """Returns a line `path = value` for every value that mtf passes to T5X."""
    from fiddle import printing

    text = printing.as_str_flattened(
        lowering.lower(config), include_types=False, raw_value_repr=True
    )
    lines = (line for line in text.splitlines() if " = <[unset" not in line)
    return "".join(f"{line}\n" for line in lines)


def prepare(config: fdl.Config) -> fdl.Config | None:
    """Returns T5X's config of a job, or None if the run has reached its last step.

    Prints which of the job's settings T5X ignores. Raises UserError if T5X cannot run the job, or
    not on the devices here.
    """
    lowered = lowering.lower(config)
    if _is_finished(lowered):
        return None
    from mtf.t5x import partitioning

    partitioning.check_devices(lowered)
    for path, reason in unsupported.notes(config):
        print(f"T5X ignores {path}: {reason}", file=sys.stderr)
    return lowered


def describe(config: fdl.Config) -> dict[str, str]:
    """Builds T5X's model and optimizer with shapes only; returns rows for the dry run."""
    lowered = lowering.lower(config)
    import jax
    from absl import logging as absl_logging

    # T5X warns that it does not use the factor rules of matrices, which is as it should be.
    absl_logging.set_verbosity(absl_logging.ERROR)
    state = state_shapes(lowered)

    size = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    function = fdl.get_callable(lowered)
    rows = {"T5X": f"{function.__module__}.{function.__qualname__}, {size:,} parameters"}
    ignored = ", ".join(path for path, _ in unsupported.notes(config))
    return rows | ({"ignored by T5X": ignored} if ignored else {})


def state_shapes(lowered: fdl.Config) -> Any:
    """Returns the shapes of T5X's state of training; allocates nothing, reads no vocabulary."""
    import copy

    import jax
    from t5x import train_state

    # A copy of the model without its vocabulary, whose file may be on a server.
    model = copy.deepcopy(lowered.model)
    model.input_vocabulary = model.output_vocabulary = None
    built = fdl.build(model)
    data = (
        lowered.train_dataset_cfg
        if hasattr(lowered, "train_dataset_cfg")
        else (lowered.dataset_cfg)
    )
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


def _is_finished(lowered: fdl.Config) -> bool:
    """Returns whether a run has reached its last step, and prints that it has; T5X would fail."""
    folder = getattr(lowered, "model_dir", None)
    if folder is None or not as_path(folder).is_dir():
        return False
    step = max((step for step, _ in conversion.list_checkpoints(folder)), default=0)
    if step < lowered.total_steps:
        return False
    print(
        f"{folder} is at step {step} of {lowered.total_steps}: nothing to train. To train for more "
        f"steps: python -m mtf.run --from {folder} --engine t5x --set train_steps={step + 1000}",
        flush=True,
    )
    return True


def run(lowered: fdl.Config) -> None:
    """Runs T5X; a run directory must have the job's config already."""
    folder = as_path(_set_directory(lowered, new_run_dir("evaluate-t5x")))
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / T5X_CONFIG_FILE, serialize.dump_json(lowered, defaults=False))
    trains = _directory_field(lowered) == "model_dir"
    with (
        _heartbeat() as heartbeat,
        heartbeat.recorded_in(folder),
        logged(folder, _more_metrics(lowered) if trains else dict),
    ):
        heartbeat.beat("running T5X")
        print(f"{folder}: running T5X; its log is {folder / LOG_FILE}", flush=True)
        function = fdl.build(fdl.cast(fdl.Partial, lowered))
        if trains:
            from mtf.t5x import stopping

            print(stopping.train(function, folder), flush=True)
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


def _heartbeat() -> Heartbeat:
    """Returns the heartbeat of this process. T5X does not say how far it is: it is not watched."""
    import jax

    devices = [str(device) for device in jax.local_devices()]
    return Heartbeat(jax.process_index(), jax.process_count(), devices)


def _more_metrics(lowered: fdl.Config) -> More:
    """Returns the function that computes mtf's metrics from T5X's."""
    data, factor = lowered.train_dataset_cfg, lowered.model.loss_normalizing_factor
    tokens = data.batch_size * data.task_feature_lengths["targets"]

    def more(metrics: Mapping[str, float]) -> Mapping[str, float]:
        return {"loss_per_target_token": loss_per_target_token(metrics, factor, tokens)}

    return more
