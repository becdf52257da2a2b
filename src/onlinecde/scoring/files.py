"""`predict_file`: scores of files of any size, in little memory; killed at any moment, it goes on where it was."""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onlinecde.data import DataError
from onlinecde.data.table_chunks import Place
from onlinecde.scoring.chunks import ChunkReader, Facts
from onlinecde.scoring.output import OutputFile, write_scores
from onlinecde.scoring.predicting import with_ids
from onlinecde.scoring.request import Request
from onlinecde.scoring.work import FullDiskError, WorkFolder
from onlinecde.version import __version__

if TYPE_CHECKING:
    import polars as pl

    from onlinecde.scoring.answers import Scorer

MEMORY = 1 << 30
"""Bytes that the data may take, beside the model and the libraries"""
DEPTH = 6
"""How often a bucket that is too large is divided again"""
MOST = 4096
"""Buckets in the beginning"""
TEXT = 2.5
"""Bytes that a line takes in memory for a byte in a table, about"""


class Display:
    """What a scoring tells whoever waits for it; nothing, unless a subclass does."""

    def stage(self, name: str, share: float) -> None:
        """A stage ("reading", "scoring" or "writing") has come so far, 0 to 1."""

    def note(self, text: str) -> None:
        """Something is worth saying."""


@dataclass(frozen=True)
class Done:
    """What a scoring of files came to."""

    lines: int
    """Scores that were written"""
    streams: int
    notes: tuple[str, ...]


def predict_file(
    request: Request,
    out: OutputFile,
    *,
    memory: int = MEMORY,
    display: Display | None = None,
) -> Done:
    """Write the scores of a request's tables to a file; whoever looks finds all of it, or none.

    Lines are first sorted into buckets by stream, on disk; then one bucket is scored at a time. The folder this
    is done in lies beside the output and is removed when the output is complete.

    Args:
        request: what is asked, of which tables.
        out: where to.
        memory: how many bytes the data may take, about.
        display: what hears how far it has come.

    Raises:
        DataError: a table cannot be read as the model needs it, the disk is full, or another process is at it.
    """
    out.check()
    home = out.work_folder()
    made = Path(tempfile.mkdtemp(prefix="onlinecde-")) if home is None else None
    work = WorkFolder(made or home, _fingerprint(request))  # pyright: ignore[reportArgumentType]
    display = display or Display()
    if work.resumed:
        display.note(f"going on in {work.folder}")
    elif work.begun_anew:
        display.note(f"{work.folder} was for another model, table or question: begun anew")
    try:
        return _Job(request, work, memory, display).run(out)
    except FullDiskError:
        raise
    except DataError:
        work.clear()  # the same tables would be refused again
        raise
    finally:
        work.close()
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)


def _fingerprint(request: Request) -> dict[str, Any]:
    """All that, changed, would give other scores, or other files of the work folder."""
    import polars as pl

    return {
        "versions": [__version__, pl.__version__],
        "model": [request.fitted.identity, request.fitted.horizon, request.fitted.score_columns],
        "columns": asdict(request.columns),
        "query": request.query.as_json(),
        "tables": {role: source.fingerprint() for role, source in request.sources.items()},
    }


