#!/usr/bin/env python3
"""How far an engine's logits are from the oracle's: mean KL(oracle || engine) and the share of positions with the same top token.

    compare.py MODEL.gguf TOKENS.txt [--engine LOGITS.bin] [--peer] [--oracle LOGITS.bin]

--engine: logits that the engine wrote (format: numpy_llama.py); --peer: llama-cpp-python on the same tokens, for comparison;
--oracle: where the oracle's logits are kept between runs (made if it isn't there).
"""
import argparse
import os

import numpy

from numpy_llama import NumpyLlama, read_logits, read_tokens, write_logits


def log_softmax(logits):
    logits = logits.astype(numpy.float64)
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - numpy.log(numpy.exp(logits).sum(axis=-1, keepdims=True))


def report(name, oracle, other):
    """Prints and returns (mean KL, share of equal top tokens) over all positions of all chunks."""
    divergence, same, count = 0.0, 0, 0
    for expected, got in zip(oracle, other, strict=True):
        if expected.shape != got.shape:
            raise ValueError(f"{name}: logits are {got.shape}, the oracle's {expected.shape}")
        for p, q in zip(expected, got):
            p, q = log_softmax(p), log_softmax(q)
            divergence += float(numpy.sum(numpy.exp(p) * (p - q)))
            same += int(numpy.argmax(p) == numpy.argmax(q))
            count += 1
    print(f"{name}: {count} positions, mean KL(oracle || {name}) {divergence / count:.5f}, same top token {same / count:.2%}")
    return divergence / count, same / count


def peer_logits(model, chunks):
    from llama_cpp import Llama

    peer = Llama(model_path=model, n_ctx=max(map(len, chunks)), logits_all=True, n_threads=2, verbose=False)
    for tokens in chunks:
        peer.reset()
        peer.eval(tokens)
        yield numpy.array(peer.scores[: len(tokens)], dtype=numpy.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("tokens")
    parser.add_argument("--engine")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--oracle")
    options = parser.parse_args()
    chunks = read_tokens(options.tokens)
    if options.oracle and os.path.exists(options.oracle):
        oracle = read_logits(options.oracle)
    else:
        model = NumpyLlama(options.model)
        oracle = [model.logits(tokens) for tokens in chunks]
        if options.oracle:
            write_logits(options.oracle, oracle)
    loss = numpy.mean([-log_softmax(o[:-1])[numpy.arange(len(t) - 1), t[1:]].mean() for o, t in zip(oracle, chunks)])
    print(f"oracle: mean loss {loss:.4f}")
    if options.engine:
        report("engine", oracle, read_logits(options.engine))
    if options.peer:
        report("peer", oracle, list(peer_logits(options.model, chunks)))


if __name__ == "__main__":
    main()
