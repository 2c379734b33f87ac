"""The device and the precision of a loaded model."""

from __future__ import annotations

from typing import TypeVar

import torch

from xrep.errors import UserError
from xrep.kernels.precision import multiplied_type, multiplies_int8
from xrep.nn.layers import is_quantised, pack_weights, quantise_layers
from xrep.precision import Precision, type_of

M = TypeVar("M", bound=torch.nn.Module)


def to_device(model: M, device: str | None, dtype: Precision) -> M:
    """Move a model to a device, by default a GPU if there is one, convert it to a precision, and pack it.

    A CPU without instructions for products in bfloat16 computes in float32 instead (``multiplied_type``). A model that
    was saved in int8 remains in int8, whose default device is the CPU.

    Raises:
        UserError: The device does not compute in this precision, or the model was saved in int8 and is to compute in
            half precision.
    """
    if dtype == "float32" and is_quantised(model):
        dtype = "int8"
    device = device or ("cuda" if torch.cuda.is_available() and dtype != "int8" else "cpu")
    numbers = multiplied_type(type_of(dtype, device), torch.device(device))
    if dtype != "int8" and is_quantised(model):
        raise UserError("the model was saved in int8", cure="leave out the precision, or use the original model")
    if dtype == "int8" and not multiplies_int8():
        problem = f"torch {torch.__version__} has no exact int8 product for this processor"
        raise UserError(problem, cure="choose the precision float32 or bfloat16")
    if dtype == "int8" and not is_quantised(model):
        quantise_layers(model)
    model = moved(model.to(numbers), device, cure="use another `device`, such as cpu")
    pack_weights(model)
    return model


def moved(module: M, device: str | torch.device, cure: str) -> M:
    """Move a module to a device and return it. Raises UserError if the device has too little memory for it."""
    try:
        return module.to(device)
    except torch.cuda.OutOfMemoryError as error:
        count = sum(parameter.numel() for parameter in module.parameters())
        problem = f"a model with {count:,} parameters does not fit into the free memory of {device}"
        raise UserError(problem, cure=cure) from error
