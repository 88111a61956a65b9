"""Trackers that send the data of a run to Weights & Biases or MLflow.

The libraries are imported on first use, because they are optional and slow to import.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Literal

from mtf.base.errors import UserError
from mtf.base.extras import check_extra
from mtf.base.run_end import RunEnd
from mtf.training.trackers.tracker import Sample, TrackedRun, Tracker

_NOT_ALLOWED = re.compile(r"[^\w\-. :/]")  # characters that MLflow does not allow in names
_MLFLOW_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


@dataclasses.dataclass
class Wandb(Tracker):
    """Tracks a run with Weights & Biases (https://docs.wandb.ai).

    Settings that are None default to the library's environment variables.

    Attributes:
      project, entity, group, tags, notes: the arguments of `wandb.init` with these names.
      name: the name of the run; None for the name of the run directory.
      mode: "online", "offline" (data is kept in the run directory for `wandb sync`) or "disabled".
    """

    project: str | None = None
    entity: str | None = None
    name: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()
    notes: str | None = None
    mode: Literal["online", "offline", "disabled"] | None = None

    def check(self) -> None:
        """Raises UserError if the package or the API key is missing."""
        check_extra("wandb", "Weights & Biases", "wandb")
        is_online = (self.mode or os.environ.get("WANDB_MODE", "online")) == "online"
        if is_online and not importlib.import_module("wandb").login(verify=False, prompt=False):
            raise UserError(
                "trackers: no API key for Weights & Biases was found. Run `wandb login`, set "
                "WANDB_API_KEY, or set the tracker's mode to 'offline'."
            )

    def start(self, run: TrackedRun) -> str:
        """Starts a new run or, if `run.id` is set, continues that run; returns the id."""
        wandb = importlib.import_module("wandb")
        has_folder = "WANDB_DIR" in os.environ or "://" in run.directory
        self._run = wandb.init(
            **{**dataclasses.asdict(self), "name": self.name or run.name},
            id=run.id,
            resume=None if run.id is None else "allow",
            dir=None if has_folder else run.directory,
            config=dict(run.config),
            allow_val_change=True,  # A resumed run may train for more steps.
            reinit="create_new",
            # The run waits 60 s for its trackers. `wandb sync` can upload the remaining data.
            settings=wandb.Settings(console="off", finish_timeout=50.0),
        )
        # W&B drops values for steps before its own step counter, so the step is a metric instead.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        return str(self._run.id)

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Logs the metrics of a step."""
        self._run.log({"step": step, **metrics})

    def log_samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Logs the samples as a table with the name "samples"."""
        rows = [list(each) for each in samples]
        table = importlib.import_module("wandb").Table(columns=list(Sample._fields), data=rows)
        self._run.log({"step": step, "samples": table})

    def log_checkpoint(self, step: int, path: str) -> None:
        """Logs the path under the name "checkpoint", without uploading files."""
        self._run.log({"step": step, "checkpoint": path})

    def end(self, end: RunEnd) -> None:
        """Ends the run and reports whether it failed."""
        self._run.summary["end"] = end.how if end.reason is None else f"{end.how}: {end.reason}"
        self._run.finish(exit_code=int(end.how == "failed"))


@dataclasses.dataclass
class MLflow(Tracker):
    """Tracks a run with MLflow (https://mlflow.org/docs/latest/ml/tracking).

    The config is logged as parameters and as the artifact `config.json`. MLflow's parameters cannot
    be changed, so if the config of a resumed run has changed, only the artifact shows the change.
    Settings that are None default to MLflow's environment variables.

    Attributes:
      tracking_uri: the address of a server or store, such as http://… or sqlite:///mlflow.db.
      experiment: the name of the experiment, which is created if it does not exist.
      name: the name of the run; None for the name of the run directory.
      tags: a dict mapping tags to values.
    """

    tracking_uri: str | None = None
    experiment: str | None = None
    name: str | None = None
    tags: dict[str, str] = dataclasses.field(default_factory=dict)

    def check(self) -> None:
        """Raises UserError if the package is missing."""
        check_extra("mlflow", "MLflow", "mlflow")

    def start(self, run: TrackedRun) -> str:
        """Starts a new run or, if `run.id` is set, continues that run; returns the id."""
        self._entities = importlib.import_module("mlflow.entities")
        self._client = client = importlib.import_module("mlflow").MlflowClient(self.tracking_uri)
        if run.id is None:
            name = self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
            found = client.get_experiment_by_name(name)
            experiment = client.create_experiment(name) if found is None else found.experiment_id
            run_name, tags = self.name or run.name, dict(self.tags)
            self._id = client.create_run(experiment, run_name=run_name, tags=tags).info.run_id
        else:
            self._id = run.id
            client.update_run(self._id, status="RUNNING")
        known = client.get_run(self._id).data.params
        named = {_NOT_ALLOWED.sub("_", path): str(value) for path, value in run.config.items()}
        params = [self._entities.Param(*item) for item in named.items() if item[0] not in known]
        for start in range(0, len(params), 100):  # A request may contain up to 100 parameters.
            client.log_batch(self._id, params=params[start : start + 100])
        client.log_dict(self._id, dict(run.config), "config.json")
        return str(self._id)

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Logs the metrics of a step."""
        now, metric = int(time.time() * 1000), self._entities.Metric
        each = [metric(_NOT_ALLOWED.sub("_", k), float(v), now, step) for k, v in metrics.items()]
        self._client.log_batch(self._id, metrics=each)

    def log_samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Logs the samples as a table in the artifact `samples.json`."""
        columns = dict(zip(Sample._fields, map(list, zip(*samples, strict=True)), strict=True))
        table = {"step": [step] * len(samples), **columns}
        self._client.log_table(self._id, table, "samples.json")

    def log_checkpoint(self, step: int, path: str) -> None:
        """Logs the path as the tag `checkpoint.STEP`, without uploading files."""
        self._client.set_tag(self._id, f"checkpoint.{step}", path)

    def end(self, end: RunEnd) -> None:
        """Ends the run with the status FINISHED, KILLED (after a signal) or FAILED."""
        if end.reason is not None:
            self._client.set_tag(self._id, "end", end.reason)
        self._client.set_terminated(self._id, _MLFLOW_STATUS[end.how])
