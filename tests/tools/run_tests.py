#!/usr/bin/env python3
"""Runs the test suites of one build and closes with one line, 'N passed, N failed', summed over all of them.

    run_tests.py BUILD_FOLDER [--model GGUF] [--only SUITE,SUITE]

Called by 'make test' and, per sanitizer, by 'make check'. A suite is a doctest program of the build, whose test cases count, or
the simulator, which closes with such a line of its own, or a fuzz target or a script of this folder, each of whose lines 'ok ...'
and 'failed ...' counts. A program that dies, hangs or is missing counts
as one failure, so nothing is passed over in silence. Exit status 0: all passed.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tests" / "tools"
TIMEOUT_S = 1800
SIMULATED_STEPS = 100000

# name, folder whose sources make the program
PROGRAMS = [("unit_tests", "unit"), ("api_tests_shared", "api"), ("api_tests_static", "api"), ("model_tests", "model")]
# name, script, does it look at the build (False: only at the text), does it hold for sanitizer builds too
SCRIPTS = [("text", "check_text.py", False, True), ("symbols", "check_symbols.py", True, False),
           ("consumers", "check_consumers.sh", True, False)]


def run(command, environment):
    """Runs a command and shows its output as it comes; one that takes too long is killed. Returns (exit status, output)."""
    process = subprocess.Popen([str(part) for part in command], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    watchdog = threading.Timer(TIMEOUT_S, process.kill)
    watchdog.start()
    lines = []
    for line in process.stdout:
        lines.append(line)
        sys.stdout.write(line)
        sys.stdout.flush()
    status = process.wait()
    watchdog.cancel()
    return status, "".join(lines)


def count(status, output):
    """Test cases passed and failed: doctest's own summaries, a closing line, or the lines of a script. A death without a failed
    case is one."""
    summaries = re.findall(r"^\[doctest\] test cases:\s*\d+\s*\|\s*(\d+) passed\s*\|\s*(\d+) failed", output, re.M)
    closing = re.search(r"^(\d+) passed, (\d+) failed\s*\Z", output, re.M)
    if summaries:
        passed, failed = (sum(int(summary[i]) for summary in summaries) for i in (0, 1))
    elif closing:
        passed, failed = int(closing[1]), int(closing[2])
    else:
        passed = len(re.findall(r"^ok\b", output, re.M))
        failed = len(re.findall(r"^failed\b", output, re.M))
    if status != 0 and failed == 0:
        failed = 1
    if status == 0 and passed + failed == 0:
        failed = 1  # a suite that ran nothing
    return passed, failed


def suites(build, sanitized):
    """(name, command) of each suite that this build must pass."""
    for name, folder in PROGRAMS:
        if any((ROOT / "tests" / folder).glob("*.cpp")):
            yield name, [build / name]
    yield "simulate", [build / "simulate", "--steps", SIMULATED_STEPS]
    for target in sorted((ROOT / "tests" / "fuzz").glob("fuzz_*.cpp")):
        yield target.stem, [build / target.stem]
    for name in ("bench", "serving"):
        yield name, [ROOT / "tests" / "bench" / f"{name}.py", "--smoke", build]
    for name, script, looks_at_build, holds_sanitized in SCRIPTS:
        if holds_sanitized or not sanitized:
            yield name, [TOOLS / script] + ([build] if looks_at_build else [])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--model", help="the real model, for model_tests")
    parser.add_argument("--only", help="run these suites, comma-separated")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    cache = (build / "CMakeCache.txt").read_text()
    sanitized = re.search(r"^TREADLE_SANITIZE:\w+=(.+)$", cache, re.M) is not None

    environment = dict(os.environ)
    environment.setdefault("UBSAN_OPTIONS", "print_stacktrace=1")
    if arguments.model:
        environment["TREADLE_TEST_MODEL"] = arguments.model

    results = []
    for name, command in suites(build, sanitized):
        if arguments.only and name not in arguments.only.split(","):
            continue
        print(f"== {name}", flush=True)
        start = time.monotonic()
        if not command[0].exists():
            print(f"failed: {command[0]} was not built")
            status, output = 1, ""
        else:
            status, output = run(command, environment)
        passed, failed = count(status, output)
        if status != 0:
            print(f"== {name} ended with status {status}", flush=True)
        results.append((name, passed, failed, time.monotonic() - start))

    print("\n== summary")
    for name, passed, failed, seconds in results:
        print(f"{name:<20} {passed:>6} passed {failed:>4} failed {seconds:>8.1f} s")
    passed, failed = (sum(result[i] for result in results) for i in (1, 2))
    print(f"{passed} passed, {failed} failed", flush=True)
    return 0 if failed == 0 and passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
