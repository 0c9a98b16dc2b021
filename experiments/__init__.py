"""Entry scripts, benchmarks and their committed results."""
