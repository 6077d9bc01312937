#!/usr/bin/env bash
# Holds the layout of the C and C++ sources against .clang-format. Called by 'make check'; 'make format' calls it with --write.
#
#   check_format.sh [--write]
set -euo pipefail
cd "$(dirname "$0")/../.."

mapfile -t sources < <(git ls-files --cached --others --exclude-standard -- '*.h' '*.c' '*.cpp' '*.cu' '*.cuh')
[ ${#sources[@]} -gt 0 ] || exit 0
if [ "${1:-}" = --write ]; then
    clang-format -i "${sources[@]}"
else
    clang-format --dry-run --Werror --ferror-limit=1 "${sources[@]}"
fi
