#!/usr/bin/env python3
"""What the formats of the KV cache cost in quality: the engine's logits with each pair of them against the oracle's.

    kv_quality.py MODEL.gguf DUMP_LOGITS [--text TEXT] [--folder FOLDER] [--formats-alone]

DUMP_LOGITS is the program of that name in the build folder. The text, Debian's copy of the GPL-3 if none is given, is cut into 8
chunks of 512 tokens from its beginning and one of 4,096 from its end; the second half of each is scored. FOLDER keeps the
oracle's logits between runs (2 GB). With --formats-alone the formats are the only thing that isn't float32: keys and values pass
through them in the oracle itself (numpy_kv.py). Takes some minutes and 8 GB of memory; needs `pip install gguf numpy`.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

from compare import distance, oracle_logits
from numpy_kv import NumpyLlamaKv
from numpy_llama import read_logits

PAIRS = [("f16", "f16"), ("q8_0", "q8_0"), ("q8_0", "tbq4"), ("tbq4x", "tbq4"), ("tbq4", "tbq4")]
SHORT, LONG = 512, 4096
SCORED_FROM = 0.5


def cut(tokens):
    if len(tokens) < max(8 * SHORT, LONG):
        sys.exit(f"the text has {len(tokens)} tokens; needed are {max(8 * SHORT, LONG)}")
    return [tokens[i * SHORT : (i + 1) * SHORT] for i in range(8)], [tokens[-LONG:]]


def cells(chunks, oracle, logits):
    of = distance(chunks, oracle, logits, SCORED_FROM)
    return f"{of.perplexity_ratio:.4f} | {of.mean_kl:.4f} | {of.p99_kl:.3f} | {of.same_top:.1%}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("dump_logits")
    parser.add_argument("--text", default="/usr/share/common-licenses/GPL-3")
    parser.add_argument("--folder")
    parser.add_argument("--formats-alone", action="store_true")
    options = parser.parse_args()
    scratch = tempfile.TemporaryDirectory()
    folder = pathlib.Path(options.folder or scratch.name)
    folder.mkdir(parents=True, exist_ok=True)
    tokens = subprocess.run([options.dump_logits, options.model, options.text], check=True, capture_output=True, text=True).stdout
    sets = dict(zip(("short", "long"), cut([int(token) for token in tokens.split()])))
    oracle = {}
    for name, chunks in sets.items():
        (folder / f"{name}.txt").write_text("".join(" ".join(map(str, chunk)) + "\n" for chunk in chunks))
        print(f"oracle, {name}", file=sys.stderr)
        oracle[name] = oracle_logits(options.model, chunks, folder / f"oracle-{name}.bin")
    print(f"| keys / values | 8 chunks of {SHORT}: ppl, KL, p99, same top ||||  one of {LONG}: ppl, KL, p99, same top ||||")
    print("|---" * 9 + "|")
    for keys, values in PAIRS:
        row = f"| {keys} / {values}"
        for name, chunks in sets.items():
            print(f"{keys}/{values}, {name}", file=sys.stderr)
            if options.formats_alone:
                model = NumpyLlamaKv(options.model, keys, values)
                row += " | " + cells(chunks, oracle[name], (model.logits(tokens) for tokens in chunks))
                continue
            logits = folder / "engine.bin"
            subprocess.run([options.dump_logits, options.model, folder / f"{name}.txt", logits, keys, values], check=True)
            row += " | " + cells(chunks, oracle[name], read_logits(logits))
            logits.unlink()
        print(row + " |", flush=True)


if __name__ == "__main__":
    main()
