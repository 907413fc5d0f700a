# SPDX-License-Identifier: Apache-2.0
"""Random commands of the twin test, over all types. The seed decides all.

TABLES has a line a command, with its weight where that is not 1. Words in braces are random:
{s} a key of that type (TYPES), {any} of any; {-9..9} a number, seldom something else; {~60} a text
of less than 60 bytes; {A|B} one of these; others have a method. {=} repeats the word before.

Keys keep to their type but for a seldom RENAME or COPY (never of a hash or set: then DUMP and SORT
BY of another type's key would see the order of a hash table). Random picks (SPOP, SRANDMEMBER, ...)
ask for ALL elements: which ones come otherwise is chance.
"""
import random
import re

CLIENTS, KEYS_EACH = 8, 560   # keys a client and type
# Numbers, strings, bitmaps, HLL, lists, hashes, sets, sorted sets, those of one score, streams, geo
TYPES = "nsbplhtzyxg"
ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ\r\n"
ALL = 100_000   # more than any collection has

TABLES = {
    # weight, commands
    "strings": (3, """
        2 SET {s} {string}
          APPEND {s} {~200}
          SETRANGE {s} {0..7000} {~50}
        2 GETRANGE {s} {-2000..5000} {-2000..5000}
          MGET {s} {s} {n} {l} {s} none
          MSET {s} {~3000} {n} {0..99} {s} {~100}
          STRLEN {s}
          GETSET {s} {~2000}
          GETEX {s} EXAT {exat}
          BITCOUNT {s}
        6 GET {s}"""),
    "numbers": (2, """
        INCR {n}
        DECR {n}
        INCRBY {n} {-1000..1000}
        DECRBY {n} {-1000..1000}
        INCRBYFLOAT {n} {float}
        GETSET {n} {-1000..1000}
        SETNX {n} {-1000..1000}
        SETEX {n} {ex} {-1000..1000}
        PSETEX {n} {px} {-1000..1000}
        SET {n} {~60} {NX|XX|GET|KEEPTTL}
        SET {n} {-1000..1000} PX {px} GET
        SET {n} {-1000..1000} {EXAT|PXAT} {pxat}
        GETDEL {n}
        GETEX {n} PX {px}
        GETEX {n} PERSIST
        MSETNX {n} {-1000..1000} {n} {~20}
        LCS {n} {n}
        LCS {n} {n} IDX MINMATCHLEN 2 WITHMATCHLEN
        APPEND {n} {~9}
        OBJECT ENCODING {n}
        SUBSTR {n} 0 {-3..9}
        GET {n}"""),
    "bitmaps": (1, """
        2 SETBIT {b} {offset} {bit}
        2 GETBIT {b} {offset}
          BITCOUNT {b} {-500..500} {-500..2000} {BYTE|BIT}
          BITCOUNT {b}
          BITPOS {b} {bit} {0..500}
          BITPOS {b} {bit} {0..500} {-20..2000} {BYTE|BIT}
          BITOP {AND|OR|XOR} {b} {b} {b} {s}
          BITOP NOT {b} {b}
          BITFIELD {b} GET u8 {offset} SET i16 {slot} {-9000..9000} OVERFLOW {WRAP|SAT|FAIL} \
              INCRBY {u2|i5|u63|i64} {offset} {-3..60}
          BITFIELD_RO {b} GET {u4|i13|u63} {offset} GET u1 #7"""),
    "hyperloglogs": (1, """
        3 PFADD {p} {~7} {~7} {0..500} {f}
        2 PFCOUNT {p}
          PFCOUNT {p} {p} {p}
          PFMERGE {p} {p} {p}"""),
    "lists": (3, """
        2 RPUSH {l} {item} {0..9} {~30}
          LPUSH {l} {item} {~10}
          {RPUSHX|LPUSHX} {l} {item}
          LPOP {l}
          RPOP {l} {0..4}
        3 LRANGE {l} {-12..12} {-12..12}
          LINDEX {l} {-12..12}
          LSET {l} {-12..12} {item}
          LINSERT {l} {BEFORE|AFTER} {0..9} {item}
          LREM {l} {-2..2} {0..9}
          LTRIM {l} 0 {20..300}
          LPOS {l} {0..9} RANK {1..2} COUNT {0..3}
          LMOVE {l} {l} {LEFT|RIGHT} {LEFT|RIGHT}
          RPOPLPUSH {l} {l}
          LMPOP 3 {l} {l} {l} {LEFT|RIGHT} COUNT 2
          OBJECT ENCODING {l}
        3 LLEN {l}"""),
    "hashes": (3, """
        2 HSET {h} {f} {field} {f} {0..50}
          HSETNX {h} {f} {field}
          HMSET {h} {f} {field} {f} {field}
        3 HGET {h} {f}
          HMGET {h} {f} {f} none {f}
          HDEL {h} {f} {f}
          HEXISTS {h} {f}
          HSTRLEN {h} {f}
          HINCRBY {h} {f} {-5..50}
          HINCRBYFLOAT {h} {f} 0.25
          HGETALL {h}
          HKEYS {h}
          HVALS {h}
          HRANDFIELD {h} ALL
          HRANDFIELD {h} ALL WITHVALUES
          HSCAN {h} 0 COUNT ALL
          HSCAN {h} 0 MATCH f1* COUNT ALL
          OBJECT ENCODING {h}
          HLEN {h}"""),
    "sets": (3, """
        2 SADD {t} {m} {m} {m or text}
          SREM {t} {m} {m}
        6 SISMEMBER {t} {m}
          SMISMEMBER {t} {m} {f} {m}
          SCARD {t}
          SMEMBERS {t}
          SMOVE {t} {t} {m}
          SPOP {t} {100000|0|0|0}
          SRANDMEMBER {t} ALL
          SINTER {t} {t}
          SUNION {t} {t} {t}
          SDIFF {t} {t} {t}
          {SINTERSTORE|SUNIONSTORE|SDIFFSTORE} {t} {t} {t}
          SINTERCARD 2 {t} {t} LIMIT {0..9}
          SSCAN {t} 0 COUNT ALL
          SSCAN {t} 0 MATCH *1* COUNT ALL
          OBJECT ENCODING {t}"""),
    "sorted sets": (2, """
        2 ZADD {z} {score} {f} {score} {f}
          ZADD {z} {NX|XX|GT|LT} CH {score} {f} 5 {~20}
          ZADD {z} XX INCR {score} {f}
          ZINCRBY {z} {-5..5} {f}
        2 ZSCORE {z} {f}
          ZMSCORE {z} {f} {f} none
          ZREM {z} {f} {f}
          ZCARD {z}
          ZPOPMIN {z} {0..3}
          ZPOPMAX {z}
          ZMPOP 2 {z} {z} {MIN|MAX} COUNT 2
          ZRANDMEMBER {z} ALL
          ZRANDMEMBER {z} ALL WITHSCORES
          ZSCAN {z} 0 COUNT ALL
          {ZUNIONSTORE|ZINTERSTORE} {z} 3 {z} {z} {t} WEIGHTS 2 1 -3 AGGREGATE {SUM|MIN|MAX}
          ZDIFFSTORE {z} 2 {z} {z}
          {ZUNION|ZINTER|ZDIFF} 2 {z} {z} WITHSCORES
          {ZUNION|ZINTER|ZDIFF} 2 {z} {t} WITHSCORES
          ZINTERCARD 2 {z} {z} LIMIT {0..9}
          ZRANGESTORE {z} {z} {-5..5} {-9..30}
        3 {ZRANK|ZREVRANK} {z} {f}"""),
    "ranges of sorted sets": (2, """
        2 ZRANGE {z} {-9..9} {-9..30} WITHSCORES
          ZRANGE {z} {low} {high} BYSCORE LIMIT {0..3} {-1..9}
          ZRANGE {z} {high} {low} BYSCORE REV WITHSCORES
          ZRANGEBYSCORE {z} {low} {high} WITHSCORES LIMIT 0 {0..9}
          ZREVRANGEBYSCORE {z} {high} {low}
          ZCOUNT {z} {low} {high}
          ZREMRANGEBYRANK {z} {0..3} {0..4}
          ZREMRANGEBYSCORE {z} {low} {=}
          ZREVRANGE {z} 0 {0..9}"""),
    # Only where all scores are equal: in a skip list of several scores the answer follows its
    # random levels.
    "ranges of names": (0.5, """
        ZADD {y} 0 {f} 0 {f}{~3}
        ZREM {y} {f}
        ZRANGE {y} {from} {to} BYLEX LIMIT {0..3} {-1..9}
        ZRANGE {y} {to} {from} BYLEX REV
        ZRANGEBYLEX {y} {from} {to}
        ZREVRANGEBYLEX {y} {to} {from}
        ZLEXCOUNT {y} {from} {to}
        ZREMRANGEBYLEX {y} {from} {=}
        ZPOPMIN {y}"""),
    "streams": (1, """
        2 XADD {x} * a {~300} b {0..9}
          XADD {x} MAXLEN {~|=} {5..40} {id} a {~300}
          XADD {x} NOMKSTREAM {now}-* c {~20} a 1
          XADD {x} MINID ~ {id} LIMIT 20 * a 2
          XRANGE {x} - + COUNT {1..8}
          XRANGE {x} {id} + COUNT {1..8}
          XREVRANGE {x} + - COUNT 4
          XREVRANGE {x} + ({id} COUNT 4
          XREAD COUNT 3 STREAMS {x} {x} 0 {id}
          XDEL {x} {id} 1000-{1..40}
          XTRIM {x} {MAXLEN|MINID} {3..1000}
          XINFO STREAM {x}
          XINFO STREAM {x} FULL COUNT 5
          XSETID {x} {id}
        2 XLEN {x}"""),
    "groups of streams": (1, """
          XGROUP CREATE {x} {group} {0|$|1000-3} MKSTREAM
          XGROUP {CREATECONSUMER|DELCONSUMER} {x} {group} {ann|bob}
          XGROUP SETID {x} {group} 1000-{1..6}
          XGROUP DESTROY {x} g2
        3 XREADGROUP GROUP {group} {ann|bob} COUNT {1..3} STREAMS {x} {0|>|>|>}
          XREADGROUP GROUP {group} {ann|bob} NOACK STREAMS {x} >
        2 XACK {x} {group} 1000-{1..6} 1000-{1..6}
          XCLAIM {x} {group} {ann|bob} {0..3000} 1000-{1..6} IDLE 20 {FORCE|JUSTID}
          XAUTOCLAIM {x} {group} {ann|bob} {0..3000} 0 COUNT 3
          XPENDING {x} {group}
          XPENDING {x} {group} IDLE {0..3000} - + 5
          XINFO CONSUMERS {x} {group}
          XINFO GROUPS {x}"""),
    "geo": (1, """
        2 GEOADD {g} {lon} {lat} {f} {lon} {lat} {f}
          GEOADD {g} {NX|XX} CH {lon} {lat} {f}
          GEOPOS {g} {f} {f} none
          GEODIST {g} {f} {f} {m|km|mi|yd}
          GEOHASH {g} {f} {f}
          GEOSEARCH {g} FROMLONLAT {lon} {lat} BYRADIUS {100..1600} km {ASC|DESC} COUNT 7 \
              WITHCOORD WITHDIST
          GEOSEARCH {g} FROMMEMBER {f} BYBOX {100..1600} {=} km WITHHASH
          GEOSEARCHSTORE {g} {g} FROMLONLAT {lon} {lat} BYRADIUS {100..1600} km COUNT 9 ANY
          GEORADIUS_RO {g} {lon} {lat} {100..1600} km WITHDIST ASC"""),
    "keyspace": (2, """
          DEL {any} {any}
          UNLINK {any}
        2 EXISTS {any} {any} {any}
        2 TYPE {any}
        2 RENAME {any} {other}
          RENAMENX {any} {other}
        2 COPY {any} {other} REPLACE
          COPY {any} {other} DB {db} REPLACE
          COPY {any} {other}
          MOVE {any} {db}
          TOUCH {any} {any} {any}
          OBJECT {ENCODING|ENCODING|REFCOUNT|NOTHING} {any}
        2 DEBUG DIGEST-VALUE {any} {any}
        2 DUMP {any}"""),
    "expiry": (1, """
          EXPIRE {any} {ex}
          PEXPIRE {any} {px}
          EXPIREAT {any} {exat}
          PEXPIREAT {any} {pxat}
          EXPIRE {any} {ex} {NX|XX|GT|LT}
        3 PERSIST {any}
          TTL {any}
          PTTL {any}
          EXPIRETIME {any}
          PEXPIRETIME {any}"""),
    "sorts": (1, """
        SORT {t} ALPHA LIMIT {0..5} {-1..20}
        SORT {t} DESC
        SORT {l} ALPHA DESC
        SORT {l} BY {mine}n:* GET # GET {mine}n:* ALPHA
        SORT {l} BY {mine}h:*->f1 LIMIT {0..5} {-1..20}
        SORT {z} BY nosort DESC LIMIT {0..5} {-1..20}
        SORT {t} ALPHA STORE {l}
        SORT_RO {l} LIMIT {0..5} {-1..20}"""),
}

