#!/usr/bin/env python3
"""Measures Treadle, and beside it llama.cpp on the same file and threads; prints one table and writes the figures as JSON.

    bench.py BUILD_FOLDER --model GGUF [--threads N] [--runs N] [--peer 0|1|PYTHON] [--json FILE]
    bench.py BUILD_FOLDER --smoke             the same on a tiny model in a second, and a line of each micro bench

Called by 'make bench' and, with --smoke, by run_tests.py. Both sides are programs that answer commands (treadle_bench.cpp says
which); only one of them works at a time, and they take turns at every figure, so that whatever else the machine does meets both
alike. The first round warms up and isn't counted. A side's starts are measured in a process of their own each.
"""
import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import typing

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PEER = "llama.cpp"


@dataclasses.dataclass
class Figure:
    key: str
    title: str
    value: typing.Callable  # of the answer to the command
    higher_is_better: bool = True


@dataclasses.dataclass
class Workload:
    command: str
    figures: list
    fresh_process: bool = False


def generation(sequences, prompt, new_tokens):
    """Requests that decode together: the rate while all of them do, and with their prompts in the time."""
    name = f"{sequences} sequence{'s' if sequences > 1 else ''}"
    figures = [Figure(f"decode_{sequences}", f"{name}, tokens/s", lambda answer: answer["full_tokens"] / answer["full_s"])]
    if sequences > 1:
        figures.append(Figure(f"whole_{sequences}", f"{name}, prompts included, new tokens/s",
                              lambda answer: sequences * new_tokens / answer["whole_s"]))
    return Workload(f"decode {sequences} {prompt} {new_tokens}", figures)


def prompt(tokens):
    return Workload(f"decode 1 {tokens} 1", [
        Figure(f"prompt_{tokens}", f"prompt of {tokens}, tokens/s", lambda answer: tokens / answer["whole_s"])])


def start():
    return Workload("start", [
        Figure("load", "load, ms", lambda answer: answer["load_s"] * 1e3, False),
        Figure("start", "load to first token, ms", lambda answer: answer["start_s"] * 1e3, False)], fresh_process=True)


WORKLOADS = [prompt(512), generation(1, 128, 64), generation(4, 128, 32), generation(16, 128, 32), start()]
SMOKE_WORKLOADS = [prompt(100), generation(1, 40, 24), generation(4, 40, 16), start()]


class Side:
    """One of the two programs, kept alive between the commands."""

    def __init__(self, name, command):
        self.name = name
        self.command = [str(word) for word in command]
        self.process = None
        self.about = self.ask("about")

    def ask(self, command, fresh_process=False):
        if fresh_process:
            answer = subprocess.run([*self.command, command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
            line = answer.stdout
        else:
            if not self.process:
                self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
            self.process.stdin.write(command + "\n")
            line = self.process.stdout.readline()
        if not line.strip():
            raise RuntimeError(f"{self.name} gave no answer to '{command}'")
        return json.loads(line)

    def close(self):
        if self.process:
            self.process.stdin.close()
            self.process.wait()


def say(text):
    print(text, file=sys.stderr, flush=True)


def short(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def spread(values):
    return f"{short(statistics.median(values))} ({short(min(values))}-{short(max(values))})"


def measure(sides, workloads, runs):
    """{figure's key: {side's name: [value of each run]}}, and {command: hash of Treadle's tokens}, always the same one."""
    samples = {figure.key: {side.name: [] for side in sides} for workload in workloads for figure in workload.figures}
    hashes = {}
    for run in range(runs + 1):
        for workload in workloads:
            for side in sides:
                answer = side.ask(workload.command, workload.fresh_process)
                if side is sides[0] and hashes.setdefault(workload.command, answer["hash"]) != answer["hash"]:
                    raise RuntimeError(f"'{workload.command}' gave other tokens than before: {hashes[workload.command]}, then "
                                       f"{answer['hash']}")
                for figure in workload.figures if run > 0 else []:
                    samples[figure.key][side.name].append(figure.value(answer))
            for figure in workload.figures if run > 0 else []:
                figures = ", ".join(f"{side.name} {short(samples[figure.key][side.name][-1])}" for side in sides)
                say(f"  run {run} of {runs}: {figure.title}: {figures}")
        if run == 0:
            say("  warmed up")
    return samples, hashes


def ratios(figure, samples):
    """How many times as fast as the peer: of the medians, and of each run. None without a peer."""
    ours, *others = samples[figure.key].values()
    if not others:
        return None
    speed = (lambda a, b: a / b) if figure.higher_is_better else (lambda a, b: b / a)
    pairs = [speed(a, b) for a, b in zip(ours, others[0])]
    return {"of_medians": speed(statistics.median(ours), statistics.median(others[0])), "of_runs": pairs}


def table(workloads, sides, samples):
    rows = [["", *(side.name for side in sides)] + (["times as fast"] if len(sides) > 1 else [])]
    for figure in (figure for workload in workloads for figure in workload.figures):
        row = [figure.title, *(spread(values) for values in samples[figure.key].values())]
        ratio = ratios(figure, samples)
        if ratio:
            row.append(f"{ratio['of_medians']:.2f} ({min(ratio['of_runs']):.2f}-{max(ratio['of_runs']):.2f})")
        rows.append(row)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) if column == 0 else cell.rjust(width)
                      for column, (cell, width) in enumerate(zip(row, widths))) for row in rows]


