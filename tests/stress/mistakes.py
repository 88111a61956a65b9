"""Makes mistakes on the command line and in Python, and shows what each of them prints.

    python -m tests.stress.mistakes [--only WORD] [--quiet]

What must hold: a command ends with exit status 2 and one message on stderr, prints nothing on
stdout, has no traceback, and writes nothing; a mistake in Python raises UserError. Every command
that a message proposes is tried: that of `mtf.run` up to `--print flat`, others up to their dry run
or, if they have none, up to the check of their arguments. Of several names after "Did you mean",
the first is tried. Exit status 1: something did not hold.

Each case runs in a fork of this process, which has imported mtf, but has not initialized JAX.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import os
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

import mtf
from mtf.__main__ import main as mtf_main
from mtf.base.errors import UserError
from mtf.cli import command as command_lib
from mtf.cli import run_recipe
from mtf.cli.plan import command as plan
from tests import small
from tests.storage import prompted_hub
from tests.stress.proposals import PLACEHOLDER, PROPOSES, proposals
from tests.test_transformers_flags import FLAGS

TUNE = "recipes.finetune(checkpoint='run', train='pairs.tsv')"
VALIDATED = TUNE.replace(")", ", validation='pairs.tsv')")
RESTORE = "checkpoint.restore=@mtf.checkpoints.RestoreCheckpointConfig"
SMALL = "tests.config.example.small"
TRAIN = shlex.join(small.arguments("text.txt", train_steps=2))

# One mistake per line. A line that begins with # names the part.
COMMANDS = f"""
# The command itself.
mtf trian recipes.quickstart
mtf --verison
mtf recipes.quickstart
mtf run
mtf run recipes.quickstrt
mtf run quickstart
mtf run recipes
mtf run recipes.t0
mtf run my.py
mtf run my.py:recip
mtf run nowhere.py:recipe
mtf run my.py:number
mtf run my.py:nothing
mtf run my.py:broken
mtf run my.py:picky
mtf run my.py:not_a_job
mtf run {SMALL} {SMALL}
mtf run {SMALL} train_steps=5
mtf run "{SMALL}(stps=3)"
mtf run "{SMALL}(3)"
mtf run recipes.finetune
mtf run recipes.finetune --model_name_or_path hf --train_file pairs.csv --lr 1e-3 --bf16 --seed 3
mtf run "recipes.finetune(checkpoint='run', train='pairs.tsv', batchsize=4)"
mtf run "recipes.finetune(checkpoint='run', train='pairs.tsv', steps='many')"
# Its options.
mtf run {SMALL} --print yaml
mtf run {SMALL} --print
mtf run {SMALL} --prnt flat
mtf run {SMALL} --dryrun
mtf run {SMALL} --dry-run=yes
mtf run {SMALL} --print sharding
mtf run {SMALL} --print flat --devices 2
mtf run "{TUNE}" --print sharding --devices two
mtf run "{TUNE}" --print sharding --devices 0
mtf run "{TUNE}" --engine mft
mtf run {SMALL} --engine t5x --print history
mtf run {SMALL} --diff recipes.quickstrt
mtf run {SMALL} --diff nowhere.json
mtf run {SMALL} --help train_step
mtf run {SMALL} --help data.lengths.x
mtf run {SMALL} --train_steps 5
mtf run {SMALL} --batch_sise=3
mtf run recipes.t0pp_xxl --gin.TRAIN_STEPS=5
mtf run recipes.t0pp_xxl --gin_file=my.gin
mtf run --from run {SMALL}
mtf run --from nowhere
mtf run --from text.txt
mtf run --from notarun
mtf run --from run --set batch_size=16
mtf run --from run --allow batch_sise --set train_steps=4
mtf run {SMALL} --trust nowhere
mtf run {SMALL} --process-count 2
# Values.
mtf run {SMALL} --set
mtf run {SMALL} --set train_steps
mtf run {SMALL} --set train_steps=
mtf run {SMALL} --set train_steps=many
mtf run {SMALL} --set train_steps=1e3
mtf run {SMALL} --set train_steps=2.5
mtf run {SMALL} --set batch_sise=3
mtf run {SMALL} --set emb_dim=8
mtf run {SMALL} --set modl.network.emb_dim=8
mtf run {SMALL} --set model.network.emb_dim.x=8
mtf run {SMALL} --set model=3
mtf run {SMALL} --set data.lengths.inputz=3
mtf run {SMALL} --set "data.lengths={{'inputs': 3"
mtf run {SMALL} --unset modl
mtf run "{TUNE}" --apply smoke_tset
mtf run "{TUNE}" --apply "short(stps=3)"
mtf run "{TUNE}" --set optimizer=adamw
mtf run "{TUNE}" --set optimizer=adamw(1e-3)
mtf run "{TUNE}" --set "optimizer=optax.adam(1e-3)"
mtf run "{TUNE}" --set "optimizer=@optax.adam(1e-3)"
mtf run "{TUNE}" --set "optimizer=@optax.adamm(learning_rate=1e-3)"
mtf run "{TUNE}" --set optimizer.learning_rate=1e-3
mtf run "{TUNE}" --set model.network.dtype=fp16
mtf run "{TUNE}" --set model.network.dtype=float16
mtf run "{TUNE}" --set model.network.dropout_rate=1.5
mtf run "{TUNE}" --set model.network.num_heads=3
mtf run "{TUNE}" --set model.network.remat_policy=ful
mtf run "{TUNE}" --set model.network.scan_layers=yes
mtf run "{TUNE}" --set batch_size=0
mtf run "{TUNE}" --set batch_size=3 partitioner.fsdp=2
mtf run "{TUNE}" --set trainer.num_microbatches=5
mtf run "{TUNE}" --set checkpoint.save.period=0
mtf run "{TUNE}" --set checkpoint.save.dtype=fp16
mtf run "{TUNE}" --set random_seed=-1
mtf run "{TUNE}" --set evaluator=None checkpoint.save.metric_name_to_monitor=eval/loss --dry-run
mtf run "{TUNE}" --set partitioner.num_partitions=3
mtf run "{TUNE}" --set model_dir=/proc/x
mtf run "{TUNE}" --set model_dir=text.txt
mtf run "{TUNE}" --set model_dir=notarun
mtf run "{TUNE}" --set model_dir=s3:/bucket/run
# Data.
mtf run {TRAIN} data.files=nowhere.txt
mtf run {TRAIN} data.files=.
mtf run {TRAIN} data.files=empty.txt
mtf run {TRAIN} data.files=latin.txt
mtf run {TRAIN} data.files=utf16.txt
mtf run {TRAIN} data.files=utf16.tsv
mtf run {TRAIN} data.files=utf16.jsonl
mtf run {TRAIN} data.files=ragged.tsv
mtf run {TRAIN} data.files=bad.jsonl
mtf run {TRAIN} data.files=picture.png
mtf run {TRAIN} data.files=table.xlsx
mtf run "recipes.finetune(checkpoint='run', train='pairz.tsv')" --dry-run
mtf run "recipes.finetune(checkpoint='run', train='pairs.doc')" --dry-run
mtf run "recipes.finetune(checkpoint='run', train='ragged.tsv')" --dry-run
mtf run "recipes.finetune(checkpoint='run', train='utf16.tsv')" --dry-run
mtf run "recipes.finetune(checkpoint='run', train='columns.jsonl')" --dry-run
mtf run "{VALIDATED[:-1]}, metrics='bleuu')" --dry-run
mtf run "recipes.finetune(checkpoint='run', train='pairs.tsv', template='{{a}}')" --dry-run
mtf run "recipes.finetune(checkpoint='run', train='pairs.tsv', mixture='t0_train')"
mtf run "recipes.t0pp_xxl(cache_dir='nowhere')" --dry-run
mtf run "recipes.t0_eval(checkpoint='run')" --set data.data_dir=mirror --dry-run
mtf run "recipes.evaluate(checkpoint='run', mixture_or_task_name='t0_eval_score_evl')" --dry-run
mtf run "recipes.t0_eval(checkpoint='nowhere')" --dry-run
mtf run "recipes.infer(checkpoint='run', files='nowhere.txt')" --dry-run
# Checkpoints.
mtf run "recipes.finetune(checkpoint='nowhere', train='pairs.tsv')"
mtf run "recipes.finetune(checkpoint='notarun', train='pairs.tsv')"
mtf run "recipes.finetune(checkpoint='text.txt', train='pairs.tsv')"
mtf run {TRAIN} train_steps=4 "{RESTORE}(path='bare')"
mtf run {TRAIN} train_steps=4 model.network.emb_dim=64 "{RESTORE}(path='run')"
mtf run {TRAIN} train_steps=4 "{RESTORE}(path='run', step=7)"
mtf convert run
mtf convert run out
mtf convert run out --to pytorch
mtf convert run out --to hff
mtf convert nowhere out --to hf
mtf convert run notarun --to hf
mtf convert run out --to hf --dtype fp16
mtf convert run out --to hf --step 7
mtf convert run out --to hf --stp 2
mtf convert run out --to hf --max-shard-size big
mtf convert run out --to peft
mtf convert run out --to hf --vocabulary nowhere.model
mtf convert --inspect run --to hf
mtf convert --inspect run bare
mtf convert --compare run
mtf convert --inspect nowhere
# Sweeps.
mtf run {TRAIN} --sweep batch_sise=4,8
mtf run {TRAIN} --sweep batch_size
mtf run {TRAIN} --sweep batch_size=4..8
mtf run {TRAIN} --sweep batch_size=4,8 --sweep-mode rnadom --sweep-runs 2
mtf run {TRAIN} --sweep batch_size=4,8 --sweep-runs 3
mtf run {TRAIN} --sweep batch_size=4,8 --sweep-metric accuracyy
mtf run {TRAIN} --sweep batch_size=4,8 --sweep-metric train/los
mtf run {TRAIN} --sweep model_dir=a,b
# The other commands.
mtf launch slrum -- {SMALL}
mtf launch local -- {SMALL}
mtf launch local --processes 0 -- {SMALL}
mtf launch local --processes 2
mtf launch local --process 2 -- {SMALL}
mtf launch slurm -- recipes.quickstrt
mtf launch slurm --nods 2 -- {SMALL}
mtf launch slurm --nodes two -- {SMALL}
mtf launch slurm --time 1:00:00 -- {TRAIN} data.files=nowhere.txt
mtf launch slurm --sbatch "a b" --dry-run -- {SMALL}
mtf plan {SMALL} --target v4:4x8x8
mtf plan recipes.t0pp_xxl
mtf plan recipes.t0pp_xxl --target v4
mtf plan recipes.t0pp_xxl --target v44:4x8x8
mtf plan recipes.t0pp_xxl --target v4:3x5x7
mtf plan recipes.t0p_xxxl --target cpu:8
mtf plan "recipes.t0_eval(checkpoint='run')" --target cpu:1
mtf status
mtf status nowhere
mtf status text.txt
mtf status run --jsn
mtf prompts
mtf prompts fetc
mtf fetch
mtf fetch mt5_bas
mtf fetch run
mtf fetch gs:/bucket/run
mtf cache
mtf cache t0_train
mtf cache t0_trian --output out
mtf cache t0_train --output out --num-wrokers 2
mtf cache t0_train --output out --num-workers many
mtf cache t0_train --output out --format tfrecord
mtf cache t0_train --vocabulary byt5 --output text.txt --data-dir mirror
mtf cache t0_train --vocabulary byt5 --output out --data-dir mirror
mtf cache t0_train --vocabulary byt5 --output out --data-dir nowhere
mtf cache t0_train --vocabulary byt5 --output out --data-dir mirror --only "xyz_*"
mtf cache t0_train --output nowhere --check
mtf cache mine --output out --files train=nowhere.csv --inputs a --targets b --vocabulary byt5
mtf cache mine --output out --files pairs.tsv --inputs inputs --targets targets --vocabulary byt5
mtf data
mtf data t0_trian
mtf data t0_train --vocabulary byt5 --data-dir text.txt
mtf data t0_train --cache nowhere
mtf data t0_train --lengths 1024
mtf data t0_train --vocabulary byt5 --split trian --data-dir mirror
mtf data --list t0_trainn
mtf data t0_train -n many
mtf gin
mtf gin nowhere.gin
mtf gin my.gin --gim.BATCH_SIZE=8
mtf gin my.gin --outptu a.py
mtf completion
mtf completion fsh
mtf doctor --no-trian
"""

# Each raises UserError. The comment says what some of them raised before this script was written.
PYTHON = """
mtf.load(None)  # UserError: There is no model at None
mtf.load("nowhere")
mtf.load("notarun")
mtf.load("run", step=7)
mtf.load("run", vocabulary="nowhere.model")
mtf.load("run", dtype="float16")
mtf.load("run", batch_size=0)
mtf.load("run").generate(3)
mtf.load("run").generate("one", methd="beam")
mtf.load("run").generate("one", method="beem")
mtf.load("run").generate("one", num_return=2)
mtf.load("run").rank("one", "two")
mtf.load("run").rank("one", [])
mtf.load("run").score(["one"], ["two", "three"])
mtf.load("run").score("one", "")
mtf.config.run(recipes.quickstart)  # AttributeError: … no attribute '__signature_info__'
mtf.config.run("recipes.quickstart")  # AttributeError: … no attribute '__signature_info__'
mtf.config.run(recipes)  # TypeError: cannot pickle 'module' object
mtf.config.run(fdl.build(small_config()))  # AttributeError: … '__signature_info__'
mtf.config.apply_overrides(small_config(), ["batch_sise=3"])
mtf.config.resolve("recipes.quickstrt")
mtf.config.load_config("nowhere")
mtf.config.run(fdl.Config(mtf.jobs.Train))
mtf.config.run(changed(optimizer=optax.adam(1e-3)))  # UserError: … Fiddle context: Error occurred
fdl.build(changed(optimizer=optax.adam(1e-3))).run()
fdl.build(changed(optimizer=optax.adam)).run()
mtf.config.run(changed(train_steps="many"))
mtf.config.run(changed(optimizer="adam"))
mtf.config.run(changed(model_dir="text.txt"))
dataclasses.replace(fdl.build(small_config()), batch_size=0)
fdl.build(recipes.finetune("run", train="pairz.tsv")).describe().check()
recipes.finetune(checkpoint=None, train="pairs.tsv")
recipes.finetune("run", train=["pairs.tsv", "ragged.tsv"])  # TypeError: unhashable type: 'list'
mtf.training.ScheduleConfig(base_learning_rate=-1.0)
mtf.builders.model.t5_1_1("smal")
mtf.builders.checkpoint.start("mt5_bas")
mtf.data.TextFilesConfig(files="text.txt", vocabulary="byt5", task_feature_lengths={"inputs": 8})
mtf.config.run(changed(batch_size=None))
mtf.config.run(changed(data=["text.txt"]))
mtf.config.run(changed(trackers="wandb"))
mtf.config.run(small_config)
mtf.load("run", step="last")  # TypeError: … for -: 'int' and 'str'
mtf.load("run", batch_size="8")  # TypeError: '<' not supported between instances of 'str' and 'int'
mtf.load("run").generate(["one", 3])
mtf.load("run").generate("one", max_length="ten")
mtf.load("run").generate("one", temperature=-1.0)
mtf.load("run").rank("one", None)  # TypeError: 'NoneType' object is not iterable
mtf.load("run").score("one", ["two"])
tasks.register("twice", FILES, dict), tasks.register("twice", FILES, dict)
tasks.register("two words", FILES, dict)
tasks.register("mine", "pairs.tsv", dict)  # AttributeError: 'str' object has no attribute 'kind'
tasks.register("mine", tasks.FileSource("pairs.tsv"), dict)  # ValueError: dictionary update …
tasks.register("mine", FILES, "inputs")  # Nothing.
tasks.register("mine", FILES, dict, metrics="accuracy")
tasks.register_mixture("both", {"one": "all"})  # TypeError: '<' not supported between …
tasks.register_mixture("both", "one")  # Nothing: a mixture of the tasks o, n and e.
recipes.finetune("run", train="pairs.tsv", steps=10, epochs=2)
"""


class Result(NamedTuple):
    """What a case has printed, with its exit status."""

    status: int
    out: str
    err: str


def forked(run: Callable[[], int]) -> Result:
    """Calls a function in a fork of this process, with stdout and stderr captured."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            status = 1
            try:
                status = run()
            except SystemExit as end:
                status = int(end.code or 0)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        out.seek(0)
        err.seek(0)
        return Result(status, out.read(), small.without_waiting(err.read()))


