"""A store in memory: for trying out, for tests, and where nothing needs to outlive the process."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from onlinecde.streaming.alarms import Alarm
from onlinecde.streaming.errors import StoreError
from onlinecde.streaming.stores.base import (
    CheckpointRecord,
    ClockRecord,
    Commit,
    Floor,
    RefusedRecord,
    RevisedRecord,
    RowRecord,
    ShadowRecord,
    StateRecord,
    StoreHead,
    StreamRecord,
    rearmed_alarms,
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
        self._changed: dict[int, int] = {}
        """The commit that changed each stream's state last"""
        self._ended: dict[int, float] = {}
        self._shadows: dict[int, ShadowRecord] = {}
        self._shadow_checkpoints: dict[int, list[tuple]] = {}
        self.notes: dict[str, Any] = {}
        self.names_lost = False
        self._pruned = False
        self._kept: dict[str, str] = {}

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
            self._states[state[0]], self._changed[state[0]] = state, commit.sequence
        _cut(self._checkpoints, commit.cuts)
        _keep(self._checkpoints, commit.checkpoints)
        for one in commit.revised:
            self._revised.setdefault(one[0], []).append(one)
        if commit.refused:
            self._refused = (self._refused + commit.refused)[-KEPT_REFUSALS:]
        for alarm in [*rearmed_alarms(self, commit.rearmed), *commit.alarms]:
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

    def outlines(self, after: int, most: int) -> list[tuple[StreamRecord, StateRecord]]:
        numbers = sorted(number for number in self._states if number > after)[:most]
        return [
            (self.streams([number])[0], state._replace(body=b""))
            for number, state in zip(numbers, self.states(numbers), strict=True)
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
        return _newest_before(self._checkpoints.get(stream, []), before)

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

    def alarms_from(self, number: int, most: int) -> list[Alarm[int]]:
        numbers = sorted(one for one in self._alarms if one >= number)
        return [self._alarms[one] for one in numbers[:most]]

    def kept(self, key: str) -> str | None:
        return self._kept.get(key)

    def keep(self, key: str, text: str) -> None:
        self._kept[key] = text

    def acknowledge(self, number: int, at: float, by: str) -> Alarm[int] | None:
        alarm = self._alarms.get(number)
        if alarm is not None and alarm.acknowledged is None:
            alarm = self._alarms[number] = replace(alarm, acknowledged=at, by=by)
        return alarm

    def pruned(self) -> bool:
        return self._pruned

    def prune(self, keep: float) -> int:
        piece = self.floors(0, 2**62, keep=keep, lateness=0.0, old=None)
        floors = [] if piece is None else piece[0]
        return self.cut(floors, 2**62)[0]

    def sequence_at(self, wall: float) -> int:
        return max((n for n, received in self._received.items() if received < wall), default=0)

    def floors(
        self, after: int, most: int, *, keep: float | None, lateness: float, old: int | None
    ) -> tuple[list[Floor], int, int | None] | None:
        some = sorted(number for number in self._states if number > after)[:most]
        floors = []
        for number in some:
            newest = self._states[number][1]
            limits = [] if keep is None else [newest - max(keep, lateness)]
            if old is not None:
                rows = self._rows.get(number, {})
                recent = [time for time in self._times.get(number, []) if rows[time][2] > old]
                limits.append(min(newest - lateness, recent[0] if recent else float("inf")))
            kept = self.checkpoint(number, max(limits))
            if kept is not None and (self._times.get(number) or [inf])[0] <= kept.time:
                floors.append(Floor(number, kept.time))
        oldest = [row.sequence for row in map(self.first_row, some) if row is not None]
        return (floors, some[-1], min(oldest, default=None)) if some else None

    def cut(self, floors: Sequence[Floor], most: int = 2_000) -> tuple[int, int]:
        gone = done = 0
        for number, floor in floors:
            times = self._times[number]
            place = bisect_right(times, floor)
            for time in times[:place]:
                del self._rows[number][time]
            del times[:place]
            kept = self._checkpoints[number]
            self._checkpoints[number] = [one for one in kept if one[1] >= floor]
            revised = self._revised.get(number, [])
            self._revised[number] = [one for one in revised if one[1] > floor]
            gone, done = gone + place, done + 1
            if gone >= most:
                break
        self._pruned |= gone > 0
        return gone, done

    def drop_old(self, wall: float | None, old: int, least: int, most: int = 1_000) -> int:
        newest = {alarm.number for alarm in self.newest_alarms()}
        gone = [] if wall is None else [
            n for n, alarm in self._alarms.items() if alarm.raised < wall and n not in newest
        ]  # fmt: skip
        for number in gone:
            del self._alarms[number]
        commits = [number for number in self._received if number < least]
        for number in commits:
            del self._received[number]
        return len(gone) + len(commits)

    def first_row(self, stream: int) -> RowRecord | None:
        return next(iter(self.next_rows(stream, -inf, 1)), None)

    def next_rows(self, stream: int, after: float, most: int) -> list[RowRecord]:
        times = self._times.get(stream, [])
        place = bisect_right(times, after)
        return [RowRecord(*self._rows[stream][time]) for time in times[place : place + most]]

    def changed_since(self, stream: int, sequence: int) -> float:
        return min(time for time, row in self._rows[stream].items() if row[2] > sequence)

    def over(self, ended: float | None, idle: float | None, most: int) -> list[StreamRecord]:
        result = []
        for stream in self.streams():
            state = self._states.get(stream.number)
            received = None if state is None else state[6]
            when = self._ended.get(stream.number)
            told = ended is not None and when is not None and when < ended
            told = told and (received is None or received <= (when or 0.0))
            if told or (idle is not None and received is not None and received < idle):
                result.append(stream)
        return result[:most]

    def end(self, stream: int, at: float) -> None:
        self._ended[stream] = at

    def compact(self, pages: int | None = None) -> int:
        return 0

    def write_notes(self, notes: Mapping[str, Any]) -> None:
        self.notes = dict(notes)

    def shadows(self, numbers: Sequence[int]) -> dict[int, ShadowRecord]:
        return {n: self._shadows[n] for n in numbers if n in self._shadows}

    def shadow_checkpoint(self, stream: int, before: float) -> CheckpointRecord | None:
        return _newest_before(self._shadow_checkpoints.get(stream, []), before)

    def sequences(self, after: int, most: int) -> list[tuple[int, int, int | None]]:
        result = []
        for number in sorted(number for number in self._states if number > after)[:most]:
            shadow = self._shadows.get(number)
            whole = shadow is not None and shadow.state.time == self._states[number][1]
            done = shadow.sequence if shadow is not None and whole else None
            result.append((number, self._changed.get(number, 0), done))
        return result

    def put_shadows(
        self,
        states: Sequence[tuple[StateRecord, int]],
        checkpoints: Sequence[tuple],
        cuts: Sequence[tuple[int, float]],
    ) -> None:
        _cut(self._shadow_checkpoints, cuts)
        _keep(self._shadow_checkpoints, checkpoints)
        self._shadows |= {one[0].stream: ShadowRecord(*one) for one in states}

    def promote(self, model: str, totals: str, notes: Mapping[str, Any]) -> None:
        former, checkpoints = self._states, self._checkpoints
        self._states = {n: tuple(one.state) for n, one in self._shadows.items()}
        self._shadows = {n: ShadowRecord(StateRecord(*one), 0) for n, one in former.items()}
        self._checkpoints, self._shadow_checkpoints = self._shadow_checkpoints, checkpoints
        self._model, self._totals, self.notes = model, totals, dict(notes)

    def clear_shadows(self, most: int = 500) -> int:
        gone = len(self._shadows) + len(self._shadow_checkpoints)
        self._shadows, self._shadow_checkpoints = {}, {}
        return gone

    def forget(self, stream: int, totals: str) -> None:
        del self._numbers[self._streams.pop(stream)[1]]
        tables = (self._rows, self._times, self._states, self._checkpoints, self._revised)
        for kept in (*tables, self._changed, self._ended, self._shadows, self._shadow_checkpoints):
            kept.pop(stream, None)
        self._alarms = {n: alarm for n, alarm in self._alarms.items() if alarm.stream != stream}
        self._totals = totals

    def close(self) -> None:
        pass


def _time(record: tuple) -> float:
    """Time of a row, a state or a checkpoint."""
    return record[1]


def _newest_before(kept: list[tuple], before: float) -> CheckpointRecord | None:
    place = bisect_left(kept, before, key=_time)
    return CheckpointRecord(*kept[place - 1]) if place else None


def _cut(checkpoints: dict[int, list[tuple]], cuts: Iterable[tuple[int, float]]) -> None:
    """Drop the checkpoints of streams from a time on."""
    for number, time in cuts:
        checkpoints[number] = [one for one in checkpoints.get(number, []) if one[1] < time]


def _keep(checkpoints: dict[int, list[tuple]], new: Iterable[tuple]) -> None:
    for one in new:
        kept = checkpoints.setdefault(one[0], [])
        kept[:] = [other for other in kept if other[1] != one[1]]
        insort(kept, one, key=_time)


def _chosen(kept: dict, numbers: Sequence[int] | None) -> list:
    return [kept[n] for n in sorted(kept if numbers is None else set(numbers) & kept.keys())]
