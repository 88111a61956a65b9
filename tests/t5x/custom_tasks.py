"""Tasks for `data.module`: made-up rows, and prompts of T0 for real rows."""

from __future__ import annotations

from mtf.data import tasks
from tests.evaluation.custom_tasks import name_the_colour  # which registers custom_mixture

PROMPTS = (
    "super_glue_cb_can_we_infer",
    "super_glue_cb_can_we_infer_score_eval",
    "super_glue_copa_best_option_score_eval",
    "trec_what_category_best_describe",
    "trec_fine_grained_ABBR",
    "xsum_DOC_tldr",
)
tasks.register_mixture("few_prompts", PROMPTS, rate=1.0)

tasks.register("no_sights", tasks.HubSource("sights"), lambda row: None, metrics=["accuracy"])
tasks.register("told_sights", tasks.HubSource("sights"), name_the_colour, metrics=["rouge", "bleu"])
tasks.register_mixture("all_sights", ["custom_mixture", "no_sights", "told_sights"])
