#!/bin/bash
# SPDX-License-Identifier: MIT
# The ten lines of C in README.md must be examples/sdpa.c without its licence line. Other tests build and run that file.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
shown=$(awk '/^```/ { inside = 0 }
             inside && !other { print }
             /^```c$/ { inside = 1; getline; other = !/example: ten lines/; if (!other) print }' "$root/README.md")
difference=$(diff <(printf '%s\n' "$shown") <(sed 1d "$root/examples/sdpa.c")) && exit 0
echo "WRONG: the \`\`\`c block of README.md that begins with /* example: ten lines */ is not examples/sdpa.c:"
echo "$difference"
exit 1
