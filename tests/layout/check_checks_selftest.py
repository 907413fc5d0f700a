#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`check_checks_selftest.py ROOT`: breaks each rule of the other checks in this folder on purpose, in a small tree: the
check must say so, and must pass the same tree unbroken. (check_layout.py has a test of its own.)"""
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(sys.argv[1])
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True
from check_variables import known_names  # noqa: E402


def real(*paths):
    """Files of this tree as they are."""
    texts = {}
    for path in paths:
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            texts[path] = file.read()
    return texts


def changed(texts, path, old, new):
    assert texts[path].count(old) == 1, f"{path} has changed: {old!r} stands there {texts[path].count(old)} times"
    return {**texts, path: texts[path].replace(old, new)}


# Each: the check and its further words, the files of the tree, and a part of the complaint (None: there must be none).

def skips():
    words = [f"thing-{n}" for n in range(10)]

    def tree(known, used, text=""):
        lines = "".join(f'print("skip: {word}: none here")\n' for word in used)
        return {"tools/run_tests.py": f"EXPECTED = dict.fromkeys({known})\n", "tests/any_test.py": lines + text}
    yield "check_skips.py", tree(words, words), None
    yield "check_skips.py", tree(words, words + ["moonlight"]), "skips by 'moonlight'"
    yield "check_skips.py", tree(words, words, 'tier::skip' + '("moonlight", "none here")\n'), "skips by 'moonlight'"
    yield "check_skips.py", tree(words, words, 'print("skip' + ': no moon tonight")\n'), "skips by 'no moon tonight'"
    yield "check_skips.py", tree(words + ["moonlight"], words), "no test skips by 'moonlight'"
    yield "check_skips.py", tree(words[:9], words[:9]), "patterns of this check are stale"


def runner():
    path = "tools/run_tests.py"
    files = real(path, "tools/demo", "tools/test")
    yield "check_runner.py verdicts untested_pager help_comes_first", files, None
    for rule, old, new, complaint in (
            ("verdicts", "known is None or known()", "known is not None and known()", "'odd': 'skip'"),
            ("verdicts", '("FAIL", "exit code 77, but no `skip:` line")', '("skip", "")', "'mute': 'skip'"),
            ("verdicts", "        elif left:\n", "        elif left > 9:\n", "'parent': 'ok'"),
            ("limits", '"FAIL", f"still running', '"ok", f"still running', "a test that hangs: 0"),
            ("signals", "    signal.pthread_sigmask(signal.SIG_SETMASK, [])\n", "", "inherit ignored or blocked"),
            ("signals", "    default_signals()\n    for", "    for", "with SIGCHLD ignored, a failure passes"),
            ("interrupted", "        runner.interrupt()\n", "        runner.stop = True\n", "waits for its tests"),
            ("interrupted", "os.kill(session, signal.SIGINT)", "pass", "a test was not asked to end"),
            ("sharing", "(1, -self.priority, suite)", "(1, self.priority, suite)", "order: "),
            ("untested_pager", " or (untested and not arguments.without_userfaultfd)", "",
             "without userfaultfd: 0")):
        yield "check_runner.py " + rule, changed(files, path, old, new), complaint
    for name in ("demo", "test"):   # it then goes on to tools/deps, which is not there
        broken = changed(files, "tools/" + name, "    -h | --help) ", "    --no-help) ")
        yield "check_runner.py help_comes_first", broken, f"tools/{name} --help: "


def deps():
    script = "#!/bin/sh\ncase $* in *--list*) echo bash; exit 0 ;; esac\n"
    yield "check_deps.py", {"tools/deps": script}, "without pkg-config: exit 0"
    if os.path.exists("/usr/bin/dpkg-query"):
        yield "check_deps.py", {"tools/deps": script + "echo no dpkg >&2\nexit 1\n"}, "everything is installed, but"


def formats():
    def tree(code):
        return {".git": "", "tools/lint": f"#!/bin/sh\necho a.cpp is not formatted\nexit {code}\n"}
    yield "check_format.py", tree(0), None
    yield "check_format.py", tree(1), "a.cpp is not formatted"


def variables():
    files = real("runtime/config/options.def", "runtime/config/options.cpp", "runtime/config/variables.cpp",
                 "runtime/base/test_switches.def")
    names = sorted(known_names(ROOT))[:15]

    def tree(used, path="tests/any_test.py", line='os.environ["{}"]\n'):
        return {**files, path: "".join(line.format(name) for name in used)}
    more = names + ["LUNAR_MOONLIGHT"]
    yield "check_variables.py", tree(names), None
    yield "check_variables.py", tree(more), "LUNAR_MOONLIGHT is no option"
    yield "check_variables.py", tree(more, "tests/any_test.cpp", 'getenv("{}");\n'), "LUNAR_MOONLIGHT is no option"
    yield "check_variables.py", tree(more, "tests/any.sh", "echo ${}\n"), "LUNAR_MOONLIGHT is no option"
    yield "check_variables.py", tree(more, "runtime/sys/any.cpp", 'f("{}");\n'), "LUNAR_MOONLIGHT is no option"
    yield "check_variables.py", tree(names[:14]), "patterns are stale"


def result_of(check, files):
    """(exit code, what it says) of a check of a tree of these files."""
    name, *words = check.split()
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            full = os.path.join(root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as file:
                file.write(text)
            if text.startswith("#!"):
                os.chmod(full, 0o755)
        done = subprocess.run([sys.executable, "-B", os.path.join(HERE, name), root, *words], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def main():
    count = wrong = 0
    for check, files, complaint in (case for cases in (skips, runner, deps, formats, variables) for case in cases()):
        code, said = result_of(check, files)
        right = code == 0 if complaint is None else code == 1 and complaint in said
        count, wrong = count + 1, wrong + (not right)
        if not right:
            print(f"{check}: expected {complaint!r}; exit {code}\n{said[-1500:]}")
    print(f"{count - wrong} right, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
