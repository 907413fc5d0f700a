#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`check_runner.py ROOT [RULE]...`: tools/run_tests.py keeps its rules (these, or all), shown with
made-up tests: what passes, fails and skips, that a test which hangs is examined, that tests start
with default signals, which share the machine, and that an untested pager fails the run. And
tools/demo and tools/test answer --help at once."""
import contextlib
import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.abspath(sys.argv[1])
RUNNER = os.path.join(ROOT, "tools", "run_tests.py")
problems = []


def check(held, what):
    if not held:
        problems.append(what)


def entry(name, code, suite="process", alone=False, timeout=60, priority=0, waits=False):
    return {"name": name, "cmd": [sys.executable, "-c", code], "env": {}, "depends": [],
            "workdir": None, "suite": ["lunar:" + suite] + ["lunar:waits"] * waits,
            "timeout": timeout, "is_parallel": not alone, "priority": priority}


def lacks(word, whole=True):
    """A test that does not run, or one of whose cases does not, for want of it."""
    return f"print('skip: {word}: none here')\nraise SystemExit({77 if whole else 0})"


@contextlib.contextmanager
def build(*entries):
    """A build directory as far as the runner looks into it."""
    with tempfile.TemporaryDirectory() as directory:
        os.mkdir(os.path.join(directory, "meson-info"))
        with open(os.path.join(directory, "meson-info", "intro-tests.json"), "w",
                  encoding="utf-8") as file:
            json.dump(entries, file)
        yield directory


os.environ.pop("TEST_TIMEOUT_SCALE", None)   # of the run that this is a part of


def run(*entries, words=(), **options):
    """(exit code, lines) of a run of its own process."""
    with build(*entries) as directory:
        done = subprocess.run([sys.executable, "-B", RUNNER, directory, *words],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                              check=False, **options)
    return done.returncode, done.stdout.splitlines()


def run_without_userfaultfd(*entries, words=()):
    """The same where this user has no right to userfaultfd: the runner believes so."""
    spec = importlib.util.spec_from_file_location("run_tests", RUNNER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.EXPECTED["userfaultfd"] = lambda: False
    module.become_root_if_needed = lambda: None
    out = io.StringIO()
    with build(*entries) as directory, contextlib.redirect_stdout(out):
        sys.argv = [RUNNER, directory, *words]
        code = module.main()
    return code, out.getvalue().splitlines()


def pytest_skips():
    """A case that skips is named; a file of which nothing else ran is skipped."""
    code = "import pytest\ndef test_skips():\n    pytest.skip('%s: none here')\n"
    with tempfile.TemporaryDirectory() as directory:
        def cases(name, word, more=""):
            path = os.path.join(directory, name + ".py")
            with open(path, "w", encoding="utf-8") as file:
                file.write(code % word + more)
            words = ["-B", "-m", "pytest", "-c", os.path.join(ROOT, "tests", "pytest.ini"),
                     "-p", "conftest", path]
            return {**entry(name, ""), "cmd": [sys.executable, *words],
                    "env": {"PYTHONPATH": os.path.join(ROOT, "tests")}}
        _, lines = run(cases("whole", "acl"), cases("part", "acl", "def test_runs():\n    pass\n"),
                       cases("odd", "moonlight", "def test_runs():\n    pass\n"))
    said = {line.split()[4]: line for line in lines if line[:4] in ("ok  ", "FAIL", "skip")}
    expected = {"whole": "skip", "part": "ok  ", "odd": "FAIL"}
    check({name: line[:4] for name, line in said.items()} == expected, f"skips of pytest: {said}")
    check("skip: acl: none here" in said.get("part", ""), f"a case that skips is not named: {said}")


def verdicts():
    code, lines = run(entry("good", "pass"), entry("bad", "raise SystemExit(3)"),
                      entry("odd", lacks("moonlight")), entry("mute", "raise SystemExit(77)"),
                      entry("dark", lacks("acl")), entry("part", lacks("acl", whole=False)),
                      entry("parent", "import subprocess\nsubprocess.Popen(['sleep', '100'])"))
    said = {line.split()[4]: line.split()[0]
            for line in lines if line[:4] in ("ok  ", "FAIL", "skip")}
    expected = {"good": "ok", "bad": "FAIL", "odd": "FAIL", "mute": "FAIL", "dark": "skip",
                "part": "ok", "parent": "FAIL"}
    check(said == expected, f"verdicts: {said}")
    check(code == 1 and lines[-1] == "2 passed, 4 failed, 1 skipped", f"{code}, {lines[-1]}")
    check(run(entry("good", "pass"))[0] == 0, "a run in which all pass")
    check(run(entry("good", "pass"), words=["-k", "none-such"])[0] == 1, "a run of no test passes")


def limits():
    """Past its limit a test is described, with its children; it has no limit of its own, so this is
    what is seen of a hang."""
    sleeper = ("import subprocess, time\n"
               "subprocess.Popen(['sleep', '1000'], start_new_session=True)\ntime.sleep(1000)")
    for limit_s in (1, 5, 20):   # on a busy machine it takes a while to get to where it hangs
        code, lines = run(entry("hangs", sleeper, timeout=limit_s))
        text = "\n".join(lines)
        check(code == 1 and f"still running after {limit_s} s" in text,
              f"a test that hangs: {code}\n{text[-2000:]}")
        described = text.count("--- stuck: pid") == 2 and "wchan" in text and "sleep 1000" in text
        if described:
            break
    check(described,
          f"a test that hangs is not described with its child in another session: {text[-2000:]}")


def signals():
    """As `nohup tools/test &` starts it, from a shell that blocks signals besides."""
    def as_in_the_background():
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE,
                       signal.SIGCHLD):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD])
    look = (
        "lines = dict(line.split(':\t') for line in open('/proc/self/status')\n"
        "             if line.startswith(('SigBlk', 'SigIgn')))\n"
        "assert int(lines['SigBlk'], 16) == 0, lines\n"
        # Python itself ignores SIGPIPE and SIGXFSZ
        "ignored = int(lines['SigIgn'], 16) & ~(1 << 12 | 1 << 24)\n"
        "assert ignored == 0, lines\n")
    code, lines = run(entry("signals", look), preexec_fn=as_in_the_background)
    check(code == 0, "tests inherit ignored or blocked signals: " + "\n".join(lines))
    code = run(entry("bad", "raise SystemExit(3)"), preexec_fn=as_in_the_background)[0]
    check(code == 1, "with SIGCHLD ignored, a failure passes")
    # And the runner goes on ignoring what it was told to ignore.
    hang_up = "import os, signal\nos.kill(os.getppid(), signal.SIGHUP)"
    code, lines = run(entry("hang-up", hang_up), preexec_fn=as_in_the_background)
    check(code == 0 and lines and lines[-1] == "1 passed, 0 failed, 0 skipped",
          f"SIGHUP under nohup ends the run: {code}, {lines}")


def end_all_of(place):
    """Kills the processes that have this path in their command line. How many there were."""
    found = subprocess.run(["pgrep", "-f", place], stdout=subprocess.PIPE, text=True,
                           check=False).stdout.split()
    for pid in found:
        with contextlib.suppress(ProcessLookupError):   # it has just ended
            os.kill(int(pid), signal.SIGKILL)
    return len(found)


def interrupted():
    """A test that runs takes away what it has made; one that does not listen is ended; no other is
    started."""
    with tempfile.TemporaryDirectory() as place:
        made, deaf, third = (os.path.join(place, name) for name in ("made", "deaf", "third"))
        wait = "import os, signal, sys, time\nopen({0!r}, 'w').close()\n"
        tests = (entry("clean",
                       wait.format(made) + f"try: time.sleep(100)\nfinally: os.unlink({made!r})"),
                 entry("deaf", "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" +
                       wait.format(deaf) + "time.sleep(100)"),
                 entry("third", wait.format(third), alone=True))
        with build(*tests) as directory:
            runner = subprocess.Popen([sys.executable, "-B", RUNNER, directory],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.DEVNULL, text=True)
            while not (os.path.exists(made) and os.path.exists(deaf)) and runner.poll() is None:
                time.sleep(0.02)
            runner.terminate()
            try:
                out = runner.communicate(timeout=20)[0]
            except subprocess.TimeoutExpired:
                runner.kill()
                ended = end_all_of(place)
                return check(False,
                             f"SIGTERM: the runner waits for its tests; {ended} had to be killed")
        check(runner.returncode == 1, f"SIGTERM: exit code {runner.returncode}")
        check("0 passed, 0 failed, 0 skipped" in out, f"SIGTERM: {out}")
        check(not os.path.exists(made), "SIGTERM: a test was not asked to end")
        check(not os.path.exists(third), "SIGTERM: another test was started")
        check(end_all_of(place) == 0, "SIGTERM: a test runs on")


def sharing():
    """Two that share the machine meet; one that is alone meets no other; unit tests and what takes
    longest come first."""
    with tempfile.TemporaryDirectory() as place:
        meet = ("import os, time\nopen('{place}/{me}', 'w')\n"
                "while not os.path.exists('{place}/{other}'): time.sleep(0.01)\n")
        alone = ("import os, time\nos.mkdir('{place}/alone')\ntime.sleep(0.3)\n"
                 "os.rmdir('{place}/alone')\n")
        alone = alone.format(place=place)
        code, lines = run(entry("x", alone, alone=True),
                          entry("a", meet.format(place=place, me="a", other="b")),
                          entry("y", alone, alone=True),
                          entry("b", meet.format(place=place, me="b", other="a")),
                          entry("z", f"import os\nassert not os.path.exists('{place}/alone')"))
        check(code == 0, "sharing: " + "\n".join(lines))
        # As many as there are lanes, all in one, each waiting for the one that only waits: it has a
        # lane of its own.
        lanes = (os.cpu_count() or 1) + 1
        busy = [entry(f"busy{n}", meet.format(place=place, me=f"busy{n}", other="waits"))
                for n in range(lanes)]
        waiting = [entry("waits", meet.format(place=place, me="waits", other="busy0"), waits=True),
                   entry("waits-too", alone, waits=True), entry("waits-last", alone, waits=True)]
        code, lines = run(*busy, *waiting)
        check(code == 0, "those that wait: " + "\n".join(lines))
    order = run(entry("late", "pass", suite="process", alone=True),
                entry("short", "pass", suite="e2e", priority=1),
                entry("long", "pass", suite="e2e", priority=9), entry("early", "pass",
                                                                      suite="unit"),
                entry("slow", "pass", suite="slow"), words=["--list"])[1]
    check([line.split()[-1] for line in order] == ["early", "long", "short", "late"],
          f"order: {order}")


def untested_pager():
    lacking = entry("fault", lacks("userfaultfd"))
    code, lines = run_without_userfaultfd(entry("good", "pass"), lacking)
    untested = "1 passed, 0 failed, 1 skipped; THE PAGER WAS NOT TESTED"
    check(code == 1 and lines[-1].startswith(untested),
          f"without userfaultfd: {code}, {lines[-1:]}")
    code, lines = run_without_userfaultfd(entry("half", lacks("userfaultfd", whole=False)))
    check(code == 1 and "NOT TESTED" in lines[-1],
          f"cases without userfaultfd: {code}, {lines[-1:]}")
    code, lines = run_without_userfaultfd(lacking, words=["--without-userfaultfd"])
    check(code == 0 and "NOT TESTED" in lines[-1], f"--without-userfaultfd: {code}, {lines[-1:]}")
    check(run_without_userfaultfd(entry("good", "pass"))[0] == 0,
          "a run that needs no userfaultfd fails without it")


def help_comes_first():
    """The two entries install and build nothing for a user who only asks."""
    for name in ("demo", "test"):
        asked = subprocess.run([os.path.join(ROOT, "tools", name), "--help"],
                               stdin=subprocess.DEVNULL, capture_output=True, text=True,
                               check=False)
        told = (asked.returncode == 0 and asked.stdout.startswith(f"tools/{name}: ")
                and asked.stderr == "")
        check(told, f"tools/{name} --help: {asked}")


def main():
    rules = {rule.__name__: rule
             for rule in (verdicts, pytest_skips, limits, signals, interrupted, sharing,
                          untested_pager, help_comes_first)}
    for name in sys.argv[2:] or rules:
        rules[name]()
    print("\n".join(problems) or "the runner keeps its rules")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
