"""ConstraintBench: constrained trainings of many kinds, in several units, by several methods."""
