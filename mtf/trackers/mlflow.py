"""MLflow (https://mlflow.org/docs/latest/ml/tracking)."""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Mapping, Sequence

from mtf.extras import check_extra
from mtf.run_end import RunEnd
from mtf.trackers.tracker import Sample, TrackedRun, Tracker

_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
# Parameters in a request (mlflow.utils.validation: MAX_PARAMS_TAGS_PER_BATCH).
_MAX_PARAMS = 100


@dataclasses.dataclass
class MLflow(Tracker):
    """Tracks a run with MLflow; settings that are None are those of its environment.

    Attributes:
      tracking_uri: the server or store, such as http://… or sqlite:///mlflow.db.
      experiment: name of the experiment, which is created if it does not exist.
      name: the name of the run; None: that of the run directory.
      tags: tag → value.
    """

    tracking_uri: str | None = None
    experiment: str | None = None
    name: str | None = None
    tags: dict[str, str] = dataclasses.field(default_factory=dict)

    def check(self) -> None:
        """Raises UserError if the package is missing."""
        check_extra("mlflow", "MLflow", "mlflow")

    def start(self, run: TrackedRun) -> str:
        """Starts a run, or continues that of `run.id`; returns its id.

        The config becomes parameters, and the artifact `config.json`. MLflow's parameters cannot
        change: if a resumed run has another config, only the artifact shows it.
        """
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = client = MlflowClient(self.tracking_uri)
        if run.id is None:
            name = self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
            found = client.get_experiment_by_name(name)
            experiment = client.create_experiment(name) if found is None else found.experiment_id
            created = client.create_run(
                experiment, run_name=self.name or run.name, tags=dict(self.tags)
            )
            self._id = created.info.run_id
        else:
            self._id = run.id
            client.update_run(self._id, status="RUNNING")
        known = client.get_run(self._id).data.params
        named = {_name(path): str(value) for path, value in run.config.items()}
        params = [Param(name, value) for name, value in named.items() if name not in known]
        for start in range(0, len(params), _MAX_PARAMS):
            client.log_batch(self._id, params=params[start : start + _MAX_PARAMS])
        client.log_dict(self._id, dict(run.config), "config.json")
        return self._id

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Logs metrics."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        each = [Metric(_name(name), float(value), now, step) for name, value in metrics.items()]
        self._client.log_batch(self._id, metrics=each)

    def log_samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Logs examples as the table `samples.json`."""
        columns = dict(zip(Sample._fields, map(list, zip(*samples, strict=True)), strict=True))
        table = {"step": [step] * len(samples), **columns}
        self._client.log_table(self._id, table, "samples.json")

    def log_checkpoint(self, step: int, path: str) -> None:
        """Logs the path as the tag `checkpoint.STEP`; the files are not uploaded."""
        self._client.set_tag(self._id, f"checkpoint.{step}", path)

    def end(self, end: RunEnd) -> None:
        """Ends the run as finished, killed (by a signal) or failed."""
        if end.reason is not None:
            self._client.set_tag(self._id, "end", end.reason)
        self._client.set_terminated(self._id, _STATUS[end.how])


def _name(name: str) -> str:
    """Returns a name with the characters that MLflow allows."""
    return re.sub(r"[^\w\-. :/]", "_", name)
