"""How fast each format of the KV cache decodes beside f16, at contexts where the cache is much of what a token reads. run() is called
by bench.py; avx2.py measures the same with AVX2 code.

Every pair of formats is an engine in a process of its own, and they take turns. One sequence at 4K is measured with the bench's model.
Its prompts of 32K would take minutes each, so for the rest a random model stands in: three layers of SmolLM2's shape (GQA 3, head_dim
64, hidden 576) and a tenth of its vocabulary, so that a token takes a tenth of SmolLM2's time. What the other layers would do to the
processor's caches between two tokens is done by reading something else, outside the clock.
"""
import dataclasses

from figures import Figure, Hashes, Section, Table, in_turn, new_samples, ratio, say, short, spread, summary
from sides import Bench, Side

PAIRS = (("f16", "f16"), ("q8_0", "q8_0"), ("q8_0", "tbq4"), ("tbq4x", "tbq4"), ("tbq4", "tbq4"))
NEW_TOKENS = 32
GOALS = {"avx512": {4096: 1.3, 32768: 1.8}, "avx2": {4096: 1.0, 32768: 1.3}}  # of tbq4/tbq4, times f16


@dataclasses.dataclass
class Case:
    title: str
    model: str | None  # None: the one that is measured
    context: int
    filled: int                # prompts
    measured: tuple[int, ...]  # how many sequences decode together; more than there are prompts share them


TENTH = "random:3,576,9,3,64,1536,4915,33024"
CASES = (Case("the model", None, 4096, 1, (1,)), Case("a tenth of SmolLM2", TENTH, 4096, 8, (1, 8)),
         Case("a tenth of SmolLM2", TENTH, 32768, 1, (1, 8)))
SMALL = (Case("a tiny model", "random:1,64,3,1,64,96,320,512", 128, 1, (1, 2)),)


def measure(case: Case, sides: list[Side], runs: int, new_tokens: int) -> tuple[list[Figure], dict, dict]:
    """[a figure for each count of sequences], {key: {side: [value of each run]}}, {side: bytes of a token}"""
    samples, hashes = new_samples(), Hashes()
    bytes_of = {side.name: side.ask(f"keep {case.measured[-1]} {case.context} {new_tokens}")["token_bytes"] for side in sides}
    for sequence in range(case.filled):
        for side in sides:
            seconds = side.ask("fill")["whole_s"]
            say(f"  {case.title}: prompt {sequence + 1} of {case.filled}, {side.name}: {case.context / seconds:.0f} tokens/s")
    figures = [Figure(f"{case.context}_{count}", f"{count} at {case.context}", lambda answer, count=count: count / answer["pass_s"]) for count in case.measured]
    for run in range(runs):
        for figure, count in zip(figures, case.measured):
            for side in in_turn(sides, run):
                answer = side.ask(f"generate {count} {case.context}")
                hashes.check(f"{side.name} {figure.key}", answer)
                samples[figure.key][side.name].append(figure.value(answer))
            say(f"  run {run + 1} of {runs}: {case.title}, {figure.title}: "
                + ", ".join(f"{side.name} {short(samples[figure.key][side.name][-1])}" for side in sides))
    for side in sides:
        side.ask("drop")
    return figures, samples, bytes_of


def compare(bench: Bench, code: str) -> Section:
    rows = [["model", "context", "prompts", "sequences", "keys/values", "KiB a token", "tokens/s", "times f16", "goal"]]
    data, used = [], code
    for case in SMALL if bench.small else CASES:
        cold = ["--cold"] if case.model and not bench.small else []
        sides = [bench.treadle(code, f"{keys}/{values}", case.model, "--keys", keys, "--values", values, *cold) for keys, values in PAIRS]
        used = sides[0].about["code"]
        figures, samples, bytes_of = measure(case, sides, bench.runs, 16 if bench.small else NEW_TOKENS)
        for figure, count in zip(figures, case.measured):
            for side in sides:
                times = ratio(figure, samples, side.name, sides[0].name)
                own_prompts = count <= case.filled  # a shared one is read from memory once for all
                goal = GOALS.get(used, {}).get(case.context) if side is sides[-1] and own_prompts else None
                first = side is sides[0]
                rows.append([case.title if first else "", str(case.context) if first else "", str(min(case.filled, count)) if first else "", str(count) if first else "", side.name,
                             f"{bytes_of[side.name] / 1024:.2f}", spread(samples[figure.key][side.name]),
                             "" if first else f"{times['of_medians']:.2f} ({min(times['of_runs']):.2f}-{max(times['of_runs']):.2f})",
                             "" if goal is None else f"{goal:.4g} {'met' if times['of_medians'] >= goal else 'NOT MET'}"])
                data.append({"model": case.title, "context": case.context, "sequences": count, "pair": side.name,
                             "token_bytes": bytes_of[side.name], "tokens_per_s": summary(samples[figure.key][side.name]),
                             "times_f16": times, "goal": goal})
        for side in sides:
            side.close()
    notes = [f"Decoding after prompts of that length, by the median pass of each run; {bench.threads_text()}, {used} code. As prompts of 32K",
             "take minutes, a random model of SmolLM2's shape with 3 of its 30 layers and a tenth of its vocabulary stands in, with the processor's",
             "caches emptied before every token, as by the other layers; at 32K eight sequences share one prompt. KiB a token: of all layers."]
    return Section([Table("Formats of the KV cache", rows, notes)], {"code": used, "rows": data})


def run(bench: Bench) -> Section:
    return compare(bench, "automatic")
