"""Figures, how sides take turns at them, and the tables they end in. Imported by bench.py and its sections.

Only one side works at a time, and they take turns at every figure, each run beginning with another one, so that whatever else the
machine does meets all alike. A figure of a table is the median of the runs, with the least and the greatest behind it.
"""
import collections
import dataclasses
import statistics
import sys
import typing

from sides import Side

Samples = dict[str, dict[str, list[float]]]  # {figure's key: {side's name: [value of each run]}}


@dataclasses.dataclass
class Figure:
    key: str
    title: str
    value: typing.Callable[[dict], float]  # of the answer to the command
    higher_is_better: bool = True
    goals: tuple[float | None, ...] = ()  # how many times as fast as each peer, in the order of the sides


@dataclasses.dataclass
class Workload:
    command: str
    figures: list[Figure]
    fresh_process: bool = False


@dataclasses.dataclass
class Table:
    title: str
    rows: list[list[str]]  # the first is the heading
    notes: list[str] = dataclasses.field(default_factory=list)

    def text(self) -> str:
        widths = [max(len(row[column]) for row in self.rows) for column in range(len(self.rows[0]))]
        lines = ["  ".join(cell.ljust(width) if column == 0 else cell.rjust(width)
                           for column, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in self.rows]
        return "\n".join([self.title, "", *lines] + ([""] + self.notes if self.notes else []))


@dataclasses.dataclass
class Section:
    """What a section's run() returns."""
    tables: list[Table]
    data: dict  # for the JSON


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def spread(values: list[float]) -> str:
    return f"{short(statistics.median(values))} ({short(min(values))}-{short(max(values))})"


def summary(values: list[float]) -> dict:
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "values": values}


def new_samples() -> Samples:
    return collections.defaultdict(lambda: collections.defaultdict(list))


def in_turn(sides: list, run: int) -> list:
    first = run % len(sides)
    return sides[first:] + sides[:first]


class Hashes:
    """Treadle's tokens must be the same ones in every run."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}

    def check(self, what: str, answer: dict) -> None:
        if self.known.setdefault(what, answer["hash"]) != answer["hash"]:
            raise RuntimeError(f"'{what}' gave other tokens than before: {self.known[what]}, then {answer['hash']}")


def note_run(figures: list[Figure], samples: Samples, sides: list[Side], which: str) -> None:
    for figure in figures:
        values = ", ".join(f"{side.name} {short(samples[figure.key][side.name][-1])}" for side in sides)
        say(f"  {which}: {figure.title}: {values}")


def measure(sides: list[Side], workloads: list[Workload], runs: int, samples: Samples, hashes: Hashes) -> None:
    """The first side is Treadle."""
    for run in range(runs):
        for workload in workloads:
            for side in in_turn(sides, run):
                answer = side.ask(workload.command, workload.fresh_process)
                if side is sides[0]:
                    hashes.check(workload.command, answer)
                for figure in workload.figures:
                    samples[figure.key][side.name].append(figure.value(answer))
            note_run(workload.figures, samples, sides, f"run {run + 1} of {runs}")


def ratio(figure: Figure, samples: Samples, name: str, other: str) -> dict:
    """How many times as fast: of the medians, and of each run."""
    speed = (lambda a, b: a / b) if figure.higher_is_better else (lambda a, b: b / a)
    ours, theirs = samples[figure.key][name], samples[figure.key][other]
    return {"to": other, "of_medians": speed(statistics.median(ours), statistics.median(theirs)),
            "of_runs": [speed(a, b) for a, b in zip(ours, theirs)]}


def comparison(title: str, figures: list[Figure], sides: list[Side], samples: Samples, notes: list[str]) -> Table:
    """A row per figure: each side's median, then how many times as fast the first is as each other, beside what is asked for."""
    ours, *peers = sides
    heading = ["", *(side.name for side in sides)]
    for peer in peers:
        heading += [f"times {peer.name}", "goal"]
    rows = [heading]
    for figure in figures:
        row = [figure.title, *(spread(samples[figure.key][side.name]) for side in sides)]
        for place, peer in enumerate(peers):
            times = ratio(figure, samples, ours.name, peer.name)
            row.append(f"{times['of_medians']:.2f} ({min(times['of_runs']):.2f}-{max(times['of_runs']):.2f})")
            goal = figure.goals[place] if place < len(figure.goals) else None
            row.append("" if goal is None else f"{goal:.4g} {'met' if times['of_medians'] >= goal else 'NOT MET'}")
        rows.append(row)
    return Table(title, rows, notes)


def comparison_data(figures: list[Figure], sides: list[Side], samples: Samples) -> list[dict]:
    ours, *peers = sides
    return [{"key": figure.key, "title": figure.title, "higher_is_better": figure.higher_is_better, "goals": list(figure.goals),
             "sides": {side.name: summary(samples[figure.key][side.name]) for side in sides},
             "ratios": [ratio(figure, samples, ours.name, peer.name) for peer in peers]} for figure in figures]
