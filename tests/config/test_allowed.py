"""What comes from elsewhere in a run directory chooses values, and never runs code."""

from __future__ import annotations

import contextlib
import copy
import importlib.metadata
import io
import itertools
import json
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mtf
from mtf import config as config_lib
from mtf.base.errors import UserError
from mtf.cli import status
from mtf.cli.convert.command import main as convert
from mtf.cli.plan.command import main as plan
from mtf.cli.run import main as run
from mtf.config import allowed
from mtf.evaluation import infer_eval
from tests import small
from tests.conversion import writers

# Each call of what it defines, and its import, adds a line to `called` beside it.
EVIL = """
import pathlib
def record(*_, **__):
    with open(pathlib.Path(__file__).with_name("called"), "a") as file:
        file.write("called\\n")
record()
def run(*arguments, **named):
    record()
class Meta(type):
    __call__ = __getattr__ = run
    @property
    def secret(cls):
        record()
class Made(metaclass=Meta):
    __init__ = run
    @property
    def value(self):
        record()
"""
Name = tuple[str, str]


def pyref(name: Name) -> dict[str, Any]:
    return {"type": "pyref", "module": name[0], "name": name[1]}


def nodes(content: Any) -> Iterator[dict[str, Any]]:
    for value in content.values() if isinstance(content, dict) else content:
        if isinstance(value, dict | list):
            if isinstance(value, dict):
                yield value
            yield from nodes(value)


def config_of(recipe: str) -> dict[str, Any]:
    """The config.json of a recipe, parsed."""
    found: dict[str, Any] = json.loads(config_lib.dump_json(config_lib.resolve(recipe)))
    return found


def is_class(node: dict[str, Any]) -> bool:
    return node.get("type") == "pyref" and str(node["module"]).startswith("mtf.")


def with_class(config: dict[str, Any], number: int, name: Name) -> dict[str, Any]:
    """Replaces the class of a component."""
    config = copy.deepcopy(config)
    classes = [node for node in nodes(config) if is_class(node)]
    classes[number % len(classes)].update(pyref(name))
    return config


def with_value(config: dict[str, Any], number: int, value: Any) -> dict[str, Any]:
    """Replaces the value of a field, and adds an object that calls what the value names."""
    config = copy.deepcopy(config)
    items = [node["items"] for node in nodes(config) if "metadata" in node and node.get("items")]
    pairs = [pair for each in items for pair in each if pair[0].startswith("Attr")]
    pairs = [pair for pair in pairs if "fn_or_cls" not in pair[0] and "argument" not in pair[0]]
    pairs[number % len(pairs)][1] = value
    return config


def calling(name: Name, kind: str) -> dict[str, Any]:
    """An object that Fiddle reads as a call of a function without arguments."""
    empty = {"type": pyref(("builtins", "tuple")), "items": [], "metadata": None}
    no_names = {"type": pyref(("builtins", "dict")), "items": [], "metadata": empty}
    names = ("fn_or_cls", "argument_names", "argument_tags", "argument_history")
    values = (pyref(name), empty, no_names, no_names)
    items = [[f"Attr(name='{each}')", value] for each, value in zip(names, values, strict=True)]
    metadata = pyref(("fiddle", "BuildableTraverserMetadata"))
    function = {"type": metadata, "items": items, "metadata": metadata}
    return {"type": pyref(("fiddle", kind)), "items": [], "metadata": function}


def constructing(name: Name) -> dict[str, Any]:
    """An object that Fiddle would make with the class `name`, or by calling it on a list."""
    return {"type": pyref(name), "items": [["x", 1]], "metadata": pyref(name)}


def of_installed() -> list[Name]:
    """A function of each installed distribution, which `watched` adds to it."""
    return [(package, "canary") for package in sorted(importlib.metadata.packages_distributions())]


@contextlib.contextmanager
def watched(modules: Iterable[str]) -> Iterator[list[str]]:
    """Adds a function `canary` to modules; yields the modules whose canary has been called."""
    called: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for module in {name for name in modules if name in sys.modules}:

            def canary(*_: Any, module: str = module, **__: Any) -> None:
                called.append(module)

            canary.__module__, canary.__qualname__ = module, "canary"
            patch.setattr(sys.modules[module], "canary", canary, raising=False)
        yield called


