/*
 * Runs the scenarios of tests/support/client_programs.py with kafkajs: a line of JSON on stdin asks for one, a line of
 * JSON on stdout answers it, until stdin ends. The bootstrap servers are the only argument.
 *
 * kafkajs knows gzip alone; the other codecs are added from packages in plain JavaScript.
 */

import { createHash } from "node:crypto";
import { createInterface } from "node:readline";
import { decompress as zstdDecompress } from "fzstd";
import kafkajs from "kafkajs";
import lz4 from "lz4js";
import snappy from "snappyjs";

const { CompressionCodecs, CompressionTypes, Kafka, Partitioners, logLevel } = kafkajs;

const bootstrap = process.argv[2].split(",");

const SCENARIO_TIMEOUT_MS = 30_000;
const LINGER_MS = 200;
const PRODUCE_EVERY_MS = 300;
const PARTITION_BYTES_MAX = 16 * 1024;
const SNAPPY_JAVA_MAGIC = Buffer.from([0x82, 0x53, 0x4e, 0x41, 0x50, 0x50, 0x59, 0x00]);
const SNAPPY_JAVA_HEADER_BYTES = 16;

const readOnly = (decompress) => () => ({
  compress: async () => {
    throw new Error("these codecs only read");
  },
  decompress: async (buffer) => Buffer.from(decompress(buffer)),
});
CompressionCodecs[CompressionTypes.Snappy] = readOnly(snappyDecompress);
CompressionCodecs[CompressionTypes.LZ4] = readOnly((buffer) => lz4.decompress(buffer));
CompressionCodecs[CompressionTypes.ZSTD] = readOnly((buffer) => zstdDecompress(buffer));

/** Every partition from its start. kafkajs reads in groups alone. */
async function digest(request) {
  const digests = newDigests(request);
  const take = (partition, message) => digests[partition].add(message);
  await consuming(request, take, async () => {
    await until(() => reached(digests, request.lasts), "the last records");
    await sleep(LINGER_MS);
  });
  return { partitions: results(digests) };
}

async function timestamps(request) {
  const found = [];
  for (const timestampMs of request.timestamps_ms) {
    const offsets = {};
    await asking(async (admin) => {
      for (const each of await admin.fetchTopicOffsetsByTimestamp(request.topic, timestampMs)) {
        offsets[each.partition] = Number(each.offset);
      }
    });
    const digests = newDigests(request);
    const wanted = ([partition, last]) => Math.min(request.records, last - offsets[partition] + 1);
    const group = `${request.group}-${timestampMs}`;
    // A batch may already be on its way from where the group starts.
    const take = (partition, message) => {
      if (digests[partition].records < request.records && Number(message.offset) >= offsets[partition]) {
        digests[partition].add(message);
      }
    };
    const start = (consumer) => {
      for (const [partition, offset] of Object.entries(offsets)) {
        consumer.seek({ topic: request.topic, partition: Number(partition), offset: String(offset) });
      }
    };
    await consuming({ ...request, group }, take, async (consumer) => {
      start(consumer);
      const done = (entry) => digests[entry[0]].records >= wanted(entry);
      await until(() => Object.entries(request.lasts).every(done), "the first records");
    });
    found.push({ timestamp_ms: timestampMs, offsets, partitions: results(digests) });
  }
  return { found };
}

async function group(request) {
  const all = Object.keys(request.lasts).map(Number);
  const records = Object.fromEntries(all.map((partition) => [partition, new Map()]));
  const take = (partition, message) => records[partition].set(Number(message.offset), message);
  const hasAllRecords = () => all.every((partition) => records[partition].has(request.lasts[partition]));
  const isAll = (...held) => held.flat().sort((left, right) => left - right).join() === all.join();
  const partitionsOf = (consumer) => consumer.held;
  await consuming(request, take, async (first) => {
    const hasAll = () => isAll(partitionsOf(first));
    await until(() => hasAll() && all.some((partition) => records[partition].size), "one member");
    await consuming(request, take, async (second) => {
      const both = () => [partitionsOf(first), partitionsOf(second)];
      await until(() => both().every((held) => held.length) && isAll(...both()), "two members");
    });
    await until(() => hasAll() && hasAllRecords(), "one member left");
  });
  const digests = newDigests(request);
  for (const partition of all) {
    const offsets = [...records[partition].keys()].sort((left, right) => left - right);
    for (const offset of offsets) {
      digests[partition].add(records[partition].get(offset));
    }
  }
  return { partitions: results(digests) };
}

async function pause(request) {
  const digests = newDigests(request);
  const paused = [{ topic: request.topic, partitions: request.paused }];
  const take = (partition, message) => digests[partition].add(message);
  const atEnd = (partition) => digests[partition].last >= request.lasts[partition];
  let stopped = false;
  await consuming(request, take, async (consumer) => {
    await until(() => request.paused.every((partition) => digests[partition].records), "the first records");
    consumer.pause(paused);
    const others = Object.keys(request.lasts).filter((partition) => !request.paused.includes(Number(partition)));
    await until(() => others.every(atEnd), "the others' last records");
    stopped = !request.paused.some(atEnd);
    consumer.resume(paused);
    await until(() => reached(digests, request.lasts), "the last records");
  });
  return { stopped, partitions: results(digests) };
}

