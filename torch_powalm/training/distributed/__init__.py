"""Training in several processes: sums over ranks, sharded tensors, distributed checkpoints."""
