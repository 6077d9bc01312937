"""The programs that a bench sends commands to, and how the peer and its files come about. Imported by bench.py and its sections.

Each side is a process that answers one line of JSON to a line: treadle_bench (speed/main.cpp says which commands there are),
peer_llama.py, which runs llama.cpp, and ceilings_bench, which asks the machine alone.
"""
import dataclasses
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import typing

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TINY = "--tiny"


class Side:
    """One of the programs, kept alive between the commands."""

    def __init__(self, name: str, command: typing.Sequence[object]) -> None:
        self.name = name
        self.command = [str(word) for word in command]
        self.process: subprocess.Popen | None = None
        self.about = self.ask("about")

    def ask(self, command: str, fresh_process: bool = False) -> dict:
        if fresh_process:
            answer = subprocess.run([*self.command, command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
            line = answer.stdout
        else:
            if not self.process:
                self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
            self.process.stdin.write(command + "\n")
            line = self.process.stdout.readline()
        if not line.strip():
            raise RuntimeError(f"{self.name} gave no answer to '{command}'")
        return json.loads(line)

    def close(self) -> None:
        if self.process:
            self.process.stdin.close()
            self.process.wait()
            self.process = None

    def __enter__(self) -> "Side":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclasses.dataclass
class Bench:
    """What all sections are given: where things are, how often to measure, and whether only to see that it works (`small`)."""
    build: pathlib.Path
    model: str  # a path, or TINY
    threads: int
    runs: int
    peer: str  # 0: without; 1: fetched if need be; else a Python that has llama-cpp-python
    pictures: pathlib.Path
    small: bool = False
    peers: dict = dataclasses.field(default_factory=dict)  # Pythons found so far, by kind

    def model_name(self) -> str:
        return "a tiny random model" if self.model == TINY else pathlib.Path(self.model).name

    def threads_text(self) -> str:
        return "1 thread" if self.threads == 1 else f"{self.threads} threads"

    def treadle(self, code: str = "automatic", name: str = "Treadle", model: str | None = None, *options: str) -> Side:
        return Side(name, [self.build / "treadle_bench", model or self.model, "--threads", self.threads, "--code", code, *options])

    def ceilings(self, threads: int) -> Side:
        return Side("machine", [self.build / "ceilings_bench", "--threads", threads])

    def llama(self, python: str, model: str, name: str) -> Side:
        return Side(name, [python, HERE / "peer_llama.py", model, "--threads", self.threads,
                           "--frame-host", self.build / "libframe_host.so"])

    def peer_python(self, kind: str = "native") -> str | None:
        """The Python to run peer_llama.py with, or None; says once what to do when it can't be had."""
        if self.peer == "0" or self.small:
            return None
        if self.peer != "1" and kind == "native":
            return self.peer
        if kind not in self.peers:
            options = [] if kind == "native" else [f"--{kind}"]
            found = subprocess.run([HERE / "fetch_peer.sh", *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
            self.peers[kind] = found.stdout.strip() if found.returncode == 0 else None
            if found.returncode != 0:
                print("Measuring Treadle alone. To compare with llama.cpp, run it again where PyPI can be reached, or name a Python "
                      "that has llama-cpp-python: make bench PEER=/path/to/python. PEER=0 leaves llama.cpp out.", file=sys.stderr)
        return self.peers[kind]

    def q4_0_file(self, python: str) -> pathlib.Path:
        """The same model in the format that llama.cpp is fastest with, made once by its own quantizer."""
        digest = hashlib.sha256(pathlib.Path(self.model).read_bytes()).hexdigest()[:16]
        folder = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "treadle"
        file = folder / f"{pathlib.Path(self.model).stem}-{digest}-to-Q4_0.gguf"
        if not file.exists():
            print(f"making {file.name} with llama.cpp's quantizer, once", file=sys.stderr, flush=True)
            folder.mkdir(parents=True, exist_ok=True)
            unfinished = file.with_suffix(f".{os.getpid()}")
            subprocess.run([python, HERE / "peer_llama.py", self.model, "--quantize-to", unfinished], check=True,
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            unfinished.replace(file)
        return file

    def llama_sides(self, kind: str = "native") -> list[Side]:
        """llama.cpp on the same file and on its best format; none where it can't be had."""
        python = self.peer_python(kind)
        if not python:
            return []
        return [self.llama(python, self.model, "llama.cpp"), self.llama(python, str(self.q4_0_file(python)), "llama.cpp Q4_0")]
