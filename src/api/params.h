// Fields of parameters that several calls of the C ABI have in common.
#pragma once

#include "api/structs.h"
#include "request/request.h"

namespace treadle::api {

inline Status read_priority(int32_t in, Priority* out, Error* error) {
    if (in < ENGINE_PRIORITY_INTERACTIVE || in > ENGINE_PRIORITY_PAUSED)
        return fail(error, Status::INVALID_ARGUMENT, "priority is %d, which is no priority", in);
    *out = static_cast<Priority>(in);
    return Status::OK;
}

inline Status read_deadline(int64_t in_us, int64_t* out_us, Error* error) {
    if (in_us < 0)
        return fail(error, Status::INVALID_ARGUMENT, "deadline_us is %lld, must not be negative",
                    static_cast<long long>(in_us));
    *out_us = in_us;
    return Status::OK;
}

}  // namespace treadle::api
