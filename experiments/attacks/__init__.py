"""Attacks on the library: fuzzers of trainings, states, files, ranks, functions and kills."""
