"""Both engines on 4 devices, with data and model parallelism."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from mtf.cli.run import main
from tests import small
from tests.conftest import with_devices
from tests.t5x import T5X_MISSING
from tests.t5x.test_training import SETTINGS, START, losses_of_mtf, losses_of_t5x

pytestmark = pytest.mark.skipif(T5X_MISSING, reason="T5X is not installed (docs/t5x.md)")

STEPS = 20
# Settings of the partitioner → shape of T5X's mesh (data, model).
MESHES: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    "data 4": ({}, (4, 1)),
    "data 2 model 2": ({"partitioner.num_partitions": 2}, (2, 2)),
    "model 4": ({"partitioner.num_partitions": 4}, (1, 4)),
    "submesh": ({"partitioner.model_parallel_submesh": (1, 1, 1, 2)}, (2, 2)),
    "fully sharded": (
        {
            "partitioner.num_partitions": 2,
            "partitioner.logical_axis_rules": [
                *(("batch", "data"), ("vocab", "model"), ("mlp", "model"), ("heads", "model")),
                *(("joined_kv", "model"), ("kv", None), ("embed", "model"), ("embed", "data")),
            ],
        },
        (2, 2),
    ),
}
LENGTHS = {"inputs": 32, "targets": 16}


def run_on_four(folder: Path, commands: list[list[str]]) -> None:
    """Runs commands in one process with 4 devices."""
    code = (
        "import json, sys, jax\nfrom mtf.cli.run import main\nassert jax.device_count() == 4\n"
        "for arguments in json.loads(sys.argv[1]):\n    assert main(arguments) == 0, arguments\n"
    )
    small.python("-c", code, json.dumps(commands), cwd=folder, XLA_FLAGS=with_devices(4))


def both(arguments: list[str], field: str, folder: Path) -> list[list[str]]:
    """The same command for both engines, in directories of their names."""
    return [
        [*arguments, f"{field}={folder / engine}", "--engine", engine] for engine in ("mtf", "t5x")
    ]


def training(folder: Path, **settings: Any) -> list[str]:
    network = {"model.network.num_heads": 4, "model.network.head_dim": 8}
    values = {**SETTINGS, **network, "train_steps": STEPS, **settings}
    return small.arguments(small.write_text(folder), **values)


def start(folder: Path) -> dict[str, str]:
    """The setting that restores a checkpoint of step 5, which it writes."""
    first = [*training(folder, train_steps=5), f"model_dir={folder / 'first'}"]
    small.run(first, folder)
    return {"checkpoint.restore": START.format(folder / "first" / "checkpoints" / "checkpoint_5")}


@pytest.mark.parametrize(
    "name",
    [
        each if each in ("submesh",) else pytest.param(each, marks=pytest.mark.slow)
        for each in MESHES
    ],
)
def test_training_has_the_same_losses(name: str, tmp_path: Path) -> None:
    settings, (data, model) = MESHES[name]
    command = training(tmp_path, **start(tmp_path), **settings)
    run_on_four(tmp_path, both(command, "model_dir", tmp_path))
    for kind, number in (("train", STEPS - 5), ("training_eval/held_out", 3)):
        ours, theirs = losses_of_mtf(tmp_path / "mtf", kind), losses_of_t5x(tmp_path / "t5x", kind)
        steps = sorted(ours.keys() & theirs.keys())
        assert len(steps) == number
        np.testing.assert_allclose(
            [theirs[step] for step in steps], [ours[step] for step in steps], rtol=1e-5
        )
    log = (tmp_path / "t5x" / "t5x.log").read_text()
    assert f"'data': {data}, 'model': {model}" in log


def test_evaluation_and_inference_have_the_same_results(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    small.run([*training(tmp_path, train_steps=10), f"model_dir={run_dir}"], tmp_path)
    letters = "abcdefghijkl"
    lines = [
        {"inputs": letters[i:] + letters[:i], "choices": ["yes", "not at all"], "label": i % 2}
        for i in range(11)
    ]
    (tmp_path / "ranked.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "in.tsv").write_text("hello there\tgeneral\nabc def\tghi\nxyz\tuvw\n")
    common = [f"checkpoint={run_dir}", "batch_size=4", "partitioner.num_partitions=2"]
    data = (
        f"@mtf.evaluation.settings.RankFilesConfig(files='{tmp_path / 'ranked.jsonl'}', "
        f"task_feature_lengths={LENGTHS})"
    )
    beams = "@mtf.inference.DecodingConfig(method='beam',num_beams=4,max_length=16)"
    evaluate, infer = tmp_path / "evaluate", tmp_path / "infer"
    run_on_four(
        tmp_path,
        [
            *both(["recipes.evaluate", "--set", *common, f"data={data}"], "output_dir", evaluate),
            *both(
                [
                    *("recipes.infer", "--set", *common, f"files={tmp_path / 'in.tsv'}"),
                    *("mode=predict_with_aux", f"task_feature_lengths={LENGTHS}"),
                    f"decoding={beams}",
                ],
                "output_dir",
                infer,
            ),
        ],
    )
    ours = json.loads((evaluate / "mtf" / "results.json").read_text())["tasks"]["ranked"]
    assert ours["num_examples"] == 11
    file = evaluate / "t5x" / "inference_eval" / "ranked-metrics.jsonl"
    theirs = json.loads(file.read_text())
    assert theirs.pop("step") == 10
    assert theirs == pytest.approx(ours["metrics"], rel=1e-5)

    results = "in-predict_with_aux.jsonl-00000-of-00001"
    found = [
        [json.loads(line) for line in (infer / engine / results).read_text().splitlines()]
        for engine in ("mtf", "t5x")
    ]
    assert len(found[0]) == 3
    for our, their in zip(*found, strict=True):
        assert their.pop("aux") == pytest.approx(our.pop("aux"), rel=1e-5)
        assert their == our


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"partitioner.num_partitions": 2}, "needs a multiple of .* 2 devices, but there are 1"),
        ({"partitioner.model_parallel_submesh": (1, 1, 1, 2)}, "but there are 1"),
    ],
)
def test_a_mesh_for_other_devices_is_refused(
    settings: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jax.device_count() == 1
    run_dir = tmp_path / "run"
    arguments = [*training(tmp_path, **settings), f"model_dir={run_dir}", "--engine", "t5x"]
    assert main(arguments) == 2
    assert not run_dir.exists()
    assert re.search(message, capsys.readouterr().err)
