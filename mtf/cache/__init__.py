"""The token cache: tasks are rendered and tokenized once, then read at random places.

`build` writes a cache, `reader` opens it, `format` describes its files, `loader` makes batches.
"""
