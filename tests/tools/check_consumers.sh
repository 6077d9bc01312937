#!/usr/bin/env bash
# Installs a build into a temporary folder and builds the programs of tests/consumer against it: C and C++, shared and static,
# through pkg-config and through CMake, and runs them. Called by 'make test'.
#
#   check_consumers.sh BUILD_FOLDER
#
# Prints a line per program, 'ok ...' or 'failed ...'.
set -uo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# check WHAT COMMAND...: runs the command, says how it went, shows what it said if it failed.
check() {
    local what=$1
    shift
    if "$@" >"$work/log" 2>&1; then
        echo "ok: $what"
    else
        echo "failed: $what"
        sed 's/^/    /' "$work/log"
        failures=$((failures + 1))
    fi
}

# The folder is moved after the installation: what is installed must not know where it was put.
cmake --install "$1" --prefix "$work/first" >"$work/log" 2>&1 && mv "$work/first" "$work/prefix" ||
    { echo "failed: installation"; cat "$work/log"; exit 1; }
libraries=$(dirname "$(find "$work/prefix" -name libtreadle.a)")
export PKG_CONFIG_PATH=$libraries/pkgconfig LD_LIBRARY_PATH=$libraries
flags=(-Wall -Wextra -Wpedantic -Werror)

build_and_run() {  # build_and_run PROGRAM COMPILER...
    "${@:2}" -o "$work/$1" && "$work/$1"
}

cflags=$(pkg-config --cflags treadle)
shared=$(pkg-config --libs treadle)
static=$(pkg-config --variable=static_libs treadle)
check "pkg-config, C11, shared" build_and_run a "${CC:-cc}" -std=c11 "${flags[@]}" $cflags "$root/tests/consumer/host.c" $shared
check "pkg-config, C11, static" build_and_run b "${CC:-cc}" -std=c11 "${flags[@]}" $cflags "$root/tests/consumer/host.c" $static
check "pkg-config, C++17, shared" build_and_run c "${CXX:-c++}" -std=c++17 "${flags[@]}" $cflags "$root/tests/consumer/host.cpp" $shared
check "pkg-config, C++17, static" build_and_run d "${CXX:-c++}" -std=c++17 "${flags[@]}" $cflags "$root/tests/consumer/host.cpp" $static
check "pkg-config, a fully static program" \
    build_and_run e "${CC:-cc}" -static -std=c11 $cflags "$root/tests/consumer/host.c" $(pkg-config --static --libs treadle)

check "CMake finds the package" cmake -S "$root/tests/consumer" -B "$work/cmake" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix"
check "CMake builds the programs" cmake --build "$work/cmake"
for program in host_c_treadle host_c_treadle_static host_cpp_treadle host_cpp_treadle_static; do
    check "CMake, $program" "$work/cmake/$program"
done
exit $((failures > 0))
