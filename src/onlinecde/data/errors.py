"""The one error of this folder."""


class DataError(ValueError):
    """Data that cannot be used as it is: the message says what is wrong, where, and what to do."""
