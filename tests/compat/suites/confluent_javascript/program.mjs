// confluent-kafka-javascript (librdkafka), by its promise API, against one broker; see ../README.md.
import confluent from '@confluentinc/kafka-javascript'

const { Kafka, logLevel } = confluent.KafkaJS
const bootstrap = process.env.COMPAT_BOOTSTRAP
const prefix = process.env.COMPAT_PREFIX
const DEADLINE_MS = 40000

const quiet = { brokers: [bootstrap], logLevel: logLevel.NOTHING }
const kafka = new Kafka({ kafkaJS: quiet, log_level: 0 })
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
    console.log(`fail ${name}: ${`${error.message}`.replaceAll('\n', ' ')}`)
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
  const made = [{ topic: topic(name), numPartitions: partitions, replicationFactor: 1 }]
  await admin.createTopics({ topics: made, timeout: DEADLINE_MS })
  return topic(name)
}

async function send(to, messages, settings = {}) {
  const producer = kafka.producer({ kafkaJS: settings })
  await producer.connect()
  try {
    await producer.send({ topic: to, messages })
  } finally {
    await producer.disconnect()
  }
}

// It reads only as a member of a group. `settings` are those of librdkafka.
class Member {
  constructor(group, from, settings = {}) {
    this.rows = []
    this.from = from
    this.consumer = kafka.consumer({
      'group.id': topic(group), 'auto.offset.reset': 'earliest', 'enable.auto.commit': false,
      'fetch.wait.max.ms': 200, ...settings,
    })
  }

  async start() {
    await this.consumer.connect()
    await this.consumer.subscribe({ topic: this.from })
    await this.consumer.run({
      eachMessage: async ({ partition, message }) => { this.rows.push({ partition, ...message }) },
    })
    return this
  }

