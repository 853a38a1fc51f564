# SPDX-License-Identifier: MIT
"""A pytest plugin for other projects' tests: of each function it runs a seeded sample, because some have hundreds of
thousands of cases; it leaves out what wants more memory or CPU time than may be; and every skip has a reason.

ATTN_UPSTREAM_SAMPLE: how many cases of a function (default: all of them). ATTN_UPSTREAM_SEED: which ones (default 1).
ATTN_UPSTREAM_GIGABYTES, ATTN_UPSTREAM_SECONDS: what a case may take (default 0: anything).
"""

import linecache
import math
import os
import random
import resource
import signal

import pytest

GIGABYTES, SECONDS = (float(os.environ.get(f"ATTN_UPSTREAM_{name}", 0)) for name in ("GIGABYTES", "SECONDS"))


def stop(*_):
    pytest.skip(f"takes more than {SECONDS:g} s of CPU time")


def pytest_configure(config):
    if GIGABYTES:
        resource.setrlimit(resource.RLIMIT_DATA, (int(GIGABYTES * 2**30),) * 2)
    signal.signal(signal.SIGPROF, stop)


def pytest_pycollect_makeitem(collector, name, obj):
    """Replaces the marks `parametrize` of a test function, whose product is too large to list, by one with a sample."""
    count = int(os.environ.get("ATTN_UPSTREAM_SAMPLE", 0))
    marks = getattr(obj, "pytestmark", []) if name.startswith("test") else []
    grid = [mark for mark in marks if mark.name == "parametrize"]
    total = math.prod(len(mark.args[1]) for mark in grid)
    if not count or total <= count:
        return
    draw = random.Random(f"{os.environ.get('ATTN_UPSTREAM_SEED', '1')} {name}")
    chosen = sorted(draw.sample(range(total), count))
    sets = [join(values_at(grid, index)) for index in chosen]
    names = [one for mark in grid for one in names_of(mark)]
    obj.pytestmark = [mark for mark in marks if mark.name != "parametrize"] + [pytest.mark.parametrize(names, sets).mark]


def names_of(mark):
    names = mark.args[0]
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)


def values_at(grid, index):
    """The values of each mark in the case of that number, counted with the last mark fastest: (names, value)."""
    found = []
    for mark in reversed(grid):
        index, place = divmod(index, len(mark.args[1]))
        found.append((names_of(mark), mark.args[1][place]))
    return reversed(found)


def join(parts):
    """One case of them all."""
    values, marks = [], []
    for names, value in parts:
        if hasattr(value, "marks"):  # pytest.param()
            marks, value = [*marks, *value.marks], value.values if len(names) > 1 else value.values[0]
        values += value if len(names) > 1 else [value]
    return pytest.param(*values, marks=marks)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """Features that libattn lacks are skips with a reason; a skip without one gets the condition that stands above it."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        return (yield)
    except NotImplementedError as error:
        if not str(error).startswith("libattn"):
            raise
        pytest.skip(str(error))
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "can't allocate memory" not in str(error):
            raise
        pytest.skip(f"wants more than {GIGABYTES:g} GB of memory")
    except pytest.skip.Exception as skipped:
        if skipped.msg:
            raise
        at = pyfuncitem.function.__code__.co_filename
        frame = skipped.__traceback__
        while frame.tb_next and frame.tb_frame.f_code.co_filename != at:
            frame = frame.tb_next
        pytest.skip(f"the test leaves this out: {linecache.getline(at, frame.tb_lineno - 1).strip()}")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
