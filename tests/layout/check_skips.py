#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`check_skips.py ROOT`: the words that tests skip by are those that tools/run_tests.py knows, and the other way round:
it fails a test that skips by another word, where it skips. One line a word that does not match, exit 1 when there is
any."""
import importlib.util
import os
import re
import sys

ROOT = os.path.abspath(sys.argv[1])
# skip("word", ...), tier::skip("word", ...), LUNAR_SKIP("word", ...), and `skip: word: ` in a text. What comes from a
# variable is not seen.
CALL = re.compile(r"\b(?:skip|LUNAR_SKIP)\(\s*\"([^\"]+)\"")
TEXT = re.compile(r"[\"']skip: ([^:{%\"']+)")
SOURCE = (".cpp", ".hpp", ".h", ".c", ".py")


def known_words():
    spec = importlib.util.spec_from_file_location("run_tests", os.path.join(ROOT, "tools", "run_tests.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.EXPECTED


def sources():
    for folder, _, names in os.walk(os.path.join(ROOT, "tests")):
        for name in names:
            path = os.path.join(folder, name)
            if name.endswith(SOURCE) and not os.path.samefile(path, __file__):
                with open(path, encoding="utf-8") as file:
                    yield os.path.relpath(path, ROOT), file.read()


def main():
    known, used, texts, bad = known_words(), {}, "", []
    for path, text in sources():
        texts += text
        for word in CALL.findall(text) + TEXT.findall(text):
            used.setdefault(word, path)
    bad += [f"{path}: skips by '{word}', which EXPECTED of tools/run_tests.py does not have"
            for word, path in used.items() if word not in known]
    # A word may also reach skip() in a variable.
    bad += [f"tools/run_tests.py: no test skips by '{word}'"
            for word in known if word not in used and f'"{word}"' not in texts]
    if len(used) < 10:
        bad.append("hardly a word was found: the patterns of this check are stale")
    print("\n".join(bad) if bad else f"{len(known)} words")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
