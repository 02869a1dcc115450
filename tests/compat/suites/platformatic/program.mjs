// @platformatic/kafka against one broker: a line for each feature, see ../README.md.
// It needs a newer Node.js than most machines have, so the suite brings one.
import {
  Admin, Consumer, ListOffsetTimestamps, MessagesStreamModes, Producer, stringDeserializers, stringSerializers,
} from '@platformatic/kafka'

const bootstrapBrokers = [process.env.COMPAT_BOOTSTRAP]
const brokers = Number(process.env.COMPAT_BROKERS)
const prefix = process.env.COMPAT_PREFIX
const DEADLINE_MS = 40000
const client = { clientId: 'compat', bootstrapBrokers, retries: 10, retryDelay: 300 }
const admin = new Admin(client)

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
    const inner = (error.errors ?? []).map((each) => `${each.message} ${each.cause ?? ''}`).join(', ')
    console.log(`fail ${name}: ${`${error.message} ${error.cause ?? ''} ${inner}`.replaceAll('\n', ' ')}`)
  } finally {
    clearTimeout(timer)
  }
}

const text = (value) => JSON.stringify(value, (_, each) => (typeof each === 'bigint' ? Number(each) : each))

function equal(found, wanted) {
  const [one, other] = [text(found), text(wanted)]
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
  await admin.createTopics({ topics: [topic(name)], partitions, replicas: 1 })
  return topic(name)
}

const producer = (settings) => new Producer({ ...client, serializers: stringSerializers, ...settings })

async function send(to, messages, settings = {}) {
  const made = producer(settings)
  try {
    return await made.send({ messages: messages.map((each) => ({ topic: to, partition: 0, ...each })), acks: -1, ...settings })
  } finally {
    await made.close()
  }
}

// The client reads only with a group id; without a commit the group keeps nothing.
class Member {
  constructor(group, from, settings = {}) {
    this.rows = []
    this.from = from
    this.settings = settings
    this.consumer = new Consumer({
      ...client, groupId: topic(group), autocommit: false, maxWaitTime: 200, deserializers: stringDeserializers,
      ...(settings.groupProtocol ? {} : { sessionTimeout: 10000, rebalanceTimeout: 15000, heartbeatInterval: 500 }),
      ...settings,
    })
  }

  async start(mode = MessagesStreamModes.EARLIEST, more = {}) {
    this.stream = await this.consumer.consume({ topics: [this.from], mode, ...more })
    this.stream.on('data', (message) => this.rows.push(message))
    this.stream.on('error', (error) => { this.error = error })
    return this
  }

  get held() {
    return (this.consumer.assignments ?? []).filter((each) => each.topic === this.from)
      .reduce((sum, each) => sum + each.partitions.length, 0)
  }

  async take(count) {
    await until(() => this.rows.length >= count, `${this.rows.length} rows instead of ${count} ${this.error ?? ''}`)
    return this.rows
  }

  commit() {
    const next = new Map()
    for (const row of this.rows) next.set(row.partition, { offset: row.offset + 1n, leaderEpoch: 0 })
    return this.consumer.commit({
      offsets: [...next].map(([partition, place]) => ({ topic: this.from, partition, ...place })),
    })
  }

