#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Sets up, builds and runs the tests in stages: several compilers, sanitizers, and each CPU tier.
set -u
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'END'
usage: scripts/test.sh [--all | --long] [--stage NAME]...

Sets up the machine (scripts/setup.sh), then builds and tests in stages:

  gcc        Release build of the default compiler (CC, else gcc): every test but those of `tiers` and `machines`; unless
             --all, some of them shorter, and none with the label `rare`
  tiers      the same build with the tier capped at each level this CPU has: 200 cases of each suite with that tier's
             kernels; also checks that the automatic choice is not above it, and that the tier has costs
  lint       scripts/dev/lint.sh: format, suspicious code, line length, spelling; each of its checks counts as a test

With --all, as continuous integration runs them (.ci/run), also these:

  clang      Release build by clang, which inlines little: unit tests, some of them shorter, and 60 cases of each suite;
             with --long everything, inlined, by every installed clang
  sanitize   AddressSanitizer and UndefinedBehaviorSanitizer, tiers up to AVX2 (all with --long): unit tests and 28 cases of
             each suite
  fuzz       where clang has libFuzzer: each target of tests/fuzz runs its corpus, then new inputs, 60 seconds in all; tiers
             up to AVX2 (all with --long)
  emulated   where this CPU lacks AMX (or with --long): the kernels of the tiers from avx512 on, emulated on AVX2
  machines   simulated machines: libraries that choose other code, fewer CPUs and threads, another topology, no permission
             for AMX's tiles, CPUs without AVX and without AVX-512 (qemu-user)
  bare       a build with assertions and without optional packages, tiers up to AVX2 (all with --long): some unit tests, and
             40 cases of each suite
  aarch64    cross-built, under qemu-user: a seeded selection of the vector tiers' cases; with --long many more, and what the
             stage `sanitize` runs

With --long also these:

  portable   cross-built for riscv64, ppc64le, s390x (big-endian) and loongarch64, under qemu-user: the tiers c and
             portable on a seeded selection of cases, and .npy files
  onednn3    a seeded selection of both suites with the kernels on oneDNN 3.x, which scripts/get_onednn.sh installs into
             .venv/onednn3, and on the newest, in .venv/onednn-sycl (with --stage alone only if it exists)
  races      ThreadSanitizer on the tests that run kernels in several threads: those of a pool and, where clang has
             OpenMP, those of OpenMP
  memory     MemorySanitizer (clang) on cases of both suites with the tier c, and on layers
  engines    libattn inside vLLM, PyTorch's packages, JAX and ggml, and the conformance of all peers, each in its
             environment, which scripts/peers/setup.sh makes
  levels     unit tests of the library and of the checks at -O0, -O1 and -O2, and some with link-time optimisation (the
             stages gcc and clang build at -O3)

  --all          every test but the long ones
  --long         all stages, all cases of each suite, and the tests with the label `long`
  --stage NAME   only this stage, as --all runs it; repeatable
  -h, --help     this text

Needs 18 minutes on 2 cores after set-up, with --all 40; less where ccache is installed and knows the code. With --all two
stages run at a time, each on half of the cores: where one configures or waits for its last test, the other goes on. The
output of a stage is in build/log/stage-NAME.txt, and appears when the stage ends. A single stage has all cores. Skips
stages whose compiler is missing. Where up to three tests of a stage fail, they run once more alone, as those about times
may fail beside others; the end says which then passed. The last line has the totals of all stages. The exit code is 0 only
if every test passed, at its first or second run.
END
}

all=
long=
stages=
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --all) all=1 ;;
    --long) all=1 long=1 ;;
    --stage) [ $# -ge 2 ] || { warn "test.sh: --stage needs a name" && exit 2; }; all=1 stages="$stages $2" && shift ;;
    *) warn "test.sh: unknown option '$1' (see --help)" && exit 2 ;;
  esac
  shift