def prepare(folder: Path) -> None:
    """Writes what the mistakes name into the current folder: files, a run, a mirror."""
    small.write_text(folder)
    (folder / "notarun").mkdir()
    files = {
        "notarun/notes.txt": b"not a run\n",
        "pairs.tsv": "".join(f"number {i}\tis {i}\n" for i in range(50)).encode(),
        "pairs.csv": b"inputs,targets\n" + b"one,two\n" * 20,
        "pairs.doc": b"a\tb\n",
        "ragged.tsv": b"one\ttwo\nthree\n",
        "columns.jsonl": b'{"question": "one", "answer": "two"}\n' * 20,
        "bad.jsonl": b'{"inputs": "one", "targets": "two"}\n{"inputs": \n',
        "empty.txt": b"",
        "latin.txt": "good\ncafé\n".encode("latin-1"),
        "utf16.txt": "one two\nthree\n".encode("utf-16"),
        "utf16.tsv": "one\ttwo\nthree\tfour\n".encode("utf-16"),
        "utf16.jsonl": '{"inputs": "one", "targets": "two"}\n'.encode("utf-16"),
        "picture.png": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
        "table.xlsx": b"PK\x03\x04" + bytes(range(256)),
        "my.gin": b"TRAIN_STEPS = 5\n",
        "my.py": _MY_RECIPES.encode(),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / "prompts").mkdir()
    archive = prompted_hub.write_sdist(folder / "prompts")
    prompted_hub.accept(archive, pytest.MonkeyPatch())
    os.environ |= {"MTF_PROMPTS": str(archive), "HF_HUB_OFFLINE": "1"}
    run = ["run", *small.arguments("text.txt", train_steps=2, model_dir="run")]
    bare = ["convert", "run", "bare", "--to", "mtf", "--optimizer=drop"]
    exported = ["convert", "run", "hf", "--to", "hf"]
    for words in (run, bare, exported, None):
        done = forked(lambda words=words: mtf_main(words) if words else _write_mirror(folder))
        assert done.status == 0, done


