"""One process of a training run by several on this machine. Run by test_processes.py.

python -m tests.training.two_processes PROCESS NUM_PROCESSES PORT RUN_DIR TRAIN_STEPS [TEXT_FILE]

A text file is read as one stream, which the processes share.
"""

from __future__ import annotations

import sys

import fiddle as fdl
import jax

from mtf.data import HubStreamConfig
from recipes import pretrain_text

NUM_DEVICES = 4


def main() -> None:
    """Trains a tiny pretrain_text on this process's part of four devices."""
    process, num_processes, port, steps = (int(sys.argv[i]) for i in (1, 2, 3, 5))
    jax.config.update("jax_num_cpu_devices", NUM_DEVICES // num_processes)
    if num_processes > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", num_processes, process)
    config = pretrain_text(train_steps=steps, batch_size=8)
    network = config.model.network
    network.num_encoder_layers = network.num_decoder_layers = 1
    network.emb_dim, network.mlp_dim, network.num_heads, network.head_dim = 32, 64, 2, 16
    if len(sys.argv) > 6:
        files = {"train": sys.argv[6], "validation": sys.argv[6]}
        vocabulary, config.data = config.data.vocabulary, fdl.Config(HubStreamConfig)
        config.data.vocabulary, config.data.num_streams = vocabulary, 1
        config.data.dataset, config.data.data_files = "text", files
        config.data.window_documents = 64
    config.data.task_feature_lengths = {"inputs": 64, "targets": 24}
    config.trainer.stats_period, config.trainer.eval_period = 1, 4
    config.checkpoint.save.period = 4
    config.partitioner.fsdp = 2
    config.num_samples = 1
    config.model_dir = sys.argv[4]
    fdl.build(config).run()


if __name__ == "__main__":
    main()
