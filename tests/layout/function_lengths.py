# SPDX-License-Identifier: Apache-2.0
"""Lengths of functions, in lines from the first line of the head to the closing brace, nested
functions included.

functions_of(path, text) yields (line, name, lines) for C, C++ and Python. C++ is read by its
braces: a brace outside of functions begins a function if the text before it has an argument list
and is no type, namespace or initializer. Comments must be blanked before; preprocessor lines are
skipped. Where braces do not match (two heads under #if), reading goes on at the next brace in the
first column."""
import ast
import re

SCOPE = re.compile(r"^(?:template\s*<.*>\s*)?(?:inline\s+)?"
                   r"(?:namespace|class|struct|union|enum|extern)\b", re.S)
PREPROCESSOR = re.compile(r"^[ \t]*#(?:.*\\\n)*.*$", re.M)
BRACKETS = re.compile(r"[{};()]")
# the initializers of a constructor, and a member's name
MEMBER = re.compile(r"\)\s*(?:noexcept\s*)?:[^:].*\w\s*$", re.S)


def opens_function(head):
    """Whether a brace behind `head`, outside of any function, begins a function's body."""
    head = head.strip()
    if "(" not in head or SCOPE.match(head) and not head.endswith(")"):
        return False
    outside = re.sub(r"\([^()]*(?:\([^()]*\)[^()]*)*\)", "", head)   # of argument lists
    return "operator" in head or not re.search(r"(?<![<>=!])=(?!=)", outside)


def kind_of(head):
    """The kind of block that a brace behind `head` opens, outside of any function."""
    if MEMBER.search(head):
        return "member"
    return "function" if opens_function(head) else "scope"


def c_functions(text):
    """(text, begin, end) of each function, its head included."""
    text = PREPROCESSOR.sub(lambda match: "\n" * match[0].count("\n"), text)
    # the kinds of open braces; where the present declaration begins
    open_braces, parentheses, begin = [], 0, 0
    for match in BRACKETS.finditer(text):
        mark, at = match[0], match.start()
        if mark in "()":
            parentheses += 1 if mark == "(" else -1
            continue
        if mark == "{":
            outside = parentheses == 0 and set(open_braces) <= {"scope"}
            open_braces.append(kind_of(text[begin:at]) if outside else "inner")
        elif mark == "}":
            at_edge = at == 0 or text[at - 1] == "\n"
            closed = open_braces[0 if at_edge else -1:] or ["scope"]
            del open_braces[0 if at_edge else -1:]
            if "function" in closed:
                yield text, begin, at
            if at_edge:
                parentheses = 0
            if closed[-1] in ("member", "inner"):
                continue
        if parentheses == 0 and set(open_braces) <= {"scope"}:
            begin = at + 1


def functions_of(path, text):
    if path.endswith(".py") or text.startswith("#!/usr/bin/env python3"):
        try:
            nodes = list(ast.walk(ast.parse(text)))
        except SyntaxError:   # a run of the file says so
            return
        for node in nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node.lineno, node.name, node.end_lineno - node.lineno + 1
        return
    for body, begin, end in c_functions(text):
        head = len(body[:end]) - len(body[begin:end].lstrip())
        first = body.count("\n", 0, head) + 1
        name = re.search(r"(~?[\w:]+(?:\s*[=!<>+*-]+)?)\s*\(", body[head:end])
        yield first, name[1] if name else "?", body.count("\n", head, end) + 1
