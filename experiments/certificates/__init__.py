"""Experiments on certificates: coverage, margins, test feasibility, prices and trade-offs."""
