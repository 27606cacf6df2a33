"""Linear maps and LSTMs in int8 for the CPU.

Weights are rounded once, with a scale for each output. Inputs are rounded at every call, with a scale for each row. So
no result depends on other rows of the batch or on padding. States of an LSTM are between -1 and 1 and need no scale.

Legend: `B` batch, `S` positions, `in` and `out` widths of a linear map, `H` width of the states of an LSTM.
"""

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hf_capsule_mt.inference.int8.native import NativeWeights, RoundedWeights, native_levels, row_scales
from hf_capsule_mt.modeling.recurrent.bidirectional_rnn import LSTM, BidirectionalRNN, WordOrder, gather_positions

ENGINE = "fbgemm"


class Rounding(NamedTuple):
    """How numbers from -1 to 1 become unsigned bytes."""

    levels: int
    zero: int


ALL_BITS, SEVEN_BITS = Rounding(127, 128), Rounding(63, 64)


def product(rows: Tensor, weight: Any, rounding: Rounding) -> Tensor:
    """`rows` `[…, in]` between -1 and 1 times a packed weight: `[…, out]`."""
    return weight(rows, None, rounding.levels, False)


class PyTorchWeights:
    """A weight `[out, in]` for PyTorch's own int8; called as [`NativeWeights`] is."""

    def __init__(self, packed: Any) -> None:
        self.packed = packed

    def __call__(self, inputs: Tensor, bias: Tensor | None, levels: int, scaled: bool) -> Tensor:
        if not scaled:
            outputs = self._product(inputs, levels)
            return outputs if bias is None else outputs.add_(bias)
        largest = row_scales(inputs)
        outputs = self._product(inputs / largest, levels)
        return outputs.mul_(largest) if bias is None else torch.addcmul(bias, outputs, largest)

    def _product(self, rows: Tensor, levels: int) -> Tensor:
        return _operator()(rows, 1 / levels, levels + 1, self.packed)

    def unpacked(self) -> RoundedWeights:
        weight, _ = self.packed.unpack()
        return RoundedWeights(weight.int_repr(), weight.q_per_channel_scales().float())


@functools.cache
def _operator() -> Callable[..., Tensor]:
    packet = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
    # Calling the operator itself is faster: the packet first examines the arguments of every call.
    return getattr(packet, "_op", packet)


@dataclass
class MissingWeights:
    """The weight of a model without values, whose tensors are on the meta device. Loading replaces it."""

    rounded: RoundedWeights

    def unpacked(self) -> RoundedWeights:
        return self.rounded


PackedWeights = NativeWeights | PyTorchWeights | MissingWeights


@torch.no_grad()
def rounded(weight: Tensor) -> RoundedWeights:
    """`weight` `[out, in]` in int8."""
    scales = (weight.abs().amax(dim=1) / 127).clamp(min=torch.finfo(torch.float32).tiny)  # [out]
    return RoundedWeights((weight / scales.unsqueeze(1)).round().clamp(-127, 127).to(torch.int8), scales)


@torch.no_grad()
def pack(weights: RoundedWeights) -> PackedWeights:
    """The bytes in the order in which this processor reads them."""
    weight, scales = weights
    if weight.is_meta:
        return MissingWeights(weights)
    if native_levels():
        return NativeWeights(weight, scales)
    before = torch.backends.quantized.engine
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*quantized tensor creation.*")
        zeros = torch.zeros(len(weight), dtype=torch.long)
        tensor = torch._make_per_channel_quantized_tensor(weight, scales.double(), zeros, 0)
        torch.backends.quantized.engine = ENGINE
        try:
            return PyTorchWeights(torch.ops.quantized.linear_prepack(tensor, None))
        finally:
            torch.backends.quantized.engine = before


@functools.cache
def int8_rounding() -> Rounding:
    """The rounding with which this processor multiplies without overflow. Raises if it cannot run int8.

    Processors without VNNI add pairs of products in 16 bits. Two products of eight bits would overflow.
    """
    if levels := native_levels():
        return ALL_BITS if levels == ALL_BITS.levels else SEVEN_BITS
    engines = getattr(torch.backends.quantized, "supported_engines", [])
    if ENGINE not in engines:
        raise RuntimeError(
            f"PyTorch {torch.__version__} has no int8 engine {ENGINE!r} on this machine (it has "
            f"{', '.join(engines)}): quantize_for_cpu needs an x86 processor with AVX2 and PyTorch's build for it; "
            "use the float model"
        )
    try:
        largest = product(torch.ones(1, 64), pack(rounded(torch.ones(16, 64))), ALL_BITS)
    except (AttributeError, RuntimeError) as error:
        raise RuntimeError(f"PyTorch {torch.__version__} cannot multiply int8 here: use the float model") from error
    return ALL_BITS if torch.allclose(largest, torch.full_like(largest, 64.0), rtol=1e-3) else SEVEN_BITS


