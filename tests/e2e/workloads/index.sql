-- SPDX-License-Identifier: Apache-2.0
-- A table in memory with two indexes. The runner makes size(n) first. Prints rows and sums.
PRAGMA temp_store = MEMORY;
CREATE TABLE event(id INTEGER PRIMARY KEY, moment INTEGER, kind INTEGER, note TEXT);
WITH RECURSIVE number(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM number WHERE i + 1 < (SELECT n FROM size))
INSERT INTO event SELECT i, i - i % 512 + (i * 389 + 77) % 512, i * 7919 % 64,
  printf('%08x note %d ', i * 2654435761 % 4294967296, i) || hex(zeroblob(60)) FROM number;
CREATE INDEX event_moment ON event(moment, kind);
SELECT count(*), sum(moment), min(note), max(note), sum(length(note)) FROM event;
SELECT moment / 4096, count(*), sum(kind), min(id), max(id) FROM event INDEXED BY event_moment GROUP BY moment / 4096;
SELECT moment, kind, note FROM event INDEXED BY event_moment WHERE moment BETWEEN 1000 AND 30000 AND kind = 7;
UPDATE event SET note = note || 'changed', kind = kind + 1 WHERE moment % 4096 < 700;
DELETE FROM event WHERE moment % 4096 BETWEEN 3000 AND 3500;
CREATE INDEX event_note ON event(kind) WHERE kind > 60;
SELECT kind, count(*), sum(id), sum(length(note)) FROM event WHERE kind > 60 GROUP BY kind;
SELECT moment / 4096, count(*), sum(length(note)), max(note) FROM event INDEXED BY event_moment GROUP BY moment / 4096;
PRAGMA integrity_check;
