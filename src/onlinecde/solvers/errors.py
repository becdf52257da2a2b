"""`SolverError`: what ends a solve."""


class SolverError(RuntimeError):
    """A solve that could not go on; the message names the stream and the time."""


def not_finite(where: str) -> SolverError:
    """The error for a state that is NaN or infinite; `where` names the stream and the time."""
    return SolverError(
        f"{where}: the state is no longer finite: the inputs or the weights are too large. Scale the "
        "series (Encoding.fit), take more steps, or lower the learning rate."
    )
