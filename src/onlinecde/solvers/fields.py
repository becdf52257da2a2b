"""Vector fields: the contract the solver relies on, and the paper's MLP."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.utils.prune import BasePruningMethod

from onlinecde.controls.encoding import bound_counts
from onlinecde.kernels.activations import activation_named
from onlinecde.solvers.surroundings import Surroundings

Activation = Literal["relu", "silu", "tanh", "softplus"]


class VectorField(nn.Module, ABC):
    """A field f of `dz = f(z) dX`, or of `dz = f(z, X) dX` where `sees_path`.

    A subclass gives the whole matrix. The contraction `f(z) dX` follows from it; a field that can
    contract without building the matrix, or only some of its columns, overrides `contract`.
    A field that sees the path gets `drive(X)`, a linear image of X, wherever it is evaluated.
    """

    hidden: int
    channels: int
    sees_path: bool = False

    def forward(self, z: Tensor, drive: Tensor | None = None) -> Tensor:
        """f(z), as `matrix` gives it; with the hooks of the field, where it has some."""
        return self.matrix(z, drive)

    @abstractmethod
    def matrix(self, z: Tensor, drive: Tensor | None = None) -> Tensor:
        """f(z): (stream, hidden) -> (stream, hidden, channel)."""

    def contract(
        self, z: Tensor, dx: Tensor, channels: slice, drive: Tensor | None = None
    ) -> Tensor:
        """f(z) dX over some channels: z (stream, hidden), dx (stream, moved) -> (stream, hidden)."""
        columns = self(z, drive)[:, :, channels]
        return torch.einsum("shc,sc->sh", columns, dx)

    def drive(self, x: Tensor) -> Tensor:
        """What the field wants of X (..., channel): a linear map of it."""
        return x


class MatrixField(VectorField):
    """Any module or function from z (stream, hidden) to f(z) (stream, hidden, channel).

    A field with `sees_path = True` is called with X (stream, channel) too, and is f(z, X).
    """

    def __init__(self, function: Callable[..., Tensor], hidden: int, channels: int) -> None:
        super().__init__()
        self.function = function
        self.hidden, self.channels = hidden, channels
        self.sees_path = bool(getattr(function, "sees_path", False))

    def matrix(self, z: Tensor, drive: Tensor | None = None) -> Tensor:
        matrix = self.function(z, drive) if self.sees_path else self.function(z)
        wanted = (z.shape[0], self.hidden, self.channels)
        if tuple(matrix.shape) != wanted:
            raise ValueError(
                f"the vector field returned shape {tuple(matrix.shape)}, but (stream, hidden, "
                f"channel) is {wanted}: return one column for each channel of the path."
            )
        return matrix


class MLPField(VectorField):
    """`f_j(z) = tanh(V_j h + c_j)`, `h` an MLP of z: column j belongs to channel j.

    The last layer is kept channel-major, weight (channel, hidden, width), so that the columns of
    the channels that move are a slice or a grouped product. With `sees_path`, the first layer
    also takes X: `h = act(W z + U X + b)`, with its last `bounded_counts` channels bounded.

    With `rank`, the columns are mixtures of that many shared ones: the parameters are `mixing`
    (channel, rank) and `basis` (rank, hidden * width), and `weight` is their product. With a
    rank of `channels` or more the field is a plain one.

    Kernels take it as it is. A subclass, inner layers of another kind, without bias, with hooks or
    parametrizations (spectral norm, weight norm, pruning) are called as torch would, in plain torch.

    >>> MLPField(hidden=4, channels=9, width=8, rank=2).weight.shape
    torch.Size([9, 4, 8])
    """

    weight: Tensor

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        # A subclass with a matrix of its own is contracted with that one.
        if "matrix" in vars(cls) and "contract" not in vars(cls):
            cls.contract = VectorField.contract

    def __init__(
        self,
        hidden: int,
        channels: int,
        width: int = 64,
        depth: int = 2,
        activation: Activation = "relu",
        final: Literal["tanh", "identity"] = "tanh",
        sees_path: bool = False,
        rank: int | None = None,
        bounded_counts: int = 0,
    ) -> None:
        self.config = {k: v for k, v in locals().items() if k not in ("self", "__class__")}
        super().__init__()
        for name, size in {
            "hidden": hidden,
            "channels": channels,
            "width": width,
            "depth": depth,
            "rank": 1 if rank is None else rank,
        }.items():
            if size < 1:
                raise ValueError(f"{name} is {size}: give at least 1.")
        activation_named(activation)
        if final not in ("tanh", "identity"):
            raise ValueError(f"final is {final!r}: choose 'tanh' or 'identity'.")
        self.hidden, self.channels, self.width, self.depth = hidden, channels, width, depth
        self.activation, self.final, self.sees_path = activation, final, sees_path
        self.bounded_counts = bounded_counts
        self.low_rank = rank is not None and rank < min(channels, hidden * width)
        self.inner = nn.ModuleList(
            nn.Linear(hidden if layer == 0 else width, width) for layer in range(depth)
        )
        bound = width**-0.5
        weight = torch.empty(channels, hidden, width).uniform_(-bound, bound)
        if rank is None or not self.low_rank:
            self.weight = nn.Parameter(weight)
        else:
            self.mixing = nn.Parameter(torch.empty(channels, rank))
            self.basis = nn.Parameter(torch.empty(rank, hidden * width))
            self._set_weight(weight)
        self.bias = nn.Parameter(torch.empty(channels, hidden).uniform_(-bound, bound))
        self.path_weight = (
            nn.Parameter(torch.empty(width, channels).uniform_(-(channels**-0.5), channels**-0.5))
            if sees_path
            else None
        )

    def __getattr__(self, name: str) -> Any:
        # Of a field of low rank the weight is no parameter, and never out of date.
        if name == "weight" and self.__dict__.get("low_rank"):
            return (self.mixing @ self.basis).view(self.channels, self.hidden, self.width)
        return super().__getattr__(name)

    @torch.no_grad()
    def _set_weight(self, weight: Tensor) -> None:
        """Make (channel, hidden, width) the weight, or the nearest one of the field's rank."""
        if "weight" in self._parameters:
            self.weight.copy_(weight)
            return
        u, s, v = torch.linalg.svd(weight.reshape(self.channels, -1).double(), full_matrices=False)
        rank = self.mixing.shape[1]
        # Each factor takes half of the size, so that both learn at like rates.
        root = s[:rank].sqrt()
        self.mixing.copy_(u[:, :rank] * root)
        self.basis.copy_(root[:, None] * v[:rank])

    def inner_weights(self) -> tuple[Tensor, ...]:
        """Weight and bias of each inner layer in turn."""
        return tuple(tensor for layer in self.inner for tensor in (layer.weight, layer.bias))  # pyright: ignore[reportReturnType]

    @torch.no_grad()
    def start_restoring(self, channels: Sequence[int], rate: float, spread: float = 0.1) -> None:
        """Set fresh weights so that `f_j(z)` is close to `tanh(-rate z)` for some channels, to 0 for others.

        Along channels that only grow (time, counts) z is then pulled back to 0 from the start, and
        forgets as a gated recurrent state does. Half of the features carry z and half carry -z
        through every layer, which is exact, for `act(x) - act(-x) = x`; all other weights are made
        smaller by `spread`. Of a field of low rank, the last layer is the nearest one of that rank.
        """
        if self.activation == "tanh":
            raise ValueError("a restoring start needs an activation with act(x) - act(-x) = x.")
        if self.width < 2 * self.hidden:
            raise ValueError(
                f"a restoring start needs width {2 * self.hidden} or more for hidden {self.hidden}; "
                f"width is {self.width}."
            )
        n, one = self.hidden, torch.eye(self.hidden).to(self.weight)
        pair = torch.cat([one, -one])
        for number, (weight, bias) in enumerate(
            zip(*[iter(self.inner_weights())] * 2, strict=True)
        ):
            weight.mul_(spread)
            bias.mul_(spread)
            if number == 0:
                weight[: 2 * n] += pair
            else:
                weight[: 2 * n, : 2 * n] += pair @ pair.T
        self.bias.mul_(spread)
        last = self.weight * spread
        last[list(channels), :, : 2 * n] -= rate * pair.T
        self._set_weight(last)

    def features(self, z: Tensor, drive: Tensor | None = None) -> Tensor:
        """The MLP before its last layer: (stream, hidden) -> (stream, width)."""
        act = activation_named(self.activation).value
        h = self.inner[0](z)
        h = act(h if drive is None else h + drive)
        for layer in self.inner[1:]:
            h = act(layer(h))
        return h

    def columns(self, features: Tensor, channels: slice) -> Tensor:
        """f_j for some channels, (stream, moved, hidden)."""
        weight, bias = self.weight[channels], self.bias[channels]
        flat = torch.addmm(bias.reshape(-1), features, weight.reshape(-1, self.width).T)
        columns = flat.view(-1, *bias.shape)
        return torch.tanh(columns) if self.final == "tanh" else columns

    def matrix(self, z: Tensor, drive: Tensor | None = None) -> Tensor:
        return self.columns(self.features(z, drive), slice(None)).transpose(1, 2)

    def contract(
        self, z: Tensor, dx: Tensor, channels: slice, drive: Tensor | None = None
    ) -> Tensor:
        columns = self.columns(self.features(z, drive), channels)
        if columns.shape[1] == 1:
            return columns[:, 0] * dx
        return torch.bmm(dx[:, None], columns)[:, 0]

    def drive(self, x: Tensor) -> Tensor:
        if self.path_weight is None:
            raise ValueError("this field does not see the path: build it with sees_path=True.")
        return nn.functional.linear(bound_counts(x, self.bounded_counts), self.path_weight).to(
            x.dtype
        )


