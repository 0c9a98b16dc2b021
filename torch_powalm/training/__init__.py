"""Training with constraints: loss, augmented gradient, base optimizer step, multiplier update."""