OF_PYTHON = [
    *(("os", "system"), ("posix", "system"), ("subprocess", "getoutput"), ("builtins", "eval")),
    *(("builtins", "exec"), ("builtins", "open"), ("builtins", "__import__"), ("pickle", "loads")),
    *(("importlib", "import_module"), ("runpy", "run_path"), ("shutil", "rmtree")),
    *((name, "canary") for name in ("os", "subprocess", "builtins", "dataclasses")),
    *(("antigravity", "webbrowser"), ("code", "interact"), ("this", "s"), ("functools", "partial")),
]
OF_MTF = [
    *(("mtf.base.environment", "subprocess.getoutput"), ("mtf", "base.environment.os.system")),
    *(("mtf.base.environment", "os.system"), ("mtf.models.settings", "dataclasses.sys.exit")),
    *(("mtf.base.environment", "subprocess.canary"), ("mtf.data.settings", "field.canary")),
    *(("mtf.models.settings", "dataclasses.canary"), ("mtf.storage", "os.canary")),
    *(("mtf.models.settings", "canary"), ("mtf.jobs.train.settings", "canary")),
    *(("mtf.data.tasks.registry", "import_module"), ("mtf.config.lookup", "import_user_module")),
    *(("mtf.storage", "remove_tree"), ("mtf.base.writing", "write_atomically"), ("mtf", "load")),
    *(("mtf.models.settings", "T5Config.__init__.__globals__"), ("mtf.run", "main")),
    *(("mtf.models.settings", "T5Config.__class__"), ("mtf.data.settings", "field")),
    *(
        ("conversion", "open_checkpoint"),
        ("optax", "jnp.load"),
        ("optax", "_src"),
        ("fiddle", "build"),
    ),
    *(("optax._src.base", "jax.pure_callback"), ("recipes._own", "evil"), ("fiddle", "Config.x")),
]
OF_EVIL = [
    *(("evil", "run"), ("evil", "Made"), ("evil", "Meta"), ("evil", "Made.secret")),
    *(("evil", "Made.value"), ("evil", "pathlib.os.system"), ("package.evil", "run")),
    *(("package", "evil.run"), ("recipes.evil", "run"), ("beside", "run"), ("elsewhere", "run")),
]


