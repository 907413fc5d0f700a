# SPDX-License-Identifier: Apache-2.0
"""A subcommand of `lunar`, as its tests call it: what it answers, and how it refuses."""
import json
import subprocess
import zlib

from build_tree import LUNAR

NOBODY = {"user": 65534, "group": 65534, "extra_groups": []}


def digest(path):
    """The length and a checksum of a file. It is a cheap one, as each refusal takes two."""
    length = checksum = 0
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            length, checksum = length + len(part), zlib.crc32(part, checksum)
    return length, checksum


class Subcommand:
    """text: what it prints is str, not bytes."""

    def __init__(self, name, text):
        self.name, self.text = name, text

    def run(self, *words, given=b"", environment=None, as_nobody=False):
        ended = subprocess.run([LUNAR, self.name, *words], input=given, capture_output=True,
                               check=False, env=environment, **(NOBODY if as_nobody else {}))
        if self.text:
            ended.stdout, ended.stderr = ended.stdout.decode(), ended.stderr.decode()
        return ended

    def done(self, *words, code=0, given=b""):
        """Does what it is told; its output."""
        ended = self.run(*words, given=given)
        assert ended.returncode == code, ended
        return ended.stdout

    def as_json(self, *words, code=0, given=b""):
        return json.loads(self.done(*words, "--json", code=code, given=given))

    def refused(self, words, parts, *places, code=2, given=b"", as_nobody=False):
        """The command prints one line with all of `parts` and does not change the places."""
        before = [digest(place) for place in places]
        ended = self.run(*words, given=given, as_nobody=as_nobody)
        line = ended.stderr if self.text else ended.stderr.decode()
        assert (ended.returncode, len(ended.stdout), line.count("\n")) == (code, 0, 1), ended
        assert line.startswith("lunar " + self.name) and all(part in line for part in parts), line
        assert [digest(place) for place in places] == before