done
[ -z "$long" ] || export ATTN_TEST_LONG=1 # some tests then check more kernels
all_stages="gcc tiers lint${all:+ clang sanitize fuzz emulated machines bare aarch64}"
all_stages="$all_stages${long:+ portable onednn3 races memory engines levels}"

# ---- Stages ----------------------------------------------------------------------------------------------------------
# Each runs in a shell of its own, which counts in `tests`, `failures` and `skips`.

logs=$root/build/log
have ninja && export CMAKE_GENERATOR=Ninja # a build by make takes up to a minute longer
have ccache && export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache

# configure_and_build PRESET FOLDER [cmake option...]: builds everything, or the targets in `only`, which stages that run few
# tests set. The usual linker, which takes three times as long as gold, links build/ and what is cross-built (riscv64 has no
# gold).
configure_and_build() {
  local preset=$1 folder=$2
  shift 2
  [ "$folder" = build ] || [[ "$preset $*" =~ aarch64|--toolchain ]] || ! have ld.gold ||
    set -- -DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=gold "$@"
  quietly "$logs/$folder-configure.log" cmake --preset "$preset" -B "$folder" ${CI:+-DATTN_WERROR=ON} "$@" &&
    quietly "$logs/$folder-build.log" cmake --build "$folder" -j "$jobs" ${only:+--target "${only[@]}"}
}

# run_ctest FOLDER [ctest option...]: runs tests and adds their numbers to the totals. Up to three that fail run once more
# alone, as tests about times may fail beside another stage; the end of all says which then passed.
run_ctest() {
  local folder=$1 log=$logs/$stage-ctest.log line failed
  shift
  [ -n "$long" ] || set -- "$@" -LE "${exclude:+$exclude|}long"
  [ -z "$long" ] || [ -z "${exclude:-}" ] || set -- "$@" -LE "$exclude"
  # One test more than cores, because some tests wait for a clock or a file.
  ctest --test-dir "$folder" --output-on-failure --no-tests=error -j $((jobs + 1)) "$@" | tee "$log"
  line=$(grep -E '[0-9]+ tests? failed out of [0-9]+' "$log" | tail -n 1)
  if [[ $line =~ ([0-9]+)\ tests?\ failed\ out\ of\ ([0-9]+) ]]; then
    failed=${BASH_REMATCH[1]} tests=$((tests + BASH_REMATCH[2]))
    skips=$((skips + $(grep -c '\*\*\*Skipped' "$log")))
    grep -h '^skipped: ' "$folder/Testing/Temporary/LastTest.log" >>"$logs/skipped.txt"
    [ "$failed" = 0 ] || [ "$failed" -gt 3 ] || run_again
    failures=$((failures + failed))
    [ "$failed" = 0 ]
  else
    failures=$((failures + 1)) tests=$((tests + 1)) # ctest itself failed
    return 1
  fi
}

# The tests that failed in `log`, one at a time: takes those that pass from `failed`. A crash stays one.
run_again() {
  local names passed
  names=$(sed -nE 's/^\t *[0-9]+ - ([^ ]+) \((Failed|Timeout)\)$/\1/p' "$log" | paste -sd '|')
  [ -n "$names" ] || return 0
  say "-- once more, alone: ${names//|/ }"
  ctest --test-dir "$folder" --output-on-failure -j 1 -R "^(${names})\$" | tee "$log.again"
  passed=$(sed -nE 's/.* Test +#[0-9]+: ([^ ]+) \.+ +Passed.*/\1/p' "$log.again")
  [ -n "$passed" ] || return 0
  failed=$((failed - $(wc -l <<<"$passed")))
  awk -v stage="$stage" '{ print stage ": " $0 }' <<<"$passed" >>"$logs/again.txt"
}

# Sets `cpu` to the CPU seconds of all commands that have ended so far.
count_cpu() {
  local line
  times >"$logs/$stage-times.txt" # not $(times): a subshell has commands of its own
  line=$(tail -n 1 "$logs/$stage-times.txt")
  cpu=$(awk -F '[ms ]+' '{ printf "%d", 60 * $1 + $2 + 60 * $3 + $4 }' <<<"$line")
}

