"""Evaluates checkpoints of a model on tasks, and resumes what was interrupted."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from mtf.cluster.heartbeat import READING, Heartbeat
from mtf.cluster.process_files import FOLDER
from mtf.decoding.settings import DecodingConfig
from mtf.errors import UserError
from mtf.evaluation import report
from mtf.evaluation.infer_eval import compare
from mtf.evaluation.rank import evaluate_rank_task
from mtf.evaluation.rank_data import RankData, RankTask
from mtf.evaluation.report import TaskResult
from mtf.evaluation.settings import UNFINISHED
from mtf.evaluation.tasks import EvaluationTask, missing_tasks
from mtf.evaluation.text_data import TextData, TextTask
from mtf.inference.batch import BatchInference
from mtf.inference.files import Results, changed_values, join_files
from mtf.inference.loading import Loaded, load_model
from mtf.inference.opening import Opened
from mtf.inference.predictor import Predictor
from mtf.models.settings import T5Config
from mtf.models.t5 import num_parameters
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.processes import from_first_process, is_first_process
from mtf.progress import count
from mtf.storage import AnyPath, files_below, remove_tree
from mtf.text.vocabularies import Vocabulary
from mtf.writing import LOCK_FILE, write_atomically

# The file whose folder says, also in a store, that an evaluation is unfinished.
_MARKER = f"{UNFINISHED}/settings.json"
# Examples with generated targets between two writes.
_PART_SIZE = 1024


@dataclass
class Evaluator:
    """Evaluates checkpoints of one network, with the same compiled functions.

    Attributes:
      tasks: the tasks, including those without data.
      about: settings that determine the results, as stored in `results.json`.
      lengths: maximum number of tokens of "inputs" and "targets".
      decoding: decoding of the tasks with generated targets.
      batch_size: see `Predictor`.
      dtype: dtype of parameters and activations.
      partitioner: the mesh and its rules.
      heartbeat: records what this process does, and ends it if it hangs.
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
    _network: T5Config | None = None

    @property
    def missing(self) -> dict[str, str]:
        """The reason that a task has no data, by task, for those without data."""
        return missing_tasks(self.tasks)

    def finished(self, opened: Opened, folder: AnyPath) -> list[TaskResult] | None:
        """Returns the results of a checkpoint from `folder`, or None if they are not complete.

        Raises UserError if they are from other settings.
        """
        found = None
        if is_first_process() and (folder / report.RESULTS).is_file():
            there, results = report.read(folder)
            if changed := changed_values(there, self._decides(opened)):
                raise UserError(
                    f"output_dir: {folder} has results from other settings: {changed}. Choose "
                    f"another output_dir, or delete {folder}."
                )
            found = list(map(asdict, results))
        found = from_first_process(found)
        return None if found is None else list(map(TaskResult.from_json, found))

    def evaluate(self, opened: Opened, folder: AnyPath) -> list[TaskResult]:
        """Evaluates a checkpoint and writes all files to `folder`, except TensorBoard's events.

        Predictions of an earlier, interrupted evaluation with the same settings are used. Raises
        UserError if there are predictions from other settings, a score is not a number, or the
        checkpoint has another network than the first one.
        """
        started, decides = time.perf_counter(), self._decides(opened)
        self.heartbeat.beat("loading the checkpoint", opened.checkpoint.step)
        predictor, loaded = self._load(opened)
        mesh, size = self.partitioner.mesh, num_parameters(opened.model.network)
        if is_first_process():
            on = f"{mesh.devices.size} × {mesh.devices.flat[0].device_kind}"
            print(f"{loaded.path}: {count(size)} parameters on {on}", flush=True)
            (folder / UNFINISHED).mkdir(parents=True, exist_ok=True)
            write_atomically(folder / _MARKER, json.dumps(decides, indent=1) + "\n")
        checkpoint = _Checkpoint(
            predictor,
            loaded.vocabulary,
            self.lengths,
            self.decoding,
            folder,
            decides,
            self.heartbeat,
        )
        results: list[TaskResult] = []
        try:
            for task in self.tasks:
                results.append(self._evaluate_task(task, checkpoint))
            _check_usable(results, folder)
        except UserError:
            if is_first_process():
                _remove_if_empty(folder)
            raise
        if not is_first_process():
            return results
        about = {
            **decides,
            "missing_tasks": self.missing,
            "num_parameters": size,
            "mesh": dict(mesh.shape),
            "seconds": round(time.perf_counter() - started, 1),
        }
        if ranked := [r.task for r in results if r.kind == "rank" and r.absent is None]:
            parts = [_rank_results(folder, name, {}).path for name in ranked]
            join_files(parts, folder / report.PREDICTIONS)
        report.write(folder, results, about)
        remove_tree(folder / UNFINISHED)
        return results

    def _decides(self, opened: Opened) -> dict[str, Any]:
        """Returns the values that determine the results of a checkpoint."""
        generates = any(isinstance(task, TextTask) for task in self.tasks)
        return {
            **self.about,
            "num_tasks": len(self.tasks),
            "num_missing_tasks": len(self.missing),
            "checkpoint": str(opened.checkpoint.path),
            "step": opened.checkpoint.step,
            "vocabulary": opened.vocabulary.fingerprint(),
            "dtype": self.dtype,
            "batch_size": self.batch_size,
            "task_feature_lengths": dict(self.lengths),
            **({"decoding": asdict(self.decoding)} if generates else {}),
        }

    def _load(self, opened: Opened) -> tuple[Predictor, Loaded]:
        if self._predictor is None:
            loaded = load_model(opened, dtype=self.dtype, partitioner=self.partitioner)
            lengths = self.lengths["inputs"], self.lengths["targets"]
            self._predictor = loaded.predictor(self.batch_size, *lengths)
            self._network = opened.model.network
            return self._predictor, loaded
        if opened.model.network != self._network:
            raise UserError(
                f"{opened.checkpoint.path} has another network than the first checkpoint evaluated."
            )
        # The devices may not have room for the parameters of two checkpoints.
        self._predictor.params = {}
        loaded = load_model(opened, dtype=self.dtype, partitioner=self.partitioner)
        self._predictor.params = loaded.params
        return self._predictor, loaded

    def _evaluate_task(self, task: EvaluationTask, checkpoint: _Checkpoint) -> TaskResult:
        """Evaluates a task, and prints its first metric."""
        if task.load is None:
            kind: Literal["rank", "generate"] = "generate" if isinstance(task, TextTask) else "rank"
            return TaskResult(task.name, task.dataset, task.prompt, kind=kind, absent=task.absent)
        present = [each for each in self.tasks if each.load is not None]
        place = f"{present.index(task) + 1}/{len(present)}"
        self.heartbeat.beat(READING)
        data = task.load()
        if isinstance(task, TextTask):
            assert isinstance(data, TextData)
            found = checkpoint.generate(task, data)
        else:
            assert isinstance(data, RankData)
            found = checkpoint.rank(task, data, f"{place} {task.name}")
        if found is not None:
            metric = found.first_metric
            value = "     –" if metric is None else f"{found.metrics[metric]:6.2f}"
            width = max(len(each.name) for each in present)
            count = f"({found.num_examples:,})"
            print(f"{place:>7}  {task.name:<{width}}  {value}  {metric or ''} {count}", flush=True)
        result = from_first_process(None if found is None else asdict(found))
        return TaskResult.from_json(result)


