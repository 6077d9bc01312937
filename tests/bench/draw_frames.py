#!/usr/bin/env python3
"""Draws how long a game's frames took, one panel per way of having a model generate beside them. All panels have one axis.

    draw_frames.py FRAMES.json -o PICTURE.svg

The file is {"frame_ms": 16.667, "ways": [{"title": "...", "frame_ms": [5.1, ...], "work_ms": [5.0, ...], "tokens_per_s": 120.5}, ...]},
as sections/frames.py writes it; work_ms is what the host's own work took of a frame. Bars are counts of frames per quarter of a millisecond, drawn by their square roots, so that few late
frames are seen beside many that are in time. Frames beyond the axis are counted at its end.
"""
import argparse
import json
import math

from svg_picture import Picture, colour

WIDTH = 980
LEFT = 16
RIGHT = 120        # room for the count of frames beyond the axis
BARS = 54          # height of the fullest bin
BIN_MS = 0.25
GREY = "#7b8794"
PERCENTILES = (50, 95, 99)


def nearest_rank(values: list[float], percentile: float) -> float:
    return sorted(values)[max(math.ceil(percentile / 100 * len(values)), 1) - 1]


def axis_end(ways: list[dict], tick_ms: float) -> float:
    """At least a little after the next tick, at most a frame later; all p99 are on it where that allows."""
    longest = max(nearest_rank(way["frame_ms"], 99) for way in ways)
    return min(max(1.2 * tick_ms, 1.05 * longest), 2 * tick_ms)


def draw_bars(picture: Picture, values: list[float], base: float, x_of, end: float, fill: str) -> None:
    counts: dict[int, int] = {}
    for value in values:
        if value < end:
            counts[int(value / BIN_MS)] = counts.get(int(value / BIN_MS), 0) + 1
    fullest = max(counts.values(), default=1)
    width = x_of(BIN_MS) - x_of(0)
    for place, count in sorted(counts.items()):
        height = max(BARS * math.sqrt(count / fullest), 1.5)
        picture.rect(x_of(place * BIN_MS) + 0.4, base - height, width - 0.8, height, fill=fill)
    beyond = sum(1 for value in values if value >= end)
    if beyond:
        picture.words(x_of(end) + 8, base - 4, f"{beyond} later" if beyond > 1 else "1 later", "strong")


def draw_percentiles(picture: Picture, values: list[float], base: float, x_of, end: float) -> None:
    """Ticks below the axis; of those that lie close together the last is named, with the names of all."""
    groups: list[tuple[float, list[int]]] = []
    for percentile in PERCENTILES:
        x = x_of(min(nearest_rank(values, percentile), end))
        if groups and x - groups[-1][0] < 34:
            groups[-1] = (x, groups[-1][1] + [percentile])
        else:
            groups.append((x, [percentile]))
        picture.line(x, base, x, base + 6, "axis")
    for x, names in groups:
        picture.words(x, base + 19, "p" + "·".join(str(name) for name in names), "mid")


def draw_panel(picture: Picture, way: dict, place: int, top: float, x_of, end: float, tick_ms: float) -> float:
    values = way["frame_ms"]
    figures = ", ".join(f"p{percentile} {nearest_rank(values, percentile):.1f}" for percentile in PERCENTILES) + " ms"
    if way["tokens_per_s"] > 0:
        figures += f"; {way['tokens_per_s']:.0f} tokens/s"
    late = sum(1 for value in values if value > tick_ms)
    figures += f"; {100 * late / len(values):.1f}% of the frames late" if late else "; no frame late"
    picture.words(LEFT, top + 16, way["title"], "name", after=figures)
    base = top + 34 + BARS
    picture.line(x_of(tick_ms), top + 26, x_of(tick_ms), base, "mark")
    if nearest_rank(values, 50) > nearest_rank(way["work_ms"], 50) + 1:  # something follows the host's own work
        draw_bars(picture, way["work_ms"], base, x_of, end, GREY)
        picture.words(x_of(nearest_rank(way["work_ms"], 50)), base + 19, "own work done", "mid")
    draw_bars(picture, values, base, x_of, end, colour(place) if place else GREY)
    picture.line(x_of(0), base, x_of(end), base, "axis")
    draw_percentiles(picture, values, base, x_of, end)
    return base + 30


def draw(ways: list[dict], tick_ms: float) -> str:
    end = axis_end(ways, tick_ms)
    x_of = lambda value: LEFT + value / end * (WIDTH - LEFT - RIGHT)
    picture = Picture(WIDTH, "How long a game's frames took: " + "; ".join(
        f"{way['title']}: p99 {nearest_rank(way['frame_ms'], 99):.1f} ms, {way['tokens_per_s']:.0f} tokens/s" for way in ways))
    top = 4.0
    for place, way in enumerate(ways):
        top = draw_panel(picture, way, place, top, x_of, end, tick_ms)
    top += 8
    step = 2 if end <= 24 else 5
    for value in range(0, int(end) + 1, step):
        picture.words(x_of(value), top + 6, str(value), "mid")
        picture.line(x_of(value), top - 10, x_of(value), top - 5, "axis")
    picture.line(x_of(0), top - 10, x_of(end), top - 10, "axis")
    picture.words(x_of(end) + 14, top + 6, "ms of a frame")
    picture.words(LEFT, top + 26, f"Frames by their length, heights by square root. The dashed line is the next tick, {tick_ms:.1f} ms: a frame that "
                  "ends later comes late to the screen.")
    picture.height = top + 36
    return picture.text()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("frames", metavar="FRAMES.json")
    parser.add_argument("-o", "--output", required=True)
    options = parser.parse_args()
    with open(options.frames, encoding="utf-8") as file:
        found = json.load(file)
    with open(options.output, "w", encoding="utf-8") as file:
        file.write(draw(found["ways"], found["frame_ms"]))


if __name__ == "__main__":
    main()
