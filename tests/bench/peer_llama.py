#!/usr/bin/env python3
"""llama.cpp's side of the benchmark: the same commands as treadle_bench, answered by the libllama of llama-cpp-python.

    peer_llama.py MODEL.gguf [--threads N] [--frame-host LIBRARY] [COMMAND...]     without commands: one a line from standard input
    peer_llama.py MODEL.gguf --quantize-to FILE                                    writes it again in Q4_0, by its own quantizer

The commands are those of speed/main.cpp, but `generate` always goes on from whole prompts, and the last numbers of `frames COUNT
FRAME_US SWEEPS SHARE PROMPT` are others: as libllama can't stop in the middle of a pass it generates in a thread of its own, which
rests after each pass until it and its helpers have had no more than that share of the time of their cores (1: it never rests). The
host's frames are run by the library of frames/shared.cpp, the same code as Treadle's side runs.

Called by sides.py with the Python that fetch_peer.sh prints. Only the C interface is used, through ctypes: batches are filled
outside the clock where that is possible, and what Python does inside of it is some microseconds a pass. Flash attention is on,
the cache is f16, n_ubatch 512; logits are asked for where a token is sampled, and sampled by libllama's own greedy sampler.
"""
import argparse
import ctypes
import json
import pathlib
import sys
import threading
import time

import llama_cpp.llama_cpp as llama
from llama_cpp import __version__

BATCH_TOKENS_MAX = 512  # of one physical batch, treadle_bench's max_batch_tokens likewise
CONTEXT_MULTIPLE = 256
OPENING_TOKENS = 8

silence = llama.llama_log_callback(lambda level, text, user: None)


def prompt_token(place, request, vocabulary):
    """Shared with speed/decode.cpp."""
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

    def add_prompt(self, sequence, prompt, vocabulary):
        for place in range(prompt):
            self.add(prompt_token(place, sequence, vocabulary), place, sequence, place == prompt - 1)

    def step(self, tokens, position):
        """One more token for each of the sequences."""
        self.clear()
        for sequence, known in enumerate(tokens):
            self.add(known[-1], position, sequence, True)
        self.compute()
        for sequence, known in enumerate(tokens):
            known.append(self.sample(sequence))

    def forget_after(self, sequence, position):
        llama.llama_memory_seq_rm(llama.llama_get_memory(self.handle), sequence, position, -1)


def vocabulary_of(model):
    return llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))


def answer(whole_s, full_s, tokens):
    return {"whole_s": whole_s, "full_s": full_s, "full_tokens": sum(len(known) - 1 for known in tokens),
            "hash": token_hash(tokens), "opening": token_hash([tokens[0][:OPENING_TOKENS]])}


def decode(model, threads, sequences, prompt, new_tokens):
    """All prompts, then passes of one token for each sequence."""
    context = Context(model, threads, sequences, prompt + new_tokens, sequences * prompt)
    context.clear()
    for sequence in range(sequences):
        context.add_prompt(sequence, prompt, vocabulary_of(model))

    begin = time.perf_counter()
    context.compute()
    tokens = [[context.sample((sequence + 1) * prompt - 1)] for sequence in range(sequences)]
    full_begin = time.perf_counter()
    for step in range(new_tokens - 1):
        context.step(tokens, prompt + step)
    end = time.perf_counter()
    context.free()
    return answer(end - begin, end - full_begin, tokens)


class KeptContexts:
    """Long prompts that stay in the cache, so that generation after them is measured without computing them again."""

    def __init__(self, model, threads, sequences, prompt, new_tokens):
        self.context = Context(model, threads, sequences, prompt + new_tokens, prompt)
        self.vocabulary, self.prompt, self.new_tokens = vocabulary_of(model), prompt, new_tokens
        self.firsts = []  # the token after each prompt

    def fill(self):
        self.context.clear()
        self.context.add_prompt(len(self.firsts), self.prompt, self.vocabulary)
        begin = time.perf_counter()
        self.context.compute()
        self.firsts.append(self.context.sample(self.prompt - 1))
        return answer(time.perf_counter() - begin, 0.0, [self.firsts[-1:]])

    def generate(self, sequences):
        tokens = [[first] for first in self.firsts[:sequences]]
        begin = time.perf_counter()
        for step in range(self.new_tokens - 1):
            self.context.step(tokens, self.prompt + step)
        seconds = time.perf_counter() - begin
        for sequence in range(len(tokens)):
            self.context.forget_after(sequence, self.prompt)
        return answer(seconds, seconds, tokens)


