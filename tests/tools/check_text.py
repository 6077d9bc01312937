#!/usr/bin/env python3
"""The rules of the text: who may include whom, lengths, banned calls with their replacements, openings of files.

    check_text.py [FILE...]        without files: every file that git knows or would add

Called by 'make test' and 'make check'. Prints each breach as file:line: what, then one line per rule, 'ok ...' or 'failed ...'.
The rules look at text, not at a syntax tree: comments and strings are blanked first, and braces are matched.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70
TEST_LINES_MAX = 120  # a test case may hold a table and several SUBCASEs
FUNCTION_LINES_MAX_OF = {"Engine::step": 40}
COLUMNS_MAX = 130  # code keeps to clang-format's 110; a comment or a table may go a little beyond

# Who may include whom; a folder also gets what these may include.
MAY_INCLUDE = {
    "base": [], "quant": ["base"], "text": ["base"], "ops": ["base"], "kv": ["base"], "gguf": ["quant"],
    "cpu": ["ops", "quant"], "model": ["ops", "gguf", "text"], "sampling": ["ops"], "request": ["sampling", "text", "kv"],
    "scheduler": ["request", "kv"], "runner": ["scheduler", "model", "ops", "sampling"],
    "engine": ["base", "quant", "gguf", "text", "ops", "model", "kv", "request", "scheduler", "runner", "sampling"],
    "api": ["engine", "cpu"],
}
ONLY_PLAN = ("runner", "scheduler")  # of the scheduler, the runner sees the plan

# Headers from outside that only these folders may include.
OUTSIDE = [
    (r"engine\.h", ["api"]),
    (r"pcre2\.h", ["text"]),
    (r"mimalloc\.h", ["api"]),
    (r"\w*intrin\.h", ["base", "cpu"]),
    (r"pthread\.h|sched\.h|signal\.h|unistd\.h|fcntl\.h|time\.h|sys/.*|linux/.*", ["base", "cpu"]),
    (r"iostream|fstream|sstream|regex|thread|future|random|csignal|locale", []),
]

# These folders see no raw input, so an assert in them states an invariant.
BEHIND_VALIDATION = ["base", "cpu", "ops", "kv", "request", "scheduler", "runner", "engine"]

# Banned in src/: pattern, folders where it is allowed, what to use instead.
LIBM = "exp|exp2|expm1|log|log2|log10|log1p|sin|cos|tan|tanh|sinh|cosh|pow|erf|cbrt|hypot|fma"
OWNING = ("vector|string|deque|list|map|multimap|unordered_map|set|multiset|unordered_set|function|thread|jthread|async|"
          "shared_ptr|make_shared|make_unique|to_string|ostringstream|stringstream|any|packaged_task")
BANNED = [
    (r"(?<![\w.>])(std::)?(abort|terminate)\s*\(", [], "return a Status"),
    (r"(?<![\w.>])(std::)?(_?exit|quick_exit|_Exit|atexit)\s*\(", [], "return a Status"),
    (r"\b(secure_)?getenv\s*\(|\b(set|put)env\s*\(|\benviron\b", [], "a field of the caller's parameters"),
    (r"\b(v?f?printf|puts|fputs|putchar|perror)\s*\(|\b(stdout|stderr)\b|\bstd::(cout|cerr|clog)\b", [], "log_line"),
    (r"(?<!static_)\bassert\s*\(", BEHIND_VALIDATION, "fail(...): here the input is not checked yet"),
    (r"\bstd::w?regex\b", [], "PCRE2 in src/text"),
    (rf"(?<![\w.>:])({LIBM})[fl]\s*\(|(?:\bstd|(?<!\w))::({LIBM})[fl]?\s*\(|\b__builtin_({LIBM})[fl]?\s*\(", [],
     "the functions of base/math.h"),
    (r"(?<![\w.>])(std::)?(malloc|calloc|realloc|aligned_alloc|posix_memalign|strdup)\s*\(|(?<![\w.>])(std::)?free\s*\(\s*[^)\s]", [],
     "a pmr container or make_owned on a Memory"),
    (r"(?<!::)(?<!operator )\bnew\b(?!\s*\()", ["base"], "make_owned on a Memory"),
    (r"\bdelete\b(?!\s*[;,)])|\bdelete\s+\w", ["base"], "Owned<T>"),
    (rf"\bstd::({OWNING})\b(?!::npos)", [], "its std::pmr twin, Owned<T>, a hook or the thread pool"),
    (r"\bstd::pmr::(get_default_resource|new_delete_resource|set_default_resource)\b", [], "the Memory that was handed in"),
    (r"\b(strto[a-z]+|ato[ifl]l?|setlocale)\s*\(", [], "std::from_chars (no locale)"),
    (r"\b(s?rand|random|time|localtime|gmtime|clock)\s*\(\s*(NULL|nullptr|0|&|\))", [], "the clock hook, Philox"),
    (r"\b(sprintf|strcpy|strcat|strtok|gets|alloca|system)\s*\(", [], "a call that knows the size of its buffer"),
    (r"\b(std::)?(signal|sigaction|raise|longjmp)\s*\(", [], "nothing: the library leaves signals to the host"),
    (r"\bthread_local\b", [], "an object that the caller owns"),
    (r"\busing\s+namespace\b", [], "the name in full"),
]
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK)\b")

CODE = {".h", ".c", ".cpp", ".cuh", ".cu"}
COMMENT_START = {".h": ("//", "/*"), ".c": ("//", "/*"), ".cpp": ("//", "/*"), ".cuh": ("//", "/*"), ".cu": ("//", "/*"),
                 ".py": ('"""', "#"), ".sh": ("#",), ".map": ("/*",), ".in": ("#",), ".rs": ("//",)}


