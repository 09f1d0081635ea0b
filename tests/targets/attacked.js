// A round of work by Node.js for `cargo xtask faults --engine inline`: the protocol is that of attacked.h.
'use strict';
const crypto = require('crypto');
const zlib = require('zlib');

function doRound() {
    const hash = crypto.createHash('sha256');
    const table = {};
    for (let i = 0; i < 400; i++) table[i] = Array.from({ length: i % 50 }, (_, j) => i * j);
    const text = JSON.stringify(table);
    hash.update(text);
    hash.update(zlib.inflateSync(zlib.deflateSync(Buffer.from(text))));
    for (let i = 0; i < 20; i++) hash.update(Buffer.alloc(10000 + i, i));
    return hash.digest('hex').slice(0, 16);
}

const result = doRound();
let wrong = 0, rounds = 1, waits = false, input = '';

function next() {
    if (waits) return;
    wrong += doRound() !== result;
    rounds++;
    setImmediate(next);
}

function act(line) {
    if (line === 'stop') {
        console.log(`result ${result} wrong ${wrong} rounds ${rounds}`);
        process.exit(0);
    }
    const waited = waits;
    waits = line === 'idle';
    if (waits) console.log('idle');
    if (waited && !waits) setImmediate(next);
}

process.stdin.on('data', data => {
    input += data;
    const lines = input.split('\n');
    input = lines.pop();
    lines.forEach(act);
});
process.stdin.on('end', () => act('stop'));
console.log('ready');
setImmediate(next);