NO_STATE_DICT = (
    "an int8 model has no state_dict: save it with model.save_pretrained(folder), load it with load_quantized(folder)"
)


def check_stays_on_cpu(change: Callable[[Tensor], Tensor]) -> None:
    """Raise if `to`, `cuda`, `half` and so on would move or convert an int8 model."""
    changed = change(torch.zeros(1))
    if changed.device.type != "cpu" or changed.dtype != torch.float32:
        raise RuntimeError(
            f"an int8 model stays on the CPU and in float32, not {changed.device.type} and {changed.dtype}: "
            "move or convert the float model"
        )


class Int8Module(nn.Module):
    """Holds packed weights, which cannot be moved or converted. `checkpoint.py` saves and loads them."""

    rounding: Rounding
    packed: Any

    def rounded_weights(self) -> RoundedWeights:
        """The weights as a checkpoint has them: the same on every processor."""
        return self.packed.unpacked()

    def pack_weights(self, weights: RoundedWeights) -> None:
        """Replace the weights by those of a checkpoint."""
        self.packed = pack(weights)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        check_stays_on_cpu(fn)
        return super()._apply(fn, recurse)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self.rounding.levels > int8_rounding().levels:
            raise RuntimeError(
                "these int8 weights are for a processor that multiplies eight bits, this one overflows beyond seven: "
                "save the model with save_pretrained and load it with load_quantized, or call quantize_for_cpu on the "
                "float model"
            )

    def _save_to_state_dict(self, *args: Any) -> None:
        raise RuntimeError(NO_STATE_DICT)

    def _load_from_state_dict(self, *args: Any) -> None:
        raise RuntimeError(NO_STATE_DICT)


