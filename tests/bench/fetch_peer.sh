#!/usr/bin/env bash
# Prints the path of a Python that has llama-cpp-python, whose libllama is what the benchmark compares with; builds it for this
# very processor the first time (some minutes). Called by sides.py.
#
#   fetch_peer.sh [--check] [--avx2]
#
#   --check    only look, status 1 when it isn't there
#   --avx2     one that uses AVX2, FMA and F16C and nothing later, whatever this processor has
#
# It lives in ${XDG_CACHE_HOME:-~/.cache}/treadle, in a virtual environment per version and kind of processor, and is usable once
# it stands under its final name. Only the path goes to standard output, progress goes to standard error.
set -euo pipefail

package=llama-cpp-python==0.3.36
processor=$(uname -m; grep -m 1 -E '^(flags|Features)' /proc/cpuinfo || true)
name=peer-${package/==/-}-$(cksum <<<"$processor" | cut -d ' ' -f 1)
kind="this processor"
cmake_options="-DGGML_NATIVE=ON"
check_only=0
for option in "$@"; do
    case $option in
        --check) check_only=1 ;;
        --avx2)
            name=peer-${package/==/-}-avx2
            kind="AVX2"
            cmake_options="-DGGML_NATIVE=OFF -DGGML_SSE42=ON -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON
                -DGGML_BMI2=ON -DGGML_AVX_VNNI=OFF -DGGML_AVX512=OFF -DGGML_AVX512_VBMI=OFF -DGGML_AVX512_VNNI=OFF
                -DGGML_AVX512_BF16=OFF"
            ;;
        *) sed -n '2,9p' "$0" >&2; exit 2 ;;
    esac
done
cache=${XDG_CACHE_HOME:-$HOME/.cache}/treadle
python=$cache/$name/bin/python

if [ -f "$cache/$name/complete" ]; then
    echo "$python"
    exit 0
fi
[ $check_only = 0 ] || exit 1

mkdir -p "$cache"
log=$cache/$name.log
echo "building $package for $kind, once; this takes some minutes (log: $log)" >&2
rm -rf "${cache:?}/$name"
# The environment needs no pip of its own, so that Debian's python3-venv isn't needed either.
python3 -m venv --without-pip "$cache/$name" >&2
# No cache: a wheel that pip keeps may have been built otherwise.
CMAKE_ARGS=$(echo $cmake_options) python3 -m pip --python "$python" install --disable-pip-version-check --no-cache-dir \
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
