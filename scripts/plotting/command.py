# SPDX-License-Identifier: MIT
"""The work of plot.py and report.py before and after they draw: they read results, and say what went wrong."""

import sys
from pathlib import Path

from plotting.table import ResultsError, read_results

REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements.txt"
OK, BAD_INPUT, NOTHING, CANNOT_WRITE = 0, 2, 3, 5  # NOTHING: to draw, or to draw with


def run(name, write, options, read=read_results):
    """Calls write(results, looks, options), which returns an exit code; what fails is said on stderr. Returns the code."""
    try:
        results = read(options.results)
        from plotting import style
        style.apply()
        return write(results, style.Looks({row["algorithm"] for row in getattr(results, "rows", ())}), options)
    except ResultsError as error:
        message, code = error, BAD_INPUT
    except ImportError as error:
        message, code = f"{error}; install it with: python3 -m pip install -r {REQUIREMENTS}", NOTHING
    except OSError as error:
        message, code = f"{error.filename or options.out}: cannot be written ({error.strerror})", CANNOT_WRITE
    print(f"{name}: {message}", file=sys.stderr)
    return code
