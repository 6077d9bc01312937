#!/usr/bin/env python3
"""Writes the oracle's answers that `make test` compares the engine with, so that it needs no Python packages.

    make_golden.py MODEL.gguf TOKENS.txt GOLDEN.txt [--oracle LOGITS.bin] [--check LOGITS.bin]

GOLDEN.txt holds every 4th position of each chunk on a line of its own:

    chunk position best logsumexp  id logit  id logit  ...      the 32 best by logit, logits to 6 digits

and for the positions between them a line of the first three alone. With the ids' probabilities p (oracle) and q (engine), and
P and Q their sums, a lower bound of KL(oracle || engine) at a position is

    sum p log(p / q) + (1 - P) log((1 - P) / (1 - Q))

--check prints the mean of that bound beside the exact one for the logits in a file, over the lines that have ids.
"""
import argparse
import os

import numpy

from compare import log_softmax
from numpy_llama import NumpyLlama, read_logits, read_tokens, write_logits

BEST = 32
STRIDE = 4


def has_ids(position):
    return position % STRIDE == STRIDE - 1


def golden_line(chunk, position, logits):
    logits = logits.astype(numpy.float64)
    order = numpy.lexsort((numpy.arange(len(logits)), -logits))[:BEST]
    line = f"{chunk} {position} {order[0]}"
    if not has_ids(position):
        return line
    logsumexp = logits.max() + numpy.log(numpy.exp(logits - logits.max()).sum())
    return line + f" {logsumexp:.6f} " + " ".join(f"{i} {logits[i]:.6g}" for i in order)


def bound(oracle, other):
    p, q = log_softmax(oracle), log_softmax(other)
    ids = numpy.argsort(-oracle, kind="stable")[:BEST]
    p, q = p[ids], q[ids]
    rest_p, rest_q = -numpy.expm1(numpy.log(numpy.exp(p).sum())), -numpy.expm1(numpy.log(numpy.exp(q).sum()))
    return float((numpy.exp(p) * (p - q)).sum() + rest_p * numpy.log(rest_p / rest_q))


def check(oracle, other):
    bounds, exact, same, count = [], [], 0, 0
    for expected, got in zip(oracle, other, strict=True):
        for position, (p, q) in enumerate(zip(expected, got)):
            same += int(p.argmax() == q.argmax())
            count += 1
            if has_ids(position):
                bounds.append(bound(p, q))
                exact.append(float(numpy.sum(numpy.exp(log_softmax(p)) * (log_softmax(p) - log_softmax(q)))))
    print(f"mean bound {numpy.mean(bounds):.5f}, exact {numpy.mean(exact):.5f} over {len(bounds)} positions; "
          f"same top token {same / count:.2%} of {count}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("tokens")
    parser.add_argument("golden")
    parser.add_argument("--oracle", help="where the oracle's logits are kept between runs")
    parser.add_argument("--check", help="logits to compare")
    options = parser.parse_args()
    chunks = read_tokens(options.tokens)
    if options.oracle and os.path.exists(options.oracle):
        oracle = read_logits(options.oracle)
    else:
        model = NumpyLlama(options.model)
        oracle = [model.logits(tokens) for tokens in chunks]
        if options.oracle:
            write_logits(options.oracle, oracle)
    if options.check:
        check(oracle, read_logits(options.check))
    with open(options.golden, "w") as file:
        file.write("# Logits of the NumPy oracle; made by tests/oracle/make_golden.py, which tells the format.\n")
        for chunk, logits in enumerate(oracle):
            for position, row in enumerate(logits):
                file.write(golden_line(chunk, position, row) + "\n")


if __name__ == "__main__":
    main()
