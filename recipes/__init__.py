"""Recipes: typed functions that return the config of a job. Each family of recipes has a file."""

from pkgutil import extend_path

from recipes.files import cache as cache
from recipes.files import convert as convert
from recipes.finetune import finetune as finetune
from recipes.inference import evaluate as evaluate
from recipes.inference import infer as infer
from recipes.mt0 import mt0_base as mt0_base
from recipes.mt0 import mt0_eval as mt0_eval
from recipes.mt0 import mt0_large as mt0_large
from recipes.mt0 import mt0_small as mt0_small
from recipes.mt0 import mt0_t0pp as mt0_t0pp
from recipes.mt0 import mt0_xl as mt0_xl
from recipes.mt0 import mt0_xxl as mt0_xxl
from recipes.mt0 import mt0_xxl_mt as mt0_xxl_mt
from recipes.mt0 import mt0_xxl_p3 as mt0_xxl_p3
from recipes.mt0 import mt5_lm_adapt as mt5_lm_adapt
from recipes.pretraining import continue_pretraining as continue_pretraining
from recipes.romanian import ro_mt5_base as ro_mt5_base
from recipes.romanian import ro_mt5_large as ro_mt5_large
from recipes.romanian import ro_t5_base as ro_t5_base
from recipes.romanian import ro_t5_large as ro_t5_large
from recipes.start import pretrain_text as pretrain_text
from recipes.start import quickstart as quickstart
from recipes.t0 import t0_3b as t0_3b
from recipes.t0 import t0_eval as t0_eval
from recipes.t0 import t0_original_task_only_xxl as t0_original_task_only_xxl
from recipes.t0 import t0_single_prompt_xxl as t0_single_prompt_xxl
from recipes.t0 import t0_xxl as t0_xxl
from recipes.t0 import t0p_xxl as t0p_xxl
from recipes.t0 import t0pp_xxl as t0pp_xxl
from recipes.t5 import t5_1_1_base_c4 as t5_1_1_base_c4
from recipes.t5 import t5_1_1_finetune as t5_1_1_finetune
from recipes.t5 import t5_1_1_large_c4 as t5_1_1_large_c4
from recipes.t5 import t5_1_1_small_c4 as t5_1_1_small_c4
from recipes.t5 import t5_1_1_xl_c4 as t5_1_1_xl_c4
from recipes.t5 import t5_1_1_xxl_c4 as t5_1_1_xxl_c4

# A user's recipes/more.py can also be imported as `recipes.more` if its folder has no __init__.py.
__path__ = extend_path(__path__, __name__)