def _write_mirror(folder: Path) -> int:
    prompted_hub.write_mirror(folder / "mirror", "piqa trec", num_rows=20)
    return 0


_MY_RECIPES = """
import fiddle as fdl
import recipes
number = 3
def recipe(): return recipes.quickstart()
def nothing(): pass
def broken(): return 1 / 0
def picky(size): return recipes.quickstart()
def not_a_job(): return fdl.Config(dict)
"""


def try_proposal(line: str) -> Result:
    """Tries a command: a dry run or less of it."""
    if not line.startswith(("mtf ", "python ")):
        return in_python(line.replace("mtf.config.run(", "mtf.config.as_flat_text("))
    words = shlex.split(line.replace("python -m mtf.", "mtf ").replace("python -m mtf", "mtf"))[1:]
    if words[:1] == ["run"] and not {"--print", "--help", "--list", "--diff"} & {*words}:
        words = [word for word in words if word != "--dry-run"]
        words += ["--dry-run"] if "--sweep" in words else ["--print", "flat"]
    if words[:1] == ["launch"]:
        words.insert(words.index("--") if "--" in words else len(words), "--dry-run")

    def run() -> int:
        if words[0] in ("cache", "data", "fetch", "prompts", "convert", "doctor", "gin"):
            # Only the arguments are checked.
            for module in (
                "cache",
                "data",
                "fetch",
                "prompts",
                "doctor",
                "gin.command",
                "convert.command",
            ):
                imported = importlib.import_module(f"mtf.cli.{module}")
                if hasattr(imported, "exit_status"):
                    imported.exit_status = lambda run, only_shows: 0
            command_lib.exit_status = lambda run, only_shows: 0
        plan.Target.check_compiler = lambda self: sys.exit(0)
        if "--unset" not in words:
            # `--print` shows a config that lacks required values if the message begins otherwise.
            found = run_recipe.config_lib.find_problems
            run_recipe.config_lib.find_problems = lambda config: [f"* {x}" for x in found(config)]
        return mtf_main(words)

    return forked(run)


