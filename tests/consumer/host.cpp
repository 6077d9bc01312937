// A C++ program that uses an installed Treadle, and finds its malloc and operator new as they were: libc's and libstdc++'s.
#include <dlfcn.h>
#include <engine.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

// The file of the function that this program and its libraries get under a name.
std::string owner(const std::string& symbol) {
    Dl_info info{};
    void* address = dlsym(RTLD_DEFAULT, symbol.c_str());
    return address != nullptr && dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname
                                                                                          : "nobody";
}

bool belong_to(const std::vector<std::string>& symbols, const std::string& library) {
    for (const std::string& symbol : symbols) {
        if (owner(symbol).find(library) != std::string::npos) continue;
        std::fprintf(stderr, "%s belongs to %s, not to %s\n", symbol.c_str(), owner(symbol).c_str(),
                     library.c_str());
        return false;
    }
    return true;
}

}  // namespace

int main() {
    if (engine_abi_version() != ENGINE_ABI_VERSION) return EXIT_FAILURE;
    const bool libc =
        belong_to({"malloc", "calloc", "realloc", "free", "posix_memalign", "aligned_alloc"}, "libc.so");
    const bool libstdcxx = belong_to({"_Znwm", "_Znam", "_ZdlPv", "_ZdaPv", "_ZdlPvm"}, "libstdc++.so");
    return libc && libstdcxx ? EXIT_SUCCESS : EXIT_FAILURE;
}