fail_build() { failures=$((failures + 1)) tests=$((tests + 1)) && return 1; }

# some_cases NUMBER SEED: sets `cases`, CMake's options for a selection of NUMBER cases of each suite, or all with --long.
# Stages have different seeds, so that together they cover more cases.
some_cases() {
  local number=$1
  [ -z "$long" ] || number=
  cases=("-DATTN_TEST_CASES=$number" "-DATTN_TEST_SEED=$2")
}

# Sets `inlining`, CMake's options for builds that only have to be right: kernels take a tenth of their time to compile. With
# --long builds inline what they should.
little_inlining() {
  inlining=(-DATTN_FEW_INLINED=ON "$@")
  [ -z "$long" ] || inlining=()
}

# Sets `corpora`, CMake's option for builds that need not run the corpora of tests/fuzz, as the stage fuzz does.
no_corpora() {
  corpora=()
  [ -n "$long" ] || ! clang_with_fuzzer >/dev/null || corpora=(-DATTN_TEST_CORPORA=OFF)
}

# The build of the stages gcc, tiers, machines, engines and lint: the first of them makes it.
build_release() {
  have make && local -x CMAKE_GENERATOR='Unix Makefiles' # whose commands the tests of scripts/dev/mutate.py read
  [ ! -e "$logs/begun/build" ] || return 0
  local garbage=() # gcc takes a twelfth less time for kernels where it lets garbage grow to 500 MB; the code is the same
  LC_ALL=C "${CC:-cc}" -v 2>&1 | grep -q '^gcc version' &&
    garbage=(-DCMAKE_C_FLAGS="${CFLAGS:+$CFLAGS }--param=ggc-min-heapsize=500000")
  some_cases 200 11
  configure_and_build release build ${CC:+-DCMAKE_C_COMPILER="$CC"} "${cases[@]}" "${garbage[@]}" ||
    { fail_build && return; } || return 1
  mkdir "$logs/begun/build"
}

stage_gcc() {
  build_release || return 1
  local exclude='tier|feigned|engines'
  [ -n "$all" ] || { exclude="$exclude|rare" && local -x ATTN_TEST_FEW=1; }
  run_ctest build
}

stage_tiers() {
  build_release || return 1
  run_ctest build -L tier
}

# A client whose environment cannot be made is skipped with a word.
stage_engines() {
  local long=1 # which alone runs the tests with the label `long`
  # Before the build, which has a backend of ggml where ggml's sources are.
  scripts/peers/setup.sh vllm torch onnxruntime openvino ggml
  build_release || return 1
  run_ctest build -L engines -j 1
}

# Prints the oldest supported clang, or with --long all.
clangs() {
  local name
  for name in clang-{14..25} clang; do
    if have "$name"; then echo "$name" && [ -z "$long" ] && return; fi
  done
}

stage_clang() {
  local compiler result=0 without='library|once' # tests of code that this compiler does not compile, and of what is slow
  local only=(tests_unit tests_tier tests_compiler)
  local -x ATTN_TEST_FEW=1 # the stage gcc runs these tests in full
  [ -z "$long" ] || { without='' only=() && unset ATTN_TEST_FEW; }
  some_cases 60 12
  no_corpora
  little_inlining
  [ -n "$(clangs)" ] || { skipped="no clang; to install it: apt-get install clang" && return 0; }
  for compiler in $(clangs); do
    say "-- $compiler"
    configure_and_build clang "build-$compiler" -DCMAKE_C_COMPILER="$compiler" "${cases[@]}" \
      "${corpora[@]}" "${inlining[@]}" || { fail_build || result=1; continue; }
    exclude=$without run_ctest "build-$compiler" -L 'unit|tier|compiler' || result=1
  done
  return $result
}

# Sets `cap`, the highest tier of builds with sanitizers or assertions: compilers take minutes for instrumented kernels of
# higher tiers, which have no assertions of their own.
cap_tiers() {
  cap=avx2
  [ -z "$long" ] && [ "$(uname -m)" = x86_64 ] || cap=
}

