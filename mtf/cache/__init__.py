"""The token cache: tasks rendered and tokenised once, read at random places ever after.

`build` writes a cache, `reader` opens it, `format` says what it looks like, `loader` makes batches
of it.
"""
