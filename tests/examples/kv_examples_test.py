# SPDX-License-Identifier: Apache-2.0
"""Each program of examples/kv runs in memory and on files: one result line, exit code 0. On a file
that holds foreign data each of them refuses and changes no byte."""
import functools
import os
import re
import shutil

from example_programs import ARKDB, MIB, build, changes_nothing, check_options, compile_program, run

DRAM = {"LUNAR_KV_DRAM": "256m"}
run = functools.partial(run, **DRAM)


def file_of(directory, name, head):
    path = os.path.join(directory, name)
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(64 * MIB)
    return path


def check_persist(program, place, foreign):
    check_options(program, ([], [place, "0"]))
    for found, more in ((0, 1000), (1000, 300), (1300, 1)):
        result = run(program, place, str(more))
        wanted = f"run_kv_persist: {found} pairs were there, all equal, and {more} more are now\n"
        assert (result.returncode, result.stdout, result.stderr) == (0, wanted, "")
    for words in ((), ("",), (foreign,)):
        result = changes_nothing(foreign, program, *words, **DRAM)
        assert result.returncode in (1, 2) and result.stdout == ""


def one_line(program, wanted, *words):
    """Runs it; it must print one line of this form."""
    result = run(program, *words)
    held = result.returncode == 0 and result.stderr == "" and re.fullmatch(wanted + "\n",
        result.stdout)
    assert held, f"{os.path.basename(program)} {words}: {result}, not {wanted}"


def check_words(program, directory):
    text, place = os.path.join(directory, "text"), file_of(directory, "words.img", b"")
    with open(text, "w", encoding="utf-8") as file:
        file.write("the Tier holds the heap, and THE heap\n" * 100)
    short = os.path.join(directory, "short")
    with open(short, "w", encoding="utf-8") as file:
        file.write("the Tier holds the heap, and THE heap\n")
    for words, total in (((text,), 800), (("--place", place, text, text), 1600),
                         (("--place", place, text), 2400),
                         (("--place", place, "--durable", short), 2408)):
        one_line(program,
                 rf"kv_words: {total} words, 6 different ones: the \({total * 3 // 8}\), .*",
                 *words)
    absent = os.path.join(directory, "none")
    for words, code in (((), 2), (("--place", place), 2), (("--nonsense",), 2), ((absent,), 1)):
        result = run(program, *words)
        assert result.returncode == code and result.stdout == "" and "kv_words" in result.stderr


def check_coroutines(program, place):
    wanted = (r"kv_coroutines: {} walkers, 100 steps each over {} records: \d+ gets a second, "
              r"all where they should be")
    one_line(program, wanted.format(4000, 65536))
    one_line(program, wanted.format(50, 1), "", "50", "1")
    one_line(program, wanted.format(500, 1024), place, "500", "1024")
    check_options(program, (["", "0"], ["", "5", "1000"], ["", "5", "8", "word"]))


def check_migrate(program, persist, directory, foreign):
    """From a copy of our own library, which the loader takes for another one, and from a stand-in
    for IBM's."""
    copy, old, new = (os.path.join(directory, name)
                      for name in ("libcopy.so", "old.img", "new.img"))
    source = ["--from-library", copy, "--from", old]
    check_options(program, ([], source, [*source, "--to", new, "--threads", "0"]))
    shutil.copy(ARKDB, copy)
    run(persist, file_of(directory, "old.img", b""), "2000")
    words = ("--from-library", copy, "--from", old, "--to", file_of(directory, "new.img", b""))
    one_line(program, "kv_migrate: 2000 pairs, 20[0-9]{5} bytes moved, all equal", *words)
    one_line(persist, "run_kv_persist: 2000 pairs were there, all equal, and 1 more are now", new,
             "1")
    one_line(persist, "run_kv_persist: 2000 pairs were there, all equal, and 1 more are now", old,
             "1")
    old_ark, stand_in = os.path.join(os.path.dirname(__file__),
                                     "old_ark.c"), os.path.join(directory, "libold.so")
    compile_program(old_ark, stand_in, "-shared", "-fPIC")
    blank = file_of(directory, "blank.img", b"")
    for library, place, to, wanted in (
            (copy, old, new, "a store of 2001 pairs is there"), (copy, old, foreign, "File exists"),
            (copy, blank, blank, "No such file"), (copy + "x", old, blank, "cannot open"),
            ("libc.so.6", old, blank, "undefined symbol: ark_create"),
            (stand_in, "changing", "a", "the value of old 300  differs"),
            (stand_in, "miscounted", "b", "counts 501 pairs, 500 were found and 500"),
            (stand_in, "unreadable", "c", "reading old 300 : Input/output error"),
            (stand_in, "cut short", "d", "the keys: Input/output error")):
        to = to if os.path.isabs(to) else file_of(directory, to, b"")
        result = changes_nothing(foreign, program, "--from-library", library, "--from", place,
                                 "--to", to, **DRAM)
        assert result.returncode == 1 and result.stdout == "" and wanted in result.stderr
    for threads in ([], ["--threads", "1"]):
        to = file_of(directory, "sound.img", b"")
        words = ("--from-library", stand_in, "--from", "sound", "--to", to, "--to-library", ARKDB)
        one_line(program, r"kv_migrate: 500 pairs, \d+ bytes moved, all equal", *words, *threads)


def test_programs(directory):
    programs = build(directory, "kv", ARKDB, {"kv_migrate": ["-ltbb", "-ldl"]})
    assert len(programs) == 6
    place, foreign = file_of(directory, "store.img", b""), file_of(directory, "foreign",
        b"foreign data")
    check_words(programs.pop("kv_words"), directory)
    check_coroutines(programs.pop("kv_coroutines"), place)
    check_migrate(programs.pop("kv_migrate"), programs["run_kv_persist"], directory, foreign)
    check_persist(programs.pop("run_kv_persist"), file_of(directory, "kept.img", b""), foreign)
    for name, program in programs.items():
        check_options(program, (["", "0"], ["", "1", "1", "word"]))
        # On a blank file, and where a store was.
        for words in ([], ["", "3", "200"], [place, "4", "500"], [place, "4", "500"]):
            result = run(program, *words)
            what = f"{name} {words}: exit {result.returncode}: {result.stdout!r} {result.stderr!r}"
            in_one_line = result.stdout.count("\n") == 1 and result.stdout.startswith(name + ": ")
            assert result.returncode == 0 and in_one_line, what
            assert "all equal" in result.stdout and result.stderr == "", what
        result = changes_nothing(foreign, program, foreign, **DRAM)
        assert result.returncode == 1 and result.stdout == ""
        assert run(program, "", "0").returncode == 2