stage_sanitize() {
  local only=(tests_sanitize)
  local cap
  cap_tiers
  some_cases 28 13
  no_corpora
  configure_and_build asan build-asan "${cases[@]}" "${corpora[@]}" -DATTN_MAX_ISA="$cap" -DATTN_BUILD_EXAMPLES=OFF \
    -DATTN_GBENCH=OFF || { fail_build && return; } || return 1
  ATTN_MAX_ISA=$cap run_ctest build-asan -L sanitize
}

# -O0: the instrumented kernels compile twenty times faster.
stage_fuzz() {
  local compiler cap
  cap_tiers
  compiler=$(clang_with_fuzzer) || { skipped="no clang with libFuzzer; to install it: apt-get install clang" && return 0; }
  mapfile -t targets < <(scripts/dev/fuzz.sh --list)
  quietly "$logs/build-fuzz-configure.log" cmake --preset fuzz -DCMAKE_C_COMPILER="$compiler" \
    -DATTN_MAX_ISA="$cap" -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O0 -g1" &&
    quietly "$logs/build-fuzz-build.log" cmake --build build-fuzz -j "$jobs" --target "${targets[@]/#/fuzz_}" ||
    { fail_build && return; } || return 1
  run_ctest build-fuzz -L fuzz -j "$jobs" # no more, as they run for a time
}

stage_emulated() {
  [ "$(uname -m)" = x86_64 ] && grep -qw avx2 /proc/cpuinfo || { skipped="the emulation needs AVX2" && return 0; }
  [ -z "$long" ] && grep -qw amx_bf16 /proc/cpuinfo &&
    { skipped="this CPU has AVX-512 and AMX (--long runs it all the same)" && return 0; }
  local only=(attnbench exp_every_float_avx512 guard_pages test_bits test_merge test_nonfinite test_pieces test_serving tier)
  local quick=-DCMAKE_C_FLAGS_RELEASE='-O1 -DNDEBUG' # at -O3 the emulated instructions take minutes to compile
  [ -n "$long" ] || local -x ATTN_TEST_FEW=1
  configure_and_build release build-emulated -DATTN_EMULATE_AVX512=ON "$quick" || { fail_build && return; } || return 1
  local avx512='(edge|conformance|exp|tier)_avx512|' # only if this CPU cannot run them
  [ -z "$long" ] && grep -qw avx512vl /proc/cpuinfo && avx512=
  local upper='(tier|conformance|cold_windows)_(avx512bf16|amx)|(tier|conformance|integers)_avx512vnni'
  run_ctest build-emulated -R "^($avx512$upper|bits|nonfinite|merge|pieces|serving|guard_pages|no_time)\$"
}

stage_machines() {
  build_release || return 1
  run_ctest build -L feigned
}

stage_bare() {
  local cap of_library=(affinity args goals layer mha nn_layers plan product)
  local only=("${of_library[@]/#/test_}" kernel_table tier attnbench)
  cap_tiers
  some_cases 40 14
  little_inlining
  configure_and_build bare build-bare "${cases[@]}" "${inlining[@]}" -DATTN_MAX_ISA="$cap" ||
    { fail_build && return; } || return 1
  local names="${of_library[*]} cpus header kernel_table${long:+ cli eval_minilm}"
  run_ctest build-bare -R "^(${names// /|}|(edge|tier)_(c|avx2))\$"
}

# Each check of lint.sh counts as a test. build/, with its compile commands, is that of the stage gcc.
stage_lint() {
  [ -e build/compile_commands.json ] || build_release || return 1
  scripts/dev/lint.sh ${long:+--long} | tee "$logs/lint.txt"
  local result=${PIPESTATUS[0]}
  tests=$((tests + $(grep -cE '^[a-z]+: (passed|FAILED) ' "$logs/lint.txt")))
  failures=$((failures + $(grep -cE '^[a-z]+: FAILED ' "$logs/lint.txt")))
  skips=$((skips + $(grep -cE '^[a-z]+: skipped' "$logs/lint.txt")))
  sed -nE 's/^[a-z]+: (skipped: .*) \([0-9]+ s\)$/\1/p' "$logs/lint.txt" >>"$logs/skipped.txt"
  return "$result"
}

