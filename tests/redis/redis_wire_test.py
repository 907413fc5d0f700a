# SPDX-License-Identifier: Apache-2.0
"""Odd and hostile input, byte for byte against a plain server.

Each script is a client's whole input, cut at random places, and goes to both servers on connections
of its own: cold commands of all types mixed with HELLO, RESET, AUTH of a user who may do little,
CLIENT TRACKING and CLIENT REPLY, WATCH and MULTI over cold keys, SUBSCRIBE, inline commands of any
size, empty ones, half ones, protocol errors, and bytes changed at random. What comes back must be
the same bytes, and an end where the other one ends; of a connection that the server ends, one may
have got fewer of them, as a server that ends it at once drops what it has not sent. LUNAR_SEED=
replays.
"""
import random
import re
import select
import socket
import time

import pytest

from redis_server import MODULE, SEED, packed, same_data
from watch import slowness

PATIENCE_S = 30 * slowness()
THE_END = b"the end of a script"
# of a script whose end is no command any more: it is over when nothing more comes
SILENCE_S = 0.5
DEAF_S = 3             # a server takes no more, and ends the connection when it can reply
CLIENTS, KEYS = 8, 2500
HELD_MIN = 0.5         # a script
CUT_MAX = 0.3          # of the connections that the server ends


def text(pick, size):
    return pick.randbytes(size // 2 + 1).hex()[:size].encode()


class Script:
    """A client's input. Its keys are its own: scripts that run together do not meet. Hashes and
    sets are compact: the order of others is each server's own."""

    def __init__(self, pick, client):
        self.pick, self.client, self.parts = pick, client, []

    def key(self, kind):
        return f"c{self.client}:{kind}:{self.pick.randrange(KEYS)}"

    def add(self, *words):
        self.parts.append(packed(*words))

    def command(self):
        pick, key = self.pick, self.key
        self.add(*pick.choice([
            ("GET", key("s")), ("get", key("s")), ("GET", key("s")),
            ("MGET", key("s"), key("s"), key("h"), "none"),
            ("SET", key("s"), text(pick, pick.choice([5, 300, 3000]))),
            ("APPEND", key("s"), "tail"), ("DEL", key("s")), ("GETRANGE", key("s"), "10", "60"),
            ("STRLEN", key("s")), ("INCR", key("s")), ("TYPE", key("l")), ("HGET", key("h"), "f1"),
            ("HGETALL", key("h")), ("HSET", key("h"), "f1", text(pick, 50)),
            ("LRANGE", key("l"), "0", "-1"), ("RPUSH", key("l"), text(pick, 200)),
            ("LPOP", key("l")), ("BLPOP", key("l"), "0.01"),
            ("ZADD", key("z"), str(pick.randrange(100)), text(pick, 12)),
            ("ZRANGE", key("z"), "0", "-1", "WITHSCORES"), ("SMISMEMBER", key("t"), "1", "x"),
            ("SMEMBERS", key("t")), ("COPY", key("h"), key("h"), "REPLACE"),
            ("RENAME", key("s"), key("s")), ("PEXPIRE", key("s"), "-1"),
            ("EVAL", "return redis.call('GET', KEYS[1])", "1", key("s")),
            ("OBJECT", "ENCODING", key("l")),
            ("EVAL", "return redis.call('LPOP', KEYS[1])", "1", key("s")), ("DUMP", key("h")),
            ("XLEN", key("x")), ("GET",), ("GET", key("s"), "more"), ("NOSUCH", key("s")),
            ("ECHO", text(pick, 40)), ("", ""), ("SETRANGE", key("s"), "7", "abc"),
            ("GETDEL", key("s")), ("LINDEX", key("l"), "-1"), ("STRLEN",),
            ("XADD", key("x"), f"{pick.randrange(1 << 20)}-1", "f", text(pick, 200)),
            ("XRANGE", key("x"), "-", "+"), ("XREAD", "STREAMS", key("x"), key("x"), "0", "0"),
            ("XREVRANGE", key("x"), "+", "-", "COUNT", "3"), ("LPOS", key("l"), "x", "MAXLEN", "0"),
            ("ZRANGEBYSCORE", key("z"), "-inf", "+inf"), ("ZSCORE", key("z"), text(pick, 12)),
            ("SINTERCARD", "2", key("t"), key("t")), ("SORT", key("t"), "ALPHA"),
            ("LRANGE", key("l"), "1", "-2"), ("HDEL", key("h"), "f2"), ("HLEN", key("h")),
            ("EXISTS", key("s"), key("h"), key("l")), ("EXPIRE", key("s"), "100000"),
        ]))

    def transaction(self):
        pick = self.pick
        if pick.random() < 0.6:
            self.add("WATCH", *(self.key("s") for _ in range(3)))
        if pick.random() < 0.3:
            self.command()
        self.add("MULTI")
        for _ in range(pick.randrange(12)):
            pick.choice([self.command] * 9 + [lambda: self.add("WATCH", "x"),
                                              lambda: self.add("MULTI")])()
        self.add(pick.choice(["EXEC"] * 5 + ["DISCARD", "UNWATCH"]))

    def protocol(self):
        self.add(*self.pick.choice([
            ("HELLO", "3"), ("HELLO", "3"), ("HELLO", "2"), ("HELLO", "9"),
            ("HELLO", "3", "SETNAME", "wire"), ("HELLO",),
            ("HELLO", "3", "AUTH", "low", "pw"), ("HELLO", "2", "AUTH", "low", "no"),
            ("AUTH", "low", "pw"), ("AUTH", "low", "no"), ("AUTH", "default", "x"), ("RESET",),
            ("SELECT", "1"), ("SELECT", "0"), ("SELECT", "99"), ("CLIENT", "GETNAME"),
            ("CLIENT", "NO-TOUCH", "ON"), ("PING", "x"),
        ]))

    def tracking(self):
        key = self.key("s")
        self.add("CLIENT", "TRACKING", *self.pick.choice([["ON"], ["ON", "OPTIN"], ["ON", "NOLOOP"],
                                                          ["OFF"]]))
        if self.pick.random() < 0.3:
            self.add("CLIENT", "CACHING", "YES")
        self.add("GET", key)
        self.command()
        self.add("SET", key, "changed")

    def replies(self):
        self.add("CLIENT", "REPLY", self.pick.choice(["SKIP", "SKIP", "OFF"]))
        for _ in range(self.pick.randrange(5)):
            self.command()
        self.add("CLIENT", "REPLY", "ON")

    def channel(self):
        name = f"channel:{self.client}"
        self.add("SUBSCRIBE", name)
        for _ in range(self.pick.randrange(4)):
            self.pick.choice([self.command, lambda: self.add("PING"),
                              lambda: self.add("PUBLISH", name, "x")])()
        self.add(*self.pick.choice([("UNSUBSCRIBE",), ("UNSUBSCRIBE", name), ("RESET",)]))

    def inline(self):
        pick, key = self.pick, self.key("s").encode()
        self.parts.append(pick.choice([
            b"GET " + key + b"\r\n", b"get " + key + b"\n", b"  GET\t" + key + b"  \r\n",
            b'GET "' + key + b'"\r\n', b"SET " + key + b' "a\\x41\\n"\r\n',
            b"SET " + key + b" 'it\\'s'\r\n", b"\r\n", b"\n", b" \r\n",
            b"SET " + key + b" " + text(pick, pick.choice([1000, 17000, 33000, 60000])) + b"\r\n",
            b"MGET " + b" ".join(self.key("s").encode() for _ in range(pick.choice([20, 700])))
            + b"\r\n", b"*0\r\n", b"*-1\r\n", b"*0\r\n*0\r\n",
        ]))

    def error(self):
        """After most of these the server ends the connection."""
        pick, key, name = self.pick, self.key("s").encode(), b"k%d" % self.client
        self.parts.append(pick.choice([
            b'GET "' + key + b"\r\n", b"GET '" + key + b"'x\r\n", b"SET x " + b"y" * 70000,
            b"*2147483648\r\n", b"*1048577\r\n$3\r\nGET\r\n", b"*x\r\n",
            b"*2\r\n$3\r\nGET\r\n$-5\r\n", b"*2\r\n$3\r\nGET\r\n$99999999999\r\n",
            b"*2\r\n$3\r\nGET\r\n:3\r\n", b"*2\r\n$3\r\nGET\r\n$x\r\n",
            b"*3\r\n$3\r\nSET\r\n$2\r\n" + name + b"\r\n$3\r\nabcdef\r\n",
            b"*2\r\n$3\r\nGETxx$2\r\n" + name + b"\r\n", b"\x00\x00\xff\r\n",
            b"POST / HTTP/1.1\r\n", b"*" + b"1" * 70000,
            b"*2\r\n$3\r\nGET\r\n$" + b"0" * 20 + b"4\r\nnone\r\n",
        ]))

    def half(self):
        whole = packed("SET", self.key("s"), text(self.pick, 500))
        self.parts.append(whole[:self.pick.randrange(1, len(whole))])

    def bytes(self, changed):
        pick = self.pick
        broken = pick.random() < 0.3
        kinds = [self.command] * 12 + [self.transaction, self.protocol, self.tracking, self.channel,
                                       self.inline, self.inline, self.protocol]
        # without a reply to an error, a server ends a connection now or never
        if not changed and not broken:
            kinds.append(self.replies)
        for _ in range(pick.randrange(3, 25)):
            pick.choice(kinds)()
        if broken:
            pick.choice([self.error, self.half])()
            for _ in range(pick.randrange(3)):
                self.command()
        data = bytearray(b"".join(self.parts))
        for _ in range(pick.randrange(1, 5) if changed else 0):
            at = pick.randrange(len(data))
            other = [b"", b"\r", b"\n", b"$", b"*", b"9", b"\x00", pick.randbytes(1)]
            data[at:at + pick.randrange(2)] = pick.choice(other)
        return bytes(data) + packed("RESET") + packed("ECHO", THE_END)


class Twin:
    """One script's connection to a server."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.got, self.out, self.ended = bytearray(), bytearray(), False
        self.last = time.monotonic()

    def step(self):
        """Sends and takes what can be sent and taken now."""
        try:
            if self.out and not self.ended:
                del self.out[:self.socket.send(self.out)]
        except BlockingIOError:
            pass
        except OSError:
            self.out.clear()
        try:
            while not self.ended:
                data = self.socket.recv(1 << 16)
                self.last = time.monotonic()
                self.got += data
                self.ended = not data
        except BlockingIOError:
            pass
        except OSError:
            self.ended = True

    def over(self, now):
        if self.ended or self.got.endswith(THE_END + b"\r\n"):
            return True
        return now > self.last + (DEAF_S if self.out else SILENCE_S)


class Normal:
    """Bytes that differ between two servers by design: the modules and the client's number in the
    reply of HELLO, and the refusal of a password, which a server drops while replies before it wait
    to be sent."""

    def __init__(self, *servers):
        self.pairs = []
        for protocol in ("2", "3"):
            tails = []
            for server in servers:
                one = Twin(server.port)
                one.out += packed("HELLO", protocol) + packed("ECHO", "the end")
                until = time.monotonic() + PATIENCE_S
                while not one.got.endswith(b"the end\r\n"):
                    assert time.monotonic() < until, "no reply to HELLO"
                    one.step()
                    time.sleep(0.001)
                begin, end = one.got.index(b"$7\r\nmodules\r\n"), -len(b"$7\r\nthe end\r\n")
                tails.append(bytes(one.got[begin:end]))
                one.socket.close()
            self.pairs.append(tails)

    def __call__(self, data):
        for plain, tiered in self.pairs:
            data = data.replace(tiered, plain)
        data = re.sub(rb"-WRONGPASS [^\r]*\r\n", b"", data)
        return re.sub(rb"\$2\r\nid\r\n:\d+", b"$2\r\nid\r\n:0", data)


def fill(server, pick):
    client = server.client
    client.ask("ACL", "SETUSER", "low", "on", ">pw", "~c*:s:*", "-@all", "+get", "+mget", "+multi",
               "+exec", "+reset", "+auth", "+hello", "+ping", "+select")
    for c in range(CLIENTS):
        words = []
        for k in range(KEYS):
            words.append(("SET", f"c{c}:s:{k}", text(pick, 1500)))
            if k % 3 == 0:
                words += [("HSET", f"c{c}:h:{k}", "f1", text(pick, 40), "f2", text(pick, 60)),
                          ("RPUSH", f"c{c}:l:{k}", text(pick, 700), text(pick, 700)),
                          ("ZADD", f"c{c}:z:{k}", "1", text(pick, 50), "2", text(pick, 50)),
                          ("SADD", f"c{c}:t:{k}", *range(k % 7 + 1))]
        server.pipeline(words)


def difference(one, other):
    at = next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
    here, there = (data[max(0, at - 80):at + 80] for data in (one, other))
    return f"at byte {at} of {len(one)} and {len(other)}: {here!r} and {there!r}"


# A line without an end is refused once 64 KiB of it are there when the server looks: how much is
# there at once is chance, on a plain server as well.
TOO_LONG = (b"-ERR Protocol error: too big inline request\r\n",
            b"-ERR Protocol error: too big mbulk count string\r\n",
            b"-ERR Protocol error: too big bulk count string\r\n")


def too_long(one, other):
    """Whether `one` ends by such a refusal, and agrees with `other` before."""
    return any(one.endswith(refusal) and other.startswith(one[:-len(refusal)])
               for refusal in TOO_LONG)


def exchange(scripts, servers, normal, pick):
    """Each script to both servers, in the same pieces. None: chance had one end a client
    (TOO_LONG), so their data may differ from now on."""
    pairs = [[Twin(server.port) for server in servers] for _ in scripts]
    at = [0] * len(scripts)
    began = time.monotonic()
    while True:
        left = [n for n, data in enumerate(scripts) if at[n] < len(data)]
        for n in left:
            piece = pick.choice([1, 7, 100, 3000, len(scripts[n]), len(scripts[n])])
            for twin in pairs[n]:
                twin.out += scripts[n][at[n]:at[n] + piece]
            at[n] += piece
        twins = [twin for pair in pairs for twin in pair]
        for twin in twins:
            twin.step()
        if left:
            continue
        now = time.monotonic()
        same = [a.ended == b.ended and (a.ended or normal(bytes(a.got)) == normal(bytes(b.got)))
                for a, b in pairs]
        silent = all(twin.over(now) for twin in twins)
        if (all(same) and silent) or now > began + PATIENCE_S:
            break
        select.select([twin.socket for twin in twins if not twin.ended], [], [], 0.01)
    ended = cut = 0
    for n, (plain, tiered) in enumerate(pairs):
        a, b = normal(bytes(plain.got)), normal(bytes(tiered.got))
        if plain.ended != tiered.ended and (too_long(a, b) or too_long(b, a)):
            return None
        assert plain.ended == tiered.ended, (
            f"ended: {plain.ended} and {tiered.ended}\nof {scripts[n][:3000]!r}")
        part = plain.ended and (a.startswith(b) or b.startswith(a))
        assert a == b or part, f"replies differ {difference(a, b)}\nof {scripts[n][:3000]!r}"
        ended += plain.ended
        cut += a != b
        plain.socket.close()
        tiered.socket.close()
    return ended, cut


@pytest.mark.parametrize("how, rounds", [
    ("module", 20), *(pytest.param(how, rounds, marks=pytest.mark.slow)
                      for how, rounds in (("module", 400), ("both", 100)))])
def test_wire(servers, how, rounds):
    """both: under `lunar run`, the module on top."""
    pick = random.Random(SEED)
    plain = servers.plain("--databases", "4")
    if how == "module":
        tiered = servers.tiered("--databases", "4")
    else:
        tiered = servers.run("--databases", "4", "--loadmodule", MODULE)
    for server in servers.started:
        fill(server, random.Random(SEED))
    normal = Normal(plain, tiered)
    held, ended, cut, scripts = tiered.figure("gate_held"), 0, 0, 0
    for _ in range(rounds):
        # changed bytes may name another one's keys: alone
        for some in ([Script(pick, c).bytes(False) for c in range(CLIENTS)],
                     [Script(pick, pick.randrange(CLIENTS)).bytes(True)]):
            got = exchange(some, servers.started, normal, pick)
            if got is None:
                print(f"{scripts} scripts; then a line without an end was too long for one server")
                return
            ended, cut, scripts = ended + got[0], cut + got[1], scripts + len(some)
    same_data(plain, tiered)
    print(f"{scripts} scripts, {ended} of them ended by the server, {cut} of these with fewer "
          f"replies from one")
    assert tiered.info("lunar")["lunar_gate"] == "watching"
    assert tiered.figure("gate_held") - held >= HELD_MIN * scripts, "the gate was hardly tested"
    assert cut <= CUT_MAX * ended + 3
