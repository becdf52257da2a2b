"""What Spark calls for each bucket: pages out of its state, the bucket's streams together, pages back."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from onlinecde.scale.spark.bucket import Bucket
from onlinecde.scale.spark.columns import SparkError, answer_frame
from onlinecde.scale.spark.pages import read_page, write_page
from onlinecde.scale.spark.plan import Plan, model_here
from onlinecde.scale.spark.ticks import answers_between, due, still_heard
from onlinecde.streaming.events import EventBatch, Refusal
from onlinecde.streaming.transfer import check_reach, outline, unpack


class BucketProcessor:
    """Follows the streams of a bucket; a pyspark `StatefulProcessor` by its methods."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def init(self, handle: Any) -> None:
        """Name the state: the pages of a bucket, and what is known about them all."""
        self.handle = handle
        self.pages = handle.getMapState("pages", "page int", "body binary")
        self.about = handle.getValueState("about", "told string")

    def close(self) -> None:
        """Nothing is held open."""

    def handleInputRows(self, key: Any, rows: Iterable[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802
        """A micro-batch of one bucket."""
        import pandas as pd

        with collector_paused():
            yield from self._follow(pd.concat(list(rows), ignore_index=True), timerValues)

    def handleExpiredTimer(  # noqa: N802
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        """Called when the watermark passes a tick: answers all streams of the bucket, between their rows."""
        about = self._about()
        newest = due(timerValues.getCurrentWatermarkInMs() / 1e3, self._step)
        parcels = [one for _, (body,) in self.pages.iterator() for one in read_page(body).values()]
        bucket = Bucket(self._served(), self.plan, parcels)
        result = answers_between(bucket, about["tick"], newest)
        if result is not None:
            yield result
        about["tick"], about["waiting"] = newest, False
        if still_heard(bucket, newest + 1):
            self._wait(about, newest + 1)
        self._note(about)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:  # noqa: N802
        """Streams that were followed elsewhere."""
        about, served = self._about(), self._served()
        codec = Bucket(served, self.plan, []).state.codec
        kept: dict[int, dict[str, bytes]] = {}
        for number, body in zip(initialState["page"], initialState["parcel"], strict=True):
            parcel = unpack(bytes(body))
            content = parcel.outline
            codec.decode([content.state.body, *(state for _, state in parcel.checkpoints)])
            check_reach(content, self.plan.lateness)
            page = kept.setdefault(int(number), self._page(int(number)))
            page[content.stream.name] = bytes(body)
        for number, page in kept.items():
            self.pages.updateValue((number,), (write_page(page.values()),))
        if self.plan.every is not None and not about["waiting"]:
            self._wait(
                about, due(max(timerValues.getCurrentWatermarkInMs(), 0) / 1e3, self._step) + 1
            )
        self._note(about)

    def _follow(self, events: Any, timers: Any) -> Iterator[Any]:
        about = self._about()
        watermark = timers.getCurrentWatermarkInMs() / 1e3
        events = in_order(events)
        batch = as_batch(events)
        page_of = pages_of(events, batch)
        numbers = sorted(set(page_of.values()))
        kept = self._pages(numbers)
        self._forget(kept, page_of, watermark)
        known = [kept[page][name] for name, page in page_of.items() if name in kept[page]]
        bucket = Bucket(self._served(), self.plan, known)
        receipts = bucket.apply(batch, time.time())
        result = bucket.answers()
        if result is not None:
            yield result
        if receipts.refusals:
            yield refused(batch, receipts.refusals)
        tick = None if about["tick"] is None else about["tick"] * self._step
        for name, parcel in bucket.packed(origins_of(events, batch, self.plan.rate), tick).items():
            kept[page_of[name]][name] = parcel
        for number in numbers:
            if kept[number]:
                self.pages.updateValue((number,), (write_page(kept[number].values()),))
        if self.plan.every is not None and not about["waiting"]:
            self._wait(about, due(max(watermark, 0.0), self._step) + 1)
        self._note(about)

    @property
    def _step(self) -> float:
        """Seconds from tick to tick."""
        assert self.plan.every is not None
        return self.plan.every / self.plan.rate

    def _served(self) -> Any:
        return model_here(self.plan.folder, self.plan.model_hash)

    def _about(self) -> dict[str, Any]:
        """What is known of the bucket; SparkError where its states are another job's."""
        result = self.about.get()
        if result is None:
            return {**self.plan.layout, "tick": None, "waiting": False}
        about = json.loads(result[0])
        for name, now in self.plan.layout.items():
            if about[name] != now:
                content = {"model_hash": "the model"}.get(name, name)
                raise SparkError(
                    f"the checkpoint's states belong to another job: {content} was {str(about[name])[:12]}, "
                    f"now it is {str(now)[:12]}. Start with what it was, or with a new checkpointLocation."
                )
        return about

    def _note(self, about: dict[str, Any]) -> None:
        self.about.update((json.dumps(about),))

    def _wait(self, about: dict[str, Any], tick: int) -> None:
        self.handle.registerTimer(int(np.ceil(tick * self._step * 1e3)))
        about["waiting"] = True

    def _pages(self, numbers: list[int]) -> dict[int, dict[str, bytes]]:
        """Parcels by page and stream; where most pages are wanted, in as few messages as may be."""
        if 2 * len(numbers) <= self.plan.pages:
            return {number: self._page(number) for number in numbers}
        result: dict[int, dict[str, bytes]] = {number: {} for number in numbers}
        for (number,), (body,) in self.pages.iterator():
            if number in result:
                result[number] = read_page(bytes(body))
        return result

    def _page(self, number: int) -> dict[str, bytes]:
        result = self.pages.getValue((number,))
        return {} if result is None else read_page(bytes(result[0]))

    def _forget(
        self, kept: dict[int, dict[str, bytes]], heard: dict[str, int], watermark: float
    ) -> None:
        """Drop streams that ended long before the watermark and have no event in this micro-batch."""
        if self.plan.forget_after is None:
            return
        for page in kept.values():
            for name, body in list(page.items()):
                content = outline(body)
                if name in heard or content.stream.origin is None:
                    continue
                now = (watermark - content.stream.origin) * self.plan.rate
                if now > content.state.time + self.plan.forget_after:
                    del page[name]


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection: thousands of small records live only as long as a micro-batch."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def in_order(events: Any) -> Any:
    """Events in the order in which they count: by `order` where there is one, else by time.

    Ties are broken by what the events say, so that running a micro-batch again gives the same result.
    """
    by = [name for name in ("order", "time", "channel", "value", "id") if name in events.columns]
    return events.sort_values(by, kind="stable", ignore_index=True)


def as_batch(events: Any) -> EventBatch:
    """Events as the engine takes them; each stream is named once, in the order of first events."""
    import pandas as pd

    of, names = pd.factorize(events["stream"].to_numpy(object), use_na_sentinel=False)
    streams: list[Any] = [name if isinstance(name, str) else None for name in names]
    static, ids = None, None
    if "static" in events.columns:
        known = events["static"].to_numpy(object)[_firsts(of)]
        static = {
            name: one.tolist() if isinstance(one, np.ndarray) else json.loads(one)
            for name, one in zip(streams, known, strict=True)
            if isinstance(one, np.ndarray | str)
        }
    if "id" in events.columns:
        ids = [one if isinstance(one, str) else None for one in events["id"].to_numpy(object)]
    return EventBatch(
        streams,
        events["time"].to_numpy(np.float64, na_value=np.nan),
        events["channel"].to_numpy(object).tolist(),
        events["value"].to_numpy(np.float64, na_value=np.nan),
        ids,
        of,
        static,
    )


def pages_of(events: Any, batch: EventBatch) -> dict[str, int]:
    """The page of each stream."""
    assert batch.of is not None
    pages = events["page"].to_numpy()[_firsts(batch.of)].tolist()
    content = zip(batch.streams, pages, strict=True)
    return {name: page for name, page in content if name is not None}


def origins_of(events: Any, batch: EventBatch, rate: float) -> dict[str, float]:
    """The wall clock at time 0 of each stream whose events have one, by the first of them."""
    if "clock" not in events.columns:
        return {}
    assert batch.of is not None
    began = events["clock"].to_numpy(np.float64, na_value=np.nan) - np.asarray(batch.times) / rate
    sound = np.flatnonzero(np.isfinite(began))
    owner, place = np.unique(batch.of[sound], return_index=True)
    content = zip(owner.tolist(), began[sound[place]].tolist(), strict=True)
    return {str(batch.streams[stream]): origin for stream, origin in content}


def _firsts(of: np.ndarray) -> np.ndarray:
    """(stream,): the first event of each."""
    return np.unique(of, return_index=True)[1]


def refused(batch: EventBatch, refusals: Mapping[int, Refusal]) -> Any:
    """A frame of the events that were refused, and why."""
    places = sorted(refusals)
    why = [refusals[place] for place in places]
    assert batch.of is not None
    return answer_frame(
        [batch.streams[entry] for entry in batch.of[places].tolist()],
        np.asarray(batch.times)[places],
        "refused",
        code=[one.code for one in why],
        field=[one.field for one in why],
        message=[one.message for one in why],
        channel=[batch.channels[place] for place in places],
        value=np.asarray(batch.values)[places],
        id=None if batch.ids is None else [batch.ids[place] for place in places],
    )
