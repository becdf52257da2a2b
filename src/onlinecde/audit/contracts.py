"""The contract suite: eight promises of an online model, checked on any model, as a report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from onlinecde.audit import contract_checks as checks
from onlinecde.audit.asking import in_use
from onlinecde.audit.contract_checks import Measured
from onlinecde.audit.trial_series import trial_batch_for
from onlinecde.controls import Measurability
from onlinecde.models import OnlineModel, StateError
from onlinecde.series import SeriesBatch


@dataclass(frozen=True)
class ContractResult:
    """One contract: whether it holds, what was measured, and what was allowed."""

    number: int
    contract: str
    passed: bool | None
    """None where the contract does not apply to the model."""
    measured: str
    tolerance: str

    def __str__(self) -> str:
        verdict = {True: "ok", False: "FAILED", None: "-"}[self.passed]
        allowed = f" (allowed: {self.tolerance})" if self.passed is not None else ""
        return f"{self.number}  {self.contract:<26} {verdict:<7} {self.measured}{allowed}"


@dataclass(frozen=True)
class ContractReport:
    """The results of all contracts; prints as a table."""

    model: str
    results: tuple[ContractResult, ...]

    @property
    def ok(self) -> bool:
        """Whether every contract that applies holds."""
        return all(result.passed is not False for result in self.results)

    def __str__(self) -> str:
        asked = [result for result in self.results if result.passed is not None]
        passed = sum(1 for result in asked if result.passed)
        head = f"{self.model}: {passed} of {len(asked)} contracts hold"
        if len(asked) < len(self.results):
            head += f" (not applicable: {len(self.results) - len(asked)})"
        return "\n".join([head, *(f"  {result}" for result in self.results)])


def check_model(
    model: OnlineModel, batch: SeriesBatch | None = None, *, seed: int = 0
) -> ContractReport:
    """Check the eight contracts of an `OnlineModel` by experiment; `print` the report for a table.

    They are checked on these series and these weights alone, so give series like those it will meet.

    Args:
        model: is used in eval mode and left as it was.
        batch: what to try it on, up to 16 streams of up to 64 rows of it; default: made series that fit the
            model, with missing values where it takes them.
        seed: of the experiments.

    Returns:
        A result for each contract.

    >>> from onlinecde.models import GRU
    >>> check_model(GRU(channels=2, hidden=4)).ok
    True
    """
    with in_use(model):
        series = _series(model, batch, seed)
        offline = model.measurability is Measurability.OFFLINE
        results = []
        for number, (name, check, online) in enumerate(_CONTRACTS, start=1):
            if online and offline:
                measured = Measured(None, "it is OFFLINE: it does not run online", "")
            else:
                measured = _guarded(check, model, series, seed)
            results.append(ContractResult(number, name, *measured))
    kind = str(model.dtype).removeprefix("torch.")
    return ContractReport(f"{type(model).__name__} in {kind}", tuple(results))


def _series(model: OnlineModel, batch: SeriesBatch | None, seed: int) -> SeriesBatch:
    if batch is None:
        return trial_batch_for(model, seed, missing=0.4 if takes_gaps(model) else 0.0)
    return model.prepare(batch[: min(16, len(batch))].first_rows(64).to(model.device))


def takes_gaps(model: OnlineModel) -> bool:
    """Whether a channel may be missing after it was observed; found by trying."""
    if model.measurability is Measurability.OFFLINE:
        return True
    row = torch.zeros(1, model.channels, dtype=model.dtype, device=model.device)
    static = torch.zeros(1, model.static, dtype=model.dtype) if model.static else None
    state = model.observe(model.init_state(1, static), 0.0, row)
    try:
        model.observe(state, 1.0, torch.full_like(row, torch.nan))
    except StateError:
        return False
    return True


def _guarded(
    check: Callable[[OnlineModel, SeriesBatch, int], Measured],
    model: OnlineModel,
    batch: SeriesBatch,
    seed: int,
) -> Measured:
    """A check that breaks down is a contract that does not hold."""
    try:
        return check(model, batch, seed)
    except Exception as error:  # whatever a model of the user's own may raise
        return Measured(False, f"{type(error).__name__}: {error}", "no error")


_CONTRACTS = (
    ("stream = batch", checks.stream_is_batch, True),
    ("adapted", checks.adapted, True),
    ("batch independence", checks.batch_independence, False),
    ("padding is inert", checks.inert_padding, False),
    ("events of one instant", checks.events_of_one_instant, True),
    ("save and load", checks.save_and_load, False),
    ("measured = declared", checks.measured_as_declared, False),
    ("bad input is refused", checks.refusals, False),
)
"""Name, check, and whether it asks for a model that runs online."""