def check(line: str, done: Result, before: set[Path], folder: Path) -> Iterator[str]:
    """Yields what does not hold of a mistake's result."""
    after = set(folder.rglob("*"))
    if done.status != 2:
        yield f"exit status {done.status}"
    if done.out and "--dry-run" not in line:
        yield f"stdout: {done.out[:200]!r}"
    if not done.err.startswith("error: ") or done.err.count("error: ") > 1:
        yield "not one message"
    if "Traceback" in done.err and "my.py" not in done.err:
        yield "a traceback"
    if done.err.count("\n") > 12 or len(done.err) > 1600:
        yield f"a message of {len(done.err)} characters"
    if after != before:
        yield f"wrote {sorted(map(str, after - before))[:3]}"
    proposed = dict.fromkeys(proposals(line, done.err))
    if PROPOSES.search(done.err) and not (proposed or PLACEHOLDER.search(done.err)):
        yield "a proposal that is not tried"
    for other in proposed:
        tried = try_proposal(other)
        if tried.status != 0:
            yield f"proposed and refused: {other}\n{tried.err[:400]}"
        else:
            yield f"  (accepted: {other})"


def in_python(line: str) -> Result:
    """Runs a line of Python as a command that prints the UserError that it raises."""
    import dataclasses

    import fiddle as fdl
    import optax

    import recipes
    from mtf.data import tasks

    def small_config() -> fdl.Config:
        given = shlex.split(TRAIN)
        return mtf.config.apply_overrides(mtf.config.resolve(given[0]), given[2:])

    def changed(**values: object) -> fdl.Config:
        config = small_config()
        for name, value in values.items():
            setattr(config, name, value)
        return config

    names = {"mtf": mtf, "fdl": fdl, "recipes": recipes, "optax": optax, "changed": changed}
    names |= {"small_config": small_config, "dataclasses": dataclasses, "tasks": tasks}
    names |= {"FILES": tasks.FileSource({"train": "pairs.tsv"}), "quickstart": recipes.quickstart}

    def run() -> int:
        try:
            exec(line, names)
        except UserError as error:
            # Fiddle adds where in a config a component was built.
            print(f"error: {getattr(error, 'proxy_base_exception', error)}", file=sys.stderr)
            return 2
        return 0

    return forked(run)