# Scripts of EVAL, EVALSHA and EVAL_RO, the number of their keys, and whether they write.
SCRIPTS = [
    ("return redis.call('GET', KEYS[1])", 1, False),
    ("return redis.call('STRLEN', ARGV[1])", 1, False),   # a key that was not declared
    ("local m = redis.call('SMEMBERS', KEYS[2]) table.sort(m) "
     "return {#m, m[1], m[#m], redis.call('SCARD', KEYS[2])}", 2, False),
    ("return cjson.encode(redis.call('LRANGE', KEYS[3], -4, -1))", 3, False),
    ("local t = redis.call('TIME') return {t[1], t[2], redis.call('PTTL', KEYS[1])}", 1, False),
    ("local s = 0 for i, k in ipairs(KEYS) do s = s + (redis.call('EXISTS', k) * i) end return s",
     5, False),
    ("local v = redis.call('HINCRBY', KEYS[4], ARGV[2], 3) redis.call('RPUSH', KEYS[3], v, ARGV[3])"
     " return {v, redis.call('LLEN', KEYS[3])}", 4, True),
    ("local r = redis.pcall('INCR', KEYS[1]) if type(r) == 'table' and r.err then return r.err end "
     "return r", 1, True),
    ("redis.call('SET', KEYS[1], ARGV[3]) redis.call('LPUSH', KEYS[1], 'x') return 1", 1,
     True),   # the SET stays
    ("math.randomseed(#ARGV[3]) redis.call('ZADD', KEYS[5], math.random(1000), ARGV[2]) "
     "return redis.call('ZRANGE', KEYS[5], 0, 3, 'WITHSCORES')", 5, True),
    ("redis.call('SET', KEYS[1], ARGV[3], 'PX', 4000) "
     "return redis.status_reply(redis.call('TYPE', KEYS[1]).ok)", 1, True),
    ("for i = 1, 20 do redis.call('RPUSH', KEYS[3], ARGV[3] .. i) end "
     "redis.call('LTRIM', KEYS[3], 0, 300) return redis.call('LINDEX', KEYS[3], -1)", 3, True),
]
LIBRARY = """#!lua name=twin
redis.register_function('twin_put', function(keys, args)
  return {redis.call('HSET', keys[2], args[1], args[2]), redis.call('SADD', keys[1], args[1]), '%d'}
end)
redis.register_function{function_name='twin_get', flags={'no-writes'}, callback=function(keys, args)
  return {redis.call('HGET', keys[2], args[1]), redis.call('SISMEMBER', keys[1], args[1])}
end}
redis.register_function('twin_move', function(keys, args)
  if redis.call('SREM', keys[1], args[1]) == 0 then return redis.error_reply('nothing to move') end
  return redis.call('HDEL', keys[2], args[1])
end)
"""