  async stop() {
    await this.stream?.close()
    await this.consumer.close(true)
  }
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

const numbered = (count, partitions = 1, first = 0) =>
  Array.from({ length: count }, (_, n) => ({
    key: `${first + n}`, value: `value-${first + n}`.repeat(10), partition: n % partitions,
  }))

async function roundTrip(name, settings) {
  const to = await create(name)
  await send(to, numbered(300), settings)
  const rows = await read(to, 300)
  equal(rows.map((row) => [row.offset, row.key, row.value]), numbered(300).map((row, n) => [n, row.key, row.value]))
}

await check('connect', async () => {
  const found = await admin.metadata({ topics: [] })
  equal([found.brokers.size, found.id.length > 0], [brokers, true])
})
await check('create-topic', () => create('created', 3))
await check('list-topics', async () => {
  const found = await admin.metadata({ topics: [topic('created')] })
  equal([(await admin.listTopics()).includes(topic('created')), found.topics.get(topic('created')).partitionsCount], [true, 3])
})
await check('auto-create', () => send(topic('auto'), [{ value: 'v' }], { autocreateTopics: true }))
await check('acks-0', async () => {
  const to = await create('acks0')
  await send(to, numbered(300), { acks: 0 })
  equal((await read(to, 300)).map((row) => row.offset), numbered(300).map((_, n) => n))
})
for (const acks of [1, -1]) {
  await check(`acks-${acks < 0 ? 'all' : acks}`, () => roundTrip(`acks${acks}`, { acks }))
}
for (const compression of ['gzip', 'snappy', 'lz4', 'zstd']) {
  await check(`codec-${compression}`, () => roundTrip(compression, { compression }))
}
await check('idempotent', () => roundTrip('idempotent', { idempotent: true }))
await check('headers', async () => {
  const to = await create('headers')
  const headers = new Map([['n', '1'], ['grün', 'ü']])
  await send(to, [{ value: 'v', headers }])
  const [row] = await read(to, 1)
  equal([...row.headers], [...headers])
})
await check('null-values', async () => {
  const to = await create('null')
  await send(to, [{ value: 'v' }, { key: 'k' }])
  const rows = await read(to, 2)
  equal([rows[0].key ?? null, rows[1].value ?? null], [null, null])
})
await check('large-record', async () => {
  const to = await create('large')
  const value = '0123456789abcdef'.repeat(48 << 10)
  await send(to, [{ value }])
  equal((await read(to, 1))[0].value === value, true)
})
await check('consume', async () => {
  const to = await create('consume', 3)
  await send(to, numbered(600, 3))
  const rows = await read(to, 600)
  for (const partition of [0, 1, 2]) {
    const mine = rows.filter((row) => row.partition === partition)
    equal(mine.map((row) => row.offset), Array.from({ length: 200 }, (_, n) => n))
  }
})
const offsets = async (name, timestamp, count) => {
  const partitions = Array.from({ length: count }, (_, partitionIndex) => ({ partitionIndex, timestamp }))
  const [found] = await admin.listOffsets({ topics: [{ name, partitions }] })
  return found.partitions.sort((a, b) => a.partitionIndex - b.partitionIndex).map((each) => each.offset)
}
await check('list-offsets', async () => {
  equal(await offsets(topic('consume'), ListOffsetTimestamps.EARLIEST, 3), [0, 0, 0])
  equal(await offsets(topic('consume'), ListOffsetTimestamps.LATEST, 3), [200, 200, 200])
})
await check('seek-by-time', async () => {
  const to = await create('time')
  await send(to, Array.from({ length: 10 }, (_, n) => ({ value: 'v', timestamp: 1700000000000n + BigInt(n * 1000) })))
  equal(await offsets(to, 1700000004500n, 1), [5])
})
await check('group', async () => {
  const member = await new Member('g', topic('consume')).start()
  const rows = await member.take(600)
  equal(new Set(rows.map((row) => row.key)).size, 600)
  await member.commit()
  await member.stop()
})
await check('group-commit', async () => {
  const to = await create('commit')
  for (const first of [0, 50]) {
    await send(to, numbered(50, 1, first))
    const member = await new Member('gc', to).start(MessagesStreamModes.COMMITTED, { fallbackMode: 'earliest' })
    const rows = await member.take(50)
    equal([rows[0].key, rows.length], [`${first}`, 50])
    await member.commit()
    await member.stop()
  }
})
async function share(group, settings) {
  const first = await new Member(group, topic('share'), settings).start()
  await until(() => first.held === 4, 'the first member does not hold all')
  const second = await new Member(group, topic('share'), settings).start()
  await until(() => first.held === 2 && second.held === 2, `${first.held} and ${second.held} partitions`)
  await second.stop()
  await until(() => first.held === 4, 'the first member does not take over')
  await first.stop()
}
await check('group-rebalance', async () => {
  await create('share', 4)
  await share('gr')
})
console.log('lacks group-cooperative')
await check('static-member', async () => {
  for (const _ of [0, 1]) {
    const member = await new Member('gs', topic('share'), { groupInstanceId: 'one' }).start()
    await until(() => member.held === 4, 'no assignment')
    const group = (await admin.describeGroups({ groups: [topic('gs')] })).get(topic('gs'))
    equal([...group.members.values()].map((each) => each.groupInstanceId), ['one'])
    await member.stop()
  }
})
await check('group-consumer-protocol', () => share('gn', { groupProtocol: 'consumer', groupRemoteAssignor: 'uniform' }))

async function write(made, value) {
  const transaction = await made.beginTransaction()
  await transaction.send({ messages: [{ topic: topic('txn'), partition: 0, value }] })
  return transaction
}
const transactional = (id) => producer({ transactionalId: topic(id), idempotent: true })
const committed = { isolationLevel: 1 }
await check('txn-commit', async () => {
  await create('txn')
  const made = transactional('t')
  await (await write(made, 'kept-1')).commit()
  await made.close()
  equal((await read(topic('txn'), 1, committed)).map((row) => row.value), ['kept-1'])
})
await check('txn-abort', async () => {
  const made = transactional('t-abort')
  await (await write(made, 'dropped')).abort()
  await (await write(made, 'kept-2')).commit()
  await made.close()
  equal((await read(topic('txn'), 2, committed)).map((row) => row.value), ['kept-1', 'kept-2'])
  equal((await read(topic('txn'), 3, { isolationLevel: 0 })).map((row) => row.value), ['kept-1', 'dropped', 'kept-2'])
})
await check('txn-offsets', async () => {
  const member = await new Member('gt', topic('consume')).start()
  const rows = await member.take(600)
  const made = transactional('to')
  const transaction = await made.beginTransaction()
  await transaction.addConsumer(member.consumer)
  await transaction.send({ messages: [{ topic: topic('txn'), partition: 0, value: 'kept-3' }] })
  for (const partition of [0, 1, 2]) await transaction.addOffset(rows.findLast((row) => row.partition === partition))
  await transaction.commit()
  await made.close()
  await member.stop()
  equal(await committedOffsets('gt', [0, 1, 2]), [200, 200, 200])
})
await check('txn-fencing', async () => {
  const [older, newer] = [transactional('f'), transactional('f')]
  await (await write(older, 'kept-4')).commit()
  await (await write(newer, 'kept-5')).commit()
  let refused
  try {
    await (await write(older, 'late')).commit()
  } catch (error) {
    refused = error
  }
  equal(refused !== undefined, true)
  await Promise.all([older.close(true), newer.close(true)])
})
console.log('lacks txn-admin')

async function committedOffsets(group, partitionIndexes) {
  const groups = [{ groupId: topic(group), topics: [{ name: topic('consume'), partitionIndexes }] }]
  const [found] = await admin.listConsumerGroupOffsets({ groups, requireStable: true })
  return found.topics[0].partitions.sort((a, b) => a.partitionIndex - b.partitionIndex).map((each) => each.committedOffset)
}
await check('describe-cluster', async () => {
  const found = await admin.metadata({ topics: [] })
  equal([found.controllerId >= 0, found.id.length > 0], [true, true])
})
async function setting(name) {
  const [found] = await admin.describeConfigs({
    resources: [{ resourceType: 2, resourceName: topic('consume'), configurationKeys: [name] }],
  })
  return found.configs[0].value
}
await check('describe-configs', async () => equal(await setting('cleanup.policy'), 'delete'))
await check('alter-configs', async () => {
  const configs = [{ name: 'retention.ms', configOperation: 0, value: '1234567890' }]
  await admin.incrementalAlterConfigs({ resources: [{ resourceType: 2, resourceName: topic('consume'), configs }] })
  await until(async () => (await setting('retention.ms')) === '1234567890', 'not altered')
})
await check('create-partitions', async () => {
  await admin.createPartitions({ topics: [{ name: topic('created'), count: 5, assignments: null }] })
  await until(async () => {
    const found = await admin.metadata({ topics: [topic('created')], forceUpdate: true })
    return found.topics.get(topic('created')).partitionsCount === 5
  }, 'not added')
})
await check('delete-records', async () => {
  const [found] = await admin.deleteRecords({
    topics: [{ name: topic('consume'), partitions: [{ partition: 2, offset: 150n }] }],
  })
  equal(found.partitions[0].lowWatermark, 150)
})
await check('list-groups', async () => equal((await admin.listGroups()).has(topic('g')), true))
await check('describe-group', async () => {
  const member = await new Member('gd', topic('share')).start()
  await until(() => member.held === 4, 'no assignment')
  const group = (await admin.describeGroups({ groups: [topic('gd')] })).get(topic('gd'))
  await member.stop()
  equal([group.state.toUpperCase(), group.members.size], ['STABLE', 1])
})
await check('group-offsets', async () => equal(await committedOffsets('g', [1]), [200]))
await check('reset-offsets', async () => {
  const partitionOffsets = [{ partition: 0, offset: 17n }]
  await admin.alterConsumerGroupOffsets({ groupId: topic('g'), topics: [{ name: topic('consume'), partitionOffsets }] })
  equal(await committedOffsets('g', [0]), [17])
})
await check('delete-offsets', async () => {
  await admin.deleteConsumerGroupOffsets({ groupId: topic('g'), topics: [{ name: topic('consume'), partitionIndexes: [1] }] })
  equal(await committedOffsets('g', [1]), [-1])
})
await check('delete-group', async () => {
  await admin.deleteGroups({ groups: [topic('g')] })
  equal((await admin.listGroups()).has(topic('g')), false)
})
await check('log-dirs', async () => {
  const [broker] = await admin.describeLogDirs({ topics: [{ name: topic('consume'), partitions: [0, 1, 2] }] })
  const sizes = broker.results.flatMap((each) => each.topics).flatMap((each) => each.partitions)
  equal(sizes.some((each) => each.partitionSize > 0n), true)
})
console.log('lacks elect-leaders')
console.log('lacks reassign')
await check('quotas', async () => {
  const entity = [{ entityType: 'client-id', entityName: topic('client') }]
  await admin.alterClientQuotas({ entries: [{ entities: entity, ops: [{ key: 'producer_byte_rate', value: 1e6, remove: false }] }] })
  await until(async () => {
    const found = await admin.describeClientQuotas({
      components: [{ entityType: 'client-id', matchType: 0, match: topic('client') }],
    })
    return found.length === 1
  }, 'no quota')
})
await check('delete-topic', async () => {
  await admin.deleteTopics({ topics: [topic('created')] })
  await until(async () => !(await admin.listTopics()).includes(topic('created')), 'still there')
})
await admin.close()
process.exit(0)
