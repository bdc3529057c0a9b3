"""Why a run on an account cannot begin."""


class UnusableError(Exception):
    """One sentence."""
