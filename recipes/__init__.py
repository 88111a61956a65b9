"""Recipes: typed functions that return the config of a job. Each family of recipes has a file."""

from pkgutil import extend_path

from recipes.files import cache, convert
from recipes.finetune import finetune
from recipes.inference import evaluate, infer
from recipes.mt0 import (
    mt0_base,
    mt0_eval,
    mt0_large,
    mt0_small,
    mt0_xl,
    mt0_xxl,
    mt0_xxl_xmtf,
    mt5_lm_adapt,
)
from recipes.pretraining import continue_pretraining
from recipes.romanian import ro_mt5_base, ro_mt5_large, ro_t5_base, ro_t5_large
from recipes.start import quickstart
from recipes.t0 import (
    t0_3b,
    t0_eval,
    t0_original_task_only_xxl,
    t0_single_prompt_xxl,
    t0_xxl,
    t0p_xxl,
    t0pp_xxl,
)
from recipes.t5 import (
    t5_1_1_base_c4,
    t5_1_1_finetune,
    t5_1_1_large_c4,
    t5_1_1_small_c4,
    t5_1_1_xl_c4,
    t5_1_1_xxl_c4,
)

# A user's recipes/more.py can also be imported as `recipes.more` if its folder has no __init__.py.
__path__ = extend_path(__path__, __name__)

__all__ = [
    "cache",
    "continue_pretraining",
    "convert",
    "evaluate",
    "finetune",
    "infer",
    "mt0_base",
    "mt0_eval",
    "mt0_large",
    "mt0_small",
    "mt0_xl",
    "mt0_xxl",
    "mt0_xxl_xmtf",
    "mt5_lm_adapt",
    "quickstart",
    "ro_mt5_base",
    "ro_mt5_large",
    "ro_t5_base",
    "ro_t5_large",
    "t0_3b",
    "t0_eval",
    "t0_original_task_only_xxl",
    "t0_single_prompt_xxl",
    "t0_xxl",
    "t0p_xxl",
    "t0pp_xxl",
    "t5_1_1_base_c4",
    "t5_1_1_finetune",
    "t5_1_1_large_c4",
    "t5_1_1_small_c4",
    "t5_1_1_xl_c4",
    "t5_1_1_xxl_c4",
]