def cases(only: str = "") -> Iterator[tuple[str, Callable[[], Result]]]:
    """Yields each mistake with a function that makes it."""
    flags = (shlex.join(["mtf", "run", VALIDATED, *filter(None, flag)]) for *flag, _ in FLAGS)
    for line in (*COMMANDS.strip().splitlines(), *(flag.replace("RUN", "run") for flag in flags)):
        sweeps = "--sweep" in line and importlib.util.find_spec("optuna") is None
        if line[0] != "#" and only in line and not sweeps:
            yield line, lambda line=line: forked(lambda: mtf_main(shlex.split(line)[1:]))
    for line in PYTHON.strip().splitlines():
        if only in line:
            yield line, lambda line=line: in_python(line)


def main(argv: Sequence[str] | None = None) -> int:
    """Makes all mistakes; returns the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", metavar="WORD")
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        folder = Path(name)
        prepare(folder)
        wrong = list(failures(folder, options.only, io.StringIO() if options.quiet else sys.stdout))
    print(f"{len(wrong)} of {len(list(cases(options.only)))} mistakes are not as they must be:")
    print(*wrong, sep="\n")
    return int(bool(wrong))


def failures(folder: Path, only: str, shown: io.TextIOBase) -> Iterator[str]:
    """Makes the mistakes, writes what they print to `shown`, and yields what does not hold."""
    for line, run in cases(only):
        before = set(folder.rglob("*"))
        done = run()
        found = list(check(line, done, before, folder))
        print(f"$ {line.replace(TRAIN, '…')}\n{done.out}{done.err}", *found, sep="\n", file=shown)
        if wrong := [each for each in found if not each.startswith("  (")]:
            yield f"{line.replace(TRAIN, '…')}\n    " + "\n    ".join(wrong)


if __name__ == "__main__":
    sys.exit(main())
