"""A user of transformers: a CSV file, a directory of transformers, LoRA, and a hub."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

import mtf
from tests.journeys import shell
from tests.sources import hub_server

SCRIPT = """
import sys
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
ids = model.generate(**tokenizer("red or cow", return_tensors="pt"), max_new_tokens=8)
print(tokenizer.decode(ids[0], skip_special_tokens=True))
"""


@pytest.mark.slow
def test_a_user_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed (extra: torch)")
    from tests.recipes.test_finetune_torch import ANSWERS, TEXTS, write_model

    write_model(tmp_path / "model", "t5_1_1", [*TEXTS, *ANSWERS.values()])
    with (tmp_path / "train.csv").open("w", newline="") as file:
        rows = [(text, ANSWERS[text.split()[0]]) for text in TEXTS * 4]
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("question", "answer"), *rows])
    (tmp_path / "ask.py").write_text(SCRIPT)
    data = "checkpoint='model', train='train.csv', validation='10%', metrics='accuracy'"
    template = "template='question ||| answer'"
    values = "steps=60, batch_size=16, learning_rate=0.01, eval_period=20"
    finetune = f'python -m mtf.run "recipes.finetune({data}, {template}, {values})"'
    whole = shell(f"{finetune} --set model_dir=whole", tmp_path)
    adapted = shell(f"{finetune} --apply 'lora(rank=4)' --set model_dir=adapted", tmp_path)
    accuracies = [
        json.loads(line)["accuracy"]
        for line in next((tmp_path / "whole/inference_eval").rglob("metrics.jsonl")).open()
    ]
    best = {}
    for name, said in {"whole": whole, "adapted": adapted}.items():
        (best[name],) = re.findall(r"^best +(\S+) \(\S+accuracy", said, re.M)
    assert best["whole"].startswith(("whole/", str(tmp_path))) and max(accuracies) > 50
    assert re.search(r" \((?:[\d.]+)k? trained\)", adapted)

    for name, target in (("whole", "hf"), ("adapted", "hf"), ("adapted", "peft")):
        output = f"{name}_{target}"
        shell(f"python -m mtf.convert {best[name]} {output} --to {target}", tmp_path)
    for name in best:
        answer = mtf.load(tmp_path / best[name]).generate("red or cow", max_length=8)
        # transformers leaves unknown pieces out.
        known = answer.replace(" ⁇ ", "").strip()
        assert shell(f"python ask.py {name}_hf 2>/dev/null", tmp_path).strip() == known
    assert (tmp_path / "adapted_peft" / "adapter_model.safetensors").is_file()

    with hub_server.serve({"me/colours": tmp_path / "hub"}) as hub:
        variables = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": "x"}
        (tmp_path / "hub").mkdir()
        code = "from huggingface_hub import HfApi; HfApi().upload_folder"
        code += "(repo_id='me/colours', folder_path='whole_hf')"
        shell(f'python -c "{code}"', tmp_path, **variables)
        pushed = shell("python ask.py me/colours 2>/dev/null", tmp_path, **variables)
        code = "import mtf; print(mtf.load('me/colours').generate('red or cow', max_length=8))"
        assert pushed == shell(f'python -c "{code}" 2>/dev/null', tmp_path, **variables)
    assert pushed == shell("python ask.py whole_hf 2>/dev/null", tmp_path)
