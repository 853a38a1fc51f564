# SPDX-License-Identifier: MIT
"""The shared object: its functions for Python, and the C interface of libattn through ctypes.

Structures are built from a description of the headers that the build made, and compared with the sizes and offsets that
the C compiler states (python/tools/read_headers.py). What is measured in microseconds does not pass through ctypes:
load_functions() gives built-in functions (python/native/entry.c).
"""

from __future__ import annotations

import ctypes
import functools
import json
import math
import os
from pathlib import Path
from types import SimpleNamespace

FOLDER = Path(__file__).parent
NAME = "libattn_python.so"


class Unsupported(RuntimeError):
    """Legal, but no kernel, or not the named one, takes it on this CPU. The message is the library's own sentence."""


class Spec:
    """A shape and a dtype without data, in place of an array where a plan is made.

    dtype: "float32", "float16" or "bfloat16", of keys and values also "float8_e4m3fn", "float8_e5m2" or "int8", and with
        kv_format "uint8"; strides in elements, default dense.
    """

    DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "q8_0", "q4_0",
              "float64", "int32", "int64", "bool", "uint8")
    __slots__ = ("_fields", "dtype", "shape", "strides")

    def __init__(self, shape, dtype="float32", strides=None):
        self.shape = tuple(map(int, shape))
        self.dtype = str(dtype)
        if self.dtype not in self.DTYPES:
            raise TypeError(f"dtype is {self.dtype}; it must be one of {', '.join(self.DTYPES)}")
        self.strides = tuple(map(int, strides)) if strides is not None else dense_strides(self.shape)
        if len(self.strides) != len(self.shape):
            raise ValueError(f"strides has {len(self.strides)} numbers; shape has {len(self.shape)}")
        self._fields = (self.DTYPES.index(self.dtype), *self.shape, *self.strides)

    def __repr__(self):
        return f"Spec({self.shape}, {self.dtype!r})"


