"""First step: from columns of anything to columns that can be trusted; what is wrong with an event refuses it alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any
from unicodedata import normalize

import numpy as np
import torch

from onlinecde.models import OnlineModel
from onlinecde.streaming.errors import StreamingError
from onlinecde.streaming.events import EventBatch, Refusal

LONGEST_NAME = 200
HORIZON = 1e5
"""Time scales (of the training times) from their mean beyond which a time is absurd"""
_NUMBERS = (int, float, np.integer, np.floating)


@dataclass(frozen=True)
class Limits:
    """What a time and a value may be."""

    earliest: float
    latest: float
    """Times the model can be asked about at all"""
    largest: float
    """Largest value the model's numbers hold"""
    plausible: np.ndarray | None = None
    """(2, channel): least and largest plausible values, NaN where there is no bound; None for none at all"""
    refuse: bool = False
    """Whether others are refused; else they are marked"""

    @classmethod
    def of(
        cls,
        model: OnlineModel,
        horizon: float | None,
        plausible: np.ndarray | None = None,
        implausible: str = "mark",
    ) -> Limits:
        """What times and values a model can take; horizon and so on as in `EngineSettings`."""
        encoding = getattr(model, "encoding", None)
        middle = 0.0 if encoding is None else float(encoding.time_shift)
        scale = 1.0 if encoding is None else float(encoding.time_scale)
        reach = HORIZON * scale if horizon is None else horizon
        if not reach > 0:
            raise StreamingError(f"horizon is {reach}: give a positive time.", "setting_bad")
        if plausible is not None and np.isnan(plausible).all():
            plausible = None
        largest = float(torch.finfo(model.dtype).max)
        return cls(middle - reach, middle + reach, largest, plausible, implausible == "refuse")


@dataclass(frozen=True, eq=False)
class Checked:
    """A batch as arrays that can be trusted; what an entry of a refused event holds has no meaning."""

    names: Sequence[Any]
    of: np.ndarray
    """(event,): entry of `names`"""
    slots_of_names: np.ndarray
    """(entry of `names`,): slots of the streams in memory, -1 for others"""
    times: np.ndarray
    channels: np.ndarray
    values: np.ndarray
    ids: Sequence[str | None] | None
    valid: np.ndarray
    """(event,) bool"""
    refusals: dict[int, Refusal]
    implausible: np.ndarray
    """Positions of events whose values are marked as implausible"""

    @property
    def slots(self) -> np.ndarray:
        """(event,): slot of the stream"""
        return self.slots_of_names[self.of]

    def refuse(self, events: Sequence[int], refusal: Refusal) -> None:
        """Refuse some events, all for one reason."""
        self.valid[events] = False
        self.refusals.update(dict.fromkeys(events, refusal))


def validate(
    batch: EventBatch, channels: Mapping[str, int], known: Mapping[str, int], limits: Limits
) -> Checked:
    """Check everything about each event that does not depend on its stream's past.

    channels: name -> position. known: name -> slot of the streams in memory.
    """
    valid = np.ones(len(batch), bool)
    refusals: dict[int, Refusal] = dict(batch.refused or {})
    valid[list(refusals)] = False

    def refuse(which: np.ndarray, code: str, field: str, say: Any) -> None:
        which = which[valid[which]]
        valid[which] = False
        for place in which.tolist():
            refusals[place] = Refusal(code, field, say(place))

    of = np.arange(len(batch)) if batch.of is None else _pointers(batch.of, len(batch.streams))
    slots = _lookup(batch.streams, known)
    _check_names(batch.streams, np.flatnonzero(slots < 0), of, refuse)
    times, strange = numbers_of(batch.times)
    if strange is not None:
        refuse(
            strange,
            "time_type",
            "time",
            lambda i: f"time is {_quoted(batch.times[i])}: give a number.",
        )
    codes, strange = _codes(batch.channels, channels)
    if strange is not None:
        refuse(
            strange,
            "channel_type",
            "channel",
            lambda i: f"channel is {_quoted(batch.channels[i])}: give a name.",
        )
    values, strange = numbers_of(batch.values)
    if strange is not None:
        refuse(
            strange,
            "value_type",
            "value",
            lambda i: f"value is {_quoted(batch.values[i])}: give a number.",
        )
    with np.errstate(invalid="ignore"):
        unfit = ~((times >= limits.earliest) & (times <= limits.latest))
        unfit |= (codes < 0) | ~(np.abs(values) <= limits.largest)
    if unfit.any():
        some = np.flatnonzero(unfit)
        refuse(
            some[~np.isfinite(times[some])],
            "time_not_finite",
            "time",
            lambda i: f"time is {times[i]}: give a finite time.",
        )
        refuse(
            some[~((times[some] >= limits.earliest) & (times[some] <= limits.latest))],
            "time_absurd",
            "time",
            lambda i: (
                f"time {float(times[i])!r} is not between {limits.earliest!r} and {limits.latest!r}, "
                "the horizon of the model's unit of time: check its unit and origin."
            ),
        )
        refuse(
            some[codes[some] < 0],
            "channel_unknown",
            "channel",
            lambda i: f"the model has no channel {_quoted(batch.channels[i])}.",
        )
        refuse(
            some[~np.isfinite(values[some])],
            "value_not_finite",
            "value",
            lambda i: f"value is {values[i]}: leave out what was not observed.",
        )
        refuse(
            some[~(np.abs(values[some]) <= limits.largest)],
            "value_too_large",
            "value",
            lambda i: (
                f"value {float(values[i])!r} is larger than {limits.largest!r}, the largest the model's numbers hold."
            ),
        )
    implausible = np.empty(0, np.int64)
    if limits.plausible is not None:
        least, most = limits.plausible
        implausible = np.flatnonzero(((values < least[codes]) | (values > most[codes])) & valid)
        if limits.refuse:
            refuse(
                implausible,
                "value_implausible",
                "value",
                lambda i: (
                    f"value {values[i]:g} is not between {least[codes[i]]:g} and {most[codes[i]]:g}."
                ),
            )
            implausible = implausible[:0]
    ids = batch.ids
    if ids is not None:
        wrong = [i for i, one in enumerate(ids) if one is not None and not is_text(one)]
        refuse(
            np.array(wrong, np.int64),
            "id_type",
            "id",
            lambda i: f"id is {_quoted(ids[i])}: give a text of 1 to {LONGEST_NAME} characters.",
        )
    # -0.0 and 0.0 are one time; a store may keep only one of them.
    times = times + 0.0
    return Checked(
        batch.streams, of, slots, times, codes, values, ids, valid, refusals, implausible
    )