def parsed(table):
    """Weights, and commands as words; a word is literal, or the parts between and in braces."""
    weights, commands = [], []
    for line in table.strip().replace("\\\n", "").split("\n"):
        weight, *words = re.findall(r"(?:\{[^}]*\}|\S)+", line)
        if not weight.isdigit():
            weight, words = 1, [weight, *words]
        words = [str(ALL) if word == "ALL" else word for word in words]
        commands.append([re.split(r"\{([^}]*)\}", word) for word in words])
        weights.append(int(weight))
    return weights, commands


class Commands:
    def __init__(self, seed):
        chance = random.Random(seed)
        self.pick, self.choice, self.one_of = chance.randrange, chance.choices, chance.choice
        self.noise = "".join(self.choice(ALPHABET, k=1 << 19))
        self.client, self.now_ms, self.digests = 0, 0, []
        self.families = [(weight, *parsed(table)) for weight, table in TABLES.values()]
        self.families.append((1, None, None))   # scripts
        self.weights = [weight for weight, _, _ in self.families]
        self.last_key = ""

    def one_in(self, n):
        return self.pick(n) == 0

    def text(self, size):
        at = self.pick(len(self.noise) - 100_000)
        return self.noise[at:at + size]

    def key(self, kind):
        number = self.pick(KEYS_EACH // 16 if self.one_in(3) else KEYS_EACH)
        self.last_key = f"c{self.client}:{kind}:{number}"
        return self.last_key

    def number(self, low, high):
        if self.one_in(60):
            return self.one_of(["9223372036854775807", "-9223372036854775808",
                                "9223372036854775808", "abc", "", "1.5", "-1", "0", " 1"])
        return str(low + self.pick(high - low + 1))

    def member(self, of=""):
        if of and int(of[-1]) % 2 == 0:
            return str(self.pick(1200))   # sets of integers
        return f"f{self.pick(300 if self.one_in(4) else 25)}"

    def score(self):
        if self.one_in(80):
            return self.one_of(["inf", "-inf", "nan", "1e300", "x"])
        return f"{self.pick(200) - 40}{'.5' if self.one_in(3) else ''}"

    def stream_id(self):
        if self.one_in(60):
            return self.one_of(["x", "0-0", "0", "-", "+", "$"])
        return f"{self.now_ms - self.pick(40_000)}-{self.pick(4)}"

    def place(self, degrees):
        return "200" if self.one_in(200) else f"{self.pick(degrees) - 10}.{self.pick(10_000):04}"

    def deadline(self, form):
        """An argument of EX, PX, EXAT or PXAT."""
        if self.one_in(80):
            return self.one_of(["0", "-1", "x", "9223372036854775807"])
        delta = self.pick(60_000) if self.one_in(3) else 1_000_000 + self.pick(100_000_000)
        if form.endswith("at"):   # also past ones
            delta += self.now_ms - (delta + 100_000 if self.one_in(20) else 0)
        return str(delta // 1000 + 1 if form.startswith("e") else delta + 1)

    def other(self):
        """A key of the last one's type, or seldom of another."""
        kind = self.last_key.split(":")[1]
        return self.key(self.one_of("sbplzxg") if kind not in "ht" and self.one_in(12) else kind)

    def word(self, what):
        if what in TYPES:
            return self.key(what)
        if what[0] == "~" and what[1:].isdigit():
            return self.text(self.pick(int(what[1:])))
        if ".." in what:
            return self.number(*map(int, what.split("..")))
        if "|" in what:
            return self.one_of(what.split("|"))
        return str(self.WORDS[what](self))

    WORDS = {
        "any": lambda c: c.key(c.one_of(TYPES)), "other": other, "score": score, "id": stream_id,
        "now": lambda c: c.now_ms, "f": member, "m": lambda c: c.member(c.last_key),
        "m or text": lambda c: c.text(80) if c.one_in(200) else c.member(c.last_key),
        "string": lambda c: c.text(60_000 + c.pick(40_000) if c.one_in(40) else c.pick(6000)),
        "item": lambda c: c.text(9000 if c.one_in(30) else c.pick(250)),
        "field": lambda c: c.text(700 if c.one_in(20) else c.pick(60)),
        "float": lambda c: f"{c.pick(50)}.{c.one_of(['25', '5', '75'])}",
        "offset": lambda c: c.pick(200_000 if c.one_in(30) else 20_000),
        "bit": lambda c: 2 if c.one_in(50) else c.pick(2), "slot": lambda c: f"#{c.pick(300)}",
        "low": lambda c: ("(" if c.one_in(3) else "") + c.score(),
        "high": lambda c: "+inf" if c.one_in(4) else c.score(),
        "from": lambda c: "-" if c.one_in(3) else c.one_of("[(") + c.member(),
        "to": lambda c: "+" if c.one_in(3) else "[" + c.member(),
        "group": lambda c: f"g{c.pick(3)}", "mine": lambda c: f"c{c.client}:",
        "lon": lambda c: c.place(40), "lat": lambda c: c.place(30),
        "db": lambda c: 9 if c.one_in(40) else c.pick(3),
        **{form: lambda c, form=form: c.deadline(form) for form in ("ex", "px", "exat", "pxat")},
    }

    def filled(self, command):
        words = []
        for parts in command:
            if parts == ["", "=", ""]:
                words.append(words[-1])
            else:
                words.append("".join(self.word(part) if at % 2 else part
                                     for at, part in enumerate(parts)))
        return words

    def any(self):
        _, weights, commands = self.choice(self.families, self.weights)[0]
        if commands is None:
            return self.script()
        return self.filled(self.choice(commands, weights)[0])

    def script(self):
        if self.one_in(4):
            name = self.one_of(["twin_put", "twin_get", "twin_move", "twin_none"])
            return ["FCALL_RO" if name == "twin_get" and self.one_in(2) else "FCALL", name, "2",
                    self.key("t"), self.key("h"), self.member(), self.text(self.pick(60))]
        which = self.pick(len(SCRIPTS))
        text, keys, writes = SCRIPTS[which]
        if self.one_in(2):
            words = ["EVALSHA", self.digests[which]]
        else:
            words = ["EVAL_RO" if (not writes or self.one_in(10)) and self.one_in(2) else "EVAL",
                     text]
        types = "s" if which == 0 else "ntlhz"
        return [*words, str(keys), *(self.key(types[n]) for n in range(keys)), self.key("s"),
                self.member(), self.text(self.pick(40))]

    def batch(self, client):
        """Commands of a client before it listens: SELECT first, MULTI and WATCH sometimes."""
        self.client = client
        out = [["SELECT", str(self.pick(3) if self.one_in(5) else 0)]]
        multi = self.one_in(5)
        if multi and self.one_in(3):
            out.append(["WATCH", self.word("any"), self.word("any")])
            if self.one_in(2):
                out.append(self.any())
            if self.one_in(8):
                out.append(["UNWATCH"])
        if multi:
            out.append(["MULTI"])
        for _ in range(1 + self.pick(150 if self.one_in(10) else 24)):
            if self.one_in(40):
                kind = self.one_of(TYPES)
                out += self.fill(self.key(kind), kind)
            else:
                out.append(self.any())
            if self.one_in(400):   # EXECABORT in MULTI
                out.append([self.one_of(["NOSUCH", "GET", "LPUSH", "ZADD", "XADD"]), self.key("s")])
        if multi:
            out.append(["DISCARD" if self.one_in(8) else "EXEC"])
        return out

    def fill(self, key, kind):
        """A fresh value at a key, of compact or of large encoding: DEL and what makes it."""
        pick, text, large = self.pick, self.text, self.one_in(8)
        count = 100 + pick(200) if large else 1 + pick(24)
        size = pick(200) if large else pick(60)

        def named(n):
            return f"f{n}" + (text(size) if self.one_in(4) else "")

        if kind == "n":
            return [["SET", key, text(pick(30)) if self.one_in(3) else str(pick(5000))]]
        if kind in "sb":
            small = 100 + pick(4500) if kind == "s" else 200 + pick(2500)
            return [["SET", key, text((5000 + pick(30_000) if kind == "s" else 6000)
                                      if large else small)]]
        if kind == "x":
            return [["DEL", key], *(["XADD", key, f"1000-{n + 1}", "a", text(pick(400)), "b",
                                     text(5)] for n in range(40 if large else 6)),
                    *(["XGROUP", "CREATE", key, group, "0"] for group in ("g0", "g1"))]
        verb, parts = {
            "p": ("PFADD", lambda n: [str(pick(1_000_000))]),
            "l": ("RPUSH", lambda n: [str(pick(900)) if self.one_in(5)
                                      else text(size + (100 if large else 0))]),
            "h": ("HSET", lambda n: [f"f{n}", str(pick(90)) if n == 1 else text(size)]),
            "t": ("SADD", lambda n: [self.member(key) if int(key[-1]) % 2 == 0
                                     and not self.one_in(2000)
                                     else self.member(key) + text(size // 2)]),
            "y": ("ZADD", lambda n: ["0", named(n)]),
            "z": ("ZADD", lambda n: [str(pick(100)), named(n)]),
            "g": ("GEOADD", lambda n: [self.place(40), self.place(30), f"f{n}"]),
        }[kind]
        if kind == "p" and large:
            count = 2500
        words = [word for n in range(2 * count if kind == "t" else count) for word in parts(n)]
        return [["DEL", key], [verb, key, *words]]
