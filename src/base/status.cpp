// Names and texts of the statuses, and the one place that formats an error message.
#include "base/status.h"

#include <cstdarg>
#include <cstdio>

namespace treadle {

const char* status_name(Status status) {
    switch (status) {
#define TREADLE_STATUS_CASE(number, name, text, aftermath) \
    case Status::name: return #name;
        TREADLE_STATUS_LIST(TREADLE_STATUS_CASE)
#undef TREADLE_STATUS_CASE
    }
    return "UNKNOWN";
}

const char* status_text(Status status) {
    switch (status) {
#define TREADLE_STATUS_CASE(number, name, text, aftermath) \
    case Status::name: return text;
        TREADLE_STATUS_LIST(TREADLE_STATUS_CASE)
#undef TREADLE_STATUS_CASE
    }
    return "a status that this library does not know";
}

Status fail(Error* error, Status status, const char* format, ...) {
    if (error == nullptr) return status;
    error->status = status;
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    return status;
}

}  // namespace treadle
