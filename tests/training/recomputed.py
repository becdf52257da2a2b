"""Captured steps without a GPU, beside the plain ones they have to be."""

from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from onlinecde.training import graphs


class Recomputing:
    """All of a captured step but the capture: what a replay would do is done anew."""

    def _capture(self, inputs):
        loss = self._compute(inputs).clone()
        replayed = SimpleNamespace(replay=lambda: loss.copy_(self._compute(inputs)))
        return graphs._Captured(replayed, inputs, loss)


class NoLook(TorchDispatchMode):
    """Refuses what a capture would: numbers brought to the CPU, and sizes that depend on them."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        looks = func.overloadpacket.__name__ in (
            "_local_scalar_dense", "nonzero", "masked_select", "equal", "unique", "_unique2",
        )  # fmt: skip
        if func.overloadpacket.__name__ in ("index", "index_put", "index_put_"):
            looks = any(one is not None and one.dtype == torch.bool for one in args[1])
        if looks:
            raise AssertionError(f"{func} looks at numbers")
        return func(*args, **(kwargs or {}))


def made_labels(batch, kind, final, seed):
    """In the padding too, where the last row's output stands."""
    numbers = torch.Generator().manual_seed(seed)
    shape = (len(batch),) if final else batch.times.shape
    labels = torch.randint(0, 2, shape, generator=numbers).double()
    labels[torch.rand(shape, generator=numbers) < 0.3] = -1 if kind == "multiclass" else torch.nan
    return labels


def plain_step(model, batch, labels, final, weight=None):
    model.zero_grad()
    loss = model.readout.loss(model(batch, final=final), labels, weight)
    loss.backward()
    return loss.detach()


def assert_same_gradients(model, other):
    for (name, mine), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        # Where no leg is gone through, the plain step has no gradient of the legs' field.
        wanted = torch.zeros_like(mine) if theirs.grad is None else theirs.grad
        torch.testing.assert_close(mine.grad, wanted, rtol=1e-9, atol=1e-12, msg=name)