_METHODS = frozenset({"features", "columns", "matrix", "contract", "drive"})
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_hooks(module: nn.Module) -> bool:
    """Whether calling a module calls more than its `forward`."""
    about = module.__dict__
    return any(about[hooks] for hooks in HOOKS)


def is_linear(layer: nn.Module | None) -> TypeGuard[nn.Linear]:
    """Whether a layer's weight and bias say all that calling it computes."""
    return (
        isinstance(layer, nn.Linear)
        and type(layer).forward is nn.Linear.forward
        and "forward" not in layer.__dict__
        and not has_hooks(layer)
    )


def not_plain(field: VectorField) -> str | None:
    """Why a field has to be called: its weights alone do not say what it computes. None where they do.

    Kernels, and torch code that does without autograd, read the weights of an `MLPField` and
    would pass by a subclass, other layers in place of its own, hooks and parametrizations.
    """
    if type(field) is not MLPField:
        return f"a field of type {type(field).__name__} has no kernel"
    own = field._parameters
    if not ("weight" in own or "mixing" in own) or "bias" not in own:
        return "weight or bias of the field is not a parameter of it"
    if has_hooks(field):
        return "the field has hooks"
    if not _METHODS.isdisjoint(field.__dict__):
        return "a method of the field was replaced"
    layers = [*field.inner]
    if len(layers) != field.depth:
        return f"the field has {len(layers)} inner layers and was made with {field.depth}"
    for number, layer in enumerate(layers):
        # Asked of each solve: straight from where a module keeps things, a third of the time.
        about = layer.__dict__
        if type(layer) is not nn.Linear or "forward" in about:
            return f"inner layer {number} is a {type(layer).__name__} of its own kind"
        if has_hooks(layer):
            return f"inner layer {number} has hooks"
        weight, bias = about["_parameters"].get("weight"), about["_parameters"].get("bias")
        if weight is None or bias is None:
            return f"inner layer {number} has no bias, or a weight that is not a parameter"
        if weight.shape != (field.width, field.width if number else field.hidden):
            return f"inner layer {number} has the shape {tuple(weight.shape)}"
    return None


