"""Converts SeqIO tasks to mtf tasks, and mtf tasks to SeqIO tasks."""
