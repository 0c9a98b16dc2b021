"""The solving route: problem, outer loop, inner solver, certificate, solution."""
