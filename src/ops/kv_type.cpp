// Names of the formats, and which heads each fits.
#include "ops/kv_type.h"

namespace treadle {

const char* kv_type_name(KvType type) {
    switch (type) {
        case KvType::f16: return "f16";
        case KvType::q8_0: return "q8_0";
        case KvType::tbq4: return "tbq4";
        case KvType::tbq4x: return "tbq4x";
    }
    return "?";
}

Status check_kv_format(const char* field, const KvFormat& format, bool is_key, Error* error) {
    const int head_dim = format.head_dim;
    switch (format.type) {
        case KvType::f16: return Status::OK;
        case KvType::q8_0:
            if (head_dim % 32 == 0) return Status::OK;
            return fail(error, Status::INVALID_ARGUMENT, "head_dim is %d, %s q8_0 needs a multiple of 32",
                        head_dim, field);
        case KvType::tbq4x:
            if (!is_key)
                return fail(error, Status::INVALID_ARGUMENT, "%s is tbq4x, which is for keys only", field);
            [[fallthrough]];
        case KvType::tbq4:
            if (head_dim == 64 || head_dim == 128 || head_dim == 256) return Status::OK;
            return fail(error, Status::INVALID_ARGUMENT, "head_dim is %d, %s %s needs 64, 128 or 256",
                        head_dim, field, kv_type_name(format.type));
    }
    return fail(error, Status::INVALID_ARGUMENT, "%s is %d, which is no type of a KV cache", field,
                static_cast<int>(format.type));
}

}  // namespace treadle
