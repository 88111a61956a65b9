"""Records T5X's figures for the parity suite. Needs T5X (see README.md here):

python -m tests.golden.record            # everything
python -m tests.golden.record rsqrt      # the named cases only
python -m tests.golden.record decoding   # scores and decoded tokens
python -m tests.golden.record scanned    # a checkpoint of T5X's scanned network
python -m tests.golden.record mesh_tf    # a checkpoint with Mesh TensorFlow's files and names
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden import cases
from tests.golden.recorded import NUM_DEVICES, RECORDED, summary
from tests.golden.t5x_engine import Engine, scanned_engine

T5X_COMMIT = "cc342d419ec3e3e9c4bf1df33c82330cafdc1e16"
EXCHANGED = "rsqrt"
OTHERS = ("decoding", "scanned", "mesh_tf")


def main() -> None:
    """Starts a process for each number of devices."""
    if len(sys.argv) > 2 and sys.argv[1] == "--devices":
        return record(int(sys.argv[2]), sys.argv[3:])
    names = sys.argv[1:] or [*cases.CASES, *OTHERS]
    for number in NUM_DEVICES:
        flags = f"--xla_force_host_platform_device_count={number}"
        subprocess.run(
            [sys.executable, "-m", "tests.golden.record", "--devices", str(number), *names],
            check=True,
            env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        )
    packages = ("jax", "flax", "orbax-checkpoint", "numpy")
    write("versions", {"t5x": T5X_COMMIT, **{name: version(name) for name in packages}})


def record(num_devices: int, names: list[str]) -> None:
    """Records cases on the devices of this process."""
    for name in names:
        if name in cases.CASES:
            record_case(name, num_devices)
        elif num_devices == 1 and name == "decoding":
            write(name, {network: decoding(network) for network in cases.NETWORKS})
        elif num_devices == 1 and name == "scanned":
            engine = scanned_engine()
            save(engine, engine.start(), "scanned", "zarr")
        elif num_devices == 1 and name == "mesh_tf":
            save_mesh_tensorflow(name)
        print(f"{name} on {num_devices}", file=sys.stderr, flush=True)


def record_case(name: str, num_devices: int) -> None:
    """Adds a case's run on so many devices to its file."""
    case = cases.CASES[name]
    engine = Engine(case)
    trainer = engine.trainer(engine.start())
    batches = cases.batches(case.packed)
    losses = list(engine.losses(trainer, batches[: cases.EXCHANGE_STEP]))
    if name == EXCHANGED and num_devices == 1:
        for layout in ("zarr", "orbax"):
            save(engine, trainer.train_state, name, layout)
    losses += engine.losses(trainer, batches[cases.EXCHANGE_STEP :])
    path = RECORDED / f"{name}.json"
    content = json.loads(path.read_text()) if path.exists() else {}
    if num_devices == 1:
        metrics = engine.evaluate(trainer)
        content["eval"] = dict(zip(metrics, as_written([*metrics.values()]), strict=True))
        content["state"] = summary(engine.flat(trainer.train_state))
    content["losses"] = {**content.get("losses", {}), str(num_devices): as_written(losses)}
    write(name, content)


def decoding(network: str) -> dict[str, Any]:
    """Returns scores of targets and decoded tokens with theirs."""
    case = cases.Case(network=cases.NETWORKS[network])
    batch = cases.eval_batches(packed=False)[0]
    content: dict[str, Any] = {}
    for method, number in (("greedy", 1), ("beam", 4)):
        engine = Engine(case, method)
        params = engine.start(cases.start_to_decode).params
        tokens, scores = engine.decoded(params, batch, number)
        content[method] = {"tokens": tokens.tolist(), "scores": as_written(scores)}
    content["scores"] = as_written(engine.scores(params, batch))
    return content


def as_written(values: Any) -> Any:
    """Returns float32 values as the shortest numbers that read back the same."""
    array = np.asarray(values, np.float32)
    return [float(str(x)) for x in array] if array.ndim == 1 else [*map(as_written, array)]


def save(engine: Engine, state: Any, name: str, layout: str) -> None:
    """Packs a checkpoint, written by T5X, as NAME_LAYOUT.tar.gz."""
    with tempfile.TemporaryDirectory() as folder:
        engine.save(state, Path(folder), layout)
        shutil.make_archive(str(RECORDED / f"{name}_{layout}"), "gztar", folder)


def save_mesh_tensorflow(name: str) -> None:
    """Packs a checkpoint that TensorFlow wrote, with two of Mesh TensorFlow's variables."""
    import tensorflow as tf

    values = {
        "global_step": np.int64(cases.EXCHANGE_STEP),
        "encoder/block_000/layer_000/layer_norm/scale": np.ones(32, np.float32),
    }
    with tempfile.TemporaryDirectory() as folder, tf.Graph().as_default():
        variables = [tf.compat.v1.Variable(x, name=name) for name, x in values.items()]
        with tf.compat.v1.Session() as session:
            session.run([variable.initializer for variable in variables])
            saver = tf.compat.v1.train.Saver(variables)
            path = f"{folder}/model.ckpt"
            saver.save(session, path, cases.EXCHANGE_STEP, write_meta_graph=False)
        shutil.make_archive(str(RECORDED / name), "gztar", folder)


def write(name: str, content: dict[str, Any]) -> None:
    """Writes a file of figures with one line for each innermost list or dict."""
    RECORDED.mkdir(exist_ok=True)
    (RECORDED / f"{name}.json").write_text(_json(content) + "\n")


def _json(value: Any, indent: str = "") -> str:
    if not isinstance(value, dict) or not any(isinstance(x, (dict, list)) for x in value.values()):
        return json.dumps(value)
    lines = [f"{indent} {json.dumps(k)}: {_json(v, indent + ' ')}" for k, v in value.items()]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


if __name__ == "__main__":
    main()
