#!/usr/bin/env python3
"""llama.cpp's side of the benchmark: the same commands as treadle_bench, answered by the libllama of llama-cpp-python.

    peer_llama.py MODEL.gguf [--threads N] [COMMAND...]         without commands: one a line from standard input

Called by bench.py with the Python that fetch_peer.sh prints. Only the C interface is used, through ctypes: batches are filled
outside the clock where that is possible, and what Python does inside of it is some microseconds a pass. Flash attention is on,
the cache is f16, n_ubatch 512; logits are asked for where a token is sampled, and sampled by libllama's own greedy sampler.
"""
import argparse
import ctypes
import json
import pathlib
import sys
import time

import llama_cpp.llama_cpp as llama
from llama_cpp import __version__

BATCH_TOKENS_MAX = 512  # of one physical batch, treadle_bench's max_batch_tokens likewise
CONTEXT_MULTIPLE = 256
OPENING_TOKENS = 8

silence = llama.llama_log_callback(lambda level, text, user: None)


def prompt_token(place, request, vocabulary):
    """Shared with treadle_bench.cpp."""
    return 3 + (place * 7919 + request * 104729) % (vocabulary - 3)


def token_hash(sequences):
    """FNV-1a, as treadle_bench makes it."""
    value = 0xCBF29CE484222325
    for tokens in sequences:
        for token in tokens:
            for byte in int(token).to_bytes(4, "little"):
                value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def load(path):
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    if not model:
        raise RuntimeError(f"{path} could not be loaded")
    return model


class Context:
    """A context for some sequences of at most `tokens` tokens each, with one batch that is filled again and again."""

    def __init__(self, model, threads, sequences, tokens, batch_tokens):
        params = llama.llama_context_default_params()
        params.n_seq_max = sequences
        params.n_ctx = sequences * -(-tokens // CONTEXT_MULTIPLE) * CONTEXT_MULTIPLE
        params.n_batch = max(batch_tokens, sequences)
        params.n_ubatch = BATCH_TOKENS_MAX
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.type_k = params.type_v = llama.GGML_TYPE_F16
        params.offload_kqv = params.op_offload = False
        self.handle = llama.llama_init_from_model(model, params)
        if not self.handle:
            raise RuntimeError("a context could not be made")
        self.batch = llama.llama_batch_init(params.n_batch, 0, 1)
        self.sampler = llama.llama_sampler_init_greedy()

    def free(self):
        llama.llama_sampler_free(self.sampler)
        llama.llama_batch_free(self.batch)
        llama.llama_free(self.handle)

    def clear(self):
        self.batch.n_tokens = 0

    def add(self, token, position, sequence, wants_logits):
        batch, row = self.batch, self.batch.n_tokens
        batch.token[row] = token
        batch.pos[row] = position
        batch.n_seq_id[row] = 1
        batch.seq_id[row][0] = sequence
        batch.logits[row] = wants_logits
        batch.n_tokens = row + 1

    def compute(self):
        status = llama.llama_decode(self.handle, self.batch)
        if status != 0:
            raise RuntimeError(f"llama_decode answered {status}")
        llama.llama_synchronize(self.handle)

    def sample(self, row):
        return llama.llama_sampler_sample(self.sampler, self.handle, row)


def decode(model, threads, sequences, prompt, new_tokens):
    """All prompts, then passes of one token for each sequence."""
    vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    context = Context(model, threads, sequences, prompt + new_tokens, sequences * prompt)
    tokens = [[] for _ in range(sequences)]
    context.clear()
    for sequence in range(sequences):
        for place in range(prompt):
            context.add(prompt_token(place, sequence, vocabulary), place, sequence, place == prompt - 1)

    begin = time.perf_counter()
    context.compute()
    for sequence in range(sequences):
        tokens[sequence].append(context.sample((sequence + 1) * prompt - 1))
    full_begin = time.perf_counter()
    for step in range(new_tokens - 1):
        context.clear()
        for sequence in range(sequences):
            context.add(tokens[sequence][-1], prompt + step, sequence, True)
        context.compute()
        for sequence in range(sequences):
            tokens[sequence].append(context.sample(sequence))
    end = time.perf_counter()
    context.free()
    return {"whole_s": end - begin, "full_s": end - full_begin, "full_tokens": sequences * (new_tokens - 1),
            "hash": token_hash(tokens), "opening": token_hash([tokens[0][:OPENING_TOKENS]])}


def start(path, threads):
    begin = time.perf_counter()
    model = load(path)
    loaded = time.perf_counter()
    outcome = decode(model, threads, 1, 1, 1)
    end = time.perf_counter()
    llama.llama_model_free(model)
    return {"load_s": loaded - begin, "start_s": end - begin, "hash": outcome["opening"]}


def about(threads):
    code = llama.llama_print_system_info().decode()
    code = " ".join(part.split("=")[0].strip() for part in code.split(":", 1)[-1].split("|") if "= 1" in part)
    return {"library": f"llama-cpp-python {__version__}", "code": code, "threads": threads}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("commands", nargs="*")
    arguments = parser.parse_intermixed_args()
    llama.llama_log_set(silence, ctypes.c_void_p(0))
    llama.llama_backend_init()
    model = None
    for command in arguments.commands or sys.stdin:
        verb, *numbers = command.split()
        if verb == "start":
            answer = start(arguments.model, arguments.threads)
        elif verb == "about":
            answer = about(arguments.threads)
        elif verb == "decode" and len(numbers) == 3:
            model = model or load(arguments.model)
            answer = decode(model, arguments.threads, *map(int, numbers))
        else:
            sys.exit(f"{pathlib.Path(__file__).name}: unknown command '{command.strip()}'")
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
