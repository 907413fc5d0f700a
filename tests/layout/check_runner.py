#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`check_runner.py ROOT [RULE]...`: tools/run_tests.py and tests/support/watch.py keep their rules
(these, or all), shown with made-up tests: what passes, fails and skips, that a test which hangs is
examined, that tests start with default signals, and that an untested pager fails the run. And
tools/demo and tools/test answer --help at once."""
import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.abspath(sys.argv[1])
RUNNER = os.path.join(ROOT, "tools", "run_tests.py")
WATCH = os.path.join(ROOT, "tests", "support", "watch.py")
LACKS = "print('skip: %s: none here')\nraise SystemExit(%d)"
HANGS = ("import subprocess, time\n"
         "subprocess.Popen(['sleep', '1000'], start_new_session=True)\ntime.sleep(1000)")
WAITS = "import os, signal, sys, time\nopen('PLACE/%s', 'w').close()\n"
SIGNALS = (
    "lines = dict(line.split(':\\t') for line in open('/proc/self/status')\n"
    "             if line.startswith(('SigBlk', 'SigIgn')))\n"
    "assert int(lines['SigBlk'], 16) == 0, lines\n"
    # Python itself ignores SIGPIPE and SIGXFSZ
    "ignored = int(lines['SigIgn'], 16) & ~(1 << 12 | 1 << 24)\n"
    "assert ignored == 0, lines\n")
PYTEST = "import pytest\ndef test_skips():\n    pytest.skip('%s: none here')\n"
RUNS = "def test_runs():\n    pass\n"
# The made-up tests. PLACE is a directory for their files.
TESTS = {
    "good": "pass", "bad": "raise SystemExit(3)",
    "odd": LACKS % ("moonlight", 77), "mute": "raise SystemExit(77)",
    "dark": LACKS % ("acl", 77), "part": LACKS % ("acl", 0),
    "parent": "import subprocess\nsubprocess.Popen(['sleep', '100'])",
    "hangs-1": HANGS, "hangs-20": HANGS, "signals": SIGNALS,
    "clean": WAITS % "made" + "try: time.sleep(100)\nfinally: os.unlink('PLACE/made')",
    "deaf": "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + WAITS % "deaf"
            + "time.sleep(100)",
    "third": WAITS % "third"}
PYTESTS = {"py-dark": PYTEST % "acl", "py-part": PYTEST % "acl" + RUNS,
           "py-odd": PYTEST % "moonlight" + RUNS}
problems = []


def check(held, what):
    if not held:
        problems.append(what)


def make_build(place):
    """A build directory with these tests."""
    lines = ["project('lunar')", f"python = find_program('{sys.executable}')",
             f"add_test_setup('all', exe_wrapper: ['{WATCH}', '{place}/build'], "
             "timeout_multiplier: 0)"]
    for name, code in {**TESTS, **PYTESTS}.items():
        with open(os.path.join(place, name + ".py"), "w", encoding="utf-8") as file:
            file.write(code.replace("PLACE", place))
        pytest = ["-m", "pytest", "-c", os.path.join(ROOT, "tests", "pytest.ini"), "-p", "conftest"]
        words = ["-B", *(pytest if name in PYTESTS else []), f"{place}/{name}.py"]
        limit_s = name.rpartition("-")[2] if name.startswith("hangs-") else "60"
        last = ", is_parallel: false, priority: -1" if name == "third" else ""
        lines.append(f"test('{name}', python, args: {words}, timeout: {limit_s}, suite: 'process', "
                     f"env: {{'PYTHONPATH': '{ROOT}/tests:{ROOT}/tests/support'}}{last})")
    with open(os.path.join(place, "meson.build"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines))
    subprocess.run(["meson", "setup", place + "/build", place], stdout=subprocess.DEVNULL,
                   check=True)


def runner(place, *names):
    return [sys.executable, "-B", RUNNER, place + "/build", "-k", f"^({'|'.join(names)})$"]


def run(place, *names, **options):
    """(exit code, lines, what meson said of each test: OK, FAIL, SKIP) of a run of these."""
    done = subprocess.run(runner(place, *names), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          text=True, check=False, **options)
    lines = done.stdout.splitlines()
    found = (re.match(r" *\d+/\d+ (?:\S+ / )?(\S+) +(OK|FAIL|SKIP) ", line) for line in lines)
    return done.returncode, lines, {match[1]: match[2] for match in found if match}


def verdicts(place):
    expected = {"good": "OK", "bad": "FAIL", "odd": "FAIL", "mute": "FAIL", "dark": "SKIP",
                "part": "OK", "parent": "FAIL", "py-dark": "SKIP", "py-part": "OK",
                "py-odd": "FAIL"}
    code, lines, said = run(place, *expected)
    check(said == expected, f"verdicts: {said}")
    check(code == 1 and lines[-1] == "3 passed, 5 failed, 2 skipped", f"{code}, {lines[-1]}")
    for name in ("part", "py-part"):   # a case that skips is named
        check(f"{name}: skip: acl: none here" in lines, f"{name}: {lines}")
    check(run(place, "good")[0] == 0, "a run in which all pass")
    check(run(place, "none-such")[0] == 1, "a run of no test passes")


def limits(place):
    """Past its limit a test is described, with its children; it has no limit of its own, so this is
    what is seen of a hang."""
    for limit_s in (1, 20):   # on a busy machine it takes a while to get to where it hangs
        code, lines, _ = run(place, f"hangs-{limit_s}")
        text = "\n".join(lines)
        check(code == 1 and f"still running after {limit_s} s" in text,
              f"a test that hangs: {code}\n{text[-2000:]}")
        described = text.count("--- stuck: pid") == 2 and "wchan" in text and "sleep 1000" in text
        if described:
            break
    check(described,
          f"a test that hangs is not described with its child in another session: {text[-2000:]}")


def signals(place):
    """Starts a run as `nohup tools/test &` does, in a shell that also blocks signals."""
    def as_in_the_background():
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE,
                       signal.SIGCHLD):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD])
    _, lines, said = run(place, "signals", "bad", preexec_fn=as_in_the_background)
    check(said == {"signals": "OK", "bad": "FAIL"},
          "tests inherit ignored or blocked signals: " + "\n".join(lines))


def running_of(test):
    return subprocess.run(["pgrep", "-f", test], stdout=subprocess.DEVNULL,
                          check=False).returncode == 0


def interrupted(place):
    """A test that runs takes away what it has made; one that does not listen is ended; no other is
    started."""
    made, deaf, third = (os.path.join(place, name) for name in ("made", "deaf", "third"))
    running = subprocess.Popen(runner(place, "clean", "deaf", "third"), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    while not (os.path.exists(made) and os.path.exists(deaf)) and running.poll() is None:
        time.sleep(0.02)
    running.terminate()
    out = running.communicate()[0]
    check(running.returncode == 1, f"SIGTERM: exit code {running.returncode}")
    check("0 passed, 0 failed, 0 skipped" in out, f"SIGTERM: {out}")
    deadline = time.monotonic() + 20
    tests = [os.path.join(place, name + ".py") for name in ("clean", "deaf")]
    while (left := [test for test in tests if running_of(test)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    check(not left, f"SIGTERM: {left} run on")
    check(not os.path.exists(made), "SIGTERM: a test was not asked to end")
    check(not os.path.exists(third), "SIGTERM: another test was started")


def untested_pager(_):
    sys.path[:0] = [os.path.join(ROOT, "tools"), os.path.dirname(WATCH)]
    import run_tests
    import watch
    skip = "skip: userfaultfd: none here"
    watch.EXPECTED["userfaultfd"] = lambda: False
    check(watch.verdict_of(77, [skip], 0) == (77, ""), "a skip for want of userfaultfd fails")
    watch.EXPECTED["userfaultfd"] = lambda: True
    check(watch.verdict_of(77, [skip], 0)[0] == 1, "a skip for want of what is there passes")
    good, whole, half = ({"result": result, "stdout": said}
                         for result, said in (("OK", ""), ("SKIP", skip), ("OK", "x\n" + skip)))
    for results, accepts, failed in (([good], False, False), ([good, whole], False, True),
                                     ([half], False, True), ([whole], True, False)):
        line, code = run_tests.summary(results, argparse.Namespace(without_userfaultfd=accepts))
        check(code == failed and ("NOT TESTED" in line) == (good not in results
                                                            or len(results) > 1),
              f"{results}, --without-userfaultfd {accepts}: {line}, {code}")


def help_comes_first(_):
    """The two entries install and build nothing for a user who only asks."""
    for name in ("demo", "test"):
        asked = subprocess.run([os.path.join(ROOT, "tools", name), "--help"],
                               stdin=subprocess.DEVNULL, capture_output=True, text=True,
                               check=False)
        told = (asked.returncode == 0 and asked.stdout.startswith(f"tools/{name}: ")
                and asked.stderr == "")
        check(told, f"tools/{name} --help: {asked}")


def main():
    rules = {rule.__name__: rule for rule in (verdicts, limits, signals, interrupted,
                                              untested_pager, help_comes_first)}
    os.environ.pop("TEST_TIMEOUT_SCALE", None)   # of the run that this is a part of
    with tempfile.TemporaryDirectory() as place:
        make_build(place)
        for name in sys.argv[2:] or rules:
            rules[name](place)
    print("\n".join(problems) or "the runner keeps its rules")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
