#!/usr/bin/env bash
# Fetches the source of mimalloc from Debian's archive once, and prints the folder it is in. Called by CMake's configure step.
#
#   mimalloc_source.sh          prints the folder, fetching what is missing
#
# apt-get does the work with a source list, state and cache of its own under a temporary folder, so that the system's apt stays
# as it is; which archive and release come from the system's own apt configuration. apt checks the archive's signature and the
# checksums. The result is kept in ${XDG_CACHE_HOME:-~/.cache}/treadle/mimalloc, so that later builds need no network.
set -euo pipefail

cache=${XDG_CACHE_HOME:-$HOME/.cache}/treadle
target=$cache/mimalloc

if [ -f "$target/src/static.c" ]; then
    echo "$target"
    exit 0
fi

fail() {
    echo "mimalloc_source.sh: $*" >&2
    echo "The library's default allocator is built from Debian's source package 'mimalloc'. With a network, run 'make' again;" >&2
    echo "or put an unpacked mimalloc 2.x source at $target, or configure with -DTREADLE_SYSTEM_MIMALLOC=ON." >&2
    exit 1
}

for tool in apt-get dpkg-source; do
    command -v "$tool" >/dev/null || fail "$tool is missing (package dpkg-dev)"
done

mkdir -p "$cache"
work=$(mktemp -d "$cache/mimalloc.part.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists/partial,cache/archives/partial,parts}

# One deb-src line for each binary source of a Debian archive's main component that the system uses.
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
options=
[ -f "$keyring" ] && options="[signed-by=$keyring] "
apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null |
    awk -v options="$options" '$1 ~ /\/debian\/?$/ && $3 == "main" { print "deb-src " options $1 " " $2 " main" }' |
    sort -u >"$work/sources.list"
[ -s "$work/sources.list" ] || fail "apt knows no Debian archive (package lists in /etc/apt)"

cat >"$work/apt.conf" <<CONF
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "$work/parts";
Dir::State::lists "$work/lists";
Dir::Cache "$work/cache";
APT::Sandbox::User "$(id -un)";
Debug::NoLocking "true";
CONF

echo "fetching the source of mimalloc (Debian source package)" >&2
(
    cd "$work"
    apt-get -q -c apt.conf update && apt-get -q -c apt.conf source --download-only mimalloc
) >"$work/log" 2>&1 || { tail -n 5 "$work/log" >&2; fail "the source package could not be fetched"; }
dpkg-source --extract "$work"/mimalloc_*.dsc "$work/mimalloc" >>"$work/log" 2>&1 ||
    { tail -n 5 "$work/log" >&2; fail "the source package could not be unpacked"; }
[ -f "$work/mimalloc/src/static.c" ] || fail "the source package has no src/static.c"
mv -T "$work/mimalloc" "$target" 2>/dev/null || [ -f "$target/src/static.c" ] || fail "cannot write $target"
echo "$target"
