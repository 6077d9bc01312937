#!/usr/bin/env python3
"""Draws which sequence sat in which slot of the batch, from one trace of an engine or from several under each other.

    draw_timeline.py TRACE.json [TRACE.json ...] -o PICTURE.svg [--labels "Static batch" "Continuous batching"]
                     [--slots N] [--axis passes|ms]

The traces are Chrome trace JSON as the engine writes it. Of the process "sequences" each line is a sequence, A the first; its spans
"prompt" and "decode" (one per pass, with args.pass) make its bar. It holds the first slot that is free from its first pass to its
last, except while it is "preempted". Slots that nobody holds before the last sequence ends are idle. All panels have one axis.
"""
import argparse
import dataclasses
import json
import math
import sys

from svg_picture import Picture, colour, letter

WIDTH = 980
LEFT = 64          # of the bars; the slots' names are before
RIGHT = 24
LANE = 30
LANE_GAP = 6
WORK = ("prompt", "decode")


@dataclasses.dataclass
class Piece:
    """Work of one kind without a gap."""
    kind: str
    start: float
    end: float


@dataclasses.dataclass
class Stay:
    """From a sequence's first pass in a slot to its last; a preemption ends it."""
    sequence: int
    pieces: list
    slot: int = -1

    @property
    def start(self):
        return self.pieces[0].start

    @property
    def end(self):
        return self.pieces[-1].end


@dataclasses.dataclass
class Timeline:
    label: str
    stays: list
    slots: int
    end: float

    def idle_of(self, slot):
        """The intervals before the end in which nobody holds the slot."""
        at, idle = 0.0, []
        for stay in sorted((s for s in self.stays if s.slot == slot), key=lambda s: s.start):
            if stay.start > at:
                idle.append((at, stay.start))
            at = max(at, stay.end)
        if at < self.end:
            idle.append((at, self.end))
        return idle

    def idle_share(self):
        idle = sum(end - start for slot in range(self.slots) for start, end in self.idle_of(slot))
        return idle / (self.slots * self.end)


def read_events(path):
    with open(path, encoding="utf-8") as file:
        trace = json.load(file)
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    pids = {e["pid"] for e in events if e["ph"] == "M" and e["name"] == "process_name" and e["args"]["name"] == "sequences"}
    spans = [e for e in events if e["ph"] == "X" and e["pid"] in pids]
    if not any(e["name"] in WORK for e in spans):
        sys.exit(f"{path}: no spans of sequences in this trace")
    return spans


def stays_of(spans, axis):
    """Each sequence's stays, in order of their starts; time 0 is the first work of all."""
    work = [e for e in spans if e["name"] in WORK]
    zero = min(e["args"]["pass"] if axis == "passes" else e["ts"] for e in work)
    order = {line: i for i, line in enumerate(sorted({e["tid"] for e in spans}))}
    stays = []
    for line, sequence in order.items():
        current = None
        for event in sorted((e for e in spans if e["tid"] == line), key=lambda e: e["ts"]):
            if event["name"] == "preempted":
                current = None
            if event["name"] not in WORK:
                continue
            if axis == "passes":
                start = event["args"]["pass"] - zero
                end = start + 1
            else:
                start = (event["ts"] - zero) / 1000
                end = start + event["dur"] / 1000
            if current is None:
                current = Stay(sequence, [])
                stays.append(current)
            last = current.pieces[-1] if current.pieces else None
            # Between two passes in milliseconds lies a moment of planning; only a missed pass is a gap.
            if last and last.kind == event["name"] and start - last.end <= (0 if axis == "passes" else 0.5 * (end - start)):
                last.end = end
            else:
                current.pieces.append(Piece(event["name"], start, end))
    return sorted(stays, key=lambda s: (s.start, s.sequence))


def assign_slots(stays):
    """First free slot. Returns how many were needed."""
    free_at = []
    for stay in stays:
        for slot, at in enumerate(free_at):
            if at <= stay.start + 1e-9:
                break
        else:
            slot = len(free_at)
            free_at.append(0)
        stay.slot = slot
        free_at[slot] = stay.end
    return len(free_at)


def read_timeline(path, label, axis, slots):
    stays = stays_of(read_events(path), axis)
    needed = assign_slots(stays)
    if slots and needed > slots:
        sys.exit(f"{path}: {needed} sequences ran at once, more than {slots} slots")
    return Timeline(label, stays, slots or needed, max(s.end for s in stays))


def tick_step(length):
    """1, 2 or 5 times a power of ten, for about ten ticks."""
    power = 10 ** math.floor(math.log10(length / 10)) if length > 10 else 1
    return next(power * factor for factor in (1, 2, 5, 10) if length / (power * factor) <= 12)