class _Job:
    """One scoring: reading, scoring, writing, each from where the work folder has come to."""

    def __init__(self, request: Request, work: WorkFolder, memory: int, display: Display) -> None:
        self.request, self.work, self.display = request, work, display
        self.memory = memory
        self.piece = max(1 << 12, memory // 16)
        """Bytes of a bucket, about, and of a file of scores"""
        state = work.state
        if "todo" not in state:
            size = sum(source.bytes for source in request.sources.values())
            state["buckets"] = min(MOST, 1 + int(TEXT * size / self.piece))
            state["todo"] = [str(number) for number in range(state["buckets"])]
            state |= {"scored": [], "reading": {}, "bytes": {}, "lines": 0, "counts": None}
        known = {role: Facts.from_json(one["facts"]) for role, one in state["reading"].items()}
        self.readers = request.readers(known)

    def run(self, out: OutputFile) -> Done:
        """Do what is left to be done."""
        request, state = self.request, self.work.state
        for number, (role, reader) in enumerate(self.readers.items()):
            self._read(role, reader, number)
        request.check_read(self.readers)
        if not state["scored"]:
            request.check_ids(self._lines(bucket) for bucket in state["todo"])
        scorer = request.scorer(state["counts"])
        while state["todo"]:
            done = len(state["scored"])
            self.display.stage("scoring", done / (done + len(state["todo"])))
            self._score(state["todo"][0], scorer)
        self.display.stage("writing", 0.0)
        files = [self.work.folder / name for name in state["sizes"] if name.endswith(".scores")]
        write_scores(files, state["lines"], self.work.folder, out, self.memory // 2)
        notes = (*request.said, *request.notes(self.readers, scorer))
        self.work.clear()
        return Done(state["lines"], scorer.streams, notes)

    def _read(self, role: str, reader: ChunkReader, number: int) -> None:
        """Deal the lines of a table out to the buckets."""
        import polars as pl

        state = self.work.state
        known = state["reading"].get(role)
        if known and known["done"]:
            return
        place = Place(**known["place"]) if known else Place()
        names = [str(one) for one in range(state["buckets"])]
        waiting, size, first = [], 0, known is None
        frames = reader.frames(max(1 << 10, self.piece // 4), place)
        for frame, after in chain(frames, [(None, None)]):
            if frame is not None and after is not None:
                waiting.append(frame)
                size, place = size + frame.estimated_size(), after
            if waiting and (frame is None or size >= self.piece):
                self._deal(role, pl.concat(waiting), names, 0, every=first)
                waiting, size, first = [], 0, False
                facts = reader.facts.as_json()
                state["reading"][role] = {"place": asdict(place), "done": False, "facts": facts}
                self.work.save()
            share = (number + reader.source.done(place)) / len(self.readers)
            self.display.stage("reading", share)
        state["reading"][role]["done"] = True
        self.work.save()

    def _deal(
        self, role: str, frame: pl.DataFrame, names: list[str], seed: int, *, every: bool
    ) -> None:
        """Append lines to buckets by a hash of their stream; to `every` one, be it nothing but column names."""
        import polars as pl

        key = (pl.col(self.request.columns.stream).hash(seed) % len(names)).alias("__bucket__")
        parts = frame.with_columns(key).partition_by("__bucket__", as_dict=True, include_key=False)
        sizes = self.work.state["bytes"]
        for number, name in enumerate(names):
            part = parts.get((number,))
            if part is None and not every:
                continue
            part = frame.clear() if part is None else part
            self.work.append(f"{name}.{role}", part)
            sizes[name] = sizes.get(name, 0) + int(part.estimated_size())

    def _lines(self, bucket: str) -> dict[str, pl.DataFrame]:
        import polars as pl

        return {role: pl.concat(self.work.parts(f"{bucket}.{role}")) for role in self.readers}

    def _score(self, bucket: str, scorer: Scorer) -> None:
        """Score a bucket; divide it where it is too large."""
        state, work = self.work.state, self.work
        inputs = [f"{bucket}.{role}" for role in self.readers]
        depth = bucket.count("-") + 1
        large = state["bytes"][bucket] > 2 * self.piece and depth <= DEPTH
        if large and self._has_several(bucket):
            pieces = 1 + state["bytes"][bucket] // self.piece
            children = [f"{bucket}-{number}" for number in range(pieces)]
            for role, name in zip(self.readers, inputs, strict=True):
                for number, frame in enumerate(work.parts(name)):
                    self._deal(role, frame, children, depth, every=number == 0)
            state["todo"][:1] = children
        else:
            lines = self._lines(bucket)
            for number, frame in enumerate(self._pieces(scorer.scores(lines))):
                packed = io.BytesIO()
                frame.write_parquet(packed, compression="lz4")
                work.write(f"{bucket}.{number}.scores", packed.getvalue())
                state["lines"] += frame.height
            state["scored"].append(state["todo"].pop(0))
            state["counts"] = scorer.counts
        del state["bytes"][bucket]
        work.remove(*inputs)
        work.save()
        work.free(*inputs)

    def _has_several(self, bucket: str) -> bool:
        """Whether a bucket has more than one stream."""
        seen: set[str] = set()
        for frame in self.work.parts(f"{bucket}.events"):
            seen |= set(frame[self.request.columns.stream].unique()[:2])
            if len(seen) > 1:
                return True
        return False

    def _pieces(self, frames: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        """Frames of scores, several together, and no larger than need be."""
        import polars as pl

        whole = self.request.whole_ids(self.readers)
        waiting: list[pl.DataFrame] = []
        for frame in frames:
            waiting.append(with_ids(frame, whole))
            if sum(one.estimated_size() for one in waiting) > self.piece:
                yield pl.concat(waiting)
                waiting = []
        if waiting:
            yield pl.concat(waiting)
