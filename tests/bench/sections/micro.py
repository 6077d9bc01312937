"""The micro benches (Google Benchmark): GEMM, attention, quantization, norms and sampling, per tier that this processor runs, on one
thread. run() is called by bench.py.

Every bench is named 'what/tier/sizes', and what makes a row, the tiers make the columns. This shows the kernels that models with
usual types spend their time in; the programs themselves have more, such as build/release/bench_linear --benchmark_filter=IQ4.
"""
import json
import pathlib
import re
import statistics
import subprocess

from figures import Section, Table, say, short, summary
from sides import HERE, Bench

SHOWN = {  # of these, only what matches
    "bench_linear": "^linear (Q4_1|Q8_0|Q4_K|Q6_K|F16)/|^quantize/",
    "bench_attention": "^attend .*context:(512|8192)/rows:./layers:1$|^attend_shuffled f16-f16/.*context:8192/|^write_kv"}
MIN_TIME_S = 0.02
RATES = ("GMAC/s", "Gvalue/s")  # counters that say more than a time


def programs(build: pathlib.Path) -> list[pathlib.Path]:
    """They are built where Google Benchmark is installed."""
    return [build / source.stem for source in sorted(HERE.glob("bench_*.cpp")) if (build / source.stem).exists()]


def output(program: pathlib.Path, *options: str) -> str:
    return subprocess.run([program, *options], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True, timeout=900).stdout


def repetitions(program: pathlib.Path, runs: int) -> list[dict]:
    """Every repetition of every bench that this processor can run, in a random order."""
    pattern = SHOWN.get(program.name, ".")
    found = json.loads(output(program, f"--benchmark_filter={pattern}", "--benchmark_format=json", f"--benchmark_repetitions={runs}",
                              f"--benchmark_min_time={MIN_TIME_S}", "--benchmark_enable_random_interleaving=true"))
    return [row for row in found["benchmarks"] if row["run_type"] == "iteration" and not row.get("error_occurred")]


def cell(rows: list[dict]) -> str:
    """The median, with the least and the greatest: of a rate where the bench counts one, else of the time."""
    for rate in RATES:
        if rate in rows[0]:
            return range_of([row[rate] for row in rows], rate)
    unit = 1 if statistics.median(row["real_time"] for row in rows) < 1000 else 1000
    return range_of([row["real_time"] / unit for row in rows], "ns" if unit == 1 else "us")


def range_of(values: list[float], unit: str) -> str:
    return f"{short(statistics.median(values))} {unit} ({short(min(values))}-{short(max(values))})"


def table_of(program: pathlib.Path, found: list[dict]) -> Table:
    tiers: list[str] = []
    rows: dict[str, dict[str, list[dict]]] = {}
    for row in sorted(found, key=lambda row: (row["family_index"], row["per_family_instance_index"])):
        what, tier, *sizes = row["run_name"].split("/")
        if tier not in tiers:
            tiers.append(tier)
        rows.setdefault(" ".join([what, *(re.sub(r"(\w+):(\d+)", r"\2 \1", size) for size in sizes)]), {}).setdefault(tier, []).append(row)
    lines = [["", *tiers]] + [[name, *(cell(by_tier[tier]) if tier in by_tier else "" for tier in tiers)] for name, by_tier in rows.items()]
    return Table(f"{program.name}, one thread", lines)


def run(bench: Bench) -> Section:
    if bench.small:
        return Section([], {})  # bench.py --smoke runs one of each
    tables, data = [], {}
    for program in programs(bench.build):
        found = repetitions(program, bench.runs)
        say(f"  {program.name}: {len(found)} repetitions")
        tables.append(table_of(program, found))
        data[program.name] = {}
        for row in found:
            data[program.name].setdefault(row["run_name"], []).append(row["real_time"])
        data[program.name] = {name: summary(times) for name, times in data[program.name].items()}
    if not tables:
        say("  no micro benches: install libbenchmark-dev and build again")
    return Section(tables, {"real_time_ns": data})