  get held() { return this.consumer.assignment().length }

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
  const found = await admin.fetchTopicMetadata({ topics: [topic('created')], timeout: DEADLINE_MS })
  equal(found[0].partitions.length, 3)
})
await check('auto-create', () => send(topic('auto'), [{ value: 'v' }], { allowAutoTopicCreation: true }))
for (const acks of [0, 1, -1]) {
  await check(`acks-${acks < 0 ? 'all' : acks}`, () => roundTrip(`acks${acks}`, { acks }))
}
for (const name of ['gzip', 'snappy', 'lz4', 'zstd']) {
  await check(`codec-${name}`, () => roundTrip(name, { compression: name }))
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
const ends = async () => {
  const found = await admin.fetchTopicOffsets(topic('consume'), { timeout: DEADLINE_MS })
  return found.sort((one, other) => one.partition - other.partition).map((each) => [each.low, each.high])
}
await check('list-offsets', async () => equal(await ends(), Array(3).fill(['0', '200'])))
await check('seek-by-time', async () => {
  const to = await create('time')
  await send(to, Array.from({ length: 10 }, (_, n) => ({ value: 'v', timestamp: `${1700000000000 + n * 1000}` })))
  const found = await admin.fetchTopicOffsetsByTimestamp(to, 1700000004500, { timeout: DEADLINE_MS })
  equal(found.map((each) => `${each.offset}`), ['5'])
})
const readAsGroup = async (name, settings) => {
  const member = await new Member(name, topic('consume'), settings).start()
  const rows = await member.take(600)
  await member.consumer.commitOffsets()
  await member.stop()
  equal(new Set(rows.map((row) => `${row.key}`)).size, 600)
}
await check('group', () => readAsGroup('g', {}))
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
const share = async (group, settings) => {
  const first = await new Member(group, topic('share'), settings).start()
  await until(() => first.held === 4, 'the first member has not all')
  const second = await new Member(group, topic('share'), settings).start()
  await until(() => first.held === 2 && second.held === 2, 'not shared')
  await second.stop()
  await until(() => first.held === 4, 'the first member has not all again')
  await first.stop()
}
await check('group-rebalance', async () => {
  await create('share', 4)
  await share('gr', {})
})
await check('group-cooperative', () => share('gx', { 'partition.assignment.strategy': 'cooperative-sticky' }))
await check('static-member', async () => {
  for (const _ of [1, 2]) {
    const settings = { 'group.instance.id': 'one', 'session.timeout.ms': 30000 }
    const member = await new Member('gs', topic('share'), settings).start()
    await until(() => member.held === 4, 'no assignment')
    await member.stop()
  }
  const found = await admin.describeGroups([topic('gs')], { timeout: DEADLINE_MS })
  equal(found.groups[0].members.map((each) => each.groupInstanceId), ['one'])
})
await check('group-consumer-protocol', () => readAsGroup('g848', { 'group.protocol': 'consumer' }))

async function transaction(id) {
  const producer = kafka.producer({ kafkaJS: { transactionalId: topic(id) } })
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
  const all = await read(topic('txn'), 3, { 'isolation.level': 'read_uncommitted' })
  equal(all.map((row) => `${row.value}`), ['kept-1', 'dropped', 'kept-2'])
})
const committed = async (group) => {
  const found = await admin.fetchOffsets({ groupId: topic(group), topics: [topic('consume')], timeout: DEADLINE_MS })
  return Object.fromEntries(found[0].partitions.map((each) => [each.partition, `${each.offset}`]))
}
await check('txn-offsets', async () => {
  const member = await new Member('gt', topic('consume')).start()
  await member.take(600)
  const producer = await transaction('to')
  await write(producer, 'kept-3', async (open) => {
    const topics = [{ topic: topic('consume'), partitions: [{ partition: 0, offset: '33' }] }]
    await open.sendOffsets({ consumer: member.consumer, topics })
    await open.commit()
  })
  await producer.disconnect()
  await member.stop()
  equal((await committed('gt'))[0], '33')
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
  await older.disconnect().catch(() => {})
  equal(refused, true)
})
await check('create-partitions', async () => {
  const other = confluent.AdminClient.create({ 'bootstrap.servers': bootstrap })
  await new Promise((done, refuse) => {
    other.createPartitions(topic('created'), 5, DEADLINE_MS, (error) => (error ? refuse(error) : done()))
  })
  other.disconnect()
  await until(async () => {
    const found = await admin.fetchTopicMetadata({ topics: [topic('created')], timeout: DEADLINE_MS })
    return found[0].partitions.length === 5
  }, 'not seen')
})
await check('delete-records', async () => {
  const partitions = [{ partition: 2, offset: '150' }]
  await admin.deleteTopicRecords({ topic: topic('consume'), partitions, timeout: DEADLINE_MS })
  equal(await ends(), [['0', '200'], ['0', '200'], ['150', '200']])
})
const groups = async () => (await admin.listGroups({ timeout: DEADLINE_MS })).groups.map((each) => each.groupId)
await check('list-groups', async () => equal((await groups()).includes(topic('g')), true))
await check('describe-group', async () => {
  const member = await new Member('gd', topic('share')).start()
  await until(() => member.held === 4, 'no assignment')
  const found = await admin.describeGroups([topic('gd')], { timeout: DEADLINE_MS })
  await member.stop()
  equal([found.groups[0].state, found.groups[0].members.length], [confluent.KafkaJS.ConsumerGroupStates.STABLE, 1])
})
await check('group-offsets', async () => equal((await committed('g'))[1], '200'))
await check('delete-group', async () => {
  await admin.deleteGroups([topic('g')], { timeout: DEADLINE_MS })
  equal((await groups()).includes(topic('g')), false)
})
await check('delete-topic', async () => {
  await admin.deleteTopics({ topics: [topic('created')], timeout: DEADLINE_MS })
  await until(async () => !(await admin.listTopics({ timeout: DEADLINE_MS })).includes(topic('created')), 'still listed')
})
await admin.disconnect()
process.exit(0)
