"""Evaluates checkpoints of a model on tasks, and resumes interrupted evaluations."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from mtf.base.errors import UserError
from mtf.base.processes.heartbeat import READING, Heartbeat
from mtf.base.progress import count
from mtf.evaluation import report
from mtf.evaluation.infer_eval import compare
from mtf.evaluation.rank import evaluate_rank_task
from mtf.evaluation.report import TaskResult
from mtf.evaluation.task_data import RankData, TextData
from mtf.evaluation.tasks import EvaluationTask, missing_tasks
from mtf.inference.batch import BatchInference
from mtf.inference.decoding.settings import DecodingConfig
from mtf.inference.files import Results, changed_values, join_files
from mtf.inference.loading import load_model
from mtf.inference.opening import Opened
from mtf.inference.predictor import Predictor
from mtf.models.t5 import num_parameters
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.processes import from_first_process, is_first_process
from mtf.storage import AnyPath, remove_tree

# Name of the folder that contains the predictions of ranked tasks until all tasks are done.
_RANKED = "tmp-evaluation"
# Names of the folders that contain the predictions of an unfinished evaluation.
UNFINISHED = {_RANKED, report.TEXT_PREDICTIONS}
# Number of examples in each part of the generated predictions.
_PART_SIZE = 1024


@dataclass
class Evaluator:
    """Evaluates several checkpoints of a network with the same compiled functions.

    Attributes:
      tasks: the tasks, including those without data.
      about: settings that determine the results and are stored in `results.json`.
      lengths: maximum number of tokens for each feature ("inputs" and "targets").
      decoding: decoding settings for the tasks with generated targets.
      batch_size: see `Predictor`.
      dtype: dtype of the parameters and activations.
      partitioner: the device mesh and the partitioning rules.
      heartbeat: monitor that records the activity of this process and ends it if it hangs.
    """

    tasks: Sequence[EvaluationTask]
    about: Mapping[str, Any]
    lengths: Mapping[str, int]
    decoding: DecodingConfig
    batch_size: int
    dtype: Literal["float32", "bfloat16"]
    partitioner: PjitPartitioner
    heartbeat: Heartbeat
    _predictor: Predictor | None = None

    def finished(self, opened: Opened, folder: AnyPath) -> list[TaskResult] | None:
        """Returns the results in `folder`, or None if it contains no finished evaluation.

        Raises UserError if the results were computed with different settings.
        """
        found = None
        if is_first_process() and (folder / report.RESULTS).is_file():
            there, results = report.read(folder)
            if changed := changed_values(there, self._settings(opened)):
                raise UserError(
                    f"output_dir: {folder} contains results that were computed with other "
                    f"settings: {changed}. Choose another output_dir, or delete {folder}."
                )
            found = list(map(asdict, results))
        found = from_first_process(found)
        return None if found is None else list(map(TaskResult.from_json, found))

    def evaluate(self, opened: Opened, folder: AnyPath, *, events: bool) -> list[TaskResult]:
        """Evaluates a checkpoint and writes the results to `folder`.

        TensorBoard events are written only if `events` is true. Reuses the predictions of an
        interrupted evaluation with the same settings. Raises UserError if `folder` contains
        predictions computed with other settings, or if a score is NaN or infinite.
        """
        started, settings = time.perf_counter(), self._settings(opened)
        self.heartbeat.beat("loading the checkpoint", opened.checkpoint.step)
        predictor = self._load(opened)
        mesh, size = self.partitioner.mesh, num_parameters(opened.model.network)
        if is_first_process():
            on = f"{mesh.devices.size} × {mesh.devices.flat[0].device_kind}"
            print(f"{opened.checkpoint.path}: {count(size)} parameters on {on}", flush=True)
        batch = BatchInference(
            *(predictor, opened.vocabulary, self.lengths),
            mode="predict",
            decoding=self.decoding,
            part_size=_PART_SIZE,
            heartbeat=self.heartbeat,
        )
        results = [self._evaluate_task(task, batch, folder, settings) for task in self.tasks]
        _check_usable(results, folder)
        if not is_first_process():
            return results
        about = {
            **settings,
            "missing_tasks": missing_tasks(self.tasks),
            "num_parameters": size,
            "mesh": dict(mesh.shape),
            "seconds": round(time.perf_counter() - started, 1),
        }
        if ranked := [r.task for r in results if r.kind == "rank" and r.absent is None]:
            parts = [_rank_results(folder, name, {}).path for name in ranked]
            join_files(parts, folder / report.PREDICTIONS)
        if events:
            report.write_events(folder, {opened.checkpoint.step or 0: results})
        report.write(folder, results, about)
        remove_tree(folder / _RANKED)
        return results

    def _settings(self, opened: Opened) -> dict[str, Any]:
        """Returns the settings that determine the results of a checkpoint."""
        generates = any(task.kind == "generate" for task in self.tasks)
        return {
            **self.about,
            "num_tasks": len(self.tasks),
            "num_missing_tasks": len(missing_tasks(self.tasks)),
            "checkpoint": str(opened.checkpoint.path),
            "step": opened.checkpoint.step,
            "vocabulary": opened.vocabulary.fingerprint(),
            "dtype": self.dtype,
            "batch_size": self.batch_size,
            "task_feature_lengths": dict(self.lengths),
            **({"decoding": asdict(self.decoding)} if generates else {}),
        }

    def _load(self, opened: Opened) -> Predictor:
        """Loads a checkpoint into the predictor; the first call creates the predictor."""
        if self._predictor is not None:
            # Free the old parameters first, because two checkpoints may not fit into memory.
            self._predictor.params = {}
        loaded = load_model(opened, self.dtype, self.partitioner)
        if self._predictor is None:
            lengths = self.lengths["inputs"], self.lengths["targets"]
            self._predictor = loaded.predictor(self.batch_size, *lengths)
        self._predictor.params = loaded.params
        return self._predictor

    def _evaluate_task(
        self,
        task: EvaluationTask,
        batch: BatchInference,
        folder: AnyPath,
        settings: Mapping[str, Any],
    ) -> TaskResult:
        """Evaluates a task, writes its predictions, and prints its first metric."""
        if task.load is None:
            about = task.name, task.dataset, task.prompt
            return TaskResult(*about, kind=task.kind, absent=task.absent)
        present = [each for each in self.tasks if each.load is not None]
        position = f"{present.index(task) + 1}/{len(present)}"
        self.heartbeat.beat(READING)
        data = task.load()
        if task.kind == "generate":
            found = _generate(task, data, batch, folder, settings)
        else:
            described = {**settings, "examples": len(data.examples), "fingerprint": _hash(data)}
            results = _rank_results(folder, task.name, described)
            title = f"{position} {task.name}"
            found = evaluate_rank_task(task, data, batch.predictor, results, title, self.heartbeat)
        if found is not None:
            metric = found.first_metric
            value = "     –" if metric is None else f"{found.metrics[metric]:6.2f}"
            width = max(len(each.name) for each in present)
            examples = f"({found.num_examples:,})"
            print(
                f"{position:>7}  {task.name:<{width}}  {value}  {metric or ''} {examples}",
                flush=True,
            )
        result = from_first_process(None if found is None else asdict(found))
        return TaskResult.from_json(result)


def _generate(
    task: EvaluationTask,
    data: TextData,
    batch: BatchInference,
    folder: AnyPath,
    settings: Mapping[str, Any],
) -> TaskResult | None:
    """Generates predictions for a task and compares them with the targets.

    Returns the result in the first process and None in all other processes.
    """
    source = data.examples
    described = {
        **settings,
        "examples": source.num_examples,
        "fingerprint": source.fingerprint,
        "inputs_add_eos": source.inputs_add_eos,
    }
    results = Results(folder / report.TEXT_PREDICTIONS, f"{task.name}-predict", described)
    batch.write(source, results)
    if not is_first_process():
        return None
    lines = list(results.read())
    targets = [line["inputs"]["targets_pretokenized"] for line in lines]
    predictions = [line["prediction"] for line in lines]
    return TaskResult(
        *(task.name, task.dataset, task.prompt),
        compare(task, targets, predictions) if lines else {},
        kind="generate",
        num_examples=len(lines),
        num_left_out=data.num_left_out,
        num_truncated=results.num_truncated,
        failed=data.failed,
    )


def _rank_results(folder: AnyPath, task: str, described: dict[str, Any]) -> Results:
    return Results(folder / _RANKED, f"{task}-rank", described)


def _hash(data: RankData) -> str:
    digest = hashlib.sha256()
    for example in data.examples:
        digest.update(json.dumps([example.inputs, example.choices, example.correct]).encode())
    return digest.hexdigest()[:16]


def _check_usable(results: Sequence[TaskResult], folder: AnyPath) -> None:
    """Raises UserError if no example can be evaluated and at least one row failed.

    A row fails, for example, if a column is missing. The empty prediction files are deleted before
    the error is raised.
    """
    failed = [result for result in results if result.failed]
    if failed and not any(result.num_examples for result in results):
        if is_first_process():
            for name in UNFINISHED:
                remove_tree(folder / name)
            with contextlib.suppress(OSError):  # The folder may contain a lock file.
                folder.rmdir()
        row, reason = next(iter(failed[0].failed.items()))
        raise UserError(
            f"{failed[0].task}: no row can be used. The first problem is in row {row}: {reason}"
        )
