// Promise: for any parameters that check_sampling accepts and any row of floats, `sample` returns
// NOT_A_NUMBER or exactly the token of the plain sampler; parameters that it rejects come with a message.
//
// Input: temperature, top_p, min_p (4 bytes each), top_k (4), seed (8), position (4), length of the row (2),
// then the row's floats, repeated where the input is short.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../unit/test_sampling_reference.h"
#include "sampling/sampler.h"

using namespace treadle;

namespace {

struct Input {
    const uint8_t* bytes;
    size_t size;
    template <class T>
    T take() {
        T value{};
        const size_t taken = size < sizeof(T) ? size : sizeof(T);
        if (taken > 0) std::memcpy(&value, bytes, taken);
        bytes += taken;
        size -= taken;
        return value;
    }
};

void require(bool condition) {
    if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
    Input input{bytes, size};
    SamplingParams params;
    params.temperature = input.take<float>();
    params.top_p = input.take<float>();
    params.min_p = input.take<float>();
    params.top_k = input.take<int32_t>();
    params.seed = input.take<uint64_t>();
    const int32_t position = input.take<int32_t>() & 0x7fffffff;
    const size_t vocabulary = 1 + input.take<uint16_t>() % 2048;

    Error error;
    if (check_sampling(params, &error) != Status::OK) {
        require(error.message[0] != 0);
        params = SamplingParams{};  // the row may still be interesting
    }
    std::vector<float> logits(vocabulary);
    const Input row_bytes = input;
    for (float& logit : logits) {
        if (input.size < sizeof(float)) input = row_bytes;
        logit = input.take<float>();
    }

    const RowResult row = sampling_reference::row_result(logits, inverse_temperature(params));
    std::vector<Candidate> scratch(vocabulary);
    TokenLogprob out{-1, 0};
    const Status status =
        sample(params, 0, position, row, logits.data(), static_cast<int32_t>(vocabulary), scratch, &out);
    if (row.usable == 0) {
        require(status == Status::NOT_A_NUMBER);
        return 0;
    }
    require(status == Status::OK);
    require(out.token == sampling_reference::choose(params, 0, position, logits).token);
    require(!std::isnan(out.logprob));
    return 0;
}
