#!/bin/sh
# SPDX-License-Identifier: MIT
# The ten lines of C in README.md are examples/sdpa.c, which the tests build and run: not a copy that rots.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
shown=$(awk '/^```/ { inside = 0 }
             inside && !other { print }
             /^```c$/ { inside = 1; getline; other = !/example: ten lines/; if (!other) print }' "$root/README.md")
if [ "$shown" = "$(cat "$root/examples/sdpa.c")" ]; then exit 0; fi
echo "WRONG: the \`\`\`c block of README.md that begins with /* example: ten lines */ is not examples/sdpa.c:"
printf '%s\n' "$shown" | diff - "$root/examples/sdpa.c"
