// SPDX-License-Identifier: Apache-2.0
// Objects on the V8 heap and buffers outside of it, changed at random; prints a digest of what is
// in them.
const crypto = require('crypto');
let seed = 12345;
const random = (n) => (seed = (seed * 1103515245 + 12345) & 0x7fffffff) % n;
const objects = new Map();
for (let i = 0; i < 400000; ++i) {
  objects.set(random(150000), {id: i, name: 'object ' + i, list: [i, i + 1, i * 2.5]});
}
const buffers = [];
for (let i = 0; i < 96; ++i) {
  const hex = crypto.createHash('sha512').update(String(i)).digest().toString('hex');
  buffers.push(hex.repeat(8192));
}
const raw = buffers.map((text) => Buffer.from(text, 'latin1'));
const hash = crypto.createHash('sha256');
for (let i = 0; i < 150000; ++i) {
  const one = objects.get(i);
  if (one) hash.update(`${i} ${one.id} ${one.name} ${one.list.join()}`);
}
for (const buffer of raw) hash.update(buffer);
console.log(objects.size, hash.digest('hex'));
