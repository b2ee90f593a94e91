// The Node side of bench/child.py: the same verbs and the same marks, written with pwrite instead of to mapped memory.
// A job that starts again in another process does not show.
import fs from "node:fs";
import { createRequire } from "node:module";

const [folder, uri, path, verb, ...numbers] = process.argv.slice(2);
const [first, jobs, rate, batch = 1] = numbers.map(Number);
const marks = fs.openSync(path, "r+");
const mark = Buffer.alloc(16);
const times = new Map();

export const peer = createRequire(folder + "/"); // what npm installed there
export const dsn = uri.replace("@/", "@localhost/"); // it wants a host; the socket's folder, further on, wins
export const payload = (n) => ({ to: "user@example.com", subject: "hello", n });

const now = () => process.hrtime.bigint(); // CLOCK_MONOTONIC, as in Python

export function start(n) {
  const count = (times.get(n) ?? 0) + 1;
  times.set(n, count);
  mark.writeBigInt64LE(now(), 0);
  mark.writeBigInt64LE(BigInt(count), 8);
  fs.writeSync(marks, mark, 0, 16, 24 * n + 8);
}

function send(n) {
  mark.writeBigInt64LE(now(), 0);
  fs.writeSync(marks, mark, 0, 8, 24 * n);
}

async function load(producer, all) {
  const began = performance.now();
  let lag = 0;
  for (let k = 0; k < jobs; k += batch) {
    const wait = began + (k * 1000) / rate - performance.now();
    if (wait > 0) await new Promise((wake) => setTimeout(wake, wait));
    lag = Math.max(lag, -wait / 1000);
    const due = all.slice(k, k + batch);
    due.forEach(send);
    await (batch === 1 ? producer.one(due[0]) : producer.bulk(due));
  }
  return lag;
}

export async function main(system) {
  if (verb === "work") return system.work();
  if (verb === "setup") {
    await system.setup();
    process.exit(0);
  }
  const producer = await system.producer();
  const all = Array.from({ length: jobs }, (_, k) => first + k);
  const began = performance.now();
  let lag = 0;
  if (verb === "bulk") await producer.bulk(all);
  else if (verb === "single") for (const n of all) await producer.one(n);
  else lag = await load(producer, all);
  console.log(JSON.stringify({ seconds: (performance.now() - began) / 1000, lag }));
  process.exit(0);
}
