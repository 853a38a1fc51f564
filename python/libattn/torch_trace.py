# SPDX-License-Identifier: MIT
"""Graphs of score_mod and mask_mod for torch_flex.py. A trace takes 17 ms, so that of a function is kept, and used while
whatever the function reads beside its arguments is the same: numbers of its closure, defaults and globals by value, tensors
by identity, as the graph reads their values when it runs. Functions that read anything else are traced at each call:
attributes of objects, other modules, numbers out of tensors (item())."""

from __future__ import annotations

import dis
import functools
import math
import types
import weakref

import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

_KEPT: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # function -> (what it read, its graph)
_BUILT_IN = {"abs", "bool", "enumerate", "float", "int", "len", "max", "min", "range", "round", "sum", "tuple", "zip"}
_ATTRIBUTES = {"device", "dtype", "ndim", "shape"}
_INTEGERS = torch.int8, torch.int16, torch.int32, torch.int64
_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)


class _Unknown(Exception):
    """A function reads what may change unseen."""


class _Is:
    """Equal where it is the same object."""

    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return isinstance(other, _Is) and self.x is other.x

    __hash__ = None


class _Watch(TorchDispatchMode):
    """Notices that values of tensors become numbers or sizes, which then are part of a graph."""

    def __init__(self):
        super().__init__()
        self.has_values = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        sized = torch.Tag.dynamic_output_shape in func.tags and not (
            func is torch.ops.aten.index.Tensor and all(x is None or x.dtype in _INTEGERS for x in args[1]))
        self.has_values |= sized or torch.Tag.data_dependent_output in func.tags
        return func(*args, **(kwargs or {}))


# ---- What a function reads -------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def _is_operation(name):
    """Whether an attribute of that name, of a tensor, a number, torch or math, says nothing that may change unseen."""
    if name in _ATTRIBUTES or isinstance(getattr(torch, name, None), torch.dtype) or hasattr(math, name):
        return True
    return name != "data" and not name.startswith("_") and hasattr(torch.ops.aten, name)


def _globals_of(code, free):
    """Names of the globals that the code and functions within it read. free: variables of its closure."""
    found = set()
    for step in dis.get_instructions(code):
        name = step.opname
        if name in ("LOAD_GLOBAL", "LOAD_NAME"):
            found.add(step.argval)
        elif name in ("LOAD_ATTR", "LOAD_METHOD"):
            if not _is_operation(step.argval):
                raise _Unknown
        elif name.startswith(("STORE_GLOBAL", "STORE_ATTR", "STORE_NAME", "STORE_SUBSCR", "DELETE_", "IMPORT_",
                              "LOAD_BUILD_CLASS", "LOAD_SUPER")) or name == "STORE_DEREF" and step.argval in free:
            raise _Unknown
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _globals_of(constant, free)
    return found


@functools.lru_cache(maxsize=1000)
def _names(code):
    try:
        return sorted(_globals_of(code, code.co_freevars))
    except _Unknown:
        return None


def _state(x, within=()):
    """All that a graph may depend on of x. Raises _Unknown, also for a cell without a value."""
    kind = type(x)
    if kind in _PLAIN:
        return kind, repr(x)  # 0.0 is not -0.0, and 1 not True
    if kind in (torch.Tensor, torch.nn.Parameter):
        return _Is(x), x.shape, x.stride(), x.dtype, x.requires_grad
    if kind in (tuple, list):
        return kind, [_state(item, within) for item in x]
    if x is torch or x is math:
        return _Is(x)
    if kind is not types.FunctionType:
        raise _Unknown
    code = x.__code__
    if code in within:
        return within.index(code)
    names = _names(code)
    if names is None:
        raise _Unknown
    within = (*within, code)
    read = [x.__globals__[name] for name in names if name in x.__globals__]
    if not {name for name in names if name not in x.__globals__} <= _BUILT_IN:
        raise _Unknown
    cells = x.__closure__ or ()
    try:
        read += [cell.cell_contents for cell in cells]
    except ValueError:
        raise _Unknown from None
    return _Is(code), [_state(item, within) for item in (*read, x.__defaults__, *(x.__kwdefaults__ or {}).items())]


def _surroundings():
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        raise _Unknown  # modes, such as that of a default device
    return [torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")]


# ---- Traces ----------------------------------------------------------------------------------------------------------


def trace(function, like):
    """(graph, whether it holds values of tensors) of function(*like)."""
    with TransformGetItemToIndex(), _Watch() as watch:
        return make_fx(lambda *inputs: function(*inputs))(*like), watch.has_values  # it counts defaults as inputs


def graph_of(function, like):
    """The graph of function(*like), kept if that is sound."""
    try:
        state = _surroundings(), len(like), _state(function)
    except _Unknown:
        return trace(function, like)[0]
    kept = _KEPT.get(function)
    if kept is not None and kept[0] == state:
        return kept[1]
    graph, has_values = trace(function, like)
    if not has_values:
        _KEPT[function] = state, graph
    return graph
