# SPDX-License-Identifier: Apache-2.0
"""One request to a FastCGI server, as a web server makes it."""
import socket
import struct

BEGIN, END, PARAMS, STDIN, STDOUT = 1, 3, 4, 5, 6


def record(kind, content=b""):
    return struct.pack(">BBHHBB", 1, kind, 1, len(content), 0, 0) + content


def length_of(text):
    return struct.pack(">I", len(text) | 1 << 31)


def request(path, script):
    """The output of `script`, behind its headers, from the server that listens on the socket
    `path`."""
    variables = {"SCRIPT_FILENAME": script, "REQUEST_METHOD": "GET", "SCRIPT_NAME": "/",
                 "SERVER_PROTOCOL": "HTTP/1.1"}
    params = b"".join(length_of(name) + length_of(value) + name.encode() + value.encode()
                      for name, value in variables.items())
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        link.sendall(record(BEGIN, struct.pack(">HB5x", 1, 0)))
        link.sendall(record(PARAMS, params) + record(PARAMS) + record(STDIN))
        stream, answer = link.makefile("rb"), b""
        while True:
            head = stream.read(8)
            if len(head) < 8:
                raise ConnectionError(f"the server has ended the connection after {answer!r}")
            _, kind, _, length, padding, _ = struct.unpack(">BBHHBB", head)
            content = stream.read(length + padding)[:length]
            if kind == STDOUT:
                answer += content
            elif kind == END:
                return answer.partition(b"\r\n\r\n")[2].decode()
