"""One of several processes of a rank evaluation.

Arguments: its number, how many there are, the port of the first, checkpoint, file, output_dir.
"""

from __future__ import annotations

import sys

import jax

from mtf.evaluation.settings import RankFilesConfig
from mtf.jobs.evaluate import Evaluate
from mtf.text.vocabularies import ByteVocabulary


def main() -> None:
    """Evaluates on a mesh of all processes' devices, four together."""
    process, num_processes, port = map(int, sys.argv[1:4])
    checkpoint, file, output_dir = sys.argv[4:]
    jax.config.update("jax_num_cpu_devices", 4 // num_processes)
    if num_processes > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", num_processes, process)
    data = RankFilesConfig(
        files=file,
        vocabulary=ByteVocabulary(),
        task_feature_lengths={"inputs": 64, "targets": 16},
    )
    Evaluate(checkpoint, data, batch_size=4, output_dir=output_dir).run()


if __name__ == "__main__":
    main()