/** There is no policy "none"; the others are fromBeginning. */
async function reset(request) {
  const fromBeginning = request.policy === "earliest";
  const producer = kafka().producer({ createPartitioner: Partitioners.DefaultPartitioner });
  await producer.connect();
  let first = null;
  try {
    const take = (_partition, message) => {
      first ??= Number(message.offset);
    };
    const deadlineMs = Date.now() + SCENARIO_TIMEOUT_MS;
    await consuming({ ...request, fromBeginning }, take, async (consumer) => {
      // Before its first Fetch is answered: what that brings is dropped.
      consumer.seek({ topic: request.topic, partition: 0, offset: String(request.offset) });
      while (first === null && Date.now() < deadlineMs) {
        await sleep(PRODUCE_EVERY_MS);
        await producer.send({ topic: request.topic, messages: [{ value: "something new" }] });
      }
    });
  } finally {
    await producer.disconnect();
  }
  if (first === request.start) {
    return { first: "start" };
  }
  return { first: first !== null && first >= request.end ? "end" : first };
}

function kafka() {
  return new Kafka({ clientId: "kafkajs-scenarios", brokers: bootstrap, logLevel: logLevel.NOTHING });
}

async function asking(work) {
  const admin = kafka().admin();
  await admin.connect();
  try {
    return await work(admin);
  } finally {
    await admin.disconnect();
  }
}

/** Run a consumer while `work` lasts; `held` of it are the partitions that it has. */
async function consuming(request, take, work) {
  const consumer = kafka().consumer({
    groupId: request.group,
    readUncommitted: request.isolation !== "read_committed",
    maxWaitTimeInMs: 100,
    maxBytesPerPartition: PARTITION_BYTES_MAX,
    heartbeatInterval: 200,
    rebalanceTimeout: 10_000,
  });
  consumer.held = [];
  let crashed = null;
  consumer.on(consumer.events.GROUP_JOIN, (event) => {
    consumer.held = event.payload.memberAssignment[request.topic] ?? [];
  });
  consumer.on(consumer.events.REBALANCING, () => {
    consumer.held = [];
  });
  consumer.on(consumer.events.CRASH, (event) => {
    crashed = event.payload.error;
  });
  await consumer.connect();
  try {
    await consumer.subscribe({ topics: [request.topic], fromBeginning: request.fromBeginning ?? true });
    await consumer.run({
      eachBatch: async ({ batch, resolveOffset, heartbeat }) => {
        for (const message of batch.messages) {
          take(batch.partition, message);
          resolveOffset(message.offset);
        }
        await heartbeat();
      },
    });
    await work(consumer);
    if (crashed) {
      throw crashed;
    }
  } finally {
    await consumer.disconnect();
  }
}

class Digest {
  records = 0;
  first = -1;
  last = -1;
  #hash = createHash("sha256");

  /** Takes the next record; the bytes are those of TopicDigest in tests/support/digests.py. */
  add(message) {
    const fields = [message.key, message.value];
    for (const [name, content] of Object.entries(message.headers)) {
      for (const each of [content].flat()) {
        fields.push(Buffer.from(name), each);
      }
    }
    const head = Buffer.alloc(20 + 4 * fields.length);
    head.writeBigInt64BE(BigInt(message.offset), 0);
    head.writeBigInt64BE(BigInt(message.timestamp), 8);
    head.writeInt32BE(fields.length, 16);
    fields.forEach((field, index) => head.writeInt32BE(field?.length ?? -1, 20 + 4 * index));
    this.#hash.update(head);
    for (const field of fields) {
      this.#hash.update(field ?? "");
    }
    if (this.records === 0) {
      this.first = Number(message.offset);
    }
    this.records += 1;
    this.last = Number(message.offset);
  }

  get result() {
    return { records: this.records, first: this.first, last: this.last, sha256: this.#hash.copy().digest("hex") };
  }
}

function newDigests(request) {
  return Object.fromEntries(Object.keys(request.lasts).map((partition) => [partition, new Digest()]));
}

function results(digests) {
  return Object.fromEntries(Object.entries(digests).map(([partition, each]) => [partition, each.result]));
}

function reached(digests, lasts) {
  return Object.entries(lasts).every(([partition, last]) => digests[partition].last >= last);
}

function sleep(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

async function until(done, what) {
  const deadlineMs = Date.now() + SCENARIO_TIMEOUT_MS;
  while (!done()) {
    if (Date.now() > deadlineMs) {
      throw new Error(`${what}: not in ${SCENARIO_TIMEOUT_MS} ms`);
    }
    await sleep(10);
  }
}

/** Blocks with snappy-java's framing, or one block without, as librdkafka writes. */
function snappyDecompress(buffer) {
  if (!buffer.subarray(0, SNAPPY_JAVA_MAGIC.length).equals(SNAPPY_JAVA_MAGIC)) {
    return snappy.uncompress(buffer);
  }
  const blocks = [];
  for (let at = SNAPPY_JAVA_HEADER_BYTES; at < buffer.length; ) {
    const end = at + 4 + buffer.readInt32BE(at);
    blocks.push(Buffer.from(snappy.uncompress(buffer.subarray(at + 4, end))));
    at = end;
  }
  return Buffer.concat(blocks);
}

const scenarios = { digest, timestamps, group, pause, reset };

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  let said;
  try {
    said = { answer: await scenarios[request.scenario](request) };
  } catch (error) {
    said = { failure: String(error.stack ?? error) };
  }
  console.log(JSON.stringify(said));
}
process.exit(0);