# check_onednn FOLDER BUILD [command to run it with...]: one test, both suites.
check_onednn() {
  local folder=$1 build=$2 suite
  shift 2
  tests=$((tests + 1))
  quietly "$logs/$build-configure.log" cmake --preset release -B "$build" ${CI:+-DATTN_WERROR=ON} -DATTN_ONEDNN=ON \
    -DATTN_ONEDNN_ROOT="$root/$folder" -DATTN_OPENBLAS=OFF -DATTN_BUILD_TESTS=OFF -DATTN_BUILD_EXAMPLES=OFF &&
    quietly "$logs/$build-build.log" cmake --build "$build" -j "$jobs" --target attnbench ||
    { failures=$((failures + 1)) && return 1; }
  "$@" "$build/harness/attnbench" list kernels | grep onednn
  for suite in edge conformance; do
    quietly "$logs/$build-$suite.log" "$@" "$build/harness/attnbench" check --suite $suite --kernel '*_onednn' --cases 250 ||
      { failures=$((failures + 1)) && return 1; }
    tail -n 1 "$logs/$build-$suite.log"
  done
}

# shellcheck disable=SC2094  # two commands append to the log
stage_onednn3() {
  local why result=0 cpu sycl=.venv/onednn-sycl
  have cc && [ "$(uname -m)" = x86_64 ] || { skipped='no x86-64, for which alone PyPI has oneDNN' && return 0; }
  why=$(scripts/get_onednn.sh .venv/onednn3 2>>"$logs/onednn.log" | tee -a "$logs/onednn.log" | sed -n 's/^skipped: //p')
  [ -z "$why" ] || { skipped=$why && return 0; }
  check_onednn .venv/onednn3 build-onednn3 || result=1
  [ -n "$long" ] && scripts/get_onednn.sh --sycl $sycl >>"$logs/onednn.log" 2>&1
  [ -e $sycl/.attn-onednn ] || return $result
  cpu=$(taskset -cp $$ | sed 's/.*[ ,-]//') # it starts as many threads as it has CPUs: one here
  check_onednn $sycl build-onednn-sycl env OCL_ICD_FILENAMES="$root/$sycl/lib/libintelocl.so" taskset -c "$cpu" || result=1
  return $result
}

# build_targets PRESET COMPILER TARGET...: builds in the folder of the preset; warnings are no errors.
build_targets() {
  local preset=$1 compiler=$2
  shift 2
  quietly "$logs/build-$preset-configure.log" cmake --preset "$preset" ${compiler:+-DCMAKE_C_COMPILER="$compiler"} &&
    quietly "$logs/build-$preset-build.log" cmake --build "build-$preset" -j "$jobs" --target "$@"
}

stage_races() {
  local result=0 compiler
  build_targets tsan "" test_bits test_plan plugin_client || { fail_build && return; } || return 1
  local -x ATTN_TEST_FEW=1 # bits takes minutes otherwise; the threads are as many
  run_ctest build-tsan -R '^(bits|plan|plugins_race)$' || result=1
  compiler=$(clang_with_openmp) ||
    { skipped="only the pool: no OpenMP for clang; to install it: apt-get install clang libomp-dev" && return $result; }
  build_targets tsan-openmp "$compiler" test_bits test_plan || { fail_build && return; } || return 1
  TSAN_OPTIONS=ignore_noninstrumented_modules=1 run_ctest build-tsan-openmp -R '^(bits|plan)$' || result=1
  return $result
}

# check_memory attnbench's arguments...: one test.
check_memory() {
  tests=$((tests + 1))
  ATTN_MAX_ISA=c quietly "$logs/memory.log" build-msan/harness/attnbench check -q --isa c --seed 3 "$@" ||
    { failures=$((failures + 1)) && return 1; }
  say "passed: attnbench check $*"
}

