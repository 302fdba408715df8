// Reads a batch through the mount in three ways and compares it to the expected bytes.
// Usage: node reader.js BATCH EXPECTED
"use strict";
const fs = require("fs");

const [batch, expected] = process.argv.slice(2);
const wanted = fs.readFileSync(expected);

function check(how, found) {
  if (Buffer.compare(found, wanted) !== 0) {
    console.error(`${how}: ${found.length} bytes differ from the ${wanted.length} expected`);
    process.exit(1);
  }
}

check("readFile", fs.readFileSync(batch));

const fd = fs.openSync(batch, "r");
const size = fs.fstatSync(fd).size;
const pieces = Buffer.alloc(size);
for (let at = size; at > 0; ) {
  const length = Math.min(4099, at);
  at -= length;
  fs.readSync(fd, pieces, at, length, at);
}
fs.closeSync(fd);
check("backwards, in pieces", pieces);

const stream = [];
fs.createReadStream(batch, { highWaterMark: 1 << 16 })
  .on("data", (piece) => stream.push(piece))
  .on("end", () => {
    check("stream", Buffer.concat(stream));
    console.log(`ok ${size}`);
  });
