"""The engineer of an 11B run: its shardings, a plan, a cache of the data at hand, and SLURM."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from mtf.__main__ import main
from tests import made_up, small
from tests.journeys import shell


@pytest.mark.slow
def test_a_plan(tmp_path: Path) -> None:
    options = "--set partitioner.fsdp=8 model.network.remat_policy=full"
    said = shell(
        f"python -m mtf.run recipes.t0pp_xxl {options} --print sharding --devices 64", tmp_path
    )
    # 24 × 4096 × 10240 numbers of 4 bytes, of which each of the 64 devices has a part.
    assert re.search(r"^encoder/layers/mlp/wi_0/kernel .* -, fsdp, model +60\.00 MiB$", said, re.M)
    plan = ["python", "-m", "mtf", "plan", "recipes.t0pp_xxl", "--target", "v4:4x8x8", "--json"]
    if importlib.util.find_spec("libtpu"):
        changed = ["--set", "partitioner.num_partitions=8"]
        found = json.loads(small.python(*plan[1:], *changed, cwd=tmp_path, timeout=900).stdout)
        assert found["mesh"]["model"] == 8 and found["flops"] > 1e12
    else:
        assert "pip install 'mtf-jax[tpu]'" in small.python(*plan[1:], status=2).stderr


@pytest.mark.slow
@pytest.mark.usefixtures("prompts")
def test_a_cache_of_the_data_at_hand_and_a_script_for_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.storage import prompted_hub

    # In this process, which takes made-up templates for promptsource's.
    monkeypatch.chdir(tmp_path)
    prompted_hub.write_mirror(tmp_path / "mirror", "trec ag_news", num_rows=20)
    vocabulary = str(made_up.t5_model())
    cache = ["cache", "t0++_train", "--data-dir", "mirror", "--skip-missing", "--output", "tokens"]
    assert main([*cache, "--vocabulary", vocabulary, "--num-workers", "1"]) == 0
    assert main([*cache, "--check"]) == 0
    recipe = ["recipes.t0pp_xxl(cache_dir='tokens')", "--set", "data.allow_missing_tasks=True"]
    capsys.readouterr()
    status = main(["run", *recipe, f"data.vocabulary.path={vocabulary}", "--dry-run"])
    shown = capsys.readouterr()
    assert status == 0, shown.err
    assert "parameters       11,135,332,352\n" in shown.out
    number, total = re.findall(r"the cache tokens: (\d+) of 464 tasks, (\d+) examples", shown.out)[
        0
    ]
    assert 0 < int(number) <= 464 and int(total) == 20 * int(number)

    launch = "--nodes 8 --gpus-per-node 8 --time 24:00:00 --dry-run"
    script = shell(
        f"python -m mtf launch slurm {launch} -- recipes.t0pp_xxl --set model_dir=runs/t0pp",
        tmp_path,
    )
    for line in ("#SBATCH --nodes=8", "#SBATCH --requeue", "#SBATCH --signal=B:USR1@300"):
        assert f"{line}\n" in script
    assert "-m mtf.run recipes.t0pp_xxl --set model_dir=runs/t0pp &\n" in script
