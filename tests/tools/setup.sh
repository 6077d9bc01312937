#!/usr/bin/env bash
# Sees to it that the Debian packages a task needs are there. Called by the Makefile before it builds.
#
#   setup.sh [--check] build|chat|test|check
#
# When nothing is missing it asks no registry anything and prints nothing. Otherwise it installs as root or through a sudo that
# needs no password; where neither works, or with --check, it prints the one command to run and ends with status 3.
set -euo pipefail

build_packages="g++ cmake ninja-build ccache pkg-config dpkg-dev libpcre2-dev libxxhash-dev"
chat_packages="libedit-dev python3-pip"
test_packages="doctest-dev libbenchmark-dev"
check_packages="clang clang-format clang-tidy valgrind"

check_only=0
if [ "${1:-}" = --check ]; then check_only=1; shift; fi
case ${1:-} in
    build) packages=$build_packages ;;
    chat) packages="$build_packages $chat_packages" ;;
    test) packages="$build_packages $chat_packages $test_packages" ;;
    check) packages="$build_packages $chat_packages $test_packages $check_packages" ;;
    *) sed -n '2,7p' "$0" >&2; exit 2 ;;
esac

if ! command -v dpkg-query >/dev/null; then
    echo "This is not a Debian system, so nothing was installed. Needed are the likes of: $packages" >&2
    exit 0
fi

# A package is there when its state is "installed", whatever was wanted of it ("ii", "hi").
installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' $packages 2>/dev/null | awk '$1 == "installed" { print $2 }' || true)
missing=
for package in $packages; do
    grep -qxF -- "$package" <<<"$installed" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

install="apt-get install --no-install-recommends -y$missing"
if [ $check_only = 0 ] && [ "$(id -u)" = 0 ]; then
    as_root=
elif [ $check_only = 0 ] && command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root="sudo -n"
else
    command -v sudo >/dev/null && [ "$(id -u)" != 0 ] && prefix="sudo " || prefix=
    printf 'Debian packages are missing. Install them with this command, then run make again:\n\n    %s%s\n\n' "$prefix" "$install" >&2
    exit 3
fi

echo "installing Debian packages:$missing" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
run() { $as_root env DEBIAN_FRONTEND=noninteractive "$@" </dev/null >"$log" 2>&1; }
run apt-get update || { tail -n 5 "$log" >&2; echo "apt-get update failed; going on with the package lists that are here" >&2; }
run $install || {
    tail -n 15 "$log" >&2
    printf 'The packages could not be installed (no network?). The command was:\n\n    %s\n\n' "$install" >&2
    exit 4
}
