#!/usr/bin/env python3
"""Runs the serving benches, prints a table of each with what it must show, and writes the figures as JSON.

    serving.py BUILD_FOLDER --model GGUF [--threads N] [--runs N] [--only waste,batching] [--steps N] [--prompt N] [--json FILE]
    serving.py BUILD_FOLDER --smoke             every scenario on a tiny model in seconds: checks outcomes, no times

Called by 'make bench-serving' and, with --smoke, by run_tests.py. Every line of JSON comes from a process of its own:
serving_bench runs scenarios through engine.h, serving_inside those that look inside (serving/main.cpp and
inside/main.cpp list them). Where two ways are compared, they take turns; a figure is the median of the runs, with the
least and the greatest behind it. Figures of memory come from the tiny model, figures of time from the real one.
"""
import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import xml.dom.minidom

from figures import say
from machine import load_average, processor

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TINY = "--tiny"


@dataclasses.dataclass
class Row:
    title: str
    values: list
    unit: str = ""
    most: float = None  # the goal, of the median
    least: float = None

    def value(self):
        return statistics.median(self.values)

    def met(self):
        return (self.most is None or self.value() <= self.most) and (self.least is None or self.value() >= self.least)

    def cells(self):
        text = short(self.value()) + self.unit
        if len(self.values) > 1:
            text += f" ({short(min(self.values))}-{short(max(self.values))})"
        goal = f"<= {short(self.most)}{self.unit}" if self.most is not None else \
            f">= {short(self.least)}{self.unit}" if self.least is not None else ""
        return [self.title, text, goal, ("yes" if self.met() else "NO") if goal else ""]


def short(value):
    if value == int(value) or abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3f}"


