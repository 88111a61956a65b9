"""`mtf completion`: completion of commands, recipes, paths and values in bash, zsh and fish."""
