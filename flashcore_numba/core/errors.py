"""What is raised for a call that cannot be served."""


class ArgumentError(ValueError):
    """A bad argument: the message names it, its value and what is accepted."""


class UnsupportedError(ArgumentError):
    """A good problem that the chosen stage does not serve: the message names one that can."""
