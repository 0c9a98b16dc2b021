"""A small training for every entry of torch_powalm.zoo, in two unit systems."""
