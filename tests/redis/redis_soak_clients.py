# SPDX-License-Identifier: Apache-2.0
"""The soak test's clients, a thread each. Each makes a new connection after each end of the server,
to the test's own server only, and is quiet while the test compares.

Owner       owns keys of all types, knows what the server must hold for each, checks every reply
            against it, and finds out after a lost connection which of its unanswered writes have
            happened. Of the steps (commands, or MULTI..EXEC) that were sent and not answered, the
            server has done the first k for some k, in order, each whole or not at all: the only
            freedom it has. After a reconnect the keys they touch are read, and some k must explain
            all of them at once.
Strings     strings of its own that have an end by the wall clock, or rounds in which most are
            deleted at random and written anew with another size, so that the heap is full of holes.
            What a key may be is a list of states: one when all is acknowledged, and one more for
            each write whose reply has not come. A read must be one of them, at its time.
Limited     a user that may read some keys and nothing else: it tries what it may not, and gets
            NOPERM. The owners of the keys see that nothing has changed."""
import random
import threading
import time
import traceback

import redis

from redis_server import GONE, NOISE, SEED, Client, Refused

BYTES = 3000                                       # of content, about, at every key of an Owner
STRING, HASH, LIST, ZSET, SET = range(5)
PUTS = ("SET", "HSET", "RPUSH", "ZADD", "SADD")
TAKES = ("DEL", "HDEL", "LPOP", "ZREM", "SREM")
READS = (("GET",), ("HGETALL",), ("LRANGE", "0", "-1"), ("ZRANGE", "0", "-1", "WITHSCORES"),
         ("SMEMBERS",))
LIMITED = ("--user", "limited", "on", ">sesame", "%R~key:1*", "+@read", "-scan", "+auth")
CLOCK_MS = 2   # the server's clock is read once a command, in whole milliseconds
STRINGS, SIZES, NEVER = 40, (1000, 2100, 700, 3500, 300), 1 << 60   # a batch, in turns


def noise(at, size):
    at %= len(NOISE) - 8192
    return NOISE[at:at + size]


def brief(what):
    text = repr(what)
    return text if len(text) < 200 else f"{text[:200]}... ({len(text)} characters)"


class Board:
    """Where the server is, whether a reply may be an error, and what failed."""

    def __init__(self):
        self.server, self.lossy, self.paused = None, False, False
        self.stop, self.failures = threading.Event(), []

    def fail(self, text):
        self.failures.append(text)
        if len(self.failures) <= 10:
            print(f"FAIL: {text}", flush=True)
        self.stop.set()


class Guest(threading.Thread):
    def __init__(self, board, name, pause_s):
        super().__init__(name=name, daemon=True)
        self.board, self.pick, self.pause_s = board, random.Random(f"{SEED} {name}"), pause_s
        self.client, self.busy = None, False

    def run(self):
        while not self.board.stop.is_set():
            self.busy, worked = True, False
            try:
                if not self.board.paused and (self.client or self.connect()):
                    self.step()
                    worked = True
            except redis.TimeoutError:
                self.board.fail(f"{self.name} has had no reply")
            except GONE:
                self.hang_up()
            except Exception:   # pylint: disable=broad-except
                self.board.fail(f"{self.name}: {traceback.format_exc()}")
            self.busy = False
            time.sleep(self.pick.random() * self.pause_s if worked else 0.02)
        self.hang_up()

    def connect(self):
        """To the server that the board names."""
        server = self.board.server
        if server is None:
            return False
        self.hang_up()
        self.client = Client(server.port)
        ours = self.client.ask("CONFIG", "GET", "dir")[1].decode() == server.directory
        if not ours or not self.greet():
            self.hang_up()
        return self.client is not None

    def greet(self):
        return True

    def hang_up(self):
        if self.client:
            self.client.close()
        self.client = None

    def refused(self, words, reply):
        """An error reply, which only a LUN that loses pages excuses."""
        if isinstance(reply, Refused) and not self.board.lossy:
            self.board.fail(f"{words[:2]}: error reply '{reply}'")
        return isinstance(reply, Refused)

    def verify_all(self):
        """Reads every key on the server that there is now."""
        assert self.connect(), f"{self.name} is not let in"
        for first in range(0, self.keys, STRINGS):
            self.exchange(self.reads(range(first, min(first + STRINGS, self.keys))))
        assert self.client, "the last server hung up"


