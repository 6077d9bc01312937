// Formatting for the log hook; nothing is formatted when nobody listens.
#include "base/hooks.h"

#include <cstdarg>
#include <cstdio>

namespace treadle {

void log_line(const LogHook& log, LogLevel level, const char* format, ...) {
    if (log.write == nullptr) return;
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    log.write(log.user, static_cast<int32_t>(level), line);
}

}  // namespace treadle
