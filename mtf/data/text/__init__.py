"""Normalizes text and converts it to token ids and back."""
