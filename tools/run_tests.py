#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What tools/test does after the build: it chooses tests, gets root's rights if needed, runs
`meson test` and sums up. Each test runs under tests/support/watch.py, as with `meson test` alone.
"""
import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))
import watch   # noqa: E402

FAST = {"layout", "unit"}
ENDED_WELL = ("OK", "SKIP", "INTERRUPT")   # meson's results
SANITIZED = {"unit", "fault", "property", "sanitizer"}


def parse_arguments():
    parser = argparse.ArgumentParser(prog="tools/test", description="build Lunar and run its tests")
    parser.add_argument("directory", help=argparse.SUPPRESS)
    parser.add_argument("--fast", action="store_true", help="layout and unit tests only")
    parser.add_argument("--all", action="store_true", help="also the slow suite")
    parser.add_argument("--asan", action="store_true",
                        help="AddressSanitizer and UBSan, in build-asan/")
    parser.add_argument("--tsan", action="store_true", help="ThreadSanitizer, in build-tsan/")
    parser.add_argument("-k", metavar="PATTERN", default="",
                        help="only tests whose name or suite matches; slow ones with --all, or "
                             "if no other test matches")
    parser.add_argument("--list", action="store_true", help="list the tests, run none")
    # prints the targets that tools/test must build
    parser.add_argument("--targets", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--no-build", action="store_true", help="use the build as it is")
    parser.add_argument("--without-userfaultfd", action="store_true",
                        help="pass although the pager cannot be tested")
    return parser.parse_args()


def suites_of(test):
    return [suite.split(":", 1)[1] for suite in test["suite"] if ":" in suite]


def select(tests, arguments):
    def wanted(test):
        suites = set(suites_of(test))
        if arguments.k:
            return any(re.search(arguments.k, text) for text in [test["name"], *suites])
        if arguments.asan or arguments.tsan:
            unfit = {"no-sanitizer", "no-tsan"} if arguments.tsan else {"no-sanitizer"}
            return SANITIZED & suites and not unfit & suites
        if arguments.fast:
            return FAST & suites
        return arguments.all or "slow" not in suites
    chosen = list(filter(wanted, tests))
    # -k chooses slow tests, which can take hours, only if no other test matches
    if arguments.k and not arguments.all:
        chosen = [test for test in chosen if "slow" not in suites_of(test)] or chosen
    return chosen


def become_root_if_needed():
    """Starts this script again with sudo if this user has no right to userfaultfd, whose full mode
    nearly every test of the pager needs. Files of the build stay the user's (run())."""
    if os.geteuid() == 0 or watch.has_userfaultfd() or not shutil.which("sudo"):
        return
    ask = [] if sys.stdin.isatty() else ["-n"]
    if subprocess.run(["sudo", *ask, "true"], stdin=None, check=False).returncode != 0:
        print("tools/test: no right to use userfaultfd, and sudo refused", file=sys.stderr)
        return
    kept = [f"{name}={value}" for name, value in os.environ.items()
            if name in ("PATH", "CI", "LANG", "LC_ALL", "TEST_TIMEOUT_SCALE")
            or name.startswith("LUNAR_")]
    os.execvp("sudo", ["sudo", *ask, "env", *kept, sys.executable, "-B", *sys.argv])


def environment(arguments):
    slowness = watch.slowness()
    of_sanitizer = {}
    if arguments.asan:
        of_sanitizer = {
            "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1"}
    if arguments.tsan:
        of_sanitizer = {"TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1"}
    return {**os.environ, **of_sanitizer,
            "TEST_TIMEOUT_SCALE": str(slowness * 4 if of_sanitizer else slowness)}


def run(tests, build, arguments):
    """Runs the tests. Returns meson's record of each test."""
    log = os.path.join(build, "meson-logs", "testlog-all.json")
    if os.path.exists(log):
        os.unlink(log)
    command = ["meson", "test", "-C", build, "--no-rebuild", "--setup", "all", "--num-processes",
               str((os.cpu_count() or 1) + 1), *(test["name"] for test in tests)]
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)   # may be ignored or blocked in the background
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    meson = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment(arguments))
    for number in (signal.SIGINT, signal.SIGTERM):   # meson ends the tests and tells
        signal.signal(number, lambda *_: meson.send_signal(signal.SIGTERM))
    meson.wait()
    user = os.environ.get("SUDO_UID", "")
    for name in os.listdir(os.path.dirname(log)) if user.isdigit() and os.geteuid() == 0 else []:
        os.chown(os.path.join(os.path.dirname(log), name), int(user), -1)
    with open(log, encoding="utf-8", errors="replace") as file:
        return [json.loads(line) for line in file]


def name_of(result):
    return result["name"].rpartition(" / ")[2]


def skips_of(result):
    """The lines that tell why the test or one of its cases was skipped."""
    return [line for line in result.get("stdout", "").splitlines() if line.startswith("skip: ")]


def show_failed(result):
    lines = result.get("stdout", "").splitlines()
    hung = any(line.startswith("--- stuck: ") for line in lines)
    print(f"--- {name_of(result)}")
    for line in lines[:2000] if hung else lines[-80:]:
        print("      | " + line)
    print(f"      again: tools/test -k '^{re.escape(name_of(result))}$'")


def summary(results, arguments):
    """The last line of the run, and whether the run failed."""
    count = Counter(result["result"] for result in results)
    failed = sum(count[verdict] for verdict in count if verdict not in ENDED_WELL)
    line = f"{count['OK']} passed, {failed} failed, {count['SKIP']} skipped"
    untested = sum(any(skip.startswith("skip: userfaultfd:") for skip in skips_of(result))
                   for result in results)
    if untested:
        line += f"; THE PAGER WAS NOT TESTED: no right to userfaultfd ({untested} tests)"
        if not arguments.without_userfaultfd:
            line += "; run as root, or accept it with --without-userfaultfd"
    return line, (failed != 0 or not results or "INTERRUPT" in count
                  or (untested != 0 and not arguments.without_userfaultfd))


def targets_of(tests, build):
    """Ninja's names of the programs that these tests run."""
    wanted = {identity for test in tests for identity in test["depends"]}
    with open(os.path.join(build, "meson-info", "intro-targets.json"), encoding="utf-8") as file:
        return sorted(os.path.relpath(target["filename"][0], build)
                      for target in json.load(file) if target["id"] in wanted)


def main():
    arguments = parse_arguments()
    build = os.path.abspath(arguments.directory)
    tests = select(watch.tests_of(build), arguments)
    if arguments.targets:
        print("\n".join(targets_of(tests, build)))
        return 0
    if arguments.list:
        for test in tests:
            sharing = "shared" if test["is_parallel"] else "alone "
            limit_s = test["timeout"] or watch.DEFAULT_LIMIT_S
            print(f"{','.join(suites_of(test)) or '-':10} {limit_s:5} s  {sharing}  "
                  f"{test['name']}")
        return 0
    become_root_if_needed()
    results = run(tests, build, arguments) if tests else []
    for result in results:
        if result["result"] not in ENDED_WELL:
            show_failed(result)
        elif skips_of(result):
            print(f"{name_of(result)}: {skips_of(result)[0]}")
    slowest = sorted(results, key=lambda result: -result["duration"])[:8]
    print("longest: " + ", ".join(f"{name_of(result)} {result['duration']:.0f} s"
                                  for result in slowest))
    line, failed = summary(results, arguments)
    print(line)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
