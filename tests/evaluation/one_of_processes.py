"""One of several processes of an evaluation.

Arguments: number of the process, number of processes, port of the first process, checkpoint, mirror
of the datasets, output_dir, and checkpoint_steps.
"""

from __future__ import annotations

import sys

import jax

from mtf.data.settings import TaskMixtureConfig
from mtf.data.text.vocabularies import ByteVocabulary
from mtf.jobs import Evaluate


def main() -> None:
    """Evaluates on a mesh of the four devices of all processes."""
    process, num_processes, port = map(int, sys.argv[1:4])
    checkpoint, mirror, output_dir, steps = sys.argv[4:]
    jax.config.update("jax_num_cpu_devices", 4 // num_processes)
    if num_processes > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", num_processes, process)
    data = custom_mixture(mirror)
    job = Evaluate(checkpoint, data, 4, output_dir=output_dir, checkpoint_steps=steps)
    print(f"best of all: {job.run().best_step}")


def custom_mixture(mirror: str) -> TaskMixtureConfig:
    """Returns the mixture of `custom_tasks` as data."""
    return TaskMixtureConfig(
        mixture_or_task_name="custom_mixture",
        vocabulary=ByteVocabulary(125),
        task_feature_lengths={"inputs": 32, "targets": 8},
        data_dir=mirror,
        module="tests.evaluation.custom_tasks",
    )


if __name__ == "__main__":
    main()
