"""SpeechCommands v0.02: which of ten words is spoken, from 10 MFCCs at 89 instants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

import torch
from torch import Tensor

from onlinecde.data.archives import Member, by_pattern, read_members
from onlinecde.data.audio import mfcc, read_wav
from onlinecde.data.errors import DataError
from onlinecde.data.task import Task
from onlinecde.series import SeriesBatch

WORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
RATE = 16000
COEFFICIENTS = 10
HOP = 180
"""Samples from one row to the next: half of the transform's 360."""


def load(
    paths: Sequence[Path],
    *,
    task: str = "word",
    seed: int = 0,
    protocol: Literal["clean", "paper"] = "clean",
) -> Task:
    """Load clips of exactly one second, as the paper's code did (34,975 of the full archive).

    `protocol="clean"` keeps all clips of a speaker in one split; `"paper"` deals single clips.
    """
    if protocol not in ("clean", "paper"):
        raise DataError(f"protocol is {protocol!r}: choose 'clean' or 'paper'.")
    names: list[str] = []
    tables: list[Tensor] = []
    for clips in _chunks(read_members(paths, by_pattern(*(f"{word}/*.wav" for word in WORDS)))):
        names += [name for name, _ in clips]
        tables.append(mfcc(torch.stack([sound for _, sound in clips])))
    if not names:
        raise DataError(
            f"{', '.join(str(p) for p in paths)}: there is no wav file of one second in folders "
            f"called {', '.join(WORDS)}."
        )
    order = sorted(range(len(names)), key=lambda i: names[i])
    streams = [names[i] for i in order]
    values = torch.cat(tables)[order]
    series = SeriesBatch.from_padded(
        torch.arange(values.shape[1], dtype=torch.float64).mul(HOP / RATE).repeat(len(values), 1),
        values,
        channels=[f"mfcc{i}" for i in range(COEFFICIENTS)],
        streams=streams,
    )
    return Task.build(
        "speech-commands",
        series,
        [WORDS.index(stream.split("/")[0]) for stream in streams],
        kind="multiclass",
        classes=WORDS,
        subjects=None if protocol == "paper" else [_speaker(stream) for stream in streams],
        seed=seed,
        time_unit="seconds",
        source=", ".join(str(path) for path in paths),
        settings={"task": task, "protocol": protocol, "seed": seed},
    )


def _speaker(stream: str) -> str:
    """`yes/022cd682_nohash_0.wav` was spoken by `022cd682`."""
    return PurePosixPath(stream).name.split("_")[0]


def _chunks(members: Iterator[Member], size: int = 256) -> Iterator[list[tuple[str, Tensor]]]:
    """Clips of one second with their names `word/file.wav`, some at a time: sound is bulky."""
    clips: list[tuple[str, Tensor]] = []
    for member in members:
        sound, rate = read_wav(member.data, member.origin)
        if rate != RATE:
            raise DataError(f"{member.origin}: {rate} samples a second: they must be {RATE}.")
        if len(sound) == RATE:
            clips.append(("/".join(PurePosixPath(member.name).parts[-2:]), sound))
        if len(clips) == size:
            yield clips
            clips = []
    if clips:
        yield clips
