"""`SolverError`: what ends a solve."""


class SolverError(RuntimeError):
    """A solve that could not go on; the message names the stream and the time."""
