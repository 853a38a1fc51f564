# SPDX-License-Identifier: MIT
"""What this machine can do at most, timed beside every sample: libattn_peak.so (harness/peak_library) through ctypes."""

import contextlib
import ctypes
import math
from ctypes import c_char_p, c_double, c_int, c_size_t, c_void_p

SLICE_NS = 2e6         # of the peak loop, before every sample
READ_BYTES = 2.0**28   # at most so much of K and V is read once a round

FUNCTIONS = {  # name -> result, arguments
    "peak_open": (c_void_p, [c_char_p, c_int, c_double]),
    "peak_close": (None, [c_void_p]),
    "peak_name": (c_char_p, [c_void_p]),
    "peak_rate": (c_double, [c_void_p]),
    "peak_read_rate": (c_double, [c_void_p, c_size_t, c_int]),
}


class PeakLibrary:
    """A loaded libattn_peak.so. absent: why there is none, else ""; without it every rate is None."""

    def __init__(self, path):
        self.c, self.absent = None, ""
        try:
            self.c = ctypes.CDLL(str(path))
            for name, (result, arguments) in FUNCTIONS.items():
                function = getattr(self.c, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            self.c, self.absent = None, f"{error}; cmake --build build --target attn_peak makes one"

    @contextlib.contextmanager
    def meter(self, dtype, threads):
        """A Meter, or None."""
        handle = self.c and self.c.peak_open(dtype.encode(), threads, SLICE_NS)
        if not handle:
            yield None
            return
        try:
            yield Meter(self.c, handle, threads)
        finally:
            self.c.peak_close(handle)


class Meter:
    """Rates of all threads together."""

    def __init__(self, c, handle, threads):
        self.c, self.handle, self.threads = c, handle, threads
        self.name = c.peak_name(handle).decode()

    def flops(self):
        """Flop/s of one slice of the multiply-add loop."""
        return self.c.peak_rate(self.handle)

    def read(self, rotations):
        """Bytes/s of reading the K and V of as many rotations as READ_BYTES allows, each once; 0 where they are too small.

        Those at the end: the calls begin with the first, which must stay cold.
        """
        tensors = [array for _, *kv in rotations for array in kv]
        count = 2 * math.ceil(READ_BYTES / (tensors[0].nbytes + tensors[1].nbytes))
        seconds = total = 0.0
        for array in tensors[-count:]:
            rate = self.c.peak_read_rate(array.ctypes.data, array.nbytes, self.threads)
            if not rate:
                return 0.0
            seconds, total = seconds + array.nbytes / rate, total + array.nbytes
        return total / seconds
