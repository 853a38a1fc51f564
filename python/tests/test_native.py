# SPDX-License-Identifier: MIT
"""The shared object: declarations of CPython's functions, exported names, needed libraries, threads, protocols."""

import array
import ctypes
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path

import pytest

import libattn
from libattn import _native

NATIVE = Path(__file__).parent.parent / "native"
COMPILER = shutil.which(os.environ.get("CC", "cc"))
PYTHON_H = Path(sysconfig.get_path("include")) / "Python.h"

FACTS = """
#include <stddef.h>
#include <stdio.h>
#define OF(type, field) printf(#type "." #field " %zu\\n", offsetof(type, field))
#define VALUE(name) printf(#name " %d\\n", (int)name)
int main(void) {
  printf("%zu %zu\\n", sizeof(PyMethodDef), sizeof(Py_buffer));
  OF(PyMethodDef, ml_name); OF(PyMethodDef, ml_meth); OF(PyMethodDef, ml_flags); OF(PyMethodDef, ml_doc);
  OF(Py_buffer, buf); OF(Py_buffer, obj); OF(Py_buffer, len); OF(Py_buffer, itemsize); OF(Py_buffer, readonly);
  OF(Py_buffer, ndim); OF(Py_buffer, format); OF(Py_buffer, shape); OF(Py_buffer, strides); OF(Py_buffer, suboffsets);
  OF(Py_buffer, internal);
  VALUE(METH_KEYWORDS); VALUE(METH_O); VALUE(METH_NOARGS); VALUE(METH_FASTCALL); VALUE(PyBUF_FORMAT); VALUE(PyBUF_STRIDES);
}
"""


def compile_and_run(folder, name, source):
    (folder / f"{name}.c").write_text(source)
    flags = [f"-I{NATIVE}", f"-I{sysconfig.get_path('include')}", f"-I{sysconfig.get_path('platinclude')}"]
    subprocess.run([COMPILER, *flags, str(folder / f"{name}.c"), "-o", str(folder / name)], check=True)
    return subprocess.run([str(folder / name)], check=True, capture_output=True, text=True).stdout


@pytest.mark.skipif(not NATIVE.exists(), reason="the sources are not here")
@pytest.mark.skipif(not COMPILER, reason="no C compiler")
@pytest.mark.skipif(not PYTHON_H.exists(), reason=f"no {PYTHON_H} (Debian: apt-get install python3-dev)")
def test_declarations_are_those_of_python_h(tmp_path):
    both = '#include <Python.h>\n#include "python_api.h"\nint main(void) { return 0; }\n'
    compile_and_run(tmp_path, "both", both)  # functions: a compiler refuses two declarations that differ
    theirs = compile_and_run(tmp_path, "theirs", "#include <Python.h>\n" + FACTS)
    assert compile_and_run(tmp_path, "ours", '#include "python_api.h"\n' + FACTS) == theirs


def test_structs_have_the_size_that_the_compiler_says():
    problem = _native.S.attn_problem()
    assert problem.struct_size > 300
    assert _native.C.ATTN_BF16 == 2
    fields = [("int", "x"), ("int64_t", "y")]
    struct = _native._make_struct("wrong", fields, _native._PLAIN.get)
    _native._check_layout(struct, fields, [16, 0, 8])
    with pytest.raises(ImportError, match="wrong is"):
        _native._check_layout(struct, fields, [16, 0, 4])


