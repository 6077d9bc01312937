"""Treadle's speed against what the machine can do, measured in the same run: bytes per second from memory, int8 multiply-adds per
second in registers. run() is called by bench.py.

    bound of a batch = the lesser of    batch * bandwidth / bytes of the weights    and    multiply-adds per second / those of a token

Beside it stands what the capacity planner expects of a machine with these two rates, and where batching stops being nearly free:

    crossover = seconds of a pass of one sequence / seconds that each sequence of the largest batch takes
"""
import statistics

from figures import Hashes, Section, Table, in_turn, new_samples, say, short, spread, summary
from sections.speed import full_rate
from sides import Bench, Side

INT8_OF_CODE = {"avx512": "vpdpbusd512", "avx2": "maddubs256"}  # what each tier multiplies with
BATCHES = (1, 2, 4, 8, 16, 32)
PROMPT, NEW = 128, 32
GOALS = {1: 75, 16: 60}  # per cent of the bound


def measure(bench: Bench, machine: dict[str, Side], engines: dict[str, Side], batches: tuple[int, ...]):
    """{what: [a rate of each run]} of the machine, {code: {batch: [...]}} of the engine."""
    rates, speeds, hashes = new_samples(), {code: {batch: [] for batch in batches} for code in engines}, Hashes()
    prompt, new_tokens = (40, 16) if bench.small else (PROMPT, NEW)
    for run in range(bench.runs):
        for threads, side in machine.items():
            for kernel in side.about["int8"]:
                rates[kernel][threads].append(side.ask(f"int8 {kernel}")["rate"])
            rates["read"][threads].append(side.ask("read")["rate"])
        for batch in batches:
            for engine in in_turn(list(engines.values()), run):
                answer = engine.ask(f"decode {batch} {prompt} {new_tokens}")
                hashes.check(f"{batch} sequences", answer)  # of one code as of another
                speeds[engine.name][batch].append(full_rate(answer))
        say(f"  run {run + 1} of {bench.runs}: " + ", ".join(
            f"{what} {threads}: {values[-1] / 1e9:.0f} G/s" for what, by_threads in rates.items() for threads, values in by_threads.items()))
    return rates, speeds


def ceiling_table(rates) -> Table:
    rows = [["", *next(iter(rates.values()))]]
    for what, by_threads in rates.items():
        title = "reading from memory, GB/s" if what == "read" else f"int8 multiply-adds in registers, {what}, G/s"
        rows.append([title, *(spread([value / 1e9 for value in values]) for values in by_threads.values())])
    return Table("What the machine can do", rows, ["Reading: 512 MiB front to back, each thread its own part."])


def share_table(engine: Side, bandwidth: float, int8: float, speeds: dict[int, list[float]], goals: dict) -> tuple[Table, dict]:
    """One row per batch of one tier's code."""
    weight_bytes, macs = engine.about["weight_bytes"], engine.about["parameters"]
    rows = [["sequences", "tokens/s", "bound", "of the bound", "goal", "a pass, ms", "as planned, ms"]]
    data = []
    for batch, values in speeds.items():
        speed, bound = statistics.median(values), min(batch * bandwidth / weight_bytes, int8 / macs)
        plan = engine.ask(f"plan {batch} {PROMPT + NEW // 2} {bandwidth:.0f} {2 * int8:.0f}")
        share, goal = 100 * speed / bound, goals.get(batch)
        rows.append([str(batch), spread(values), short(bound), f"{share:.0f}%",
                     f"{goal}% {'met' if share >= goal else 'NOT MET'}" if goal else "", short(1e3 * batch / speed),
                     short(plan["pass_us"] / 1e3)])
        data.append({"batch": batch, "tokens_per_s": summary(values), "bound": bound, "share": share / 100, "plan": plan})
    batches = list(speeds)
    first, last = (statistics.median(speeds[batch]) for batch in (batches[0], batches[-1]))
    crossover, planned = last / first * batches[0], data[0]["plan"]["crossover"]
    table = Table(f"{engine.about['code']} code against these rates, {PROMPT}-token prompts, {NEW} new tokens", rows, [
        f"A token reads {weight_bytes / 1e6:.1f} MB of weights and takes {macs / 1e6:.1f} M multiply-adds.",
        f"Batching stops being nearly free at {crossover:.1f} sequences; planned from these rates: {planned:.0f}. Measured is how many times a",
        f"pass of one sequence covers what each of {batches[-1]} sequences takes; what a pass costs beside weights and products moves it down."])
    return table, {"code": engine.about["code"], "bandwidth": bandwidth, "int8": int8, "batches": data, "crossover": crossover,
                   "crossover_planned": planned}


def run(bench: Bench) -> Section:
    counts = sorted({1, bench.threads})
    machine = {f"{count} thread{'s' if count > 1 else ''}": bench.ceilings(count) for count in counts}
    there = next(iter(machine.values())).about["int8"]
    engines = {code: bench.treadle(code, code) for code, kernel in INT8_OF_CODE.items() if kernel in there}
    batches = (1, 4) if bench.small else BATCHES
    rates, speeds = measure(bench, machine, engines, batches)
    best = {what: max(statistics.median(values) for values in by_threads.values()) for what, by_threads in rates.items()}
    tables, data = [ceiling_table(rates)], []
    for code, engine in engines.items():
        table, figures = share_table(engine, best["read"], best[INT8_OF_CODE[code]], speeds[code], {} if bench.small else GOALS)
        tables.append(table)
        data.append(figures)
    for side in [*machine.values(), *engines.values()]:
        side.close()
    return Section(tables, {"rates": {what: {threads: summary(values) for threads, values in by_threads.items()}
                                      for what, by_threads in rates.items()}, "codes": data})