def is_text(text: Any) -> bool:
    """Whether something is a printable text that is not too long: an event's id, a person's name."""
    return isinstance(text, str) and 0 < len(text) <= LONGEST_NAME and text.isprintable()


def is_name(name: Any) -> bool:
    """Whether something can name a stream; paths of the web lose the names `.` and `..` on their way."""
    return is_text(name) and name not in (".", "..")


def plain_name(name: str) -> str:
    """The one form of a name in which a stream can be opened: of Unicode NFC, without blanks around it."""
    return name if name.isascii() and name == name.strip() else normalize("NFC", name).strip()


def name_fault(name: str) -> Refusal | None:
    """Why a stream cannot be opened under a name that looks like another one."""
    plain = plain_name(name)
    if plain == name:
        return None
    return Refusal(
        "stream_bad",
        "stream",
        f"stream is {_quoted(name)}, with blanks around it or not in Unicode's form NFC: call it {_quoted(plain)}.",
    )


def _lookup(names: Any, known: Mapping[str, int]) -> np.ndarray:
    """(entry,): what is known under each name, -1 for nothing."""
    try:
        return np.fromiter(map(known.get, names, repeat(-1)), np.int64, len(names))
    except TypeError:  # something that cannot be looked up at all
        entries = [known.get(one, -1) if isinstance(one, str) else -1 for one in names]
        return np.array(entries, np.int64)


def _check_names(names: Any, doubtful: np.ndarray, of: np.ndarray, refuse: Any) -> None:
    wrong = [entry for entry in doubtful.tolist() if not is_name(names[entry])]
    if wrong:
        refuse(
            np.flatnonzero(np.isin(of, wrong)),
            "stream_bad",
            "stream",
            lambda i: (
                f"stream is {_quoted(names[of[i]])}: give a name of 1 to {LONGEST_NAME} printable "
                "characters, not '.' or '..'."
            ),
        )


def _pointers(of: Any, names: int) -> np.ndarray:
    pointers = np.asarray(of)
    if pointers.dtype.kind not in "iu" or (
        pointers.size and not 0 <= pointers.min() <= pointers.max() < names
    ):
        raise ValueError(f"`of` must hold positions in `streams`, from 0 to {names - 1}.")
    return pointers.astype(np.int64, copy=False)


def numbers_of(column: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """A column as float64, and where it holds something that is not a number."""
    if isinstance(column, np.ndarray):
        if column.dtype.kind in "fiu" and column.ndim == 1:
            return column.astype(np.float64, copy=False), None
        column = list(column)
    if set(map(type, column)) <= {float, int}:
        try:
            return np.array(column, np.float64), None
        except OverflowError:  # an int beyond any float
            pass
    numbers, strange = np.full(len(column), np.nan), []
    for place, one in enumerate(column):
        if isinstance(one, bool) or not isinstance(one, _NUMBERS):
            strange.append(place)
            continue
        try:
            numbers[place] = float(one)
        except OverflowError:
            numbers[place] = np.inf if one > 0 else -np.inf
    return numbers, np.array(strange, np.int64) if strange else None


def _codes(column: Any, channels: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray | None]:
    """A column as positions of channels, -1 for none, and where it holds neither name nor position."""
    if isinstance(column, np.ndarray) and column.dtype.kind in "iu" and column.ndim == 1:
        codes = column.astype(np.int64)
        return np.where((codes >= 0) & (codes < len(channels)), codes, -1), None
    codes = _lookup(column, channels)
    lost = np.flatnonzero(codes < 0)
    strange = [place for place in lost.tolist() if not isinstance(column[place], str)]
    return codes, np.array(strange, np.int64) if strange else None


def shown(something: Any, most: int = 40) -> str:
    """Something of unknown kind in a few characters; what is not a plain value by its type alone."""
    if isinstance(something, str):
        return something[:most].encode("utf-8", "replace").decode()
    if something is None or isinstance(something, bool | float | np.generic):
        return str(something)[:most]
    if isinstance(something, int):
        return str(something) if something.bit_length() <= 128 else "a huge integer"
    return f"a {type(something).__name__}"


def _quoted(something: Any) -> str:
    return repr(shown(something)) if isinstance(something, str) else shown(something)