def processor():
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        found = None
    return found.group(1) if found else platform.machine()


def load_average():
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def find_peer(wanted):
    """The Python to run peer_llama.py with, or None; says what to do when it can't be had."""
    if wanted == "0":
        return None
    if wanted != "1":
        return wanted
    found = subprocess.run([HERE / "fetch_peer.sh"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if found.returncode == 0:
        return found.stdout.strip()
    say("Measuring Treadle alone. To compare with llama.cpp, run 'make bench' again where PyPI can be reached, or name a Python that "
        "has llama-cpp-python: make bench PEER=/path/to/python. 'make bench PEER=0' leaves llama.cpp out.")
    return None


def write_json(path, workloads, sides, samples, hashes, arguments, loads):
    figures = []
    for figure in (figure for workload in workloads for figure in workload.figures):
        figures.append({"key": figure.key, "title": figure.title, "higher_is_better": figure.higher_is_better,
                        "sides": {name: {"median": statistics.median(values), "min": min(values), "max": max(values),
                                         "values": values} for name, values in samples[figure.key].items()},
                        "ratio": ratios(figure, samples)})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({
        "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "model": pathlib.Path(arguments.model).name,
        "processor": processor(), "threads": arguments.threads, "runs": arguments.runs, "load_average": loads,
        "sides": {side.name: side.about for side in sides}, "token_hashes": hashes, "figures": figures}, indent=1) + "\n")


def bench(arguments):
    options = [arguments.model, "--threads", arguments.threads]
    python = find_peer(arguments.peer)
    loads = [load_average()]
    sides = [Side("Treadle", [arguments.build / "treadle_bench", *options])]
    if python:
        sides.append(Side(PEER, [python, HERE / "peer_llama.py", *options]))
    say(f"measuring {' and '.join(side.name for side in sides)}: {arguments.runs} runs after one to warm up, a few minutes")
    samples, hashes = measure(sides, WORKLOADS, arguments.runs)
    loads.append(load_average())
    for side in sides:
        side.close()

    write_json(arguments.json, WORKLOADS, sides, samples, hashes, arguments, loads)
    threads = "1 thread" if arguments.threads == 1 else f"{arguments.threads} threads"
    print(f"\n{pathlib.Path(arguments.model).name}, {threads}, {processor()}; medians of {arguments.runs} runs (least-greatest)\n")
    print("\n".join(table(WORKLOADS, sides, samples)))
    print("\nSequences have prompts of 128 tokens; greedy sampling is part of the time on both sides.")
    for side in sides:
        print(f"{side.name}: {side.about['library']}, {side.about['code']}")
    if python:
        print(f"{PEER} runs with flash attention, an f16 cache and n_ubatch 512; both sides took turns at every figure.")
    print(f"Load average {loads[0]:.1f} at the start, {loads[1]:.1f} at the end"
          + (": other programs were running, so figures are too low and ratios rough." if loads[0] > 0.5 * arguments.threads else "."))
    print(f"The same figures, run by run: {arguments.json}")


def smoke(arguments):
    """Lines 'ok ...' and 'failed ...' as run_tests.py counts them."""
    failures = 0

    def check(title, works):
        nonlocal failures
        try:
            print(f"ok: {title}{works()}", flush=True)
        except (OSError, RuntimeError, ValueError, KeyError, subprocess.SubprocessError) as error:
            failures += 1
            print(f"failed: {title}: {error}", flush=True)

    def workloads():
        side = Side("Treadle", [arguments.build / "treadle_bench", "--tiny", "--threads", 2])
        samples, hashes = measure([side], SMOKE_WORKLOADS, 2)
        openings = {side.ask(workload.command)["opening"] for workload in SMOKE_WORKLOADS if " 40 " in workload.command}
        side.close()
        if len(openings) != 1:
            raise RuntimeError(f"the same request alone and beside others gave different tokens: {openings}")
        print("\n".join(table(SMOKE_WORKLOADS, [side], samples)))
        return "".join(f", '{command}' {value}" for command, value in hashes.items())

    def micro(program):
        def output(*options):
            return subprocess.run([program, *options], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, text=True, timeout=300).stdout
        name = output("--benchmark_list_tests").splitlines()[0]  # the first is scalar, so it runs on every processor
        output(f"--benchmark_filter=^{re.escape(name)}$", "--benchmark_min_time=0.001")
        return f", '{name}'"

    def peer_text():
        compile((HERE / "peer_llama.py").read_text(), "peer_llama.py", "exec")
        return ""

    check("bench of a tiny model, hashes of its tokens", workloads)
    check("the peer's side is Python", peer_text)
    for source in sorted(HERE.glob("bench_*.cpp")):
        if (arguments.build / source.stem).exists():  # they are built where Google Benchmark is installed
            check(f"micro bench {source.stem}", lambda program=arguments.build / source.stem: micro(program))
    return 1 if failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--model")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--peer", default="1", help="0: without; 1: fetched if need be; else a Python that has llama-cpp-python")
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / "build" / "bench.json")
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    if arguments.smoke:
        return smoke(arguments)
    if not arguments.model or arguments.runs < 1 or arguments.threads < 1:
        parser.error("--model is needed, --runs and --threads are at least 1")
    try:
        bench(arguments)
    except (OSError, RuntimeError) as error:
        say(f"bench: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
