"""Steps that read nothing back from the device: formulas, multipliers, masks and transfers."""
