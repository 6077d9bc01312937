#!/usr/bin/env bash
# Prints the path of a Python that has llama-cpp-python, whose libllama is what the benchmark compares with; builds it for this
# very processor the first time (some minutes). Called by bench.py.
#
#   fetch_peer.sh [--check]        --check: only look, status 1 when it isn't there
#
# It lives in ${XDG_CACHE_HOME:-~/.cache}/treadle, in a virtual environment per version and kind of processor, and is usable once
# it stands under its final name. Only the path goes to standard output, progress goes to standard error.
set -euo pipefail

package=llama-cpp-python==0.3.36
processor=$(uname -m; grep -m 1 -E '^(flags|Features)' /proc/cpuinfo || true)
name=peer-${package/==/-}-$(cksum <<<"$processor" | cut -d ' ' -f 1)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/treadle
python=$cache/$name/bin/python

if [ -f "$cache/$name/complete" ]; then
    echo "$python"
    exit 0
fi
[ "${1:-}" != --check ] || exit 1

mkdir -p "$cache"
log=$cache/$name.log
echo "building $package for this processor, once; this takes some minutes (log: $log)" >&2
rm -rf "${cache:?}/$name"
# The environment needs no pip of its own, so that Debian's python3-venv isn't needed either.
python3 -m venv --without-pip "$cache/$name" >&2
# No cache: a wheel that pip keeps may have been built otherwise.
CMAKE_ARGS="-DGGML_NATIVE=ON" python3 -m pip --python "$python" install --disable-pip-version-check --no-cache-dir \
    --no-binary llama-cpp-python "$package" </dev/null >"$log" 2>&1 &
build=$!
trap 'kill $build 2>/dev/null || true' INT TERM
minutes=0
while kill -0 $build 2>/dev/null; do
    for ((i = 0; i < 60; i++)); do
        sleep 1
        kill -0 $build 2>/dev/null || break 2
    done
    minutes=$((minutes + 1))
    echo "  $minutes min" >&2
done
if ! wait $build; then
    tail -n 5 "$log" >&2
    echo "$package could not be built" >&2
    exit 1
fi
"$python" -c 'import llama_cpp.llama_cpp' >&2
touch "$cache/$name/complete"
echo "$python"