@dataclass(frozen=True)
class _Checkpoint:
    """Evaluates one checkpoint on one task after another.

    The methods return a task's result, or None in all processes but the first, and write its
    predictions; those of an interrupted evaluation are used.

    Attributes:
      predictor: the model.
      vocabulary: vocabulary of the model.
      lengths, decoding: see `Evaluator`.
      folder: directory of the predictions.
      decides: the values that determine the results.
      heartbeat: see `Evaluator`.
    """

    predictor: Predictor
    vocabulary: Vocabulary
    lengths: Mapping[str, int]
    decoding: DecodingConfig
    folder: AnyPath
    decides: Mapping[str, Any]
    heartbeat: Heartbeat

    def rank(self, task: RankTask, data: RankData, label: str) -> TaskResult | None:
        """Ranks the choices of a task's examples; `label` is shown with the progress."""
        results = _rank_results(self.folder, task.name, {**self.decides, **_described(data)})
        return evaluate_rank_task(task, data, self.predictor, results, label, self.heartbeat)

    def generate(self, task: TextTask, data: TextData) -> TaskResult | None:
        """Decodes the inputs of a task's examples and compares the results with the targets."""
        source = data.source
        described = {
            **self.decides,
            "examples": source.summary.num_examples,
            "fingerprint": source.summary.fingerprint,
            "inputs_add_eos": source.inputs_add_eos,
        }
        results = Results(self.folder / report.TEXT_PREDICTIONS, f"{task.name}-predict", described)
        batch = BatchInference(
            self.predictor,
            self.vocabulary,
            self.lengths,
            mode="predict",
            decoding=self.decoding,
            part_size=_PART_SIZE,
            shard_id=0,
            num_shards=1,
            heartbeat=self.heartbeat,
        )
        try:
            batch.write(source, results)
        except UserError:
            if is_first_process():
                results.remove_if_empty()
            raise
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
    return Results(folder / UNFINISHED, f"{task}-rank", described)


def _described(data: RankData) -> dict[str, Any]:
    digest = hashlib.sha256()
    for example in data.examples:
        digest.update(json.dumps([example.inputs, example.choices, example.correct]).encode())
    return {"examples": len(data.examples), "fingerprint": digest.hexdigest()[:16]}


def _check_usable(results: Sequence[TaskResult], folder: AnyPath) -> None:
    """Raises UserError if rows failed, as with a wrong column, and no example is left.

    Removes the predictions, which are empty then.
    """
    failed = [result for result in results if result.failed]
    if failed and not any(result.num_examples for result in results):
        if is_first_process():
            remove_tree(folder / report.TEXT_PREDICTIONS)
        row, reason = next(iter(failed[0].failed.items()))
        raise UserError(f"{failed[0].task}: no row can be used; the first is row {row}: {reason}")


def _remove_if_empty(folder: AnyPath) -> None:
    """Removes the folders of an evaluation that failed before it wrote any prediction."""
    without = {UNFINISHED, _MARKER, report.TEXT_PREDICTIONS, LOCK_FILE}
    files = files_below(folder) or set()
    if {name for name in files if name.partition("/")[0] != FOLDER} <= without:
        remove_tree(folder / UNFINISHED)
        remove_tree(folder / report.TEXT_PREDICTIONS)
        with contextlib.suppress(OSError):  # It has the lock.
            folder.rmdir()
