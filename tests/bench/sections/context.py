"""What a token costs as its sequence grows, and that nothing but attention does: RoPE tables, block tables and the scheduler are to
cost as much at 128K as at 1K. run() is called by bench.py.

One prompt of the greatest length is computed once; decoding then goes on from shorter and longer beginnings of it, which the prefix
cache has, in turns. Two figures stand for what is not attention:

    outside the pass      intake, plan, sample and commit of a step, from the engine's own trace
    outside the layers    of two models that differ in their layers alone: what is left when the layers' time is taken off both,
                          (layers_b * time_a - layers_a * time_b) / (layers_b - layers_a); the head and all that comes once per pass
"""
import statistics

from figures import Section, Table, in_turn, say, short, spread, summary
from sides import Bench, Side

NEW_TOKENS = 64
STEP = 2048                 # contexts of the measured model: multiples of this, up to its limit
LAYERS = (1, 2)             # of the tiny models
TINY_LIMIT = 131072
TINY_CONTEXTS = (1024, 8192, 32768, 65536, TINY_LIMIT - NEW_TOKENS)


def tiny(layers: int, limit: int) -> str:
    return f"random:{layers},64,1,1,16,96,320,{limit}"


def outside_us(answer: dict) -> float:
    """Of a step that makes a token, without the pass: the median of the last ones, in which nothing begins or ends."""
    phases = [event for event in answer["trace"]["traceEvents"] if event["ph"] == "X" and event["pid"] == 1]
    steps, current = [], 0.0
    for event in phases:
        if event["name"] == "intake" and current:
            steps.append(current)
            current = 0.0
        current += event["dur"] if event["name"] != "run" else 0
    return statistics.median(steps[-NEW_TOKENS // 2:])


def measure(bench: Bench, sides: list[Side], contexts: tuple[int, ...], new_tokens: int) -> list[dict]:
    """A row per context: {context, token_us: {side: [...]}, outside_us: [...]}."""
    for side in sides:
        side.ask(f"keep 1 {contexts[-1]} {new_tokens}")
        seconds = side.ask("fill")["whole_s"]
        say(f"  {side.name}: a prompt of {contexts[-1]} in {seconds:.0f} s")
    rows = [{"context": context, "token_us": {side.name: [] for side in sides}, "outside_us": []} for context in contexts]
    for run in range(bench.runs):
        for row in in_turn(rows, run):
            for side in in_turn(sides, run):
                answer = side.ask(f"generate 1 {row['context']}")
                row["token_us"][side.name].append(1e6 * answer["pass_s"])
                row["outside_us"].append(outside_us(answer))
        say(f"  run {run + 1} of {bench.runs}: " + ", ".join(
            f"{short(row['token_us'][sides[0].name][-1])} us at {row['context']}" for row in rows))
    for side in sides:
        side.close()
    return rows


def of_model(bench: Bench) -> tuple[Table, list[dict]]:
    side = bench.treadle("automatic", "Treadle", None, "--phases")
    limit, new_tokens = side.about["context"], 16 if bench.small else NEW_TOKENS
    contexts = (64, 512) if bench.small else tuple(range(STEP, limit, STEP)) + (limit - new_tokens,)
    rows = measure(bench, [side], contexts, new_tokens)
    lines = [["context", "a token, us", "more than at the first, us per 1024 positions", "outside the pass, us"]]
    first = statistics.median(rows[0]["token_us"][side.name])
    for row in rows:
        times = row["token_us"][side.name]
        more = (statistics.median(times) - first) / max(row["context"] - contexts[0], 1) * 1024
        lines.append([str(row["context"]), spread(times), short(more) if row is not rows[0] else "", spread(row["outside_us"])])
    return Table(f"A token of {bench.model_name()} by its context, up to the model's limit of {limit}", lines), rows


def of_tiny(bench: Bench) -> tuple[Table, list[dict]]:
    limit, new_tokens = (1024, 16) if bench.small else (TINY_LIMIT, NEW_TOKENS)
    contexts = (64, limit - new_tokens) if bench.small else TINY_CONTEXTS
    sides = [bench.treadle("automatic", f"{layers} layers", tiny(layers, limit), "--phases") for layers in LAYERS]
    rows = measure(bench, sides, contexts, new_tokens)
    lines = [["context", *(f"a token, {layers} layer{'s' if layers > 1 else ''}, us" for layers in LAYERS), "ns per position and layer",
              "outside the layers, us", "outside the pass, us"]]
    for row in rows:
        fewer, more = (row["token_us"][side.name] for side in sides)
        layer = [(b - a) / (LAYERS[1] - LAYERS[0]) for a, b in zip(fewer, more)]
        row["outside_layers_us"] = [a - LAYERS[0] * each for a, each in zip(fewer, layer)]
        lines.append([str(row["context"]), spread(fewer), spread(more), short(1e3 * statistics.median(layer) / row["context"]),
                      spread(row["outside_layers_us"]), spread(row["outside_us"])])
    return Table(f"A token of tiny random models (a head of 16, hidden 64, vocabulary 320) by its context, up to {limit}", lines, [
        "Outside the layers: what is left of a token's time when the time of the layers is taken off, found from both models.",
        "Outside the pass: scheduler, sampling and events, from the engine's trace. Both should be as much for long as for short contexts."]), rows


def run(bench: Bench) -> Section:
    (model, model_rows), (random, random_rows) = of_model(bench), of_tiny(bench)
    for row in [*model_rows, *random_rows]:
        row["token_us"] = {name: summary(values) for name, values in row["token_us"].items()}
    return Section([model, random], {"model": model_rows, "tiny": random_rows})
