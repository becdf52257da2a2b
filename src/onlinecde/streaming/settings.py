"""The settings of an engine, each defined and checked here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from onlinecde.models import AlarmPolicy, AlarmPolicyError
from onlinecde.models.readout import watched
from onlinecde.series import Schema
from onlinecde.streaming.errors import StreamingError


@dataclass(frozen=True)
class EngineSettings:
    """Settings of an `Engine`.

    threshold: probability of output `output`, or number of a regression, at which a row raises an alarm; a policy
        without quiet time or looks between rows.
    output: the output that is watched; that of the policy where there is one.
    policy: when alarms are raised, in the place of `threshold`; default, without either: the model's own.
    alarms: False for none, whatever policy the model has.
    lateness: how far behind its stream's newest row an event may lie, in the model's unit of time.
    horizon: how far from the training times an event's time may lie; default 1e5 time scales.
    ahead: how far an event may lie ahead of its stream's newest row; default `horizon`.
    recent: how many states a stream keeps in memory, so that late events are cheap.
    checkpoint_rows: a state is kept in the store for good every so many rows of a stream.
    resident: how many streams are kept in memory; those idle longest go first, and come back when needed.
    piece_rows: rows of a stream that one micro-batch takes or integrates again at once; more are done in pieces, with
        the engine free in between.
    plausible: channel -> least and largest plausible value; default: what the training split had (`Schema.ranges`).
    implausible: "mark" takes other values and says so in the receipts; "refuse" refuses them.
    most_streams: events that would open more streams than this are refused.
    """

    threshold: float | None = None
    output: int = 0
    policy: AlarmPolicy | None = None
    alarms: bool = True
    lateness: float = 0.0
    horizon: float | None = None
    ahead: float | None = None
    recent: int = 8
    checkpoint_rows: int = 32
    resident: int = 100_000
    piece_rows: int = 512
    most_streams: int = 1_000_000
    plausible: Mapping[str, tuple[float, float]] | None = None
    implausible: str = "mark"

    def __post_init__(self) -> None:
        if self.implausible not in ("mark", "refuse"):
            raise StreamingError(
                f"implausible is {self.implausible!r}: give mark or refuse.", "setting_bad"
            )
        for name in ("recent", "checkpoint_rows", "resident", "piece_rows", "most_streams"):
            size = getattr(self, name)
            if size < 1:
                raise StreamingError(f"{name} is {size}: give at least 1.", "setting_bad")
        for name in ("lateness", "ahead"):
            span = getattr(self, name)
            if span is not None and not 0 <= span < float("inf"):
                raise StreamingError(f"{name} is {span}: give a time of 0 or more.", "setting_bad")
        if self.threshold is not None and (self.policy is not None or not self.alarms):
            other = "a policy" if self.policy is not None else "alarms=False"
            raise StreamingError(
                f"threshold and {other} were given: give one of them.", "setting_bad"
            )

    def ranges(self, schema: Schema) -> np.ndarray:
        """(2, channel): the least and the largest plausible value of each, NaN where there is no bound."""
        known = dict(zip(schema.channels, schema.ranges or (), strict=False))
        given = known if self.plausible is None else self.plausible
        if strange := given.keys() - set(schema.channels):
            raise StreamingError(
                f"plausible: the model has no channel {min(strange)!r}.", "setting_bad"
            )
        result = np.full((2, len(schema.channels)), np.nan)
        for place, name in enumerate(schema.channels):
            if (bounds := given.get(name)) is not None:
                result[:, place] = bounds
                if not bounds[0] <= bounds[1]:
                    raise StreamingError(
                        f"plausible values of {name!r} are {bounds}: give the least and the largest.",
                        "setting_bad",
                    )
        return result

    def policy_for(self, own: AlarmPolicy | None, outputs: int, kind: str) -> AlarmPolicy | None:
        """The policy that holds; None for no alarms.

        Args:
            own: the model's policy.
            outputs: how many outputs the model has.
            kind: what they mean.
        """
        if not 0 <= self.output < watched(kind, outputs):
            raise StreamingError(
                f"output is {self.output}: the model has no such output.", "setting_bad"
            )
        policy = self.policy or own
        try:
            if self.threshold is not None:
                policy = AlarmPolicy(self.threshold, output=self.output)
            if not self.alarms or policy is None:
                return None
            policy.check_outputs(outputs, kind)
        except AlarmPolicyError as error:
            raise StreamingError(str(error), "setting_bad") from error
        if self.output not in (0, policy.output):
            raise StreamingError(
                f"output is {self.output}, the policy watches output {policy.output}: leave output out, or give a "
                "threshold for it.",
                "setting_bad",
            )
        return policy
