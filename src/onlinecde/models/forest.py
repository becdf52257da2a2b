"""`Forest`: boosted trees as plain arrays, averaged with a readout's outputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from onlinecde.kernels import cpu_unavailable

AT_ONCE = 1 << 22
"""Lines times trees that plain torch walks through together"""


class Forest(nn.Module):
    """Trees over numbers (running statistics, static features, time), and their mean with a readout's outputs.

    Nodes of all trees lie in one row of arrays. A line goes left where its number is at most the threshold, or where
    it is NaN and the node says so; a leaf is its own child. `put` fills the arrays, as `fit` does.

    >>> forest = Forest(1, 3, 1).put(
    ...     root=[0], output=[0], number=[1, 0, 0], threshold=[0.5, 0, 0], missing_left=[True, True, True],
    ...     left=[1, 1, 2], right=[2, 1, 2], value=[0, -1.0, 1.0], base=[0.25], share=0.5,
    ... )
    >>> forest(torch.tensor([[9.0, 0.1], [9.0, 0.7]]))
    tensor([[-0.7500],
            [ 1.2500]], dtype=torch.float64)
    >>> forest.beside(torch.tensor([[1.0], [1.0]]), torch.tensor([[9.0, 0.1], [9.0, 0.7]]))
    tensor([[0.1250],
            [1.1250]])
    """

    root: Tensor
    """(tree,) where each begins"""
    output: Tensor
    """(tree,) which output each adds to"""
    number: Tensor
    """(node,) which number it asks about"""
    threshold: Tensor
    missing_left: Tensor
    left: Tensor
    right: Tensor
    value: Tensor
    """(node,) of a leaf, what it adds"""
    base: Tensor
    """(output,) what is there before any tree adds to it"""
    share: Tensor
    """What part of the mean comes from here"""

    def __init__(self, trees: int, nodes: int, depth: int, outputs: int = 1) -> None:
        super().__init__()
        if min(trees, outputs) < 1 or not 0 <= depth <= nodes - trees:
            raise ValueError(
                f"a forest of {trees} trees with {nodes} nodes in all, {depth} deep, for {outputs} outputs: give at "
                "least 1 tree and 1 output, and so many nodes that trees can be so deep."
            )
        self.trees, self.nodes, self.depth, self.outputs = trees, nodes, depth, outputs
        places = {"root": trees, "output": trees, "number": nodes, "left": nodes, "right": nodes}
        for name, size in places.items():
            self.register_buffer(name, torch.zeros(size, dtype=torch.int64))
        for name, size in {"threshold": nodes, "value": nodes, "base": outputs}.items():
            self.register_buffer(name, torch.zeros(size, dtype=torch.float64))
        self.register_buffer("missing_left", torch.zeros(nodes, dtype=torch.bool))
        self.register_buffer("share", torch.zeros((), dtype=torch.float64))

    def _apply(self, fn, recurse: bool = True):
        # Thresholds rounded to a model's dtype would send lines another way.
        exact = {name: getattr(self, name) for name in ("threshold", "value", "base", "share")}
        super()._apply(fn, recurse)
        for name, tensor in exact.items():
            if getattr(self, name).dtype != torch.float64:
                setattr(self, name, tensor.to(getattr(self, name).device))
        return self

    def put(self, **arrays: Sequence[float] | np.ndarray | float) -> Forest:
        """Fill all arrays, by name; returns itself.

        Raises:
            ValueError: an array is missing or has another size, or a tree has no end; nothing is changed then.
        """
        given = {
            name: torch.as_tensor(np.asarray(arrays[name])).to(own.dtype)
            for name, own in self.named_buffers()
            if name in arrays
        }
        before = {name: own.clone() for name, own in self.named_buffers()}
        for name, own in self.named_buffers():
            if name not in given or given[name].shape != own.shape:
                raise ValueError(f"the forest needs `{name}` of shape {tuple(own.shape)}.")
        try:
            self.load_state_dict(given)
            self.check()
        except ValueError:
            self.load_state_dict(before)
            raise
        return self

    def check(self, numbers: int | None = None) -> None:
        """Refuse arrays that lead out of themselves, or of a line of so many numbers."""
        at = torch.arange(self.nodes, device=self.left.device)
        leaf = self.left == at
        begins = torch.cat([self.root, self.root.new_tensor([self.nodes])])
        within = (begins[0] == 0) & (begins.diff() > 0)
        onward = (self.left > at) & (self.right > at) & (self.left < self.nodes)
        onward &= (self.right < self.nodes) & (self.number >= 0)
        told = (self.output >= 0) & (self.output < self.outputs)
        if not bool(within.all() & (onward | leaf & (self.right == at)).all() & told.all()):
            raise ValueError("a tree of the forest leads out of its arrays or round in a circle.")
        if numbers is not None and bool((self.number >= numbers).any()):
            raise ValueError(
                f"a tree of the forest asks about number {int(self.number.max())}: there are {numbers}, from 0 on."
            )

    def forward(self, numbers: Tensor) -> Tensor:
        """(..., number) -> (..., output) float64: outputs by the trees alone."""
        lines = numbers.detach().flatten(0, -2)
        if _compiled(lines):
            from onlinecde.kernels.cpu.past import add_leaves

            total = self.base.expand(len(lines), -1).clone()
            add_leaves(
                lines.contiguous().numpy(), self.root.numpy(), self.output.numpy(), self.number.numpy(),
                self.threshold.numpy(), self.missing_left.numpy(), self.left.numpy(), self.right.numpy(),
                self.value.numpy(), total.numpy(),
            )  # fmt: skip
        else:
            whole = torch.compiler.is_compiling()
            blocks = [lines] if whole else lines.split(max(1, AT_ONCE // self.trees))
            total = torch.cat([self._leaves_of(block) for block in blocks])
        return total.unflatten(0, numbers.shape[:-1])

    def _leaves_of(self, lines: Tensor) -> Tensor:
        at = self.root.expand(lines.shape[0], -1)
        for _ in range(self.depth):
            at = self._next(at, lines)
        total = self.base.expand(lines.shape[0], -1)
        return total.index_add(1, self.output, self.value[at])

    def _next(self, at: Tensor, lines: Tensor) -> Tensor:
        x = lines.gather(1, self.number[at])
        goes = (x <= self.threshold[at]) | (self.missing_left[at] & x.isnan())
        return torch.where(goes, self.left[at], self.right[at])

    def beside(self, outputs: Tensor, numbers: Tensor) -> Tensor:
        """The weighted mean of a readout's outputs (..., output) and of those found here from numbers (..., number)."""
        mean = outputs + self.share * (self(numbers) - outputs)
        return mean.to(outputs.dtype)

    def rescale(self, scale: Tensor, shift: Tensor) -> None:
        """From now on give `scale * output + shift`, each (output,)."""
        self.base.copy_(self.base * scale + shift)
        at = torch.arange(self.nodes, device=self.root.device)
        tree = torch.searchsorted(self.root, at, right=True) - 1
        self.value.mul_(scale[self.output[tree]])

    def change(self, before: Tensor, after: Tensor, group: Tensor, groups: int) -> Tensor:
        """What leads from one line to another, (line, group, output): exactly, by the path through each tree.

        What a tree says changes where its two paths part: the change goes to the number asked about there, and so to
        that number's group. before and after (line, number); group (number,) is below `groups`.
        """
        was = now = self.root.expand(len(before), -1)
        parted = torch.full_like(was, -1)
        for _ in range(self.depth):
            same = was == now
            asked = self.number[was]
            was, now = self._next(was, before), self._next(now, after)
            parted = torch.where(same & (was != now), asked, parted)
        change = self.value[now] - self.value[was]
        place = torch.where(parted < 0, 0, group[parted]) * self.outputs + self.output
        total = change.new_zeros(len(before), groups * self.outputs)
        return total.scatter_add(1, place, change).unflatten(1, (groups, self.outputs))

    def extra_repr(self) -> str:
        return f"trees={self.trees}, nodes={self.nodes}, depth={self.depth}, outputs={self.outputs}"


def _compiled(lines: Tensor) -> bool:
    return (
        not torch.compiler.is_compiling()
        and lines.device.type == "cpu"
        and lines.dtype in (torch.float32, torch.float64)
        and cpu_unavailable() is None
    )