@pytest.mark.skipif(not shutil.which("readelf"), reason="no readelf (Debian: apt-get install binutils)")
def test_it_needs_no_openmp_and_exports_its_own_names_only():
    command = ["readelf", "-dW", "--dyn-syms", str(_native.LIBRARY)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    needed = [line for line in out.splitlines() if "(NEEDED)" in line]
    assert needed
    if any("openblas" in line or "dnnl" in line for line in needed):
        pytest.skip("the kernels on libraries are part of this build (ATTN_STATIC_BACKENDS), and need OpenMP")
    assert not [line for line in needed if "omp" in line or "python" in line], needed
    exported = [line.split()[7] for line in out.splitlines() if " GLOBAL DEFAULT " in line and " UND " not in line]
    assert exported
    assert all(name.startswith("attn_python_") for name in exported), exported


def numbers(count):
    return memoryview(array.array("f", [(i * i % 17) / 8 - 1 for i in range(count)]))


def test_buffers_without_numpy():
    x = numbers(64).cast("B").cast("f", (1, 2, 4, 8))
    out = libattn.sdpa(x, x, x)
    assert isinstance(out, memoryview) or type(out).__module__ == "numpy"
    assert tuple(out.shape) == (1, 2, 4, 8)
    into = memoryview(bytearray(256)).cast("f", (1, 2, 4, 8))
    assert libattn.sdpa(x, x, x, out=into) is into
    assert bytes(memoryview(out)) == bytes(into)
    with pytest.raises(ValueError, match="out is read-only"):
        libattn.sdpa(x, x, x, out=into.toreadonly())


def test_arrays_of_ctypes():
    """Their buffers have no strides."""
    x = (ctypes.c_float * 8 * 4 * 2 * 1)()
    ctypes.memmove(x, numbers(64).obj.tobytes(), 256)
    right = libattn.sdpa(*[numbers(64).cast("B").cast("f", (1, 2, 4, 8))] * 3)
    assert bytes(memoryview(libattn.sdpa(x, x, x))) == bytes(memoryview(right))


class Capsules:
    """An array that speaks nothing but DLPack's capsules."""

    def __init__(self, inner):
        self.inner = inner

    def __dlpack__(self, **options):
        return self.inner.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.inner.__dlpack_device__()


def test_dlpack_capsules():
    np = pytest.importorskip("numpy")
    q = np.random.default_rng(1).standard_normal((1, 2, 5, 8)).astype(np.float32)
    references = sys.getrefcount(q)
    for x in (q, q[:, ::-1, 1:4]):
        assert np.array_equal(libattn.sdpa(*[Capsules(x)] * 3), libattn.sdpa(x, x, x))
    del x
    assert sys.getrefcount(q) == references


def test_threads_of_python_share_plans():
    np = pytest.importorskip("numpy")
    q = np.random.default_rng(2).standard_normal((1, 4, 96, 32)).astype(np.float32)
    right, wrong = libattn.sdpa(q, q, q, threads=1), []
    plan = libattn.Plan(q, q, q, threads=2)

    def work():
        for _ in range(15):
            if not (np.array_equal(libattn.sdpa(q, q, q, threads=2), right) and np.array_equal(plan.run(q, q, q), right)):
                wrong.append(threading.get_ident())

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_the_gil_is_free_while_a_kernel_runs():
    """Another thread of Python makes progress while one thread is in a call of 50 ms or more."""
    np = pytest.importorskip("numpy")
    q = np.ones((1, 1, 1500, 64), np.float32)
    plan = libattn.Plan(q, q, q, kernel="naive_c", threads=1)
    out, ticks, stop = np.empty_like(q), [0], threading.Event()
    moved = []

    def count():
        while not stop.is_set():
            ticks[0] += 1
            stop.wait(0.001)

    worker = threading.Thread(target=count)
    worker.start()
    for _ in range(3):
        before = ticks[0]
        plan.run(q, q, q, out=out)
        moved.append(ticks[0] - before)
    stop.set()
    worker.join()
    assert max(moved) > 2, moved


CHILD = """
import os, sys
import numpy as np
import libattn
q = np.random.default_rng(3).standard_normal((1, 8, 300, 64)).astype(np.float32)
right = libattn.sdpa(q, q, q, threads=2)
child = os.fork()
if child == 0:
    os._exit(0 if np.array_equal(libattn.sdpa(q, q, q, threads=2), right) else 9)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_child_of_fork_has_threads_of_its_own():
    pytest.importorskip("numpy")
    environment = dict(os.environ, PYTHONPATH=str(Path(libattn.__file__).parent.parent))
    subprocess.run([sys.executable, "-c", CHILD], check=True, timeout=60, env=environment)


INTERPRETERS = """
import array, sys
sys.modules["numpy"] = None  # results are memoryviews: NumPy allows one interpreter
import libattn
try:
    import _interpreters as interpreters
    create = lambda: interpreters.create("legacy")
except ImportError:
    try:
        import _xxsubinterpreters as interpreters
    except ImportError:
        sys.exit(77)
    create = lambda: interpreters.create(isolated=False)
use = '''
x = memoryview(array.array("f", [0.5] * 64)).cast("B").cast("f", (1, 2, 4, 8))
assert bytes(libattn.sdpa(x, x, x, kv_len=[3])) == bytes(x)
spec = libattn.Spec((1, 2, 4, 8))
assert bytes(libattn.Plan(spec, spec, spec).run(x, x, x)) == bytes(x)
try:
    libattn.sdpa(*[memoryview(bytes(256)).cast("f", (1, 1, 64, 1))] * 3, kernel="decode_c")
    raise AssertionError("decode_c took it")
except libattn.Unsupported:
    pass
'''
for _ in range(3):
    other = create()
    start = f"import array, sys; sys.modules['numpy'] = None; sys.path[:] = {sys.path}; import libattn"
    interpreters.run_string(other, start + use)
    exec(use)
    interpreters.destroy(other)
    exec(use)
"""


def test_interpreters_share_nothing_of_python():
    """An interpreter that has used the library and ended changes nothing for another one."""
    environment = dict(os.environ, PYTHONPATH=str(Path(libattn.__file__).parents[1]))
    done = subprocess.run([sys.executable, "-c", INTERPRETERS], timeout=60, env=environment, capture_output=True, text=True,
                          check=False)
    if done.returncode == 77:
        pytest.skip("this Python has no subinterpreters")
    assert done.returncode == 0, done.stderr


def program(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(Path(libattn.__file__).parents[1])}
    return subprocess.run([sys.executable, "-m", "libattn", *arguments], capture_output=True, text=True, env=environment,
                          check=False)


def test_program():
    done = program("--seconds", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"libattn {libattn.version()} " in done.stdout
    assert f"tiers   {' '.join(libattn.tiers())}\n" in done.stdout
    passed = [line.split()[0] for line in done.stdout.splitlines() if " passed " in line]
    assert passed == [kernel.name for kernel in libattn.kernels() if not kernel.unusable]
    assert done.stdout.endswith("self-check against the float64 oracle: passed\n")
    assert "invalid float value: 'soon'" in program("--seconds", "soon").stderr


def test_self_check_finds_errors(monkeypatch, capsys):
    from libattn import __main__, _check

    monkeypatch.setattr(_check._Case, "run", lambda case, plan: None)  # outputs stay zero
    monkeypatch.setattr(sys, "argv", ["libattn", "--seconds", "0"])
    assert __main__.main() == 1
    out = capsys.readouterr().out
    assert "FAILED   1x1x1x20x33x32 ATTN_F16" in out
    assert out.endswith("self-check against the float64 oracle: FAILED\n")