def table(rows):
    lines = [["", "measured", "goal", "met"]] + [row.cells() for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return "\n".join("  ".join(cell.ljust(width) if column == 0 else cell.rjust(width)
                               for column, (cell, width) in enumerate(zip(line, widths))).rstrip() for line in lines)


class Bench:
    """Runs scenarios and keeps every answer."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.runs = arguments.runs
        self.answers = []

    def ask(self, scenario, model=None, **flags):
        model = model or self.arguments.model
        return self.run(["serving_bench", model, scenario], pathlib.Path(model).name, {"threads": self.arguments.threads, **flags})

    def ask_inside(self, scenario, **flags):
        return self.run(["serving_inside", scenario], "fake model", flags)

    def run(self, words, model, flags):
        command = [self.arguments.build / words[0], *words[1:]]
        for name, value in flags.items():
            if value is not False and value is not None:
                command += ["--" + name.replace("_", "-")] + ([] if value is True else [value])
        done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(str(word) for word in command)} ended with status {done.returncode}")
        answer = json.loads(done.stdout)
        self.answers.append({"scenario": words[-1], "model": model, "flags": {name: str(value) for name, value in flags.items()},
                             "answer": answer})
        say("  " + " ".join([words[-1]] + [f"{name} {value}" for name, value in flags.items()
                                           if value is not False and name != "threads"]))
        return answer


def percent(answers, key):
    return [100 * answer[key] for answer in answers]


def column(answers, key):
    return [answer[key] for answer in answers]


# ---- The scenarios. Each returns (title, rows).

def waste(bench):
    answers = [bench.ask("waste", TINY, seed=seed) for seed in (1, 2, 3)]
    shared = bench.ask("samples", TINY)
    first = answers[0]
    return (f"Empty positions of held blocks: {first['requests']} requests with lengths as in chat logs, {first['running_most']} at once, "
            "3 seeds", [
                Row("empty, of what is held", percent(answers, "empty_share"), "%", most=4),
                Row("empty if prompt and longest answer were reserved", percent(answers, "contiguous_to_most_empty_share"), "%"),
                Row("empty if the whole context were reserved", percent(answers, "contiguous_context_empty_share"), "%"),
                Row("times the memory, prompt and longest answer reserved", column(answers, "contiguous_to_most_times")),
                Row("times the memory, whole context reserved", column(answers, "contiguous_context_times")),
                Row(f"fewer blocks than copies, {shared['samples']} samples of a prompt of {shared['prompt']}, {shared['new']} new tokens",
                    [100 * shared["fewer_share"]], "%", least=65)])


def batching(bench):
    flags = {"fixed": {"static": True}, "continuous": {}, "continuous, 100 ms between tokens asked": {"itl_target_us": 100000}}
    ways = {way: [] for way in flags}
    for _ in range(bench.runs):
        for way, answers in ways.items():
            answers.append(bench.ask("batching", **flags[way]))
    if len({answer["hash"] for answers in ways.values() for answer in answers}) != 1:
        raise RuntimeError("the fixed batch and continuous batching gave different tokens")
    ratios = [b["tokens_per_s"] / a["tokens_per_s"] for a, b in zip(ways["fixed"], ways["continuous"])]
    rows = [Row("continuous, times the fixed batch's tokens/s", ratios)]
    for way, answers in ways.items():
        rows += [Row(f"{way}: tokens/s", column(answers, "tokens_per_s")),
                 Row(f"{way}: slots busy", percent(answers, "slots_busy_share"), "%")]
        rows += [Row(f"{way}: {name} {rank}", column(answers, f"{key}_{rank}_ms"), " ms")
                 for key, name in (("ttft", "TTFT"), ("itl", "ITL")) for rank in ("p50", "p99")]
    first = ways["fixed"][0]
    return (f"Continuous batching against a fixed batch: {first['requests']} requests at once over {first['slots']} slots, lengths a quarter of "
            "those of chat logs, equal tokens", rows)


def bulk(bench):
    # As many a second as leave the engine idle for about half of the time.
    alone = bench.ask("bulk", requests=bench.arguments.requests // 4, rate=1000)
    rate = 0.5 * alone["interactive_tokens_per_s"] / 32
    ways = {0: [], 200: []}
    for seed in range(1, bench.runs + 1):
        for number, answers in ways.items():
            answers.append(bench.ask("bulk", requests=bench.arguments.requests, rate=f"{rate:.3f}", bulk=number, seed=seed))
    without, with_bulk = ways.values()
    only = bench.ask("bulk", requests=0, bulk=200)["bulk_computed_per_s"]
    filled = [100 * b["bulk_computed_per_s"] / (only * (1 - a["busy_share"])) for a, b in zip(without, with_bulk)]
    ratios = [b["itl_p99_ms"] / a["itl_p99_ms"] for a, b in zip(without, with_bulk)]
    return f"Bulk work behind interactive requests that come {rate:.1f} a second", [
        Row("interactive ITL p99 with bulk, times that without", ratios, most=1.15),
        Row("interactive ITL p99 without bulk", column(without, "itl_p99_ms"), " ms"),
        Row("interactive ITL p99 with bulk", column(with_bulk, "itl_p99_ms"), " ms"),
        Row("interactive TTFT p99 without bulk", column(without, "ttft_p99_ms"), " ms"),
        Row("interactive TTFT p99 with bulk", column(with_bulk, "ttft_p99_ms"), " ms"),
        Row("interactive tokens/s", column(with_bulk, "interactive_tokens_per_s")),
        Row("idle without bulk, of the time", [100 * (1 - answer["busy_share"]) for answer in without], "%"),
        Row("bulk tokens/s with interactive requests, prompts among them", column(with_bulk, "bulk_computed_per_s")),
        Row("the same alone", [only]),
        Row("bulk work done, of what fits into the idle time", filled, "%")]


def budget(bench):
    """With every core busy the operating system takes the thread away for longer than any budget, from a loop that only
    looks at the clock (bare) as well: there the goal holds for what is left without the waits for a core."""
    rows = []
    for load, busy, frame_us in (("idle machine", False, 0), ("every core busy", True, 0), ("every core busy, a frame of 16.7 ms", True, 16700)):
        for budget_us in (1000, 2000, 4000, 8000):
            steps = bench.arguments.steps // 5 if frame_us else bench.arguments.steps
            answer = bench.ask("budget", steps=steps, budget_us=budget_us, busy=busy, frame_us=frame_us)
            name = f"{budget_us // 1000} ms, {load}"
            goal = None if busy and answer["run_queue_known"] else 500
            rows.append(Row(f"{name}: overshoot p99", [1e3 * answer["overshoot_p99_ms"]], " us", most=goal))
            rows.append(Row(f"{name}: p50", [1e3 * answer["overshoot_p50_ms"]], " us"))
            rows.append(Row(f"{name}: greatest", [1e3 * answer["overshoot_max_ms"]], " us"))
            rows.append(Row(f"{name}: p99 of a bare loop", [1e3 * answer["bare_overshoot_p99_ms"]], " us"))
            if answer["run_queue_known"]:
                rows.append(Row(f"{name}: without the waits for a core, p99", [1e3 * answer["own_overshoot_p99_ms"]], " us", most=500))
    kept = [bench.ask("throughput", budget_us=4000) for _ in range(bench.runs)]
    rows.append(Row("tokens/s kept at budgets of 4 ms", percent(kept, "kept_share"), "%", least=90))
    return f"How late a step ends, {bench.arguments.steps} steps each, 8 sequences", rows


def pressure(bench):
    answers = {"tiny model": bench.ask("pressure", TINY), "SmolLM2": bench.ask("pressure", scale=1)}
    calm = bench.ask("sequential", TINY)
    rows = []
    for name, answer in answers.items():
        rows += [Row(f"{name}: conversations refused", [answer["refused"]], most=0),
                 Row(f"{name}: turns finished", [answer["finished"]], least=2 * answer["conversations"]),
                 Row(f"{name}: conversations with other tokens than alone", [answer["different_from_alone"]], most=0),
                 Row(f"{name}: preemptions", [answer["preemptions"]]),
                 Row(f"{name}: tokens computed again, of the useful ones", [100 * answer["recomputed_share"]], "%")]
    rows.append(Row(f"blocks available after {calm['requests']} requests one by one, less than before",
                    [calm["available_before"] - calm["available_after"] + calm["held_between_most"]], most=0))
    first = answers["tiny model"]
    return f"{first['conversations']} conversations of two turns in a pool that holds {first['pool_holds']}", rows


def long_prompt(bench):
    prompt = bench.arguments.prompt
    hosts = {"": {}, "4 ms of every 16.7: ": {"budget_us": 4000, "frame_us": 16700}}
    ways = {"no target, chunks of 512 at most": {}, "chunking off": {"batch_tokens": prompt + 64}}
    for times in (2.5, 4, 8):
        ways[f"target {times:g} times that"] = {"target_times": times}
    rows = []
    for host, rhythm in hosts.items():
        quiet = len(rows)
        undisturbed = []
        for way, flags in ways.items():
            answer = bench.ask("long_prompt", prompt=prompt, **rhythm, **flags)
            undisturbed.append(answer["quiet_itl_ms"])
            if "target_ms" in answer:
                rows.append(Row(f"{host}{way}: ITL p99, of the target" + ("" if answer["tile_fits"] else " (no tile fits)"),
                                [answer["p99_of_target"]], most=1.15 if answer["tile_fits"] else None))
            rows += [Row(f"{host}{way}: ITL p50", [answer["itl_p50_ms"]], " ms"),
                     Row(f"{host}{way}: ITL p99", [answer["itl_p99_ms"]], " ms"),
                     Row(f"{host}{way}: TTFT of the long prompt", [answer["ttft_s"]], " s")]
        rows.insert(quiet, Row(f"{host}undisturbed ITL", undisturbed, " ms"))
    return f"A prompt of {prompt} tokens among 8 running chats", rows


def overhead(bench):
    rows = []
    steps = [bench.ask_inside("step") for _ in range(bench.runs)]
    sampled = [bench.ask_inside("step", temperature=1) for _ in range(bench.runs)]
    queue, lookup = (bench.ask_inside(name) for name in ("queue", "lookup"))
    intakes = [bench.ask_inside("intake") for _ in range(bench.runs)]
    rows = [Row(f"a step of {steps[0]['running']} sequences, greedy", column(steps, "step_p50_us"), " us", most=20),
            Row("the same, sampled from 97 tokens", column(sampled, "step_p50_us"), " us"),
            Row("a poll of their tokens", column(steps, "poll_us"), " us"),
            Row("allocations in all steps", [sum(column(steps + sampled, "allocations"))], most=0),
            Row(f"lookup of a prompt of {lookup['tokens']} tokens in the prefix cache", [lookup["lookup_p50_us"]], " us", most=50)]
    for name, words in (("no_place", "for a place in the batch"), ("no_blocks", "for blocks")):
        rows.append(Row(f"a step while {queue['many']} requests wait {words}, times one while {queue['few']} do",
                        [queue[name + "_ratio"]], most=1.1))
    heads = bench.ask_inside("heads")
    rows.append(Row(f"a step while {heads['heads']} requests that find {heads['found_tokens']} tokens lack blocks",
                    [heads["step_p50_us"]], " us", most=20))
    rows.append(Row(f"latest end of a step of {intakes[0]['budget_us'] / 1000:g} ms that finds {intakes[0]['queued']} submissions",
                    column(intakes, "overshoot_max_us"), " us"))
    rows.append(Row("the same without waits for a core", column(intakes, "own_overshoot_max_us"), " us", most=500))
    return "What the engine costs beside the model (a fake model that computes nothing), medians of steps", rows


def pictures(bench):
    """Draws from runs of its own: passes are counted, not timed, so the pictures are the same on every machine."""
    folder = bench.arguments.pictures
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        files = [pathlib.Path(scratch) / name for name in ("static.json", "continuous.json", "contiguous.json", "paged.json")]
        timelines = [bench.ask("timeline", TINY, static=static, trace=file) for file, static in zip(files, (True, False))]
        draw("draw_timeline.py", files[:2], folder / "timeline.svg")
        blocks = bench.ask_inside("blocks")
        for file, panel in zip(files[2:], ("contiguous", "paged")):
            file.write_text(json.dumps(blocks.pop(panel)))
        draw("draw_blocks.py", files[2:], folder / "blocks.svg")
    return f"Pictures in {folder}", [
        Row("eight requests over four slots, fixed batch: passes", [timelines[0]["passes"]]),
        Row("eight requests over four slots, continuous: passes", [timelines[1]["passes"]]),
        Row("conversations at once in 32 blocks, 8 reserved for each (mean)", [blocks["contiguous_running_mean"]]),
        Row("conversations at once in 32 blocks, paged (mean)", [blocks["paged_running_mean"]])]


def draw(tool, inputs, output):
    subprocess.run([sys.executable, str(HERE / tool), *map(str, inputs), "-o", str(output)], check=True)


SCENARIOS = {"waste": waste, "pressure": pressure, "overhead": overhead, "batching": batching, "long_prompt": long_prompt,
             "bulk": bulk, "budget": budget, "pictures": pictures}


def measure(arguments):
    bench = Bench(arguments)
    loads = [load_average()]
    sections = []
    for name, scenario in SCENARIOS.items():
        if arguments.only and name not in arguments.only.split(","):
            continue
        say(f"measuring {name}")
        title, rows = scenario(bench)
        sections.append({"name": name, "title": title, "rows": [
            {**dataclasses.asdict(row), "median": row.value(), "met": row.met()} for row in rows]})
        print(f"\n{title}\n\n{table(rows)}", flush=True)
    loads.append(load_average())
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps({
        "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "model": pathlib.Path(arguments.model).name, "processor": processor(), "threads": arguments.threads,
        "runs": arguments.runs, "load_average": loads, "sections": sections, "answers": bench.answers}, indent=1) + "\n")
    print(f"\n{pathlib.Path(arguments.model).name}, {arguments.threads} threads, {processor()}; load average {loads[0]:.1f} at the "
          f"start, {loads[1]:.1f} at the end. Every run: {arguments.json}")
    return all(row["met"] for section in sections for row in section["rows"])


def smoke(arguments):
    """Lines 'ok ...' and 'failed ...' as run_tests.py counts them: what must hold however slow the machine is."""
    arguments.model, arguments.runs, arguments.threads = TINY, 1, 2
    bench = Bench(arguments)
    failures = 0

    def check(title, works):
        nonlocal failures
        try:
            print(f"ok: {title}: {works()}", flush=True)
        except (OSError, RuntimeError, ValueError, KeyError, AssertionError, subprocess.SubprocessError) as error:
            failures += 1
            print(f"failed: {title}: {error}", flush=True)

    def hold(condition, answer):
        if not condition:
            raise RuntimeError(json.dumps(answer))

    def few_blocks_are_empty():
        answer = bench.ask("waste", requests=40, running=8)
        hold(0 < answer["empty_share"] <= 0.04 and answer["contiguous_to_most_empty_share"] > answer["empty_share"], answer)
        return f"{100 * answer['empty_share']:.1f}%"

    def samples_share():
        answer = bench.ask("samples")
        hold(answer["fewer_share"] >= 0.65, answer)
        return f"{100 * answer['fewer_share']:.1f}% fewer blocks"

    def batching_changes_no_token():
        answers = [bench.ask("batching", requests=12, slots=4, scale=0.1, static=static) for static in (True, False)]
        hold(answers[0]["hash"] == answers[1]["hash"] and answers[1]["passes"] < answers[0]["passes"], answers)
        return f"{answers[0]['passes']} passes fixed, {answers[1]['passes']} continuous"

    def crowd_equals_alone():
        answer = bench.ask("pressure", conversations=40, fits=4)
        hold(answer["refused"] == 0 and answer["different_from_alone"] == 0 and answer["finished"] == 80 and
             answer["preemptions"] > 0 and answer["held_at_end"] == 0, answer)
        return f"{answer['preemptions']} preemptions"

    def pool_stays_whole():
        answer = bench.ask("sequential", requests=100)
        hold(answer["available_before"] == answer["available_after"] and answer["held_between_most"] == 0 and
             answer["finished"] == 100, answer)
        return f"{answer['available_after']} blocks"

    def others_run():
        hold(bench.ask("long_prompt", prompt=600, sequences=3, quiet=4)["gaps"] > 0, "no gaps")
        hold(bench.ask("long_prompt", prompt=600, sequences=3, quiet=4, budget_us=2000, frame_us=3000)["gaps"] > 0, "no gaps")
        hold(bench.ask("bulk", requests=10, rate=200, bulk=20)["interactive_tokens_per_s"] > 0, "no tokens")
        hold(bench.ask("budget", steps=50, budget_us=500, busy=True)["tokens_per_s"] > 0, "no tokens")
        hold(bench.ask("throughput", turns=1, turn_s=0.02)["kept_share"] > 0, "no tokens")
        return "long_prompt, bulk, budget, throughput"

    def overhead_allocates_nothing():
        answer = bench.ask_inside("step", steps=100)
        hold(answer["allocations"] == 0, answer)
        short = {"queue": {"steps": 5, "queued": 300}, "intake": {"queued": 300, "steps": 3}, "lookup": {"repeats": 5}, "heads": {"steps": 5}}
        for name, flags in short.items():
            bench.ask_inside(name, **flags)
        return "step, queue, intake, lookup, heads"

    def pictures_are_drawn():
        with tempfile.TemporaryDirectory() as folder:
            arguments.pictures = pathlib.Path(folder)
            rows = pictures(bench)[1]
            for name in ("timeline.svg", "blocks.svg"):
                xml.dom.minidom.parse(str(arguments.pictures / name))
        fixed, continuous, contiguous, paged = (row.value() for row in rows)
        hold(continuous < fixed and contiguous < paged, [fixed, continuous, contiguous, paged])
        return f"{fixed} and {continuous} passes, {contiguous:.1f} and {paged:.1f} conversations"

    check("few positions of held blocks are empty", few_blocks_are_empty)
    check("samples share their prompt's blocks", samples_share)
    check("a fixed batch and continuous batching give equal tokens", batching_changes_no_token)
    check("many conversations in a small pool equal those alone", crowd_equals_alone)
    check("requests one by one leave the pool as it was", pool_stays_whole)
    check("the scenarios about time run", others_run)
    check("steps allocate nothing", overhead_allocates_nothing)
    check("pictures are drawn", pictures_are_drawn)
    return 1 if failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--model")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10000, help="of the bench of budgets")
    parser.add_argument("--requests", type=int, default=40, help="of the bench of bulk work")
    parser.add_argument("--prompt", type=int, default=8000, help="tokens of the long prompt")
    parser.add_argument("--only", help=f"these, comma-separated: {', '.join(SCENARIOS)}")
    parser.add_argument("--pictures", type=pathlib.Path, default=ROOT / "build" / "pictures", help="folder for the SVGs")
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / "build" / "serving.json")
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    if arguments.smoke:
        return smoke(arguments)
    if not arguments.model or min(arguments.runs, arguments.threads, arguments.steps, arguments.requests, arguments.prompt) < 1:
        parser.error("--model is needed, numbers are at least 1")
    try:
        measure(arguments)
    except (OSError, RuntimeError) as error:
        say(f"serving: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
