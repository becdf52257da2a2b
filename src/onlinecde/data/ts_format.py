"""Read `.ts` files, the format of the UEA and Monash TSER archives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onlinecde.data.errors import DataError


@dataclass(frozen=True, eq=False)
class TsFile:
    """What a `.ts` file holds: one case a line."""

    name: str
    values: list[np.ndarray]
    """One (row, channel) float64 array a case; NaN where missing, or after a channel's end."""
    times: list[np.ndarray]
    """One (row,) float64 array a case: the file's time stamps, else 0, 1, 2, ..."""
    targets: np.ndarray | None
    """(case,) float64 of a regression file, (case,) int64 of a classification file, or None."""
    classes: tuple[str, ...]
    """Class names in the order of the header; empty for regression."""


@dataclass
class _Header:
    name: str = ""
    timestamps: bool = False
    dimensions: int | None = None
    length: int | None = None
    has_classes: bool = False
    classes: tuple[str, ...] = ()
    has_target: bool = False


def read_ts(data: bytes | str, origin: str) -> TsFile:
    """Parse the text of a `.ts` file; `origin` names it in errors.

    Dimensions of a case are parted by `:`, values by `,`; `?` and `NaN` are missing. With
    `@timestamps true` a value reads `(time,value)`. After the last dimension comes the class
    (`@classlabel true a b c`) or the number (`@targetlabel true`) to predict.

    Raises `DataError` with file, line and dimension for whatever does not fit the header.
    """
    if isinstance(data, bytes):
        data = data.decode("utf-8", errors="replace")
    header = _Header()
    values: list[np.ndarray] = []
    times: list[np.ndarray] = []
    labels: list[str] = []
    in_data = False
    for number, raw in enumerate(data.split("\n"), start=1):
        line = raw.strip()
        where = f"{origin}, line {number}"
        if not line or line.startswith("#"):
            continue
        if not in_data:
            in_data = _read_header(header, line, where)
            continue
        dimensions = _split_case(line, header, where)
        if header.has_classes or header.has_target:
            labels.append(dimensions.pop().strip())
        if header.dimensions is None:
            header.dimensions = len(dimensions)
        if len(dimensions) != header.dimensions:
            raise DataError(
                f"{where}: {len(dimensions)} dimensions, but the file has {header.dimensions}: "
                "the line is cut short, or the header is wrong."
            )
        clock, table = _read_case(dimensions, header, where)
        times.append(clock)
        values.append(table)
        if labels:
            _check_label(labels[-1], header, where)
    if not in_data:
        raise DataError(
            f"{origin}: there is no @data line: this is not a .ts file, or it is cut short."
        )
    if not values:
        raise DataError(f"{origin}: there is no case after @data: the file is cut short.")
    return TsFile(header.name, values, times, _targets(labels, header), header.classes)


def _read_header(header: _Header, line: str, where: str) -> bool:
    """Take in one header line; true when it is `@data`."""
    key, *words = line.split()
    key = key.lower()
    if not key.startswith("@"):
        raise DataError(f"{where}: {line[:40]!r} stands before @data and is no @-header.")
    if key == "@data":
        return True
    if key == "@problemname":
        header.name = " ".join(words)
    elif key in ("@dimension", "@dimensions"):
        header.dimensions = _whole(words, key, where)
    elif key == "@serieslength":
        header.length = _whole(words, key, where)
    elif key == "@univariate":
        if _truth(words, key, where):
            header.dimensions = 1
    elif key == "@timestamps":
        header.timestamps = _truth(words, key, where)
    elif key == "@targetlabel":
        header.has_target = _truth(words, key, where)
    elif key == "@classlabel":
        header.has_classes = _truth(words, key, where)
        header.classes = tuple(words[1:])
        if header.has_classes and (not header.classes or len(set(header.classes)) < len(words) - 1):
            raise DataError(f"{where}: @classlabel true must be followed by each class once.")
    # @missing, @equallength and headers of other programs claim what the data shows by itself.
    return False


def _truth(words: list[str], key: str, where: str) -> bool:
    if not words or words[0].lower() not in ("true", "false"):
        raise DataError(f"{where}: {key} must say true or false.")
    return words[0].lower() == "true"