def blank(text):
    """The text with comments and the insides of strings replaced by blanks; lines and columns stay where they are."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^(\n]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'', re.S)

    def replace(match):
        found = match.group(0)
        quote = '"' if found.endswith('"') else "'" if found.endswith("'") and found.startswith("'") else None
        inner = re.sub(r"[^\n]", " ", found)
        return quote + inner[1:-1] + quote if quote and len(found) > 1 else inner

    return pattern.sub(replace, text)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def functions(code):
    """(name, first line, lines) of each function definition in blanked code: an opening brace outside of any function whose
    head since the last ';', '{' or '}' ends like a parameter list, perhaps with qualifiers or member initialisers."""
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda match: re.sub(r"[^\n]", " ", match.group(0)), code, flags=re.M)
    depth_inside = 0  # braces open within the current function
    head_start = 0
    name, start = "", 0
    initialiser_depth = 0
    for match in re.finditer(r"[;{}]", code):
        mark, at = match.group(0), match.start()
        if depth_inside:
            depth_inside += (mark == "{") - (mark == "}")
            if depth_inside == 0:
                yield name, line_of(code, start), code.count("\n", start, at) + 1
                head_start = at + 1
            continue
        if initialiser_depth:
            initialiser_depth += (mark == "{") - (mark == "}")
            continue
        head = code[head_start:at]
        if mark == "{":
            opens_scope = re.search(r"^\s*(inline\s+)?(namespace|extern)\b", head) or (
                re.search(r"\b(class|struct|union|enum)\b[^()]*$", head) and "(" not in re.sub(r"<[^<>]*>|alignas\([^)]*\)|"
                                                                                          r"__attribute__\(\([^)]*\)\)", "", head))
            signature = re.search(r"([~\w:]+|operator\s*\S+?)\s*\(", head)
            if opens_scope:
                head_start = at + 1
            elif re.search(r"\)[\s\w:&<>,*()\-.{}]*$", head) and signature and not re.search(r"=\s*$", head):
                depth_inside = 1
                name = signature.group(1)
                start = head_start + (len(head) - len(head.lstrip()))
            else:
                initialiser_depth = 1
        else:
            head_start = at + 1


class Report:
    """Breaches per rule, in the order the rules are first mentioned."""

    def __init__(self, rules):
        self.breaches = {rule: 0 for rule in rules}

    def add(self, rule, path, line, message):
        self.breaches[rule] += 1
        print(f"{path}:{line}: {message}")


def reachable(folder):
    seen, todo = {folder}, [folder]
    while todo:
        for other in MAY_INCLUDE[todo.pop()]:
            if other not in seen:
                seen.add(other)
                todo.append(other)
    return seen


def check_includes(report, path, text):
    folder = path.parts[1]
    if folder not in MAY_INCLUDE:
        report.add("includes", path, 1, f"the folder src/{folder} is not in the list of who may include whom")
        return
    for match in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', text, re.M):
        line, included = line_of(text, match.start()), match.group(2)
        other = included.split("/")[0]
        if match.group(1) == '"' and other in MAY_INCLUDE:
            if other not in reachable(folder):
                report.add("includes", path, line, f"src/{folder} may not include src/{other}")
            elif (folder, other) == ONLY_PLAN and "plan" not in included:
                report.add("includes", path, line, "of src/scheduler, src/runner may include the plan only")
            if not (ROOT / "src" / included).exists():
                report.add("includes", path, line, f'"{included}" is no file of src/')
            continue
        for pattern, folders in OUTSIDE:
            if re.fullmatch(pattern, included) and folder not in folders:
                where = "src/" + " and src/".join(folders) if folders else "no folder of src/"
                report.add("includes", path, line, f"<{included}> may be included by {where} only")


def check_banned(report, path, code):
    folder = path.parts[1]
    code = re.sub(r"^#include[^\n]*", lambda match: " " * len(match.group(0)), code, flags=re.M)
    for pattern, folders, instead in BANNED:
        if folder in folders:
            continue
        for match in re.finditer(pattern, code):
            report.add("banned calls", path, line_of(code, match.start()), f"'{match.group(0).strip()}' is banned here; use {instead}")


def check_lengths(report, path, text, code):
    lines = text.count("\n")
    if lines > FILE_LINES_MAX:
        report.add("lengths", path, lines, f"{lines} lines, the limit is {FILE_LINES_MAX}")
    for name, line, length in functions(code):
        limit = TEST_LINES_MAX if path.parts[0] == "tests" else FUNCTION_LINES_MAX_OF.get(name, FUNCTION_LINES_MAX)
        if length > limit:
            report.add("lengths", path, line, f"{name} has {length} lines, the limit is {limit}")


def check_shape(report, path, text):
    lines = text.split("\n")
    start = 1 if lines[0].startswith("#!") and len(lines) > 1 else 0
    opening = COMMENT_START.get(path.suffix)
    if opening and not lines[start].startswith(opening):
        report.add("openings", path, start + 1, "a file opens with a comment: its purpose, who calls it, its main invariant")
    if path.suffix == ".h" and path.parts[0] in ("src", "cuda") and "#pragma once" not in text:
        report.add("openings", path, 1, "a header has #pragma once")
    for number, line in enumerate(lines, 1):
        if UNFINISHED.search(line):
            report.add("unfinished", path, number, f"left over: {line.strip()[:80]}")
        if path.suffix in CODE:
            if len(line) > COLUMNS_MAX:
                report.add("lines", path, number, f"{len(line)} columns, the limit is {COLUMNS_MAX}")
            if "\t" in line:
                report.add("lines", path, number, "a tab")
        if line != line.rstrip() and path.suffix != ".md":
            report.add("lines", path, number, "blanks at the end of the line")
    if text and not text.endswith("\n"):
        report.add("lines", path, len(lines), "no newline at the end of the file")


def files(arguments):
    if arguments:
        return [pathlib.Path(name).resolve().relative_to(ROOT) for name in arguments]
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                            capture_output=True).stdout.decode().split("\0")
    return sorted(pathlib.Path(name) for name in set(listed) if name and (ROOT / name).is_file())


def main():
    report = Report(["includes", "banned calls", "lengths", "openings", "lines", "unfinished"])
    looked_at = 0
    for path in files(sys.argv[1:]):
        if path.suffix not in COMMENT_START and path.suffix not in (".txt", ".md") and path.name not in ("Makefile", "run"):
            continue
        if path.parts[:2] == ("tests", "golden") and path.suffix not in COMMENT_START:
            continue
        text = (ROOT / path).read_text(encoding="utf-8", errors="replace")
        looked_at += 1
        check_shape(report, path, text)
        if path.suffix in CODE:
            code = blank(re.sub(r"^[ \t]*#[ \t]*include[^\n]*", "", text, flags=re.M))
            check_lengths(report, path, text, code)
            if path.parts[0] == "src" and len(path.parts) > 2:
                check_includes(report, path, text)
                check_banned(report, path, code)
        elif path.suffix in (".py", ".sh") and text.count("\n") > FILE_LINES_MAX:
            report.add("lengths", path, 1, f"more than {FILE_LINES_MAX} lines")
    for rule, breaches in report.breaches.items():
        print(f"{'failed' if breaches else 'ok'}: {rule}, {looked_at} files" + (f", {breaches} breaches" if breaches else ""))
    return 1 if any(report.breaches.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