class Int8Linear(Int8Module):
    """Replaces [`torch.nn.Linear`]."""

    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """`weight` `[out, in]`, `bias` `[out]`."""
        super().__init__()
        self.rounding = int8_rounding()
        self.out_features, self.in_features = weight.shape
        self.packed = pack(rounded(weight))
        self.register_buffer("bias", None if bias is None else bias.detach().float().contiguous().clone())

    @classmethod
    def of(cls, linear: nn.Linear) -> "Int8Linear":
        return cls(linear.weight, linear.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """`[…, in]` to `[…, out]`."""
        return self.packed(inputs, self.bias, self.rounding.levels, True)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Int8LSTM(Int8Module):
    """Replaces [`~hf_capsule_mt.modeling.recurrent.bidirectional_rnn.LSTM`].

    PyTorch orders the gates as input, forget, cell, output. Here the cell comes last, so that the three gates with a
    logistic function form one block.
    """

    def __init__(self, input_weight: Tensor, hidden_weight: Tensor, bias: Tensor) -> None:
        """`[4 H, in]`, `[4 H, H]` and `[4 H]` in PyTorch's order."""
        super().__init__()
        self.rounding = int8_rounding()
        self.hidden_size = hidden_weight.shape[1]
        self.projection = Int8Linear(cell_last(input_weight), cell_last(bias))
        self.packed = pack(rounded(cell_last(hidden_weight)))

    @classmethod
    def of(cls, lstm: LSTM) -> "Int8LSTM":
        weights: Any = lstm._flat_weights
        input_weight, hidden_weight, input_bias, hidden_bias = weights
        return cls(input_weight, hidden_weight, input_bias + hidden_bias)

    def forward(
        self, inputs: Tensor, states: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """`inputs` `[B, S, in]` and the two initial states `[1, B, H]`, None for zeros."""
        return self.run_gates(self.projection(inputs), states)

    def run_gates(
        self, gates: Tensor, states: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The same from the inputs' contribution to the gates, `[B, S, 4 H]`."""
        if states is None:
            hidden = cell = gates.new_zeros(len(gates), self.hidden_size)
        else:
            hidden, cell = states[0][0], states[1][0]
        outputs, cell = gates.new_empty(*gates.shape[:2], self.hidden_size), cell.clone()
        current, scratch = torch.empty_like(gates[:, 0]), torch.empty_like(cell)
        entry, forget, output, candidate = current.chunk(4, dim=-1)
        logistic = current.narrow(-1, 0, 3 * self.hidden_size)
        for step, into in zip(gates.unbind(1), outputs.unbind(1), strict=True):
            torch.add(product(hidden, self.packed, self.rounding), step, out=current)
            logistic.sigmoid_()
            cell.mul_(forget).addcmul_(entry, candidate.tanh_())
            hidden = torch.mul(output, torch.tanh(cell, out=scratch), out=into)
        return outputs, (hidden.unsqueeze(0), cell.unsqueeze(0))

    def step(self, inputs: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """From `inputs` `[B, in]` and the two states `[B, H]` to the next two states."""
        gates = product(hidden, self.packed, self.rounding).add_(self.projection(inputs))
        return lstm_states(gates, cell)


def cell_last(gates: Tensor) -> Tensor:
    """Gates `[4 H, …]` from PyTorch's order to ours."""
    entry, forget, cell, output = gates.chunk(4)
    return torch.cat([entry, forget, output, cell])


def lstm_states(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """From `gates` `[…, 4 H]`, which are overwritten, and the old cell `[…, H]` to the hidden state and the cell."""
    width = cell.shape[-1]
    entry, forget, output, candidate = gates.chunk(4, dim=-1)
    gates.narrow(-1, 0, 3 * width).sigmoid_()
    cell = torch.addcmul(forget * cell, entry, candidate.tanh_())
    return cell.tanh().mul_(output), cell


class Int8BidirectionalLSTM(nn.Module):
    """Replaces [`~hf_capsule_mt.modeling.recurrent.bidirectional_rnn.BidirectionalRNN`] with LSTMs.

    Both directions are one LSTM of twice the width. Its recurrent weight is block-diagonal. This wastes products but
    halves the number of calls, and calls cost more for short sentences.
    """

    def __init__(self, layer: BidirectionalRNN) -> None:
        super().__init__()
        weights: Any = zip(layer.forward_rnn._flat_weights, layer.backward_rnn._flat_weights, strict=True)
        inputs, hiddens, input_biases, hidden_biases = weights
        biases = [first + second for first, second in zip(input_biases, hidden_biases, strict=True)]
        hidden = [torch.block_diag(*blocks) for blocks in zip(*(weight.chunk(4) for weight in hiddens), strict=True)]
        self.rnn = Int8LSTM(both_directions(inputs), torch.cat(hidden), both_directions(biases))

    def forward(self, states: Tensor, order: WordOrder | None = None) -> Tensor:
        """`states` `[B, S, in]` to `[B, S, 2 H]`. With `order=None` every position is a real word."""
        gates = self.rnn.projection(states).unflatten(-1, (4, 2, -1))
        forward_gates, backward_gates = gates.unbind(-2)  # each [B, S, 4, H]
        if order is None:
            ordered = forward_gates, backward_gates.flip(1)
        else:
            ordered = _take(forward_gates, order.forward), _take(backward_gates, order.backward)
        outputs, _ = self.rnn.run_gates(torch.stack(ordered, dim=-2).flatten(2))
        forward, backward = outputs.chunk(2, dim=-1)
        if order is None:
            return torch.cat([forward, backward.flip(1)], dim=-1)
        both = gather_positions(forward, order.forward_place), gather_positions(backward, order.backward_place)
        return torch.cat(both, dim=-1).masked_fill(~order.mask.unsqueeze(-1), 0.0)


def _take(gates: Tensor, places: Tensor) -> Tensor:
    """`gates` `[B, S, 4, H]` at `places` `[B, S]`."""
    return gather_positions(gates.flatten(2), places).unflatten(-1, gates.shape[2:])


def both_directions(parts: Sequence[Tensor]) -> Tensor:
    """Two tensors `[4 H, …]` as one `[8 H, …]`: each gate of the first is followed by the same gate of the second."""
    return torch.stack([part.unflatten(0, (4, -1)) for part in parts], dim=1).flatten(0, 2)