def draw_stay(picture, stay, top, x_of):
    left, right = x_of(stay.start), x_of(stay.end)
    fill = colour(stay.sequence)
    name = letter(stay.sequence)
    picture.rect(left, top + LANE / 2 - 2, right - left, 4, fill=fill, more='fill-opacity=".45"')  # seen where it sat out a pass
    for piece in stay.pieces:
        x, width = x_of(piece.start), x_of(piece.end) - x_of(piece.start)
        picture.rect(x, top, width, LANE, fill=fill)
        if piece.kind == "prompt":
            picture.rect(x, top, width, LANE, "shade")
    widest = max(stay.pieces, key=lambda p: (p.kind == "decode", p.end - p.start))
    if x_of(widest.end) - x_of(widest.start) >= 9 * len(name):
        picture.words((x_of(widest.start) + x_of(widest.end)) / 2, top + LANE / 2 + 5, name, "on")
    elif right - left >= 9 * len(name):
        picture.words((left + right) / 2, top + LANE / 2 + 5, name, "on")


def draw_panel(picture, timeline, top, x_of, axis_end, axis):
    unit = "passes" if axis == "passes" else "ms"
    amount = f"{timeline.end:.0f}" if axis == "passes" or timeline.end >= 100 else f"{timeline.end:.1f}"
    picture.words(8, top + 16, timeline.label, "name",
                  after=f"{amount} {unit}, slots idle {100 * timeline.idle_share():.0f}% of the time")
    lanes_top = top + 36
    lanes_bottom = lanes_top + timeline.slots * (LANE + LANE_GAP) - LANE_GAP
    axis_y = lanes_bottom + 8
    step = tick_step(axis_end)
    for i in range(int(axis_end / step + 1e-9) + 1):
        picture.line(x_of(i * step), lanes_top - 4, x_of(i * step), axis_y, "grid")
        picture.words(x_of(i * step), axis_y + 16, f"{i * step:g}", "mid")
    picture.line(x_of(0), axis_y, x_of(axis_end), axis_y, "axis")
    for slot in range(timeline.slots):
        y = lanes_top + slot * (LANE + LANE_GAP)
        picture.words(8, y + LANE / 2 + 4, f"slot {slot + 1}")
        for start, end in timeline.idle_of(slot):
            picture.rect(x_of(start) + 1, y + 0.5, x_of(end) - x_of(start) - 2, LANE - 1, "idle")
        for stay in timeline.stays:
            if stay.slot == slot:
                draw_stay(picture, stay, y, x_of)
    last = max(timeline.stays, key=lambda s: s.end)
    where = f"in pass {amount}" if axis == "passes" else f"at {amount} ms"
    x = x_of(timeline.end)
    picture.line(x, lanes_top - 12, x, axis_y, "mark")
    ends = f"{letter(last.sequence)}, the last, ends {where}"
    if x + 190 < WIDTH - RIGHT:
        picture.words(x + 8, lanes_top + 12, ends, "strong")
    else:
        picture.words(x - 6, lanes_top - 9, ends, "strong end")
    return axis_y + 34


def draw_legend(picture, top, axis):
    x = LEFT
    for kind, words in (("prompt", "prompt"), ("decode", "answer"), ("idle", "idle slot")):
        picture.rect(x, top, 26, 14, "idle" if kind == "idle" else "sample")
        if kind == "prompt":
            picture.rect(x, top, 26, 14, "shade")
        picture.words(x + 34, top + 11.5, words)
        x += 110
    picture.words(WIDTH - RIGHT, top + 11.5, "passes of the model" if axis == "passes" else "milliseconds", "end")


def draw(timelines, axis):
    axis_end = max(t.end for t in timelines)
    x_of = lambda value: LEFT + value / axis_end * (WIDTH - LEFT - RIGHT)
    picture = Picture(WIDTH, "Which sequence sat in which slot of the batch, pass by pass: " + "; ".join(
        f"{t.label}: {len({s.sequence for s in t.stays})} sequences, the last ends at {t.end:.4g}" for t in timelines))
    top = 8
    for timeline in timelines:
        top = draw_panel(picture, timeline, top, x_of, axis_end, axis) + 14
    draw_legend(picture, top - 6, axis)
    picture.height = top + 20
    return picture.text()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("traces", nargs="+", metavar="TRACE.json")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--labels", nargs="+", default=["Static batch", "Continuous batching"])
    parser.add_argument("--slots", type=int, default=0, help="at least as many as ran at once (the default)")
    parser.add_argument("--axis", choices=("passes", "ms"), default="passes")
    options = parser.parse_args()
    labels = options.labels if len(options.traces) <= len(options.labels) else options.traces
    if len(options.traces) == 1 and options.labels == parser.get_default("labels"):
        labels = ["Slots of the batch"]
    timelines = [read_timeline(path, label, options.axis, options.slots) for path, label in zip(options.traces, labels)]
    most = max(t.slots for t in timelines)
    for timeline in timelines:
        timeline.slots = most
    with open(options.output, "w", encoding="utf-8") as file:
        file.write(draw(timelines, options.axis))


if __name__ == "__main__":
    main()