def hostile() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Contents of config.json and environment.json."""
    bases = [config_of(f"recipes.{name}") for name in ("pretrain_text", "t0_eval(checkpoint='x')")]
    bases.append(config_of("recipes.infer(checkpoint='x',files='y')"))
    number = itertools.count()
    names = [*OF_EVIL * 4, *OF_MTF * 2, *OF_PYTHON * 2, *of_installed()]
    for at, name in enumerate(names):
        config, environment = bases[at % 3], {"working_directory": "elsewhere" if at % 2 else "run"}
        ways: list[Callable[[], dict[str, Any]]] = [
            lambda config=config, name=name: with_class(config, next(number), name),
            lambda config=config, name=name: with_value(config, next(number), pyref(name)),
            lambda config=config, name=name: with_value(
                config, next(number), calling(name, ("Config", "Partial")[next(number) % 2])
            ),
            lambda config=config, name=name: with_value(config, next(number), constructing(name)),
        ]
        yield ways[at % 4](), environment
    for text in ("evil", "evil.run", "package.evil", "antigravity", "subprocess.getoutput"):
        leaf = {"type": "leaf", "value": text}
        for config, field in ((bases[1], "module"), (bases[2], "module"), (bases[0], "evaluator")):
            config = copy.deepcopy(config)
            for pair in (p for n in nodes(config) for p in n.get("items", ()) if field in p[0]):
                pair[1] = leaf
            yield config, {"working_directory": "elsewhere"}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with modules that note their calls, and a run with a checkpoint."""
    parameters = writers.random_parameters(num_encoder_layers=1, num_decoder_layers=1)
    writers.write_t5x(tmp_path / "run", parameters)
    (tmp_path / "run" / "t5x_config.json").write_text("{}")
    small.write_text(tmp_path)
    for file in (
        *("evil.py", "package/evil.py", "recipes/evil.py", "run/beside.py", "run/optax.py"),
        *("elsewhere/elsewhere.py", "elsewhere/sitecustomize.py", "elsewhere/evil.py"),
    ):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in ("evil", "package", "package.evil", "recipes.evil", "beside", "elsewhere"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(allowed, "_named", set())
    monkeypatch.setattr(allowed, "_own_configs", [])
    return tmp_path


COMMANDS: dict[str, Callable[[], object]] = {
    "--from": lambda: run(["--from", "run", "--dry-run"]),
    "--print": lambda: run(["--from", "run/config.json", "--print", "all"]),
    "--diff": lambda: run(["recipes.pretrain_text", "--diff", "run"]),
    "model_dir": lambda: run(["recipes.pretrain_text", "--set", "model_dir=run", "--dry-run"]),
    "recipe": lambda: run(["recipes.infer(checkpoint='run',files='text.txt')", "--dry-run"]),
    "fine-tuning": lambda: run(
        ["recipes.continue_pretraining(checkpoint='run')", "--print", "flat"]
    ),
    "plan": lambda: plan(["recipes.continue_pretraining(checkpoint='run')", "--target", "cpu:1"]),
    "convert": lambda: convert(["run", "out", "--to", "hf", "--no-verify"]),
    "--config": lambda: convert(["run/checkpoint_7", "out", "--to", "hf", "--config", "run"]),
    "status": lambda: status.main(["run"]),
    "mtf.load": lambda: mtf.load("run"),
}
BY_DEFAULT = ("--from", "model_dir", "convert")


def assert_harmless(project: Path, config: Any, environment: Any, commands: Any) -> list[str]:
    """Runs commands on a run; returns what they printed."""
    (project / "run" / "config.json").write_text(json.dumps(config))
    (project / "run" / "environment.json").write_text(json.dumps(environment))
    foreign = {name.partition(".")[0] for name in ("evil", "package", "beside", "elsewhere")}
    before, paths, said = set(sys.modules), [*sys.path], []
    for name in commands:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                COMMANDS[name]()
            except UserError as error:
                print(error)
        said.append(out.getvalue())
        assert "Traceback" not in said[-1], (name, config)
    assert not [*project.rglob("called")], config
    assert not foreign & {each.partition(".")[0] for each in set(sys.modules) - before}
    assert sys.path == paths
    return said


CASES = [("evil", "run"), ("yaml", "load"), ("os", "system")]
CASES.append(("mtf.base.environment", "subprocess.getoutput"))


@pytest.mark.parametrize("name", CASES)
def test_code_from_elsewhere_is_not_run(project: Path, name: Name) -> None:
    config = with_class(config_of("recipes.pretrain_text"), 0, name)
    environment = {"working_directory": str(project / "elsewhere")}
    for text in assert_harmless(project, config, environment, BY_DEFAULT):
        assert "run/config.json names " + name[0] in text
        assert ("add --trust " in text) == (name[0] in ("evil", "yaml"))


def test_trust_in_python(project: Path) -> None:
    config = with_class(config_of("recipes.pretrain_text"), 0, ("evil", "Meta"))
    assert_harmless(project, config, {}, ["mtf.load"])
    with contextlib.suppress(Exception):  # What it names is no setting of mtf.
        mtf.load("run", trust=True)
    assert [*project.rglob("called")] == [project / "called"]


def test_a_cache_names_no_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    cached: Any = types.SimpleNamespace(name="mine", metrics=["evil.run"])
    registered: Any = types.SimpleNamespace(name="mine", metrics=["bleu"])
    monkeypatch.setattr(infer_eval, "find_task", lambda data, name: registered)
    mixture: Any = object()
    assert infer_eval.comparison(cached, data=mixture).metrics == ("bleu",)


def test_own_functions_of_a_named_module(project: Path) -> None:
    """What a module imports is not its own."""
    allowed.name_module("evil")
    run = config_of("recipes.pretrain_text")
    for name, is_allowed in (
        ("run", True),
        ("record", True),
        ("pathlib", False),
        ("Made.run", False),
    ):
        text = json.dumps(with_class(run, 0, ("evil", name)))
        with contextlib.nullcontext() if is_allowed else pytest.raises(UserError, match="evil"):
            config_lib.load_json(text, "config.json")


@pytest.mark.slow
def test_hostile_runs(project: Path) -> None:
    cases = [*hostile()]
    assert len(cases) >= 200
    for at, (config, environment) in enumerate(cases):
        commands = [*COMMANDS][at % 3 :: 3]  # Each case in a third of the commands.
        modules = {str(node["module"]) for node in nodes(config) if node.get("type") == "pyref"}
        with watched(modules | {"os", "subprocess", "dataclasses"}) as called:
            assert_harmless(project, config, environment, commands)
        assert not called, config


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["mtf.run", "--from", "run", "--print", "flat"],
        ["mtf.convert", "run", "out", "--to", "hf", "--no-verify"],
        ["mtf.run", "recipes.pretrain_text", "--set", "model_dir=run", "--dry-run"],
    ],
)
def test_only_trust_imports_a_module(project: Path, command: list[str]) -> None:
    config = with_class(config_of("recipes.pretrain_text"), 0, ("evil", "run"))
    (project / "run" / "config.json").write_text(json.dumps(config))
    (project / "run" / "environment.json").write_text('{"working_directory": "elsewhere"}')

    def message(*more: str) -> str:
        return small.python("-m", *command, *more, cwd=project, status=None).stderr

    assert "run/config.json names evil, which mtf does not define" in message()
    assert not [*project.rglob("called")]
    message("--trust", "run")
    assert [*project.rglob("called")] == [project / "called"]
