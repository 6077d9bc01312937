"""A game's frames: 60 a second with 5 ms of the host's own work, alone, with Treadle stepped for 8 ms of each, and beside llama.cpp
in a thread of its own. run() is called by bench.py; it also draws the picture.

libllama's passes can't be cut, so an embedder runs it in a thread: one that takes as large a share of the cores' time as Treadle's
budget gives it, or one that never rests. Its threads then compete with the host's for the cores. One sequence generates; the host is
the same code in all processes (frames/frame_loop.h), and its work is a count of sweeps that take 5 ms alone.
"""
import json
import math
import statistics

import draw_frames
from figures import Section, Table, in_turn, say, short, spread, summary
from sides import Bench, Side

FRAME_US, WORK_US, BUDGET_US = 16667, 5000, 8000
FRAMES, PROMPT = 300, 128
PERCENTILES = (50, 95, 99)


class Way:
    """One way to have both frames and tokens."""

    def __init__(self, title: str, side: Side, setting: float) -> None:
        self.title, self.name, self.side, self.setting = title, title, side, setting
        self.answers: list[dict] = []

    def run(self, frames: int, sweeps: int) -> None:
        self.answers.append(self.side.ask(f"frames {frames} {FRAME_US} {sweeps} {self.setting:g} {PROMPT}"))

    def each_run(self, key: str, percentile: int) -> list[float]:
        return [nearest_rank(answer[key], percentile) for answer in self.answers]

    def tokens_per_s(self) -> list[float]:
        return [answer["tokens"] / answer["seconds"] for answer in self.answers]

    def missed(self) -> list[float]:
        """Per cent of the ticks that came while the frame before was still under way."""
        return [100 * answer["ticks_missed"] / (answer["ticks_missed"] + len(answer["frame_ms"])) for answer in self.answers]

    def cpu_ms(self) -> list[float]:
        return [1e3 * answer["other_cpu_s"] / (answer["seconds"] / (FRAME_US * 1e-6)) for answer in self.answers]


def nearest_rank(values: list[float], percentile: float) -> float:
    return sorted(values)[max(math.ceil(percentile / 100 * len(values)), 1) - 1]


def ways_of(bench: Bench) -> list[Way]:
    engine = bench.treadle()
    share = BUDGET_US / FRAME_US
    ways = [Way("host alone", engine, 0), Way(f"Treadle, {BUDGET_US // 1000} ms a frame", engine, BUDGET_US)]
    peers = bench.llama_sides()
    ways += [Way(f"{peer.name} in a thread, as much time", peer, share) for peer in peers]
    return ways + [Way(f"{peer.name} in a thread that never rests", peer, 1) for peer in peers[:1]]


def tables_of(ways: list[Way], bench: Bench) -> list[Table]:
    heading = [f"p{percentile}, ms" for percentile in PERCENTILES]
    frames = [["the whole frame", *heading, "ticks missed, %", "tokens/s"]]
    work = [["the host's own work", *heading, "processor time of the rest, ms a frame"]]
    for way in ways:
        frames.append([way.title, *(spread(way.each_run("frame_ms", percentile)) for percentile in PERCENTILES),
                       spread(way.missed()), spread(way.tokens_per_s()) if way.setting else ""])
        work.append([way.title, *(spread(way.each_run("work_ms", percentile)) for percentile in PERCENTILES),
                     spread(way.cpu_ms()) if way.setting else ""])
    count = len(ways[0].answers[0]["frame_ms"])
    return [Table(f"{WORK_US // 1000} ms of a host's own work every {FRAME_US / 1000:.1f} ms, and a sequence of {bench.model_name()} beside it, "
                  f"{bench.threads_text()}", frames,
                  [f"Medians of {len(ways[0].answers)} runs of {count} frames (least-greatest); a frame lasts from its tick to the end of what is done in it."]),
            Table("What that did to the host", work, [
                f"Alone the work takes {WORK_US / 1000:g} ms: what is more was lost to other threads on its core, caches and memory. The rest is what",
                "generates: Treadle inside the frame, within its budget, llama.cpp in threads of its own."])]


def run(bench: Bench) -> Section:
    ways = ways_of(bench)
    sides = list({id(way.side): way.side for way in ways}.values())
    sweeps = int(sides[0].ask(f"sweeps {WORK_US if not bench.small else 50}")["sweeps"])
    frames = 3 if bench.small else FRAMES
    for turn in range(bench.runs):
        for way in in_turn(ways, turn):
            way.run(frames, sweeps)
            say(f"  run {turn + 1} of {bench.runs}: {way.title}: frame p99 {short(way.each_run('frame_ms', 99)[-1])} ms, "
                f"{short(way.tokens_per_s()[-1])} tokens/s")
    for side in sides:
        side.close()
    panels = [{"title": way.title, **{key: sum((answer[key] for answer in way.answers), []) for key in ("frame_ms", "work_ms")},
               "tokens_per_s": statistics.median(way.tokens_per_s())} for way in ways]
    bench.pictures.mkdir(parents=True, exist_ok=True)
    (bench.pictures / "frames.json").write_text(json.dumps({"frame_ms": FRAME_US / 1000, "ways": panels}))
    picture = bench.pictures / "frames.svg"
    picture.write_text(draw_frames.draw(panels, FRAME_US / 1000))
    tables = tables_of(ways, bench)
    tables[-1].notes.append(f"Picture: {picture}")
    return Section(tables, {"sweeps": sweeps, "ways": [
        {"title": way.title, "tokens_per_s": summary(way.tokens_per_s()), "ticks_missed_percent": summary(way.missed()),
         "cpu_ms_per_frame": summary(way.cpu_ms()),
         **{f"{key}_p{percentile}": summary(way.each_run(f"{key}_ms", percentile)) for key in ("frame", "work") for percentile in PERCENTILES}}
        for way in ways]})
