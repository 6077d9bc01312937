"""What the benches say about the machine they ran on. Imported by bench.py and serving.py."""
import os
import pathlib
import platform
import re
import time


def processor() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.M)
    return found.group(1) if found else platform.machine()


def load_average() -> float:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def cores() -> int:
    return len(os.sched_getaffinity(0))


def facts() -> dict:
    instructions = re.search(r"^flags\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.M)
    cache = _read("/sys/devices/system/cpu/cpu0/cache/index3/size").strip()
    memory = re.search(r"^MemTotal:\s*(\d+) kB", _read("/proc/meminfo"), re.M)
    return {"processor": processor(), "cores": cores(), "last_cache": cache or None,
            "memory_bytes": 1024 * int(memory.group(1)) if memory else None,
            "instructions": [word for word in (instructions.group(1).split() if instructions else [])
                             if word.startswith(("avx", "fma", "f16c", "sse", "amx"))],
            "system": f"{platform.system()} {platform.release()}", "python": platform.python_version()}


def minutes(seconds: float) -> str:
    return f"{int(seconds) // 60} min {int(seconds) % 60} s" if seconds >= 60 else f"{seconds:.0f} s"


class Stopwatch:
    def __init__(self) -> None:
        self.begin = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self.begin


def _read(path: str) -> str:
    try:
        return pathlib.Path(path).read_text()
    except OSError:
        return ""
