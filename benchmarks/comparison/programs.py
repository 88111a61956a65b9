"""How the rows are asked of each program, and which points its answers meet."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.comparison.rows import ROWS
from benchmarks.comparison.shell import Said, Shell

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Path(__file__).resolve().parent / "programs"
GRID = {(8, 10), (8, 20), (16, 10), (16, 20)}


class Program:
    """A program with a config: asks itself each row.

    A method for a row returns which of the row's points it meets, in their order. The paths are
    those of the settings of which rows speak.
    """

    name = ""
    heads, misspelt_heads = "model.num_heads", "model.num_hedas"
    warmup, misspelt_warmup = "optimizer.schedule.warmup_steps", "optimizer.schedule.warmup_stps"
    batch, steps = "batch_size", "train_steps"
    unrelated = "weight_decay"

    def __init__(self, shell: Shell):
        self.shell = shell

    def ask(self, row: str) -> dict[str, bool]:
        """Returns which points of a row the program meets."""
        return dict(zip(ROWS[row].points, getattr(self, row)(), strict=True))

    def train(self, *arguments: str, **variables: str) -> Said:
        """Runs the program."""
        return self.shell.run("python", "train.py", *arguments, **variables)

    def assign(self, path: str, value: object) -> list[str]:
        """Returns the arguments that set a value."""
        return [f"{path}={value}"]

    def assign_all(self, values: Mapping[str, object]) -> list[str]:
        return [each for path, value in values.items() for each in self.assign(path, value)]

    def values(self, *arguments: str, **variables: str) -> Any:
        """Returns the values with which the program trains; {} if it does not."""
        return trained(self.train(*arguments, **variables).text)

    def typo(self) -> list[bool]:
        said = self.train(*self.assign(self.misspelt_heads, 8))
        text = plain(said.text)
        right = last(self.heads)
        # A message that lists all settings suggests none.
        suggests = has_word(right, text) and self.unrelated not in text
        return [refused(said), last(self.misspelt_heads) in text, suggests]

    def type_error(self) -> list[bool]:
        said = self.train(*self.assign(self.batch, "many"))
        text = plain(said.text)
        names = self.batch in text and "many" in text
        expects = re.search(r"\b(int|integer)\b", text, re.IGNORECASE) is not None
        return [refused(said), names, expects, names and "Traceback" not in text]

    def all_at_once(self) -> list[bool]:
        wrong = {self.misspelt_heads: 8, self.batch: "many", self.misspelt_warmup: 3}
        text = plain(self.train(*self.assign_all(wrong)).text)
        marks = (last(self.misspelt_heads), "many", last(self.misspelt_warmup))
        count = sum(mark in text for mark in marks)
        return [count >= 2, count == 3]

    def provenance(self) -> list[bool]:
        # Only the help may name files: those of the classes, not those that set values.
        text = self.train(*self.assign(self.batch, 64), "--help").text
        return [re.search(r"source: \S*train\.py:\d+", text) is not None, False, False]

    def diff(self) -> list[bool]:
        has_option = re.search(r"--\S*diff", self.train("--help").text) is not None
        return [has_option, has_option]

    def sweep(self) -> list[bool]:
        values = {self.batch: "8,16", self.steps: "10,20"}
        all_four = grid_of(self.train(*self.assign_all(values)).text) == GRID
        return [all_four, False, all_four]

    def expressions(self) -> list[bool]:
        computed = self.values(*self.assign(self.steps, "2**20")).get("train_steps") == 2**20
        return [computed, computed]

    def is_swapped(self, *arguments: str) -> list[bool]:
        """Returns whether these arguments make AdamW with beta1=0.8, and a warm-up of 7 steps."""
        optimizer = self.values(*arguments).get("optimizer", {})
        swapped = (optimizer.get("name"), optimizer.get("beta1")) == ("AdamW", 0.8)
        return [swapped, optimizer.get("schedule", {}).get("warmup_steps") == 7]

    def help_all(self, said: Said, nested: Said) -> list[bool]:
        """Returns the points of help that shows all settings; `nested` is that of a component."""
        line = re.search(r"^\W*batch_size\b.*", plain(said.text), re.MULTILINE)
        text = line[0] if line else ""
        return [
            "Examples of a batch" in text,
            re.search(r"\bint\b", text, re.IGNORECASE) is not None,
            has_word("16", text),
            has_word("64", text),
            "warmup_steps" in plain(nested.text),
            bool(line) and "train_steps" not in plain(said.text),
        ]

    def code_of_repr(self) -> list[bool]:
        """Returns whether the printed dataclass, run as Python, makes an equal config."""
        said = self.train(*self.assign(self.batch, 64))
        found = re.search(r"^Train\(.*\)$", said.text, re.MULTILINE)
        line = found[0] if found else None
        program = (
            "import sys; sys.argv = ['train.py']; from train import *; "
            f"print('same config:', repr({line}) == {line!r})"
        )
        made = self.shell.run("python", "-c", program, shown="python -c '…'  # runs that line")
        return ["same config: True" in made.text, False]


class NemoRun(Program):
    name = "NeMo-Run"

    def train(self, *arguments: str, **variables: str) -> Said:
        return super().train("--yes", "--direct", *arguments, **variables)

    def provenance(self) -> list[bool]:
        said = self._inspect("origins", self.batch + "=64")
        of_recipe = re.search(r"model\.num_layers = 2 @ \S*settings\.py:(\d+)", said.text)
        of_command = re.search(r"batch_size = 64 .*command line", said.text)
        return [bool(of_recipe), bool(of_recipe), bool(of_command)]

    def diff(self) -> list[bool]:
        text = self._inspect("diff", self.batch + "=64", "model.num_layers=3").text
        return ["batch_size" in text and ">2<" in text and ">3<" in text, False]

    def code(self) -> list[bool]:
        return ["same config: True" in self._inspect("code", self.batch + "=64").text, False]

    def rerun(self) -> list[bool]:
        first = self.shell.run("python", "train.py", "--yes", "batch_size=32")
        again = self.shell.run("python", "again.py")
        same = is_same(trained(first.text), trained(again.text))
        return [same, same]

    def completion(self) -> list[bool]:
        source = "source <(python train.py --show-completion)"
        self.shell.tab("./train.py --to-", source)  # Its own options are offered.
        offered = self.shell.tab("./train.py model.num", source).text
        values = self.shell.tab("./train.py optimizer=ad", source).text
        return [offers_heads(offered), "adamw" in values, False]

    def sweep(self) -> list[bool]:
        found = grid_of(self.shell.run("python", "sweep.py").text)
        folders = list(self.shell.folder.glob("home/experiments/sweep/*/b*_s*"))
        return [found == GRID, len(folders) == 4, False]

    def help_on_a_value(self) -> list[bool]:
        said = self.shell.run("python", "train.py", self.batch + "=64", "--help")
        return self.help_all(said, said)

    def nested_overrides(self) -> list[bool]:
        return self.is_swapped("optimizer=adamw(beta1=0.8)", *self.assign(self.warmup, 7))

    def expressions(self) -> list[bool]:
        multiplied = self.values(f"{self.batch}*=4").get("batch_size") == 64
        return [multiplied, super().expressions()[1]]

    def _inspect(self, *arguments: str) -> Said:
        return self.shell.run("python", "inspect_config.py", *arguments)


class Hydra(Program):
    name = "Hydra"

    def provenance(self) -> list[bool]:
        text = self.train("--info", "defaults").text
        self.train("batch_size=64", "hydra.run.dir=run")
        stored = self.shell.run("cat", "run/.hydra/overrides.yaml").text
        return ["optimizer/adafactor " in text, False, "batch_size=64" in stored]

    def code(self) -> list[bool]:
        is_code = "Train(" in self.train("--cfg", "job").text  # It is YAML.
        return [is_code, is_code]

    def rerun(self) -> list[bool]:
        first = self.values("batch_size=32", "hydra.run.dir=first")
        same = is_same(first, self.values("--experimental-rerun", "first/.hydra/config.pickle"))
        return [same, same]

    def completion(self) -> list[bool]:
        source = 'eval "$(python train.py -sc install=bash)"'
        offered = self.shell.tab("python train.py model.num", source).text
        values = self.shell.tab("python train.py optimizer=ad", source).text
        others = [self.train("-sc", f"install={shell}") for shell in ("zsh", "fish")]
        both = "adamw" in values and "adafactor" in values
        return [offers_heads(offered), both, all(map(is_script, others))]

    def sweep(self) -> list[bool]:
        said = self.train("--multirun", "batch_size=8,16", "train_steps=10,20")
        folders = list(self.shell.folder.glob("multirun/*/*/[0-3]/.hydra"))
        found = grid_of(said.text)
        return [found == GRID, len(folders) == 4, found == GRID]

    def help_on_a_value(self) -> list[bool]:
        all_values = self.train("--help").text
        value = self.train("batch_size=64", "--cfg", "job", "-p", self.batch).text
        nested = self.train(f"{self.warmup}=7", "--cfg", "job", "-p", self.warmup).text
        is_told = "Examples of a batch" in all_values
        default = "batch_size: 16" in all_values
        is_shown = value.strip() == "64"
        return [is_told, False, default, is_shown, nested.strip() == "7", is_shown]

    def nested_overrides(self) -> list[bool]:
        optimizer = ["optimizer=adamw", "optimizer.beta1=0.8"]
        return self.is_swapped(*optimizer, *self.assign(self.warmup, 7))

    def expressions(self) -> list[bool]:
        computed = self.values("train_steps=${pow:2,20}").get("train_steps") == 2**20
        return [computed, super().expressions()[1]]


class Tyro(Program):
    name = "tyro"

    def assign(self, path: str, value: object) -> list[str]:
        return ["--" + path.replace("_", "-"), str(value)]

    def code(self) -> list[bool]:
        return self.code_of_repr()

    def rerun(self) -> list[bool]:
        first = self.values(*self.assign(self.batch, 32))
        return [is_same(first, self.values(CONFIG="config.yaml")), False]

    def completion(self) -> list[bool]:
        self.shell.run("sh", "-c", "./train.py --tyro-print-completion bash > script")
        source = "source ./script"
        offered = self.shell.tab("./train.py --model.num-", source).text
        values = self.shell.tab("./train.py optimizer:ad", source).text
        shells = ("zsh", "fish")
        others = [self.train("--tyro-print-completion", each) for each in shells]
        return [offers_heads(plain(offered)), "adam-w" in values, all(map(is_script, others))]

    def help_on_a_value(self) -> list[bool]:
        said = self.train(*self.assign(self.batch, 64), "--help")
        return self.help_all(said, self.train("optimizer:adafactor", "--help"))

    def nested_overrides(self) -> list[bool]:
        optimizer = ["optimizer:adam-w", "--optimizer.beta1", "0.8"]
        return self.is_swapped(*optimizer, *self.assign(self.warmup, 7))


class Draccus(Program):
    name = "draccus"

    def assign(self, path: str, value: object) -> list[str]:
        return [f"--{path}", str(value)]

    def code(self) -> list[bool]:
        return self.code_of_repr()

    def rerun(self) -> list[bool]:
        first = self.values(*self.assign(self.batch, 32))
        return [is_same(first, self.values("--config_path", "config.yaml")), False]

    def completion(self) -> list[bool]:
        offered = self.shell.tab("./train.py --model.num", "true").text
        values = self.shell.tab("./train.py --optimizer.type ad", "true").text
        return [offers_heads(offered), "adamw" in values, False]

    def help_on_a_value(self) -> list[bool]:
        said = self.train(*self.assign(self.batch, 64), "--help")
        return self.help_all(said, said)

    def nested_overrides(self) -> list[bool]:
        optimizer = ["--optimizer.type", "adamw", "--optimizer.beta1", "0.8"]
        return self.is_swapped(*optimizer, *self.assign(self.warmup, 7))


class Mtf(Program):
    name = "mtf"
    heads, misspelt_heads = "model.network.num_heads", "model.network.num_hedas"
    warmup = "optimizer.learning_rate.warmup_steps"
    misspelt_warmup = "optimizer.learning_rate.warmup_stps"
    tiny: ClassVar = {
        "data.files": "text.txt",
        "data.num_held_out": 8,
        "model.network.num_encoder_layers": 1,
        "model.network.num_decoder_layers": 1,
        "model.network.emb_dim": 16,
        "model.network.mlp_dim": 32,
        "trainer.stats_period": 1,
        "trainer.eval_period": None,
        "num_samples": 0,
    }

    def train(self, *arguments: str, **variables: str) -> Said:
        return self._mtf("run", "recipes.quickstart", *arguments, **variables)

    def assign(self, path: str, value: object) -> list[str]:
        return ["--set", f"{path}={value}"]

    def values(self, *arguments: str, **variables: str) -> Any:
        return printed(self.train(*arguments, "--print", "json", **variables))

    def provenance(self) -> list[bool]:
        text = self.train(*self.assign(self.batch, 64), "--print", "history").text
        of_recipe = re.search(r"num_encoder_layers = 2 +# \S*recipes/start\.py:(\d+) ", text)
        of_command = re.search(r"batch_size = 64 +# --set batch_size=64 \(command line\)", text)
        return [bool(of_recipe), bool(of_recipe), bool(of_command)]

    def diff(self) -> list[bool]:
        said = self.train(*self.assign(self.batch, 64), "--diff", "recipes.quickstart")
        shown = "batch_size: 16 → 64" in said.text.splitlines()
        return [shown, shown]

    def code(self) -> list[bool]:
        said = self.train(*self.assign(self.batch, 64), "--print", "python")
        (self.shell.folder / "mine.py").write_text(said.text)
        again = printed(self._mtf("run", "mine.py:config", "--print", "json"))
        made = is_same(again, self.values(*self.assign(self.batch, 64)))
        return [made, made]

    def rerun(self) -> list[bool]:
        tiny = {**self.tiny, "train_steps": 2, "batch_size": 4, "model_dir": "first"}
        self._write_text()
        self.train(*self.assign_all(tiny))
        self._mtf("run", "--from", "first", "--set", "model_dir=again")
        losses = [self._losses(folder) for folder in ("first", "again")]
        same = len(losses[0]) == 2 and losses[0] == losses[1]
        return [same, same]

    def completion(self) -> list[bool]:
        program = self.shell.folder / "mtf"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m mtf "$@"\n')
        program.chmod(0o755)
        source = "PATH=.:$PATH; source <(mtf completion bash)"
        line = "mtf run recipes.quickstart --set "
        offered = self.shell.tab(f"{line}model.network.num_", source).text
        values = self.shell.tab(f"{line}optimizer=@mtf.training.", source).text
        others = [self._mtf("completion", shell) for shell in ("zsh", "fish")]
        both = "AdamWConfig" in values and "AdafactorConfig" in values
        return [offers_heads(offered), both, all(map(is_script, others))]

    def sweep(self) -> list[bool]:
        self._write_text()
        swept = ["--sweep", "batch_size=8,16", "train_steps=1,2"]
        said = self.train(*self.assign_all({**self.tiny, "model_dir": "sweep"}), *swept)
        found = set()
        for file in (self.shell.folder / "sweep").glob("*/config.json"):
            values = printed(self._mtf("run", "--from", str(file.parent), "--print", "json"))
            found.add((values["batch_size"], values["train_steps"]))
        all_four = said.status == 0 and found == {(8, 1), (8, 2), (16, 1), (16, 2)}
        ended = list((self.shell.folder / "sweep").glob("*/end.json"))
        return [all_four, len(ended) == 4, all_four]

    def help_on_a_value(self) -> list[bool]:
        text = self.train(*self.assign(self.warmup, 64), "--help", self.warmup).text
        return [
            "linear_warmup" in text,
            re.search(r"^type +int$", text, re.MULTILINE) is not None,
            re.search(r"^default +1000$", text, re.MULTILINE) is not None,
            re.search(r"^value +64$", text, re.MULTILINE) is not None,
            text.startswith(self.warmup),
            text.startswith(self.warmup) and "batch_size" not in text,
        ]

    def nested_overrides(self) -> list[bool]:
        schedule = "@mtf.builders.schedule.constant(learning_rate=0.001)"
        optimizer = f"@mtf.training.AdamWConfig(learning_rate={schedule}, beta1=0.8)"
        values = self.values(*self.assign_all({"optimizer": optimizer, self.warmup: 7}))
        made = values.get("optimizer", {})
        swapped = made.get("@", "").endswith("AdamWConfig") and made.get("beta1") == 0.8
        return [swapped, made.get("learning_rate", {}).get("warmup_steps") == 7]

    def _mtf(self, command: str, *arguments: str, **variables: str) -> Said:
        shown = " ".join(("python -m", f"mtf.{command}", *map(quoted, arguments)))
        return self.shell.run(
            sys.executable, "-m", "mtf", command, *arguments, shown=shown, **variables
        )

    def _write_text(self) -> None:
        line = "The quick brown fox jumps over the lazy dog.\n"
        (self.shell.folder / "text.txt").write_text(line * 300)

    def _losses(self, folder: str) -> list[float]:
        file = self.shell.folder / folder / "train" / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line)["loss"] for line in lines]


PEERS = {"nemo_run": NemoRun, "hydra": Hydra, "tyro": Tyro, "draccus": Draccus}


def trained(text: str) -> Any:
    """Returns the values that a program printed when it trained; {} if it did not."""
    found = re.findall(r"trained (\{.*\})$", text, re.MULTILINE)
    return json.loads(found[-1]) if found else {}


def printed(said: Said) -> Any:
    """Returns the JSON that a command printed; {} if it printed none."""
    return json.loads(said.text) if said.text.startswith("{") else {}


def is_same(values: Any, others: Any) -> bool:
    return bool(values) and values == others


def grid_of(text: str) -> set[tuple[int, int]]:
    """Returns batch size and steps of each training that a sweep printed."""
    runs = [json.loads(each) for each in re.findall(r"trained (\{.*\})$", text, re.MULTILINE)]
    return {(run["batch_size"], run["train_steps"]) for run in runs}


def refused(said: Said) -> bool:
    return said.status != 0 and not trained(said.text)


def is_script(said: Said) -> bool:
    return said.status == 0 and "complete" in said.text


def offers_heads(offered: str) -> bool:
    return "num_heads" in offered and ("num_layers" in offered or "num_encoder_layers" in offered)


def plain(text: str) -> str:
    """Returns a text with underscores for hyphens inside words (tyro writes `--batch-size`)."""
    return re.sub(r"(?<=\w)-(?=\w)", "_", text)


def has_word(word: str, text: str) -> bool:
    return re.search(rf"\b{re.escape(word)}\b", text) is not None


def last(path: str) -> str:
    return path.rpartition(".")[2]


def quoted(argument: str) -> str:
    """Returns an argument as one types it in a shell."""
    return f'"{argument}"' if re.search(r"[()*<> ]", argument) else argument