stage_memory() {
  local result=0 compiler
  compiler=$(clangs | head -n 1)
  [ -n "$compiler" ] || { skipped="no clang; to install it: apt-get install clang" && return 0; }
  build_targets msan "$compiler" attnbench || { fail_build && return; } || return 1
  check_memory --suite edge --cases 300 || result=1
  check_memory --suite conformance --cases 300 || result=1
  check_memory -p family -a seq=33 || result=1 # its own sizes take half an hour
  return $result
}

# Tests of the library, of its kernels and of the checks. Release builds are at -O3: the stages gcc and clang run these. With
# link-time optimisation each program takes as long as all kernels to compile.
stage_levels() {
  local level flags names result=0
  local -x ATTN_TEST_FEW=1
  for level in 0 1 2 lto; do
    flags="-O$level"
    names=(bits check common error_limits flush layer layer_family merge mha nn_block nn_cache nn_layers nonfinite numerics
      paying_threads plan product reference rounds row score_steps stats structure timed_rows)
    [ $level = lto ] && flags="-O2 -flto=auto -fno-fat-lto-objects" names=(bits check common plan)
    say "-- $flags"
    quietly "$logs/build-levels-configure.log" cmake --preset release -B build-levels -DATTN_GBENCH=OFF \
      -DATTN_BUILD_EXAMPLES=OFF -DCMAKE_C_FLAGS_RELEASE="$flags" &&
      quietly "$logs/build-levels-build.log" cmake --build build-levels -j "$jobs" --target "${names[@]/#/test_}" ||
      { fail_build || result=1; continue; }
    run_ctest build-levels -R "^($(IFS='|' && echo "${names[*]}"))\$" || result=1
  done
  return $result
}

stage_aarch64() {
  have aarch64-linux-gnu-gcc && have qemu-aarch64 || {
    skipped="no cross compiler or emulator; to install them: apt-get install gcc-aarch64-linux-gnu"
    skipped="$skipped libc6-dev-arm64-cross qemu-user"
    return 0
  }
  local only=(tests_emulator ${long:+tests_sanitize})
  little_inlining -DCMAKE_C_FLAGS_RELEASE='-O1 -DNDEBUG'
  configure_and_build aarch64 build-aarch64 -DATTN_BUILD_EXAMPLES=OFF "${inlining[@]}" ||
    { fail_build && return; } || return 1
  [ -n "$long" ] || local -x ATTN_TEST_FEW=1
  run_ctest build-aarch64 -L "emulator${long:+|sanitize}"
}

# CPUs without a tier of their own. Debian 12 has no compiler for loongarch64.
stage_portable() {
  local cpu emulator missing='' result=0
  local only=(tests_emulator)
  for cpu in riscv64 powerpc64le s390x loongarch64; do
    emulator=qemu-${cpu/powerpc64/ppc64}
    have "$cpu-linux-gnu-gcc" && [ -e "/usr/$cpu-linux-gnu/include/stdio.h" ] && have "$emulator" ||
      { missing="$missing $cpu" && continue; }
    say "-- $cpu"
    configure_and_build release "build-$cpu" --toolchain cmake/toolchains/cross-linux-gnu.cmake -DATTN_CROSS=$cpu \
      -DATTN_BUILD_EXAMPLES=OFF || { fail_build || result=1; continue; }
    run_ctest "build-$cpu" -L emulator || result=1
  done
  [ -z "$missing" ] || skipped="no cross compiler or emulator for$missing; to install what Debian has: apt-get install \
gcc-{riscv64,powerpc64le,s390x}-linux-gnu libc6-dev-{riscv64,ppc64el,s390x}-cross qemu-user"
  return $result
}

# ---- All of it -------------------------------------------------------------------------------------------------------

