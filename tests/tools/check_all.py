#!/usr/bin/env python3
"""Everything that can be checked, part by part. Called by 'make check'.

    check_all.py [--model GGUF] [--only PART,PART]

Each part runs whatever the others say; its output is shown and kept in build/check/PART.log. A line 'ok ...' or 'failed ...'
per part follows at the end, then 'N passed, N failed'. Builds live in build/check, apart from those of plain make, since here
a warning is an error.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tests" / "tools"
CHECK = ROOT / "build" / "check"


class Part:
    """One part of the check: runs commands until one fails, all output into one log and to the terminal."""

    def __init__(self, name):
        self.name = name
        self.log = open(CHECK / f"{name}.log", "w")

    def say(self, text):
        self.log.write(text)
        sys.stdout.write(text)
        sys.stdout.flush()

    def run(self, *command, prefix=()):
        process = subprocess.Popen([str(part) for part in (*prefix, *command)], cwd=ROOT, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        for line in process.stdout:
            self.say(line)
        return process.wait() == 0


def build(part, preset, *targets):
    """Configures and builds a preset, or only some targets, with warnings as errors. Returns whether that worked."""
    return (part.run("cmake", "--preset", preset, "-B", CHECK / preset, "-DTREADLE_WERROR=ON") and
            part.run("cmake", "--build", CHECK / preset, "--target", *(targets or ("all", "tests"))))


def text(part, arguments):
    return part.run(TOOLS / "check_text.py")


def layout(part, arguments):
    return part.run(TOOLS / "check_format.sh")


def suites(preset, only=None, prefix=()):
    """A part that builds a preset and runs the test suites on it."""
    def check(part, arguments):
        options = (["--model", arguments.model] if arguments.model else []) + (["--only", only] if only else [])
        return build(part, preset) and part.run(TOOLS / "run_tests.py", CHECK / preset, *options, prefix=prefix)
    return check


def without_address_randomisation():
    """ThreadSanitizer's shadow memory and a kernel with much randomisation don't go together; where allowed, switch it off."""
    command = ["setarch", "-R"]
    allowed = shutil.which("setarch") and subprocess.run([*command, "true"], capture_output=True).returncode == 0
    return command if allowed else []


def tidy(part, arguments):
    if not part.run("cmake", "--preset", "clang", "-B", CHECK / "clang", "-DTREADLE_WERROR=ON"):
        return False
    sources = sorted((ROOT / "src").glob("*/*.cpp"))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda source: subprocess.run(
            ["clang-tidy", "--quiet", "-p", str(CHECK / "clang"), str(source)], capture_output=True, text=True), sources))
    complaints = [result for result in results if result.returncode != 0]
    for result in complaints:
        part.say(re.sub(rf"^{ROOT}/", "", result.stdout, flags=re.M) + (result.stderr if not result.stdout else ""))
    part.say(f"clang-tidy: {len(complaints)} of {len(sources)} files with complaints\n")
    return not complaints


def valgrind(part, arguments):
    """The minimal example on a tiny model: on the real one it would take the better part of an hour, over the same code."""
    release, model = CHECK / "release", CHECK / "tiny.gguf"
    return (build(part, "release", "minimal", "write_tiny_model") and part.run(release / "write_tiny_model", model) and
            part.run("valgrind", "--quiet", "--error-exitcode=9", "--leak-check=full",
                     "--errors-for-leak-kinds=definite,possible", release / "minimal", model))


PARTS = {
    "text": text,
    "format": layout,
    "gcc": suites("release"),
    "clang": suites("clang"),
    "debug": suites("debug", only="unit_tests,api_tests_shared,model_tests"),
    "tidy": tidy,
    "asan": suites("asan"),
    "tsan": suites("tsan", only="unit_tests,api_tests_shared", prefix=without_address_randomisation()),
    "valgrind": valgrind,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="the real model, for the model tests")
    parser.add_argument("--only", help=f"parts, comma-separated, of: {', '.join(PARTS)}")
    arguments = parser.parse_args()
    CHECK.mkdir(parents=True, exist_ok=True)
    names = arguments.only.split(",") if arguments.only else list(PARTS)

    results = []
    for name in names:
        print(f"==== {name}", flush=True)
        start = time.monotonic()
        results.append((name, PARTS[name](Part(name), arguments), time.monotonic() - start))

    print("\n==== make check")
    for name, good, seconds in results:
        print(f"{'ok' if good else 'failed'}: {name:<10} {seconds:8.1f} s" + ("" if good else f"   build/check/{name}.log"))
    failed = sum(not good for _, good, _ in results)
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
