"""Shows a config in Python: origins and code with Fiddle's functions, the diff with NeMo-Run's.

A config of NeMo-Run is one of Fiddle; `train.py --repl` gives the same object in a shell.
"""

import sys

import settings
from fiddle import printing
from fiddle.codegen import codegen
from nemo_run.cli.cli_parser import parse_cli_args

config = parse_cli_args(settings.recipe(), sys.argv[2:])
if sys.argv[1] == "origins":
    print(printing.history_per_leaf_parameter(config))
elif sys.argv[1] == "diff":
    print(config.diff(settings.recipe()).source)  # A graph in the language of Graphviz.
else:
    code = "\n".join(codegen.codegen_dot_syntax(config).lines())
    print(code)
    scope = {}
    exec(code, scope)
    print("same config:", scope["build_config"]() == config)
