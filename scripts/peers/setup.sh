#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# shellcheck disable=SC2012,SC2086,SC2116  # lists of words and of names without blanks
# Makes a Python environment for each peer: .venv-peers/NAME with the packages of scripts/peers/requirements-NAME.txt.
#
#   scripts/peers/setup.sh torch onnxruntime     these peers
#   scripts/peers/setup.sh --all                 all peers; repeating it is safe and quick
#   scripts/peers/setup.sh --list                which environments exist
#
# onednn: also builds libattn with oneDNN in .venv-peers/onednn/build, because its kernels on oneDNN are measured. ggml: also
# builds llama.cpp in .venv-peers/ggml/build from the sources of llama-cpp-python (80 MB, 5 minutes). vllm: 3.5 GB. Needs
# python3 with venv, and pip's index; ggml also CMake and a C++ compiler.
# Exit code: 0 all environments exist, 1 one could not be made, 2 usage.
set -u
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

home=$root/.venv-peers
names=$(ls scripts/peers/requirements-*.txt | sed 's|.*requirements-||; s|\.txt$||')

usage() {
  warn "setup.sh: $1; usage: scripts/peers/setup.sh NAME... | --all | --list, NAME one of: $(echo $names)"
  exit 2
}

requirements() { echo "scripts/peers/requirements-$1.txt"; }
is_ready() { [ -x "$home/$1/bin/python" ] && cmp -s "$(requirements "$1")" "$home/$1/.attn-requirements"; }

list() {
  local name
  for name in $names; do
    is_ready "$name" && say "$name: .venv-peers/$name" || say "$name: not there; scripts/peers/setup.sh $name"
  done
}

make_environment() {
  say "setup: $name: installing $(grep -Ev '^ *(#|$)' "$(requirements "$name")" | tr '\n' ' ')into .venv-peers/$name"
  quietly "$home/$name.log" python3 -m venv "$home/$name" &&
    quietly "$home/$name.log" "$home/$name/bin/python" -m pip install --quiet --disable-pip-version-check \
      -r "$(requirements "$name")" &&
    cp "$(requirements "$name")" "$home/$name/.attn-requirements"
}

# libattn with the environment's oneDNN.
build_onednn() {
  say "setup: onednn: building libattn with it in .venv-peers/onednn/build"
  quietly "$home/onednn-build.log" cmake -S "$root" -B "$home/onednn/build" -DCMAKE_BUILD_TYPE=Release -DATTN_ONEDNN=ON \
    -DATTN_ONEDNN_ROOT="$home/onednn" -DATTN_BUILD_TESTS=OFF -DATTN_BUILD_EXAMPLES=OFF &&
    quietly "$home/onednn-build.log" cmake --build "$home/onednn/build" -j "$jobs" \
      --target attn_shared attn_onednn attnbench_shared
}

# ggml and llama.cpp, ggml's test of operations, and their sources: folders build/bin, llama and ggml. The environment's
# Python imports llama_cpp.
build_ggml() {
  local folder=$home/ggml package=llama-cpp-python==0.3.36 sources=$home/ggml/llama/vendor/llama.cpp
  [ ! -x "$folder/build/bin/test-backend-ops" ] || return 0
  say "setup: ggml: building llama.cpp of $package in .venv-peers/ggml/build"
  quietly "$home/ggml-build.log" "$folder/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps \
    --no-binary llama-cpp-python -d "$folder" "$package" &&
    mkdir -p "$folder/llama" && tar -xzf "$folder"/llama_cpp_python-*.tar.gz --strip-components 1 -C "$folder/llama" &&
    ln -sfn llama/vendor/llama.cpp/ggml "$folder/ggml" && ln -sfn ../../build/bin "$folder/llama/llama_cpp/lib" &&
    echo "$folder/llama" >"$(echo "$folder"/lib/python*/site-packages)/llama.pth" &&
    quietly "$home/ggml-build.log" cmake -S "$sources" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release \
      -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
      -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF &&
    quietly "$home/ggml-build.log" cmake --build "$folder/build" -j "$jobs" --target ggml llama &&
    quietly "$home/ggml-build.log" c++ -std=c++17 -O1 -I"$sources/ggml/include" "$sources/tests/test-backend-ops.cpp" \
      -L"$folder/build/bin" -lggml -lggml-base -lpthread -Wl,-rpath,"$folder/build/bin" \
      -o "$folder/build/bin/test-backend-ops"
}

# vLLM requires these, and runs without them; where PyTorch comes without CUDA, PyPI's torchvision cannot be imported.
strip_vllm() {
  quietly "$home/vllm.log" "$home/vllm/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
}

[ $# -gt 0 ] || usage "no name"
case $1 in
  --list) list && exit 0 ;;
  --all) set -- $names ;;
esac
for name in "$@"; do
  echo "$names" | grep -qx -- "$name" || usage "no peer '$name'"
done

mkdir -p "$home"
status=0
for name in "$@"; do
  is_ready "$name" || make_environment || { status=1 && continue; }
  [ "$name" != onednn ] || build_onednn || status=1
  [ "$name" != ggml ] || build_ggml || status=1
  [ "$name" != vllm ] || strip_vllm || status=1
done
exit $status
