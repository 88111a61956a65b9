"""Greedy decoding, sampling and beam search."""
