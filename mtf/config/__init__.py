"""Finds recipes; overrides, checks, shows, compares and stores configs. Does not import JAX."""

from mtf.config.allowed import trust_runs
from mtf.config.checks import build, find_problems, find_refusals, summarize
from mtf.config.codegen import as_python
from mtf.config.lookup import list_recipes, recipe_name, resolve
from mtf.config.overrides import Override, apply_overrides, try_overrides
from mtf.config.run_dir import check_resume, load_config, new_run_dir, run_title, write_run_dir
from mtf.config.serialize import dump_json, load_json
from mtf.config.show import as_flat_text, as_history_text, diff, flat_values
from mtf.config.start import as_checked, check_types, in_run_directory, run, settled, stored
from mtf.config.tree import complete

__all__ = [
    "Override",
    "apply_overrides",
    "as_checked",
    "as_flat_text",
    "as_history_text",
    "as_python",
    "build",
    "check_resume",
    "check_types",
    "complete",
    "diff",
    "dump_json",
    "find_problems",
    "find_refusals",
    "flat_values",
    "in_run_directory",
    "list_recipes",
    "load_config",
    "load_json",
    "new_run_dir",
    "recipe_name",
    "resolve",
    "run",
    "run_title",
    "settled",
    "stored",
    "summarize",
    "trust_runs",
    "try_overrides",
    "write_run_dir",
]