class Talker:
    """Generates in a thread of its own, for `share` of the time of `threads` cores; who is done goes on with the next answer."""

    def __init__(self, model, threads, prompt, capacity, share):
        self.context = Context(model, threads, 1, capacity, prompt)
        self.prompt, self.capacity, self.cores, self.share = prompt, capacity, threads * share, share
        self.host_clock = time.pthread_getcpuclockid(threading.get_ident())  # of the thread that makes this, the host's
        self.context.clear()
        self.context.add_prompt(0, prompt, vocabulary_of(model))
        self.context.compute()
        self.first = self.context.sample(prompt - 1)
        self.tokens = 0
        self.stopping = False
        self.thread = threading.Thread(target=self.talk)
        self.thread.start()

    def cpu_s(self):
        """Processor time of all threads but the host's."""
        return time.process_time() - time.clock_gettime(self.host_clock)

    def talk(self):
        known = [[self.first]]
        begin, cpu_begin = time.perf_counter(), self.cpu_s()
        while not self.stopping:
            self.context.step(known, self.prompt + len(known[0]) - 1)
            self.tokens += 1
            if self.prompt + len(known[0]) >= self.capacity:
                self.context.forget_after(0, self.prompt)
                known = [[self.first]]
            if self.share < 1:
                earned_s = (time.perf_counter() - begin) * self.cores
                time.sleep(max(self.cpu_s() - cpu_begin - earned_s, 0) / self.cores)

    def stop(self):
        self.stopping = True
        self.thread.join()
        self.context.free()


def frames(model, threads, library, count, frame_us, sweeps, share, prompt):
    count = int(count)
    host = ctypes.CDLL(library)
    work_s, frame_s, facts = (ctypes.c_double * count)(), (ctypes.c_double * count)(), (ctypes.c_double * 3)()
    talker = Talker(model, threads, int(prompt), llama.llama_model_n_ctx_train(model), share)
    while talker.tokens == 0:
        time.sleep(0.001)
    cpu_begin, tokens_begin = talker.cpu_s(), talker.tokens
    host.frame_host_run(count, ctypes.c_double(frame_us * 1e-6), int(sweeps), work_s, frame_s, facts)
    cpu, tokens = talker.cpu_s() - cpu_begin, talker.tokens - tokens_begin
    talker.stop()
    return {"work_ms": [round(1e3 * value, 3) for value in work_s], "frame_ms": [round(1e3 * value, 3) for value in frame_s],
            "seconds": facts[0], "ticks_missed": int(facts[2]), "other_cpu_s": cpu, "tokens": tokens}


def quantize(path, to):
    params = llama.llama_model_quantize_default_params()
    params.ftype = llama.LLAMA_FTYPE_MOSTLY_Q4_0
    params.allow_requantize = True
    if llama.llama_model_quantize(path.encode(), to.encode(), ctypes.byref(params)) != 0:
        raise RuntimeError(f"{path} could not be quantized")


def start(path, threads):
    begin = time.perf_counter()
    model = load(path)
    loaded = time.perf_counter()
    outcome = decode(model, threads, 1, 1, 1)
    end = time.perf_counter()
    llama.llama_model_free(model)
    return {**outcome, "load_s": loaded - begin, "start_s": end - begin}


def about(threads):
    code = llama.llama_print_system_info().decode()
    code = " ".join(part.split("=")[0].strip() for part in code.split(":", 1)[-1].split("|") if "= 1" in part)
    return {"library": f"llama-cpp-python {__version__}", "code": code, "threads": threads}


class Program:
    """What lives from one command to the next."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.loaded = None
        self.kept = None

    def model(self):
        self.loaded = self.loaded or load(self.arguments.model)
        return self.loaded

    def keep(self, numbers):
        self.drop()
        self.kept = KeptContexts(self.model(), self.arguments.threads, *numbers)
        return {}

    def drop(self):
        if self.kept:
            self.kept.context.free()
        self.kept = None
        return {}

    def run(self, command):
        verb, *words = command.split()
        threads = self.arguments.threads
        verbs = {"about": lambda: about(threads), "start": lambda: start(self.arguments.model, threads),
                 "decode": lambda: decode(self.model(), threads, *map(int, words)), "keep": lambda: self.keep(map(int, words)),
                 "fill": lambda: self.kept.fill(), "generate": lambda: self.kept.generate(int(words[0])), "drop": self.drop,
                 "frames": lambda: frames(self.model(), threads, self.arguments.frame_host, *map(float, words))}
        if verb not in verbs:
            sys.exit(f"{pathlib.Path(__file__).name}: unknown command '{command.strip()}'")
        return verbs[verb]()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--frame-host", help="the shared library that runs a host's frames")
    parser.add_argument("--quantize-to", metavar="FILE")
    parser.add_argument("commands", nargs="*")
    arguments = parser.parse_intermixed_args()
    llama.llama_log_set(silence, ctypes.c_void_p(0))
    llama.llama_backend_init()
    if arguments.quantize_to:
        quantize(arguments.model, arguments.quantize_to)
        return
    program = Program(arguments)
    for command in arguments.commands or sys.stdin:
        print(json.dumps(program.run(command)), flush=True)


if __name__ == "__main__":
    main()