class Owner(Guest):
    """A value is {part: version}: of a string {0: version}, of a hash by field, of a list by place,
    of a sorted set by member (version: its score), of a set by member (version: anything). A write
    is (verb, key, part, version), a step (writes, key, whether it is a transaction); without writes
    it reads the key."""

    def __init__(self, board, number, keys, pause_s):
        super().__init__(board, f"owner {number}", pause_s)
        self.first, self.keys = number * keys, keys
        self.values, self.doubt = [{} for _ in range(keys)], []
        self.filled = self.version = 0
        self.writes = self.reads_done = self.in_doubt = 0

    def step(self):
        self.exchange(self.next_fill() if self.filled < self.keys else self.next_batch())

    def greet(self):
        return self.settle()

    @staticmethod
    def parts(key):
        """200: not compact."""
        return 1 if key % 5 == STRING else 200 if key // 5 % 25 == 0 else 20

    def key(self, key):
        return f"key:{self.first + key}"

    def text(self, key, part, version):
        """A list's items do not know their places."""
        part = 0 if key % 5 == LIST else part
        return noise((self.first + key) * 7919 + part * 104_729 + version * 31,
                     BYTES // self.parts(key))

    def member(self, key, part):
        return b"%d:" % part + self.text(key, part, 0)

    def words(self, verb, key, part, version):
        kind = key % 5
        if verb == "delete":
            return ["DEL", self.key(key)]
        if verb == "take":
            return [TAKES[kind], self.key(key), *([f"field {part}"] if kind == HASH else
                                                  [self.member(key, part)] if kind >= ZSET else [])]
        words = [PUTS[kind], self.key(key)]
        for at in range(self.parts(key)) if verb == "fill" else [part]:
            number = version + (at if verb == "fill" else 0)
            words += [f"field {at}"] if kind == HASH else [str(number)] if kind == ZSET else []
            words.append(self.member(key, at) if kind >= ZSET else self.text(key, at, number))
        return words

    def apply(self, value, verb, key, part, version):
        """Changes `value` as the server would; returns what it answers."""
        kind, before = key % 5, len(value)
        if verb == "delete" or (verb == "take" and kind == STRING):
            value.clear()
            return int(before > 0)
        if verb == "take":
            if kind != LIST:
                return int(value.pop(part, None) is not None)
            if not value:
                return None
            return self.text(key, 0, value.pop(next(iter(value))))
        for at in range(self.parts(key) if verb == "fill" else 1):
            place = at if verb == "fill" else part
            if kind == LIST:
                place = next(reversed(value)) + 1 if value else 0
            value[place] = version + at
        if kind == STRING:
            return b"OK"
        return len(value) if kind == LIST else len(value) - before

    def difference(self, key, value, reply):
        """Between what a read answers and what it must; "": none."""
        kind = key % 5
        if kind == STRING:
            wanted = self.text(key, 0, value[0]) if value else None
        elif kind == LIST:
            wanted = [self.text(key, 0, version) for version in value.values()]
        elif kind == SET:
            wanted, reply = sorted(self.member(key, part) for part in value), sorted(reply)
        else:
            wanted = {b"field %d" % part if kind == HASH else self.member(key, part):
                      self.text(key, part, version) if kind == HASH else b"%d" % version
                      for part, version in value.items()}
            reply = dict(zip(reply[::2], reply[1::2]))
        if reply == wanted:
            return ""
        if isinstance(wanted, dict):   # what differs
            reply, wanted = (dict(one.items() - other.items())
                             for one, other in ((reply, wanted), (wanted, reply)))
        return f"{self.key(key)} is {brief(reply)}, not {brief(wanted)}"

    def read_words(self, key):
        verb, *more = READS[key % 5]
        return [verb, self.key(key), *more]

    def reads(self, keys):
        return [([], key, False) for key in keys]

    def exchange(self, batch):
        """Sends all, checks the replies in order. What is unanswered when the connection ends, or
        answered by an error, is in doubt."""
        done = 0
        try:
            self.client.send([words for writes, key, whole in batch for words in
                              [*([("MULTI",)] if whole else []),
                               *(self.words(*write) for write in writes),
                               *([("EXEC",)] if whole else []),
                               *([] if writes else [self.read_words(key)])]])
            for step in batch:
                if not self.take_replies(*step):
                    break
                done += 1
        finally:
            left = [step for step in batch[done:] if step[0]]
            if done < len(batch):
                self.hang_up()
                self.doubt = left
                self.in_doubt += len(left)

    def take_replies(self, writes, key, whole):
        if not writes:
            reply = self.client.receive()
            if self.refused(self.read_words(key), reply):
                return False
            if wrong := self.difference(key, self.values[key], reply):
                self.board.fail(wrong)
            self.reads_done += 1
            return True
        for _ in range(len(writes) + 1 if whole else 0):   # OK, QUEUED...
            if self.refused(("MULTI", self.key(key)), self.client.receive()):
                return False
        reply = self.client.receive()
        if self.refused(self.words(*writes[0]), reply):
            return False
        replies = reply if whole else [reply]
        wanted = [self.apply(self.values[write[1]], *write) for write in writes]
        if replies != wanted:
            self.board.fail(f"{writes}: {brief(replies)}, not {brief(wanted)}")
        self.writes += len(writes)
        return True

    def settle(self):
        """Finds k."""
        touched = {write[1]: dict(self.values[write[1]])
                   for step in self.doubt for write in step[0]}
        seen, wrong = {}, []
        self.client.send(list(map(self.read_words, touched)))
        for key in touched:
            seen[key] = self.client.receive()
            if self.refused(self.read_words(key), seen[key]):
                return False
        for step in [None, *self.doubt]:
            for write in step[0] if step else []:
                self.apply(touched[write[1]], *write)
            wrong.append(next(filter(None, (self.difference(key, value, seen[key])
                                            for key, value in touched.items())), ""))
            if not wrong[-1]:
                break
        if wrong[-1]:
            self.board.fail(f"after a reconnect no number of the {len(self.doubt)} unanswered "
                            f"steps explains what is there: without them {wrong[0]}; with all "
                            f"{wrong[-1]}")
        for key, value in touched.items():
            self.values[key] = value
        self.doubt = []
        return True

    def next_fill(self):
        batch = []
        while len(batch) < 20 and self.filled < self.keys:
            if not self.values[self.filled]:
                batch.append(([("fill", self.filled, 0, self.new_version(self.filled))],
                              self.filled, False))
            self.filled += 1
        return batch

    def new_version(self, key):
        """Takes a version for each item of the key: a fill gives each item the next one."""
        self.version += self.parts(key)
        return self.version

    def next_write(self):
        key, dice = self.pick.randrange(self.keys), self.pick.randrange(100)
        value = self.values[key]
        full = len(value) >= self.parts(key) + 20   # only lists grow beyond their parts
        verb = ("fill" if not value else "take" if full or dice < 30 else "delete" if dice < 33
                else "put")
        return verb, key, self.pick.randrange(self.parts(key)), self.new_version(key)

    def next_batch(self):
        batch, pick = [], self.pick.randrange
        for _ in range(30 if pick(10) == 0 else 1 + pick(4)):
            dice = pick(100)
            writes = [self.next_write()
                      for _ in range(2 + pick(4) if dice < 10 else 1 if dice < 55 else 0)]
            batch.append((writes, writes[0][1] if writes else pick(self.keys), dice < 10))
        return batch


class Strings(Guest):
    """A state is (version, size, due in ms); version 0: there is no key. An operation is (key,
    whether it reads, the state that a write makes)."""

    def __init__(self, board, prefix, keys, pause_s, life_ms_max=0):
        super().__init__(board, prefix, pause_s)
        self.keys, self.life_ms_max = keys, life_ms_max
        self.states = [[(0, 0, NEVER)] for _ in range(keys)]
        self.version = self.rounds = self.expired = self.part = 0
        self.order = []

    def step(self):
        self.exchange(self.next_due() if self.life_ms_max else self.next_round())

    def words(self, key, read, state):
        version, _, due = state
        name = f"{self.name}:{key}"
        if read or not version:
            return ("GET" if read else "UNLINK", name)
        return "SET", name, self.text(key, state), *(() if due == NEVER else ("PXAT", str(due)))

    @staticmethod
    def text(key, state):
        return noise(key * 7919 + state[0] * 31, state[1])

    def reads(self, keys):
        return [(key, True, (0, 0, NEVER)) for key in keys]

    def exchange(self, batch):
        """A key is in a batch once."""
        began = int(time.time() * 1000)
        for key, read, state in batch:
            if not read:
                self.states[key].append(state)
        self.client.send([self.words(*operation) for operation in batch])
        for key, read, state in batch:
            reply = self.client.receive()
            if self.refused(self.words(key, read, state), reply):
                continue
            if read:
                self.check(key, reply, began, int(time.time() * 1000))
            else:
                self.states[key] = [state]

    def check(self, key, reply, since, until):
        """A key is there until its end, and is not behind it; which of both in between the read's
        own time decides."""
        for state in self.states[key]:
            version, _, due = state
            gone = not version or until + CLOCK_MS >= due
            alive = version and since < due + CLOCK_MS
            if (alive and reply == self.text(key, state)) if reply is not None else gone:
                self.expired += reply is None and version > 0
                self.states[key] = [state if reply is not None else (0, 0, NEVER)]
                return
        self.board.fail(f"{self.name}:{key} is {brief(reply)} from {since} to {until} ms; may be "
                        f"{self.states[key]}")

    def next_due(self):
        """Keys next to each other, which end together, or reads of some."""
        first, read = self.pick.randrange(self.keys), self.pick.random() < 0.5
        due = int(time.time() * 1000) + 50 + self.pick.randrange(self.life_ms_max)
        batch = []
        for n in range(min(STRINGS, self.keys)):
            self.version += 1
            batch.append(((first + n) % self.keys, read, (self.version, 1000, due)))
        return batch

    def next_round(self):
        """All are written, 7 of 8 deleted at random, and what is left is read, before the next
        round has another size."""
        if not self.order:
            self.order = self.pick.sample(range(self.keys), self.keys)
            self.part = (self.part + 1) % 3   # 0 reads, 1 fills, 2 drops
            self.rounds += self.part == 1
            if self.part == 2:
                del self.order[max(1, self.keys // 8 * 7):]
        some, batch = self.order[:STRINGS], []
        del self.order[:STRINGS]
        for key in some:
            self.version += 1
            batch.append((key, self.part == 0, (self.version if self.part == 1 else 0,
                                                SIZES[self.rounds % len(SIZES)], NEVER)))
        return batch


class Limited(Guest):
    def __init__(self, board, keys, pause_s):
        super().__init__(board, "limited", pause_s)
        self.keys, self.turned_down = keys, 0

    def greet(self):
        return self.client.ask("AUTH", "limited", "sesame") == b"OK"

    def step(self):
        words = []
        for _ in range(20):
            key, other = f"key:{self.pick.randrange(self.keys)}", f"key:2{self.pick.randrange(99)}"
            words.append(self.pick.choice([
                ("SET", key, "not for this user"), ("DEL", key, other), ("GET", other),
                ("MGET", key, other), ("HSET", key, "field 1", "x"), ("RPUSH", key, "x"),
                ("EVAL", "return redis.call('DEL', KEYS[1])", "1", key), ("PEXPIRE", key, "1"),
                ("FLUSHALL",)]))
        for command, reply in zip(words, self.client.all_of(words)):
            if not isinstance(reply, redis.exceptions.NoPermissionError):
                self.board.fail(f"the limited user's {command} is answered {brief(reply)}")
            self.turned_down += 1