def _whole(words: list[str], key: str, where: str) -> int:
    if len(words) != 1 or not words[0].isdecimal() or int(words[0]) < 1:
        raise DataError(f"{where}: {key} must give one whole number, at least 1.")
    return int(words[0])


def _split_case(line: str, header: _Header, where: str) -> list[str]:
    labelled = header.has_classes or header.has_target
    if not header.timestamps:
        parts = line.split(":")
    else:
        # A time stamp may hold a colon, so only colons outside brackets part dimensions.
        parts, depth, start = [], 0, 0
        for at, char in enumerate(line):
            depth += (char == "(") - (char == ")")
            if char == ":" and depth == 0:
                parts.append(line[start:at])
                start = at + 1
        parts.append(line[start:])
    if len(parts) < 1 + labelled:
        raise DataError(f"{where}: no ':' before the label: the line is cut short.")
    return parts


def _read_case(dimensions: list[str], header: _Header, where: str) -> tuple[np.ndarray, np.ndarray]:
    if header.timestamps:
        return _read_stamped(dimensions, where)
    columns = []
    for number, text in enumerate(dimensions, start=1):
        column = _numbers(text, f"{where}, dimension {number}")
        if header.length is not None and len(column) != header.length:
            raise DataError(
                f"{where}, dimension {number}: {len(column)} values, but @seriesLength is "
                f"{header.length}: the line is cut short, or the header is wrong."
            )
        columns.append(column)
    rows = max(len(column) for column in columns)
    table = np.full((rows, len(columns)), np.nan)
    for channel, column in enumerate(columns):
        table[: len(column), channel] = column
    return np.arange(rows, dtype=float), table


def _read_stamped(dimensions: list[str], where: str) -> tuple[np.ndarray, np.ndarray]:
    cells: dict[float, dict[int, float]] = {}
    for channel, text in enumerate(dimensions):
        for pair in filter(None, (p.strip(" ,(") for p in text.split(")"))):
            stamp, comma, value = pair.partition(",")
            at = f"{where}, dimension {channel + 1}"
            if not comma:
                raise DataError(f"{at}: {pair[:40]!r} is no (time,value).")
            time = float(_numbers(stamp, at)[0])
            if not np.isfinite(time):
                raise DataError(f"{at}: the time {stamp!r} is not a finite number.")
            if channel in cells.setdefault(time, {}):
                raise DataError(f"{at}: two values at time {stamp}: keep one.")
            cells[time][channel] = float(_numbers(value, at)[0])
    if not cells:
        raise DataError(f"{where}: the case has no value: leave it out.")
    clock = np.array(sorted(cells))
    table = np.full((len(clock), len(dimensions)), np.nan)
    for row, time in enumerate(clock.tolist()):
        for channel, value in cells[time].items():
            table[row, channel] = value
    return clock, table


def _numbers(text: str, where: str) -> np.ndarray:
    """The numbers of one dimension; NaN for `?`."""
    if "?" in text:
        text = text.replace("?", "nan")
    try:
        numbers = np.array(text.split(","), dtype=np.float64)
    except ValueError:
        bad = next((word for word in text.split(",") if not _is_number(word)), text)
        raise DataError(
            f"{where}: {bad.strip()[:40]!r} is not a number: write ? for what is missing."
        ) from None
    if np.isinf(numbers).any():
        raise DataError(f"{where}: an infinite value: write ? for what is missing.")
    return numbers


def _is_number(word: str) -> bool:
    try:
        np.array([word], dtype=np.float64)
    except ValueError:
        return False
    return True


def _check_label(label: str, header: _Header, where: str) -> None:
    if header.has_classes:
        if label not in header.classes:
            raise DataError(
                f"{where}: the class {label[:40]!r} is not one of those in @classlabel: "
                f"{', '.join(header.classes[:20])}."
            )
    elif not (_is_number(label) and np.isfinite(float(label))):
        raise DataError(f"{where}: the target {label[:40]!r} is not a finite number.")


def _targets(labels: list[str], header: _Header) -> np.ndarray | None:
    if header.has_classes:
        codes = {name: code for code, name in enumerate(header.classes)}
        return np.array([codes[label] for label in labels], dtype=np.int64)
    return np.array(labels, dtype=np.float64) if header.has_target else None
