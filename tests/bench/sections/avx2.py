"""The figures of speed.py and kv.py for processors without AVX-512: Treadle's AVX2 code beside a llama.cpp that was built without it.
run() is called by bench.py, when asked for by name: the peer takes minutes to build.
"""
from figures import Section
from sections import kv, speed
from sides import Bench


def run(bench: Bench) -> Section:
    beside = speed.compare(bench, [bench.treadle("avx2"), *bench.llama_sides("avx2")],
                           f"{bench.model_name()}, {bench.threads_text()}, AVX2 code on both sides")
    formats = kv.compare(bench, "avx2")
    return Section([*beside.tables, *formats.tables], {"speed": beside.data, "kv": formats.data})
