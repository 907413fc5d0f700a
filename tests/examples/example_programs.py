# SPDX-License-Identifier: Apache-2.0
"""Helpers of the example programs' tests: programs are built by the line of their README, with gcc
and only the project's header and library, and run."""
import os
import shutil
import subprocess

import pytest

from build_tree import BUILD, ROOT

MIB = 1 << 20
INCLUDE = os.path.join(ROOT, "runtime/include")
CBLK, ARKDB, LUNAR_SO = (os.path.join(BUILD, name) for name in
                         ("runtime/cblk/libcflsh_block.so", "runtime/kv/ark/libarkdb.so",
                          "runtime/liblunar.so"))
COMPILERS = {".c": ["gcc"], ".cpp": ["g++", "-std=c++20"]}


def compile_program(source, program, *words):
    language = COMPILERS[os.path.splitext(source)[1]]
    line = [*language, "-Wall", "-Wextra", "-Werror", source, "-o", program, "-I", INCLUDE, *words]
    result = subprocess.run(line, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 0
    return program


def build(directory, examples, library, other_links=None):
    """gcc x.c -l<link>, g++ -std=c++20 x.cpp -l<link>, or with other_links[x]; the library as a
    program at run time finds it."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc: no gcc here")
    programs, link = {}, os.path.basename(library).removeprefix("lib").removesuffix(".so")
    examples = os.path.join(ROOT, "examples", examples)
    for file in sorted(os.listdir(examples)):
        name, suffix = os.path.splitext(file)
        if suffix in COMPILERS:
            links = (other_links or {}).get(name, ["-L", os.path.dirname(library), "-l" + link])
            programs[name] = compile_program(os.path.join(examples, file),
                                             os.path.join(directory, name), *links)
    return programs


def run(program, *words, **variables):
    libraries = ":".join(map(os.path.dirname, (CBLK, ARKDB, LUNAR_SO)))
    return subprocess.run([program, *words], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, check=False,
                          env={**os.environ, "LD_LIBRARY_PATH": libraries, **variables})


def check_options(program, wrong=(), name=None):
    """--help; an option that there is not; words that are wrong."""
    name = name or os.path.basename(program)
    result = run(program, "--help")
    assert (result.returncode == 0 and result.stdout.startswith("usage: " + name)
            and result.stderr == ""), (
        f"{name} --help: {result}")
    for words in (["--nonsense"], *wrong):
        result = run(program, *words)
        assert result.returncode == 2 and result.stdout == "" and "usage: " + name in result.stderr


def changes_nothing(path, program, *words, **variables):
    """Runs it on a file that holds foreign data."""
    with open(path, "rb") as file:
        before = file.read()
    result = run(program, *words, **variables)
    with open(path, "rb") as file:
        assert file.read() == before
    return result
