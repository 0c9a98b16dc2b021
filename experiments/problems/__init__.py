"""One file per family of problems."""
