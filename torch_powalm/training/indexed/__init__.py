"""Blocks with one constraint per data point, of which a batch holds a few."""
