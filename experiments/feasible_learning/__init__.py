"""Feasible learning: a bound on the loss of every training sample."""
