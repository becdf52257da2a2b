"""What an engine knows before and after its store failed."""

from killable_engine import made_engine

from onlinecde.streaming import StoreError


def everything(engine):
    """All an engine knows, as far as the store must keep it."""
    streams = engine.overview().streams
    rows = {name: [(r.time, r.events, r.outputs) for r in engine.history(name)] for name in streams}
    return rows, {name: engine.state(name) for name in streams}, dict(engine.counters)


def apply_until_it_fails(engine, batches):
    """The number of the micro-batch that failed, its error, and all that was known before it."""
    for number, events in enumerate(batches):
        before = everything(engine)
        try:
            engine.apply(events)
        except StoreError as error:
            return number, error, before
    raise AssertionError("the fault did not happen")


def finishes_as_if_nothing_had_happened(engine, batches, failed):
    """Send the failed micro-batch and the rest: the states are those of an unbroken run."""
    for events in batches[failed:]:
        engine.apply(events)
    unbroken = made_engine()
    for events in batches:
        unbroken.apply(events)
    found, wanted = everything(engine), everything(unbroken)
    assert found[1] == wanted[1]
    assert {**found[2], "commits": 0} == {**wanted[2], "commits": 0}
