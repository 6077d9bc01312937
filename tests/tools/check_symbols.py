#!/usr/bin/env python3
"""What the built libraries show and need, read with nm, objdump and readelf.

    check_symbols.py BUILD_FOLDER

Called by 'make test' and 'make check'. Holds that only engine_* leaves libtreadle.so and libtreadle.a and that each function of
engine.h does; that the library's own objects call nothing that ends the process, reads the environment, prints, allocates
behind the host's back or computes in libm, and hold no global state; and that the shared library needs no more than libc.
Prints a line per check, 'ok ...' or 'failed ...'.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

NEEDED_ALLOWED = {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"}

# Symbols that the library's own objects may not refer to, and why.
BANNED = [
    (r"abort|_?exit|quick_exit|_Exit|atexit|__assert_fail|raise|sigaction|signal", "ends or redirects the process"),
    (r"(secure_)?getenv|setenv|putenv|environ", "reads the environment"),
    (r"v?f?printf|__v?f?printf_chk|puts|fputs|fputc|putchar|perror|stdout|stderr|_ZSt4(cout|cerr|clog)", "prints"),
    (r"malloc|calloc|realloc|aligned_alloc|posix_memalign|free|strdup|_Zn[wa].*", "allocates outside of Memory"),
    (r"_ZNSt3pmr(20get_default_resource|19new_delete_resource)Ev", "a pmr container without its Memory"),
    (r"(exp|exp2|expm1|log|log2|log10|log1p|sin|cos|sincos|tan|tanh|sinh|cosh|pow|erf|cbrt|hypot|fma)f?", "computes in libm"),
    (r"_ZNSt6thread.*|_ZNSt6locale.*", "a thread or locale of the C++ library"),
    (r"__cxa_guard_acquire|__cxa_atexit|__cxa_thread_atexit", "a static object that is made at run time"),
]


def output(*command):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


class Report:
    def __init__(self):
        self.failures = 0

    def check(self, what, problems):
        for problem in problems:
            print(f"    {problem}")
        print(f"{'failed' if problems else 'ok'}: {what}")
        self.failures += bool(problems)


def defined(*command):
    """Names in nm's output of defined symbols."""
    return {line.split()[-1].split("@")[0] for line in output(*command).splitlines() if len(line.split()) >= 3}


def own_objects(build):
    """The objects of src/: CMakeFiles/treadle_FOLDER.dir/src/FOLDER/FILE.cpp.o. One whose source is gone doesn't count."""
    return sorted(path for folder in (build / "CMakeFiles").glob("treadle_*.dir") for path in folder.glob("src/*/*.cpp.o")
                  if (ROOT / path.relative_to(folder)).with_suffix("").exists())


def public_functions():
    """The functions that include/engine.h declares: ENGINE_API type name(...);"""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", (ROOT / "include" / "engine.h").read_text(), flags=re.S)
    return set(re.findall(r"^ENGINE_API\b[^;(]*?\b(engine_\w+)\s*\(", text, flags=re.M))


def check_exports(report, build):
    shared = defined("nm", "-D", "--defined-only", build / "libtreadle.so")
    report.check(f"libtreadle.so exports engine_* only ({len(shared)} symbols)",
                 sorted(name for name in shared if not name.startswith("engine_")))
    static = defined("nm", "-g", "--defined-only", build / "libtreadle.a")
    report.check(f"libtreadle.a has global engine_* only ({len(static)} symbols)",
                 sorted(name for name in static if not name.startswith("engine_")))
    public = public_functions()
    report.check("both libraries have each function of engine.h, and no other",
                 [f"{name}: declared, but not in {where}" for where, names in (("libtreadle.so", shared), ("libtreadle.a", static))
                  for name in sorted(public - names)] +
                 [f"{name}: exported, but not declared" for name in sorted((shared | static) - public) if name.startswith("engine_")])


def check_own_objects(report, objects):
    called, state = [], []
    for path in objects:
        name = path.name.removesuffix(".o")
        for line in output("nm", "-u", path).splitlines():
            symbol = line.split()[-1]
            called += [f"{name}: {symbol} ({why})" for pattern, why in BANNED if re.fullmatch(pattern, symbol)]
        for line in output("objdump", "-t", path).splitlines():
            fields = line.split()
            section = next((field for field in fields if field.startswith((".data", ".bss", ".tdata", ".tbss", ".init_array"))), None)
            is_object = " O " in line or (section or "").startswith(".init_array")
            if section and is_object and not section.startswith(".data.rel.ro") and "DW.ref." not in section:
                state.append(f"{name}: {fields[-1]} in {section}")
    report.check(f"the library's own objects call nothing that is banned ({len(objects)} objects)", called)
    report.check("the library's own objects hold no global state", state)


def check_needs(report, build):
    dynamic = output("readelf", "-d", build / "libtreadle.so")
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
    report.check(f"libtreadle.so needs {', '.join(sorted(needed))}", sorted(set(needed) - NEEDED_ALLOWED))
    report.check("libtreadle.so has a SONAME and no text relocations",
                 ([] if re.search(r"\(SONAME\).*\[libtreadle\.so\.\d+\]", dynamic) else ["no SONAME"]) +
                 (["TEXTREL"] if "TEXTREL" in dynamic else []))
    imports = sorted(line.split()[-1].split("@")[0] for line in output("nm", "-D", "-u", build / "libtreadle.so").splitlines())
    print(f"libtreadle.so imports {len(imports)} symbols: {' '.join(imports)}")


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    report = Report()
    check_exports(report, build)
    check_own_objects(report, own_objects(build))
    check_needs(report, build)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
