"""A store in memory: for trying out, for tests, and where nothing needs to outlive the process."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import replace

from onlinecde.streaming.alarms import Alarm
from onlinecde.streaming.errors import StoreError
from onlinecde.streaming.stores.base import (
    CheckpointRecord,
    ClockRecord,
    Commit,
    RefusedRecord,
    RevisedRecord,
    RowRecord,
    StateRecord,
    StoreHead,
    StreamRecord,
)

KEPT_REFUSALS = 10_000


class MemoryStore:
    """Keeps what an engine commits for as long as the process lives; a `Store`."""

    def __init__(self) -> None:
        self._model: str | None = None
        self._sequence = 0
        self._totals: str | None = None
        self._streams: dict[int, tuple] = {}
        self._numbers: dict[str, int] = {}
        self._rows: dict[int, dict[float, tuple]] = {}
        self._times: dict[int, list[float]] = {}
        self._states: dict[int, tuple] = {}
        self._checkpoints: dict[int, list[tuple]] = {}
        self._revised: dict[int, list[tuple]] = {}
        self._refused: list[tuple] = []
        self._alarms: dict[int, Alarm[int]] = {}
        self._received: dict[int, float] = {}
        self._pruned = False

    def head(self) -> StoreHead:
        return StoreHead(self._model, self._sequence, self._totals)

    def adopt(self, model: str) -> None:
        self._model = model

    def commit(self, commit: Commit) -> None:
        if commit.sequence != self._sequence + 1:
            raise StoreError(
                f"commit {commit.sequence} does not follow {self._sequence}: another engine has "
                "written to this store."
            )
        self._apply(commit)

    def check_writable(self) -> None:
        pass

    def _apply(self, commit: Commit) -> None:
        for one in commit.opened:
            self._streams[one[0]] = one
            self._numbers[one[1]] = one[0]
        for row in commit.rows:
            number, time = row[0], row[1]
            kept = self._rows.get(number)
            if kept is None:
                kept = self._rows[number] = {}
                self._times[number] = []
            if time not in kept:
                times = self._times[number]
                if not times or time > times[-1]:
                    times.append(time)
                else:
                    insort(times, time)
            kept[time] = row
        for state in commit.states:
            self._states[state[0]] = state
        for number, time in commit.cuts:
            kept = self._checkpoints.get(number, [])
            self._checkpoints[number] = [one for one in kept if one[1] < time]
        for one in commit.checkpoints:
            kept = self._checkpoints.setdefault(one[0], [])
            kept[:] = [other for other in kept if other[1] != one[1]]
            insort(kept, one, key=_time)
        for one in commit.revised:
            self._revised.setdefault(one[0], []).append(one)
        if commit.refused:
            self._refused = (self._refused + commit.refused)[-KEPT_REFUSALS:]
        if commit.rearmed:
            over = dict(commit.rearmed)
            for alarm in self.newest_alarms(list(over)):
                times = [over[alarm.stream], *([] if alarm.rearmed is None else [alarm.rearmed])]
                self._alarms[alarm.number] = replace(alarm, rearmed=min(times))
        for alarm in commit.alarms:
            self._alarms[alarm[0]] = Alarm(*alarm)
        self._received[commit.sequence] = commit.received
        self._sequence, self._totals = commit.sequence, commit.totals

    def rebuild(self, model: str, commits: Iterable[Commit]) -> None:
        prepared = list(commits)
        self._states, self._checkpoints, self._model = {}, {}, model
        for commit in prepared:
            self._apply(commit)

    def find(self, names: Sequence[str]) -> list[StreamRecord | None]:
        numbers = [self._numbers.get(name) for name in names]
        return [None if n is None else StreamRecord(*self._streams[n]) for n in numbers]

    def streams(self, numbers: Sequence[int] | None = None) -> list[StreamRecord]:
        return [StreamRecord(*one) for one in _chosen(self._streams, numbers)]

    def states(self, numbers: Sequence[int] | None = None) -> list[StateRecord]:
        return [StateRecord(*one) for one in _chosen(self._states, numbers)]

    def clocks(self, since: float) -> list[ClockRecord]:
        every = ((state, self._streams[state.stream][3]) for state in self.states())
        return [
            ClockRecord(state.stream, state.time, state.received, origin, state.outputs)
            for state, origin in every
            if state.received >= since or origin is not None
        ]

    def newest(self, most: int) -> list[int]:
        latest = sorted(self.states(), key=lambda state: -state.received)
        return [state.stream for state in latest[:most]]

    def rows(
        self,
        stream: int,
        since: float = float("-inf"),
        until: float = float("inf"),
        *,
        newest: int | None = None,
        oldest: int | None = None,
    ) -> list[RowRecord]:
        times = self._times.get(stream, [])
        chosen = times[bisect_left(times, since) : bisect_right(times, until)]
        if newest is not None:
            chosen = chosen[max(0, len(chosen) - newest) :]
        chosen = chosen[:oldest]
        return [RowRecord(*self._rows[stream][time]) for time in chosen]

    def received(self, sequences: Sequence[int]) -> dict[int, float]:
        return {one: self._received[one] for one in sequences if one in self._received}

    def checkpoint(self, stream: int, before: float) -> CheckpointRecord | None:
        kept = self._checkpoints.get(stream, [])
        place = bisect_left(kept, before, key=_time)
        return CheckpointRecord(*kept[place - 1]) if place else None

    def revised(self, stream: int) -> list[RevisedRecord]:
        return [RevisedRecord(*one) for one in self._revised.get(stream, ())]

    def refused(self, most: int = 1000) -> list[RefusedRecord]:
        return [RefusedRecord(*one) for one in self._refused[: -most - 1 : -1]]

    def alarms(
        self, stream: int | None = None, *, unacknowledged: bool = False
    ) -> list[Alarm[int]]:
        return [
            alarm
            for alarm in reversed(self._alarms.values())
            if (stream is None or alarm.stream == stream)
            and not (unacknowledged and alarm.acknowledged is not None)
        ]

    def newest_alarms(self, streams: Sequence[int] | None = None) -> list[Alarm[int]]:
        newest = {alarm.stream: alarm for alarm in self._alarms.values()}
        return [
            newest[stream]
            for stream in sorted(newest.keys() & set(newest if streams is None else streams))
        ]

    def acknowledge(self, number: int, at: float, by: str) -> Alarm[int] | None:
        alarm = self._alarms.get(number)
        if alarm is not None and alarm.acknowledged is None:
            alarm = self._alarms[number] = replace(alarm, acknowledged=at, by=by)
        return alarm

    def pruned(self) -> bool:
        return self._pruned

    def prune(self, keep: float) -> int:
        gone = 0
        for number, state in self._states.items():
            floor = self.checkpoint(number, state[1] - keep)
            if floor is None:
                continue
            times = self._times[number]
            old, self._times[number] = (
                times[: (cut := bisect_right(times, floor.time))],
                times[cut:],
            )
            for time in old:
                del self._rows[number][time]
            kept = self._checkpoints[number]
            self._checkpoints[number] = [one for one in kept if one[1] >= floor.time]
            revised = self._revised.get(number, [])
            self._revised[number] = [one for one in revised if one[1] > floor.time]
            gone += len(old)
        self._pruned |= gone > 0
        return gone

    def forget(self, stream: int, totals: str) -> None:
        del self._numbers[self._streams.pop(stream)[1]]
        for kept in (self._rows, self._times, self._states, self._checkpoints, self._revised):
            kept.pop(stream, None)
        self._alarms = {n: alarm for n, alarm in self._alarms.items() if alarm.stream != stream}
        self._totals = totals

    def close(self) -> None:
        pass


def _time(record: tuple) -> float:
    """Time of a row, a state or a checkpoint."""
    return record[1]


def _chosen(kept: dict, numbers: Sequence[int] | None) -> list:
    return [kept[n] for n in sorted(kept if numbers is None else set(numbers) & kept.keys())]