# run_stage NAME: runs a stage and writes a line of numbers.
run_stage() {
  local stage=$1 tests=0 failures=0 skips=0 skipped='' result=passed begun=$SECONDS cpu
  say
  say "==== $stage"
  "stage_$stage" || result=FAILED
  [ -z "$skipped" ] || result="skipped: $skipped"
  count_cpu
  say "$stage|$((SECONDS - begun))|$cpu|$tests|$failures|$skips|$result" >"$logs/$stage.numbers"
}

# lane STAGE...: runs those that no other lane has begun. Prints the output of each at its end, so that two do not mix.
lane() {
  local stage
  for stage in "$@"; do
    mkdir "$logs/begun/$stage" 2>/dev/null || continue
    (run_stage "$stage") >"$logs/stage-$stage.txt" 2>&1 </dev/null
    flock "$logs/begun" cat "$logs/stage-$stage.txt"
  done
}

# wanted NAME...: prints those that are to run.
wanted() {
  local stage
  for stage in "$@"; do
    case " ${stages:-$all_stages} " in *" $stage "*) say "$stage" ;; esac
  done
}

for stage in $stages; do
  [ "$(type -t "stage_$stage")" = function ] || { warn "test.sh: no stage '$stage' (see --help)" && exit 2; }
done
scripts/setup.sh --tests ${long:+--long} || exit 5
mkdir -p "$logs"
rm -rf "$logs/begun" "$logs"/*.numbers
mkdir "$logs/begun"
: >"$logs/skipped.txt"
: >"$logs/again.txt"
begun=$SECONDS
in_build=(gcc tiers machines engines) # one after the other: they share the folder build/
# Long ones first, so that both lanes end at about the same time.
others=(sanitize clang emulated fuzz aarch64 bare portable onednn3 races memory levels)
# Lint needs no more of build/ than its first minute leaves there. Where all stages run, either lane may take it.
if [ -n "$all" ] && [ -z "$stages" ]; then others+=(lint); else in_build+=(lint); fi
mapfile -t in_build < <(wanted "${in_build[@]}")
mapfile -t others < <(wanted "${others[@]}")
if [ "$jobs" = 1 ] || [ ${#others[@]} = 0 ] || [ $((${#in_build[@]} + ${#others[@]})) = 1 ]; then
  for stage in "${in_build[@]}" "${others[@]}"; do (run_stage "$stage"); done
else
  jobs=$(((jobs + 1) / 2))
  mapfile -t from_the_end < <(printf '%s\n' "${others[@]}" | tac)
  set -m # a process group for each, so that an interruption ends all of it
  lane "${in_build[@]}" "${from_the_end[@]}" &
  one=$!
  lane "${others[@]}" &
  two=$!
  set +m
  trap 'kill -- -$one -$two; exit 130' INT TERM
  wait
fi

# CPU seconds say what a stage costs on any number of cores, and beside other work.
say
say "stage          time   CPU time  result"
tests=0 failures=0 skips=0 total_cpu=0
line() { printf '%-10s %6d s  %7d s  %s\n' "$@"; }
for stage in ${stages:-$all_stages}; do
  [ -e "$logs/$stage.numbers" ] || say "$stage|0|0|1|1|0|FAILED: ended without a result" >"$logs/$stage.numbers"
  IFS='|' read -r stage seconds cpu of_tests of_failures of_skips result <"$logs/$stage.numbers"
  line "$stage" "$seconds" "$cpu" "$result"
  tests=$((tests + of_tests)) failures=$((failures + of_failures)) skips=$((skips + of_skips))
  total_cpu=$((total_cpu + cpu))
done
line total $((SECONDS - begun)) $total_cpu ''
if [ $skips -gt 0 ]; then
  say "$skips tests skipped:"
  sort "$logs/skipped.txt" | uniq -c
fi
if [ -s "$logs/again.txt" ]; then
  say "failed beside others, passed alone:"
  cat "$logs/again.txt"
fi
say
percent=$((tests > 0 ? 100 * (tests - failures) / tests : 0))
say "$percent% tests passed, $failures tests failed out of $tests"
[ $failures = 0 ] && [ $tests -gt 0 ]