def is_plain(field: VectorField) -> TypeGuard[MLPField]:
    """Whether a field's weights say all that it computes, see `not_plain`."""
    return not_plain(field) is None


def check_gradients(field: VectorField, z: Tensor) -> None:
    """Refuse a field of tensors that gradients recomputed from its parameters would miss.

    z (stream, hidden). A plain field has none, and one that gradients are not asked of is not looked at.
    """
    if not torch.is_grad_enabled() or torch.compiler.is_compiling() or is_plain(field):
        return
    around = Surroundings(field, z)
    try:
        drive = None
        if field.sees_path:
            drive = field.drive(z.new_zeros(z.shape[0], field.channels)).detach()
        dx = z.new_ones(z.shape[0], field.channels)
        value = field.contract(z.detach(), dx, slice(0, field.channels), drive)
    finally:
        around.mark()
        around.go_back()
    own = {id(parameter) for parameter in field.parameters()}
    nodes: list[Any] = [get_gradient_edge(value).node] if value.requires_grad else []
    seen = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in own:
            raise ValueError(
                "the vector field uses tensors that are not its parameters, and their gradients "
                "would be lost: give an nn.Module that holds them, or use gradient='backprop'."
            )
        nodes += [following for following, _ in node.next_functions]


def as_field(field: Callable[..., Tensor] | VectorField, hidden: int, channels: int) -> VectorField:
    """Return `field`, or wrap a module that returns a matrix.

    Raises:
        ValueError: it is made for other sizes, or has hooks that would never be called.
    """
    if isinstance(field, VectorField):
        if (field.hidden, field.channels) != (hidden, channels):
            raise ValueError(
                f"the field is made for hidden {field.hidden} and {field.channels} channels, but "
                f"z0 has {hidden} and the path {channels} (time, values and counts)."
            )
        hooks = [hook for kind in HOOKS for hook in field.__dict__[kind].values()]
        # Pruning has done its work by the time its hook is there.
        own_contract = type(field).contract is not VectorField.contract
        if own_contract and not all(isinstance(hook, BasePruningMethod) for hook in hooks):
            raise ValueError(
                "the vector field has hooks, which would never be called, for it contracts without its matrix: "
                "put them on its layers, or give a plain module z -> (stream, hidden, channel)."
            )
        return field
    return MatrixField(field, hidden, channels)
