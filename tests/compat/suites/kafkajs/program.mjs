// kafkajs against one broker: a line for each feature, see ../README.md.
import kafkajs from 'kafkajs'
import lz4 from 'lz4js'
import snappy from 'snappyjs'
import { ZstdCodec } from 'zstd-codec'

const { CompressionTypes, CompressionCodecs, ConfigResourceTypes, Kafka, logLevel } = kafkajs
const bootstrap = process.env.COMPAT_BOOTSTRAP
const brokers = Number(process.env.COMPAT_BROKERS)
const prefix = process.env.COMPAT_PREFIX
const DEADLINE_MS = 40000

const zstd = await new Promise((done) => ZstdCodec.run((made) => done(new made.Simple())))
// The client brings gzip only; these are plain JavaScript codecs in its own plug-in shape.
const codec = (compress, decompress) => () => ({
  compress: async (encoder) => Buffer.from(compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from(decompress(buffer)),
})
CompressionCodecs[CompressionTypes.Snappy] = codec(snappy.compress, snappy.uncompress)
CompressionCodecs[CompressionTypes.LZ4] = codec(frame, lz4.decompress)
CompressionCodecs[CompressionTypes.ZSTD] = codec((b) => zstd.compress(b), (b) => zstd.decompress(b))

// One LZ4 frame of independent blocks of 64 KiB: Kafka takes no other, and lz4js makes others.
function frame(data) {
  const parts = [Buffer.from([0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82])]
  for (let at = 0; at < data.length; at += 65536) {
    const block = data.subarray(at, at + 65536)
    const packed = Buffer.alloc(lz4.compressBound(block.length))
    const size = lz4.compressBlock(block, packed, 0, block.length, lz4.makeHashTable?.() ?? new Uint32Array(65536))
    const length = Buffer.alloc(4)
    length.writeUInt32LE(size > 0 && size < block.length ? size : (block.length | 0x80000000) >>> 0)
    parts.push(length, size > 0 && size < block.length ? packed.subarray(0, size) : block)
  }
  return Buffer.concat([...parts, Buffer.alloc(4)])
}

const kafka = new Kafka({
  clientId: 'compat', brokers: [bootstrap], logLevel: logLevel.NOTHING, retry: { retries: 8 },
})
const admin = kafka.admin()
await admin.connect()

const topic = (name) => `${prefix}-${name}`
const pause = (ms) => new Promise((done) => setTimeout(done, ms))

async function check(name, feature) {
  let timer
  const late = new Promise((_, refuse) => {
    timer = setTimeout(() => refuse(new Error('not done in time')), DEADLINE_MS)
  })
  try {
    await Promise.race([feature(), late])
    console.log(`ok ${name}`)
  } catch (error) {
    const inner = JSON.stringify(error.partitions ?? '')
    console.log(`fail ${name}: ${`${error.message} ${inner}`.replaceAll('\n', ' ')}`)
  } finally {
    clearTimeout(timer)
  }
}

function equal(found, wanted) {
  const [one, other] = [JSON.stringify(found), JSON.stringify(wanted)]
  if (one !== other) throw new Error(`${one?.slice(0, 200)} instead of ${other?.slice(0, 200)}`)
}

async function until(condition, what) {
  const end = Date.now() + DEADLINE_MS
  while (Date.now() < end) {
    if (await condition()) return
    await pause(50)
  }
  throw new Error(what)
}

async function create(name, partitions = 1) {
  await admin.createTopics({ topics: [{ topic: topic(name), numPartitions: partitions, replicationFactor: 1 }] })
  return topic(name)
}

async function send(to, messages, { compression, acks, ...settings } = {}) {
  const producer = kafka.producer(settings)
  await producer.connect()
  try {
    await producer.send({ topic: to, messages, compression, acks })
  } finally {
    await producer.disconnect()
  }
}

// kafkajs reads only as a member of a group.
class Member {
  constructor(group, from, settings = {}) {
    this.rows = []
    this.held = 0
    this.from = from
    this.consumer = kafka.consumer({
      groupId: topic(group), heartbeatInterval: 500, sessionTimeout: 10000, maxWaitTimeInMs: 200,
      rebalanceTimeout: 15000, ...settings,
    })
  }

  async start() {
    this.consumer.on(this.consumer.events.GROUP_JOIN, ({ payload }) => {
      this.held = (payload.memberAssignment[this.from] ?? []).length
    })
    await this.consumer.connect()
    await this.consumer.subscribe({ topic: this.from, fromBeginning: true })
    await this.consumer.run({
      eachMessage: async ({ partition, message }) => { this.rows.push({ partition, ...message }) },
    })
    return this
  }

  async take(count) {
    await until(() => this.rows.length >= count, `${this.rows.length} rows instead of ${count}`)
    return this.rows
  }

  stop() { return this.consumer.disconnect() }
}

let readers = 0
async function read(from, count, settings) {
  const member = await new Member(`read-${readers++}`, from, settings).start()
  try {
    return await member.take(count)
  } finally {
    await member.stop()
  }
}

const numbered = (count, partitions = 1) =>
  Array.from({ length: count }, (_, n) => ({ key: `${n}`, value: `value-${n}`.repeat(10), partition: n % partitions }))

async function roundTrip(name, settings) {
  const to = await create(name)
  await send(to, numbered(300), settings)
  const rows = await read(to, 300)
  equal(rows.map((row) => [row.offset, `${row.key}`, `${row.value}`]),
    numbered(300).map((row, n) => [`${n}`, row.key, row.value]))
}

await check('connect', async () => { await admin.listTopics() })
await check('create-topic', () => create('created', 3))
await check('list-topics', async () => {
  const found = await admin.fetchTopicMetadata({ topics: [topic('created')] })
  equal(found.topics[0].partitions.length, 3)
})
await check('auto-create', () => send(topic('auto'), [{ value: 'v' }], { allowAutoTopicCreation: true }))
for (const acks of [0, 1, -1]) {
  await check(`acks-${acks < 0 ? 'all' : acks}`, () => roundTrip(`acks${acks}`, { acks }))
}
for (const [name, compression] of Object.entries({
  gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy, lz4: CompressionTypes.LZ4, zstd: CompressionTypes.ZSTD,
})) {
  await check(`codec-${name}`, () => roundTrip(name, { compression }))
}
await check('idempotent', () => roundTrip('idempotent', { idempotent: true, acks: -1 }))
await check('headers', async () => {
  const to = await create('headers')
  await send(to, [{ value: 'v', headers: { n: ['1', '2'], 'grün': Buffer.from([0, 255]) } }])
  const [row] = await read(to, 1)
  equal([row.headers.n.map(String), row.headers['grün'].toString('hex')], [['1', '2'], '00ff'])
})
await check('null-values', async () => {
  const to = await create('null')
  await send(to, [{ key: null, value: 'v' }, { key: 'k', value: null }])
  const rows = await read(to, 2)
  equal([rows[0].key, rows[1].value], [null, null])
})
await check('large-record', async () => {
  const to = await create('large')
  const value = Buffer.alloc(768 << 10, '0123456789abcdef')
  await send(to, [{ value }])
  equal((await read(to, 1))[0].value.equals(value), true)
})
await check('consume', async () => {
  const to = await create('consume', 3)
  await send(to, numbered(600, 3))
  const rows = await read(to, 600)
  for (const partition of [0, 1, 2]) {
    const mine = rows.filter((row) => row.partition === partition)
    equal(mine.map((row) => Number(row.offset)), Array.from({ length: 200 }, (_, n) => n))
  }
})
await check('list-offsets', async () => {
  const found = await admin.fetchTopicOffsets(topic('consume'))
  equal(found.map((each) => [each.low, each.high]), Array(3).fill(['0', '200']))
})
await check('seek-by-time', async () => {
  const to = await create('time')
  await send(to, Array.from({ length: 10 }, (_, n) => ({ value: 'v', timestamp: `${1700000000000 + n * 1000}` })))
  const found = await admin.fetchTopicOffsetsByTimestamp(to, 1700000004500)
  equal(found.map((each) => each.offset), ['5'])
})
await check('group', async () => {
  const member = await new Member('g', topic('consume')).start()
  const rows = await member.take(600)
  await member.consumer.commitOffsets([0, 1, 2].map((partition) => ({ topic: topic('consume'), partition, offset: '200' })))
  await member.stop()
  equal(new Set(rows.map((row) => `${row.key}`)).size, 600)
})
await check('group-commit', async () => {
  const to = await create('commit')
  for (const first of [0, 50]) {
    await send(to, Array.from({ length: 50 }, (_, n) => ({ key: `${first + n}`, value: 'v' })))
    const member = await new Member('gc', to).start()
    const rows = await member.take(50)
    await member.consumer.commitOffsets([{ topic: to, partition: 0, offset: `${first + 50}` }])
    await member.stop()
    equal(rows.map((row) => Number(row.key)), Array.from({ length: 50 }, (_, n) => first + n))
  }
})
await check('group-rebalance', async () => {
  const from = await create('share', 4)
  const first = await new Member('gr', from).start()
  await until(() => first.held === 4, 'the first member has not all')
  const second = await new Member('gr', from).start()
  await until(() => first.held === 2 && second.held === 2, 'not shared')
  await second.stop()
  await until(() => first.held === 4, 'the first member has not all again')
  await first.stop()
})

async function transaction(id) {
  const producer = kafka.producer({ transactionalId: topic(id), idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  return producer
}

async function write(producer, value, end) {
  const open = await producer.transaction()
  await open.send({ topic: topic('txn'), messages: [{ value }] })
  await end(open)
}

await check('txn-commit', async () => {
  await create('txn')
  const producer = await transaction('t')
  await write(producer, 'kept-1', (open) => open.commit())
  await producer.disconnect()
  equal((await read(topic('txn'), 1)).map((row) => `${row.value}`), ['kept-1'])
})
await check('txn-abort', async () => {
  const producer = await transaction('t')
  await write(producer, 'dropped', (open) => open.abort())
  await write(producer, 'kept-2', (open) => open.commit())
  await producer.disconnect()
  equal((await read(topic('txn'), 2)).map((row) => `${row.value}`), ['kept-1', 'kept-2'])
  const all = await read(topic('txn'), 3, { readUncommitted: true })
  equal(all.map((row) => `${row.value}`), ['kept-1', 'dropped', 'kept-2'])
})
await check('txn-offsets', async () => {
  const producer = await transaction('to')
  await write(producer, 'kept-3', async (open) => {
    await open.sendOffsets({
      consumerGroupId: topic('gt'),
      topics: [{ topic: topic('consume'), partitions: [{ partition: 0, offset: '33' }] }],
    })
    await open.commit()
  })
  await producer.disconnect()
  await until(async () => {
    const [found] = await admin.fetchOffsets({ groupId: topic('gt'), topics: [topic('consume')] })
    return found.partitions.some((each) => each.offset === '33')
  }, 'the offset is not there')
})
await check('txn-fencing', async () => {
  const older = await transaction('f')
  const open = await older.transaction()
  const newer = await transaction('f')
  await write(newer, 'kept-4', (made) => made.commit())
  let refused = false
  try {
    await open.send({ topic: topic('txn'), messages: [{ value: 'late' }] })
    await open.commit()
  } catch {
    refused = true
  }
  await newer.disconnect()
  await older.disconnect()
  equal(refused, true)
})
await check('describe-cluster', async () => {
  const found = await admin.describeCluster()
  equal([found.brokers.length, found.controller !== null, found.clusterId.length > 0], [brokers, true, true])
})
const settings = async () => {
  const found = await admin.describeConfigs({
    includeSynonyms: false, resources: [{ type: ConfigResourceTypes.TOPIC, name: topic('consume') }],
  })
  return Object.fromEntries(found.resources[0].configEntries.map((each) => [each.configName, each.configValue]))
}
await check('describe-configs', async () => equal((await settings())['cleanup.policy'], 'delete'))
await check('alter-configs', async () => {
  await admin.alterConfigs({
    validateOnly: false,
    resources: [{ type: ConfigResourceTypes.TOPIC, name: topic('consume'), configEntries: [{ name: 'retention.ms', value: '1234567890' }] }],
  })
  await until(async () => (await settings())['retention.ms'] === '1234567890', 'the change is not seen')
})
await check('create-partitions', async () => {
  await admin.createPartitions({ topicPartitions: [{ topic: topic('created'), count: 5 }] })
  await until(async () => {
    const found = await admin.fetchTopicMetadata({ topics: [topic('created')] })
    return found.topics[0].partitions.length === 5
  }, 'not seen')
})
await check('delete-records', async () => {
  await admin.fetchTopicOffsets(topic('consume')) // or this client knows no leader
  await admin.deleteTopicRecords({ topic: topic('consume'), partitions: [{ partition: 2, offset: '150' }] })
  const found = await admin.fetchTopicOffsets(topic('consume'))
  equal(found.find((each) => each.partition === 2).low, '150')
})
const groups = async () => (await admin.listGroups()).groups.map((each) => each.groupId)
await check('list-groups', async () => equal((await groups()).includes(topic('g')), true))
await check('describe-group', async () => {
  const member = await new Member('gd', topic('share')).start()
  await until(() => member.held === 4, 'no assignment')
  const found = await admin.describeGroups([topic('gd')])
  await member.stop()
  equal([found.groups[0].state, found.groups[0].members.length], ['Stable', 1])
})
const offset = async (partition) => {
  const [found] = await admin.fetchOffsets({ groupId: topic('g'), topics: [topic('consume')] })
  return found.partitions.find((each) => each.partition === partition).offset
}
await check('group-offsets', async () => equal(await offset(1), '200'))
await check('reset-offsets', async () => {
  await admin.setOffsets({ groupId: topic('g'), topic: topic('consume'), partitions: [{ partition: 0, offset: '17' }] })
  equal(await offset(0), '17')
})
await check('delete-group', async () => {
  await admin.deleteGroups([topic('g')])
  equal((await groups()).includes(topic('g')), false)
})
await check('reassign', async () => {
  await admin.alterPartitionReassignments({ topics: [{ topic: topic('share'), partitionAssignment: [{ partition: 0, replicas: [0] }] }] })
  await until(async () => (await admin.listPartitionReassignments({})).topics.length === 0, 'still going on')
})
await check('delete-topic', async () => {
  await admin.deleteTopics({ topics: [topic('created')] })
  await until(async () => !(await admin.listTopics()).includes(topic('created')), 'still listed')
})
await admin.disconnect()
process.exit(0)
