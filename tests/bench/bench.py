#!/usr/bin/env python3
"""Measures Treadle, beside llama.cpp on the same threads and against the machine's own limits; prints tables and writes JSON.

    bench.py BUILD_FOLDER --model GGUF [--sections speed,frames] [--threads N] [--runs N] [--peer 0|1|PYTHON] [--json FILE]
    bench.py BUILD_FOLDER --smoke             the same on a tiny model in seconds, and a line of each micro bench

Called by 'make bench' and, with --smoke, by run_tests.py. What is measured are sections, a module each in sections/, whose run()
returns tables and data. The JSON has the data of every section, with each run's figures; it is written after each of them.
"""
import argparse
import datetime
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import typing
import xml.dom.minidom

import machine
from figures import Section, say
from sections import avx2, ceilings, context, frames, kv, micro, speed
from sides import HERE, ROOT, TINY, Bench

# In this order. Those of ON_REQUEST are measured when asked for by name only.
SECTIONS: dict[str, typing.Callable[[Bench], Section]] = {
    "speed": speed.run, "kv": kv.run, "context": context.run, "ceilings": ceilings.run, "frames": frames.run, "micro": micro.run,
    "avx2": avx2.run}
ON_REQUEST = ("avx2",)


def chosen(asked_for: str | None) -> list[str]:
    names = asked_for.split(",") if asked_for else [name for name in SECTIONS if name not in ON_REQUEST]
    return [name for name in SECTIONS if name in names]


def measure(bench: Bench, names: list[str], to: pathlib.Path) -> None:
    whole = machine.Stopwatch()
    loads = [machine.load_average()]
    found: dict = {"when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "model": bench.model_name(),
                   "machine": machine.facts(), "threads": bench.threads, "runs": bench.runs, "sections": {}}
    with bench.treadle() as side:
        found["treadle"] = side.about
    print(f"{machine.processor()}, {machine.cores()} cores; medians of {bench.runs} runs (least-greatest)", flush=True)
    for place, name in enumerate(names):
        say(f"[{'#' * (4 * place)}{'-' * (4 * (len(names) - place))}] measuring {name}, {place + 1} of {len(names)}; "
            f"{machine.minutes(whole.seconds())} so far")
        watch = machine.Stopwatch()
        section = SECTIONS[name](bench)
        for table in section.tables:
            print(f"\n{table.text()}", flush=True)
        found["sections"][name] = {**section.data, "seconds": watch.seconds()}
        loads.append(machine.load_average())
        found.update(seconds=whole.seconds(), load_average=loads)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(json.dumps(found, indent=1) + "\n")
    busy = loads[0] > 0.5 * bench.threads
    print(f"\nLoad average {loads[0]:.1f} at the start, {loads[-1]:.1f} at the end"
          + (": other programs were running, so figures are too low and ratios rough." if busy else ".")
          + f"\nEvery run's figures: {to}\nThis took {machine.minutes(whole.seconds())}.")


def smoke(build: pathlib.Path) -> int:
    """Lines 'ok ...' and 'failed ...' as run_tests.py counts them: what must hold however slow the machine is."""
    failures = 0

    def check(title: str, works: typing.Callable[[], str]) -> None:
        nonlocal failures
        try:
            print(f"ok: {title}{works()}", flush=True)
        except (OSError, RuntimeError, ValueError, KeyError, subprocess.SubprocessError) as error:
            failures += 1
            print(f"failed: {title}: {error}", flush=True)

    def sections(bench: Bench) -> str:
        measure(bench, chosen(None), bench.pictures / "bench.json")
        data = json.loads((bench.pictures / "bench.json").read_text())["sections"]
        xml.dom.minidom.parse(str(bench.pictures / "frames.svg"))
        return "".join(f", '{command}' {value}" for command, value in data["speed"]["token_hashes"].items())

    def alone_and_beside_others(bench: Bench) -> str:
        with bench.treadle() as side:
            openings = {side.ask(f"decode {sequences} 40 16")["opening"] for sequences in (1, 4)}
        if len(openings) != 1:
            raise RuntimeError(f"other tokens beside others than alone: {openings}")
        return f", {openings.pop()}"

    def scalar_of(program: pathlib.Path) -> str:
        names = micro.output(program, "--benchmark_list_tests").splitlines()
        name = next(name for name in names if "/scalar" in name)  # it runs on every processor
        micro.output(program, f"--benchmark_filter=^{re.escape(name)}$", "--benchmark_min_time=0.001")
        return f", '{name}'"

    def peer_text() -> str:
        compile((HERE / "peer_llama.py").read_text(), "peer_llama.py", "exec")
        return ""

    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(build, TINY, threads=2, runs=2, peer="0", pictures=pathlib.Path(folder), small=True)
        check("the sections on a tiny model, hashes of its tokens", lambda: sections(bench))
        check("a request's tokens alone and beside others", lambda: alone_and_beside_others(bench))
    check("the peer's side is Python", peer_text)
    for program in micro.programs(build):
        check(f"micro bench {program.name}", lambda program=program: scalar_of(program))
    return 1 if failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--model")
    parser.add_argument("--sections", help=f"these sections, comma-separated: {', '.join(SECTIONS)}; all but {', '.join(ON_REQUEST)} "
                        "if not given")
    parser.add_argument("--threads", type=int, default=machine.cores())
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--peer", default="1", help="0: without; 1: fetched if need be; else a Python that has llama-cpp-python")
    parser.add_argument("--pictures", type=pathlib.Path, default=ROOT / "build" / "pictures", help="folder for the SVG")
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / "build" / "bench.json")
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    if arguments.smoke:
        return smoke(arguments.build)
    if not arguments.model or arguments.runs < 1 or arguments.threads < 1:
        parser.error("--model is needed, --runs and --threads are at least 1")
    unknown = set(arguments.sections.split(",") if arguments.sections else []) - set(SECTIONS)
    if unknown:
        parser.error(f"there is no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    bench = Bench(arguments.build, arguments.model, arguments.threads, arguments.runs, arguments.peer, arguments.pictures)
    try:
        measure(bench, chosen(arguments.sections), arguments.json)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        say(f"bench: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
