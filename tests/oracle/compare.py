#!/usr/bin/env python3
"""How far an engine's logits are from the oracle's: mean KL(oracle || engine) and the share of positions with the same top token.

    compare.py MODEL.gguf TOKENS.txt [--engine LOGITS.bin] [--peer] [--oracle LOGITS.bin]

--engine: logits that the engine wrote (format: numpy_llama.py); --peer: llama-cpp-python on the same tokens, for comparison;
--oracle: where the oracle's logits are kept between runs (made if it isn't there).
"""
import argparse
import dataclasses
import os

import numpy

from numpy_llama import NumpyLlama, read_logits, read_tokens, write_logits


def log_softmax(logits):
    logits = logits.astype(numpy.float64)
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - numpy.log(numpy.exp(logits).sum(axis=-1, keepdims=True))


@dataclasses.dataclass
class Distance:
    """Over the scored positions: losses in nats, of those whose next token is known; KL(oracle || other); same top token."""

    oracle_losses: numpy.ndarray
    losses: numpy.ndarray
    divergences: numpy.ndarray
    same: numpy.ndarray

    @property
    def perplexity_ratio(self):
        return float(numpy.exp(self.losses.mean() - self.oracle_losses.mean()))

    @property
    def mean_kl(self):
        return float(self.divergences.mean())

    @property
    def p99_kl(self):
        return float(numpy.quantile(self.divergences, 0.99))

    @property
    def same_top(self):
        return float(self.same.mean())


def distance(chunks, oracle, other, scored_from=0.0):
    """Distance of `other` from `oracle`, both logits per chunk, over the positions after this share of each chunk."""
    rows = []
    for tokens, expected, got in zip(chunks, oracle, other, strict=True):
        if expected.shape != got.shape:
            raise ValueError(f"logits are {got.shape}, the oracle's {expected.shape}")
        for position in range(int(len(tokens) * scored_from), len(tokens)):
            p, q = log_softmax(expected[position]), log_softmax(got[position])
            following = tokens[position + 1] if position + 1 < len(tokens) else None
            losses = (numpy.nan, numpy.nan) if following is None else (-p[following], -q[following])
            rows.append((*losses, numpy.sum(numpy.exp(p) * (p - q)), numpy.argmax(p) == numpy.argmax(q)))
    oracle_losses, losses, divergences, same = numpy.array(rows).T
    known = ~numpy.isnan(losses)
    return Distance(oracle_losses[known], losses[known], divergences, same)


def report(name, chunks, oracle, other):
    of = distance(chunks, oracle, other)
    print(f"{name}: {len(of.divergences)} positions, mean KL(oracle || {name}) {of.mean_kl:.5f}, same top token {of.same_top:.2%}, "
          f"perplexity {of.perplexity_ratio:.4f} times the oracle's {numpy.exp(of.oracle_losses.mean()):.3f}")


def peer_logits(model, chunks):
    from llama_cpp import Llama

    peer = Llama(model_path=model, n_ctx=max(map(len, chunks)), logits_all=True, n_threads=2, verbose=False)
    for tokens in chunks:
        peer.reset()
        peer.eval(tokens)
        yield numpy.array(peer.scores[: len(tokens)], dtype=numpy.float32)


def oracle_logits(model, chunks, kept):
    """The oracle's logits per chunk, from the file `kept` if that exists, else made and, if it is a name, kept there."""
    if kept and os.path.exists(kept):
        return read_logits(kept)
    oracle = NumpyLlama(model)
    logits = [oracle.logits(tokens) for tokens in chunks]
    if kept:
        write_logits(kept, logits)
    return logits


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("tokens")
    parser.add_argument("--engine")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--oracle")
    options = parser.parse_args()
    chunks = read_tokens(options.tokens)
    oracle = oracle_logits(options.model, chunks, options.oracle)
    if options.engine:
        report("engine", chunks, oracle, read_logits(options.engine))
    if options.peer:
        report("peer", chunks, oracle, list(peer_logits(options.model, chunks)))


if __name__ == "__main__":
    main()
