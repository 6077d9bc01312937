"""Prompts, generation alone and in batches, long contexts, starts: Treadle on the model's file beside llama.cpp on the same file
and on its best format. run() is called by bench.py; avx2.py runs the same with code and a peer without AVX-512.
"""
from figures import (Figure, Hashes, Samples, Section, Workload, comparison, comparison_data, in_turn, measure, new_samples, note_run,
                     say)
from sides import Bench, Side

# How many times as fast as llama.cpp Treadle is to be, on the same file and on the peer's best format.
GOALS = {"prompt_512": (4, 1.5), "decode_1": (1.3, 1.15), "decode_4": (3, 1.8), "decode_8": (3, 1.8), "decode_16": (4, 2),
         "decode_32": (4, 2), "long_prompt": (3, 2.5), "long_decode": (3, 2.5), "start": (1 / 1.5, None)}

SEQUENCES = (4, 8, 16, 32)
LONG = (8, 2048, 32)  # sequences, tokens of each one's prompt, new tokens


def figure(key: str, title: str, value, higher_is_better: bool = True) -> Figure:
    return Figure(key, title, value, higher_is_better, GOALS.get(key, ()))


def full_rate(answer: dict) -> float:
    """While all sequences make tokens."""
    return answer["full_tokens"] / answer["full_s"]


def generation(sequences: int, prompt: int, new_tokens: int) -> Workload:
    name = f"{sequences} sequence{'s' if sequences > 1 else ''}"
    figures = [figure(f"decode_{sequences}", f"{name}, tokens/s", full_rate)]
    if sequences > 1:
        figures.append(figure(f"whole_{sequences}", f"{name}, prompts included, new tokens/s",
                              lambda answer: sequences * new_tokens / answer["whole_s"]))
    return Workload(f"decode {sequences} {prompt} {new_tokens}", figures)


def prompt(tokens: int) -> Workload:
    return Workload(f"decode 1 {tokens} 1", [
        figure(f"prompt_{tokens}", f"prompt of {tokens}, tokens/s", lambda answer: tokens / answer["whole_s"])])


def start() -> Workload:
    return Workload("start", [
        figure("load", "load, ms", lambda answer: answer["load_s"] * 1e3, False),
        figure("start", "load to first token, ms", lambda answer: answer["start_s"] * 1e3, False)], fresh_process=True)


def long_contexts(sides: list[Side], runs: int, sequences: int, tokens: int, new_tokens: int, samples: Samples,
                  hashes: Hashes) -> list[Figure]:
    """Each sequence's prompt is computed once, which gives a value each; then all generate from there, again and again."""
    filling = figure("long_prompt", f"prompts of {tokens}, one after another, tokens/s", lambda answer: tokens / answer["whole_s"])
    together = figure("long_decode", f"{sequences} sequences after {tokens} tokens each, tokens/s", full_rate)
    for side in sides:
        side.ask(f"keep {sequences} {tokens} {new_tokens}")
    for kind, turns in ((filling, sequences), (together, runs)):
        command = "fill" if kind is filling else f"generate {sequences} {tokens}"
        for turn in range(turns):
            for side in in_turn(sides, turn):
                answer = side.ask(command)
                samples[kind.key][side.name].append(kind.value(answer))
                if side is sides[0]:
                    hashes.check(f"fill {turn}" if kind is filling else command, answer)
            note_run([kind], samples, sides, f"{turn + 1} of {turns}")
    for side in sides:
        side.ask("drop")
    return [filling, together]


def compare(bench: Bench, sides: list[Side], title: str) -> Section:
    sizes = ((prompt(100), generation(1, 40, 24), generation(4, 40, 16), start()) if bench.small else
             (prompt(512), generation(1, 128, 64), *(generation(count, 128, 32) for count in SEQUENCES), start()))
    samples, hashes = new_samples(), Hashes()
    measure(sides, [sizes[0], sizes[2]], 1, new_samples(), hashes)
    say("  warmed up")
    measure(sides, list(sizes), bench.runs, samples, hashes)
    figures = [figure for workload in sizes for figure in workload.figures]
    at = len(figures) - len(sizes[-1].figures)  # long contexts stand before the start
    figures[at:at] = long_contexts(sides, bench.runs, *((2, 100, 16) if bench.small else LONG), samples, hashes)
    for side in sides:
        side.close()
    notes = ["Sequences have prompts of 128 tokens unless it says otherwise; greedy sampling is part of the time on all sides, which",
             "took turns at every figure. Behind each median are the least and the greatest run; of the long prompts, 8 values."]
    notes += [f"{side.name}: {side.about['library']}, {side.about['code']}" for side in sides[:2]]
    if len(sides) > 1:
        notes += ["llama.cpp runs with flash attention, an f16 cache and n_ubatch 512. Its Q4_0 file was made from the same file by its own",
                  "quantizer (requantized, so good for speed only: nobody would ship its text); Treadle runs the file as it is on all lines."]
    return Section([comparison(title, figures, sides, samples, notes)],
                   {"figures": comparison_data(figures, sides, samples), "token_hashes": hashes.known,
                    "sides": {side.name: side.about for side in sides}})


def run(bench: Bench) -> Section:
    return compare(bench, [bench.treadle(), *bench.llama_sides()], f"{bench.model_name()}, {bench.threads_text()}")
