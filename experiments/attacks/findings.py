"""What an attack raises if it has found something."""


class FindingError(Exception):
    """Something wrong that passed, or an error without a name."""