def dense_strides(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return tuple(strides)


SOURCES = FOLDER.parent / "pyproject.toml"


def find_library():
    """The shared object beside this file, or the one that LIBATTN_PYTHON names (for tests of a build tree)."""
    named = os.environ.get("LIBATTN_PYTHON")
    path = Path(named) if named else FOLDER / NAME
    if not path.exists():
        raise ImportError(f"{path} is missing: python3 -m pip install ./python builds and installs it"
                          f"{'; then start Python in another folder' if SOURCES.exists() else ''}")
    return path


LIBRARY = find_library()
_loaded = ctypes.PyDLL(str(LIBRARY))  # holds the GIL in calls: only for what makes Python's objects
XLA_HANDLER = _loaded.attn_python_xla  # for JAX

# ---- The C interface ---------------------------------------------------------------------------------------------------

_PLAIN = {"int64_t": ctypes.c_int64, "int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32, "uint64_t": ctypes.c_uint64,
          "int": ctypes.c_int, "size_t": ctypes.c_size_t, "float": ctypes.c_float, "double": ctypes.c_double,
          "bool": ctypes.c_bool, "const char*": ctypes.c_char_p, "void": None}


def _read_headers():
    tables = [ctypes.c_void_p() for _ in range(3)]
    function = _loaded.attn_python_headers
    function.restype = ctypes.c_char_p
    description = json.loads(function(*map(ctypes.byref, tables)).decode())
    functions = [tables[2].value + i * ctypes.sizeof(ctypes.c_void_p) for i in range(len(description["functions"]))]
    addresses = [ctypes.c_void_p.from_address(at).value for at in functions]
    return description, *(ctypes.cast(table, ctypes.POINTER(ctypes.c_int64)) for table in tables[:2]), addresses


def _make_struct(name, fields, types):
    def start(self, /, **values):
        ctypes.Structure.__init__(self, **values)
        if fields[0][1] == "struct_size":
            self.struct_size = ctypes.sizeof(type(self))

    return type(name, (ctypes.Structure,), {"_fields_": [(field, types(kind)) for kind, field in fields],
                                           "__init__": start})


def _check_layout(struct, fields, numbers):
    ours = [ctypes.sizeof(struct), *(getattr(struct, field).offset for _, field in fields)]
    if ours != numbers:
        raise ImportError(f"{struct.__name__} is {ours} here and {numbers} in {LIBRARY}: the library was built wrongly")


def _build_interface():
    """structs, constants and functions of attn.h, mha.h, kv.h, rows.h, nn.h and product.h."""
    description, layouts, values, addresses = _read_headers()
    structs, at = {}, 0
    constants = dict(zip(description["enumerators"], values[:len(description["enumerators"])]))

    def types(kind):
        if kind.endswith("]"):
            element, _, count = kind[:-1].partition("[")
            return types(element) * (constants[count] if count in constants else int(count))
        kind = kind.replace("const ", "") if kind != "const char*" else kind
        if kind in structs or kind in _PLAIN:
            return structs.get(kind) or _PLAIN[kind]
        if kind in description["enums"]:
            return ctypes.c_int
        if kind.endswith("*") or kind in description["callbacks"]:
            return ctypes.c_void_p
        raise ImportError(f"a header of {LIBRARY} has the unknown type '{kind}'")

    for name, fields in description["structs"].items():
        structs[name] = _make_struct(name, fields, types)
        _check_layout(structs[name], fields, layouts[at:at + 1 + len(fields)])
        at += 1 + len(fields)
    declared, bench = ({name: (types(result), [types(argument) for argument in arguments])
                        for name, (result, arguments) in description[part].items()}
                       for part in ("functions", "bench_functions"))
    functions = {name: ctypes.CFUNCTYPE(result, *arguments)(address)
                 for (name, (result, arguments)), address in zip(declared.items(), addresses)}
    return SimpleNamespace(**structs), SimpleNamespace(**constants), SimpleNamespace(**functions), declared, bench


S, C, F, _DECLARED, _BENCH = _build_interface()


def _declare(library, declared):
    functions = {}
    for name, (result, arguments) in declared.items():
        functions[name] = getattr(library, name)
        functions[name].restype, functions[name].argtypes = result, arguments
    return SimpleNamespace(**functions)


def open_library(path):
    """The functions of attn.h in another libattn.so, declared; structs are those of this package, whose size the library
    reads. Raises OSError or AttributeError where it is no libattn."""
    library = ctypes.CDLL(str(path))
    library.attn_version  # noqa: B018  raises, where no function may be missing
    return _declare(library, {name: types for name, types in _DECLARED.items() if hasattr(library, name)})


@functools.lru_cache(maxsize=None)
def bench_library():
    """The functions of libattnbench.so: oracle, statistics and peak loops (harness/shared/shared.h)."""
    candidates = [folder / "libattnbench.so" for folder in (LIBRARY.parent, LIBRARY.parent.parent)]
    path = next((path for path in candidates if path.exists()), None)
    if path is None:
        raise ImportError(f"{candidates[0]} is missing: it belongs to the package")
    return _declare(ctypes.CDLL(str(path)), _BENCH)


def check(status):
    """Raises the library's sentence unless the status is ATTN_OK."""
    if status == C.ATTN_OK:
        return
    kinds = {C.ATTN_UNSUPPORTED: Unsupported, C.ATTN_OUT_OF_MEMORY: MemoryError}
    raise kinds.get(status, ValueError)(F.attn_last_error().decode())


# ---- Functions for Python -----------------------------------------------------------------------------------------------


def allocate(like, shape, dtype):
    """A new array for a result: PyTorch's if `like` is PyTorch's, else NumPy's, else a memoryview."""
    if hasattr(like, "new_empty"):  # PyTorch before DLPack's C interface
        import torch

        return torch.empty(shape, dtype=getattr(torch, dtype))
    try:
        import numpy as np
    except ImportError:
        return _allocate_memoryview(shape, dtype)
    if dtype == "bfloat16":
        import ml_dtypes

        dtype = ml_dtypes.bfloat16
    return np.empty(shape, dtype)


def _allocate_memoryview(shape, dtype):
    if dtype not in ("float32", "bool"):
        raise TypeError(f"a memoryview cannot hold {dtype}; give `out`, or install NumPy")
    kind, size = ("f", 4) if dtype == "float32" else ("?", 1)
    return memoryview(bytearray(max(math.prod(shape), 1) * size))[:math.prod(shape) * size].cast(kind, shape)


def load_functions(sdpa_doc):
    """The built-in functions, which exist once in each interpreter."""
    function = _loaded.attn_python_functions
    function.restype = ctypes.py_object
    function.argtypes = [ctypes.py_object, ctypes.py_object, ctypes.py_object, ctypes.c_char_p]
    return function(Unsupported, allocate, Spec, sdpa_doc.encode())


def keywords():
    """The keywords that the built-in function sdpa takes."""
    function = _loaded.attn_python_keyword
    function.restype = ctypes.c_char_p
    names = []
    while name := function(len(names)):
        names.append(name.decode())
    return names
