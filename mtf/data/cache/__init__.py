"""The token cache: tasks rendered and tokenised once, read at random places ever after.

`build` and `from_seqio` write a cache, `reader` opens it, `format` says what it looks like.
"""
