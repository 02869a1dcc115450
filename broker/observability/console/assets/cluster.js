// The first page, events and settings.

import { NotFound, act, ask } from './api.js'
import { chart } from './chart.js'
import { settingForm } from './forms.js'
import { advice, badge, bytes, button, card, el, explained, heading, link, notes, number, panel, ranges, search, several, span, table, tone, when, zone } from './views.js'

function disk(row) {
  if (row.offline_directories.length) return tone('bad', `${row.offline_directories.length} directories offline`)
  if (row.disk_bytes === null) return '–'
  const used = row.disk_bytes - row.free_bytes
  return el('span', { class: 'disk' },
    el('meter', { min: 0, max: row.disk_bytes, high: row.disk_bytes * 0.85, optimum: 0, value: used, 'aria-label': 'used part of the disks' }),
    `${bytes(row.free_bytes)} free`)
}

// What `ottla doctor` finds as well, then what brokers report of themselves.
const problems = (found) => [
  ...found.checks.map((check) => ({ broker: 'cluster', problem: check.finding, ...check })),
  ...found.brokers.flatMap((each) => each.faults.map((fault) => ({ broker: each.id, ...fault }))),
  ...found.brokers.filter((each) => each.alive && !each.responds).map((each) => ({
    // Nobody reads or writes what it leads, as far as this page can tell.
    broker: each.id, stops: each.leaders > 0, problem: `${each.problem || 'did not respond'}${each.leaders ? ` It leads ${several(each.leaders, 'partition')}.` : ''}`, fix: 'check whether its process runs, and the network between the brokers; its log has more',
  })),
  // Brokers that are missing are the cause of the rest.
].sort((one, other) => Number(other.is_cause ?? false) - Number(one.is_cause ?? false) || Number(other.stops) - Number(one.stops))

function verdict(found) {
  const rows = problems(found)
  const stops = rows.filter((row) => row.stops).length
  const kind = stops ? 'bad' : rows.length ? 'warn' : 'good'
  const text = !rows.length ? `All brokers respond, all partitions are in sync${found.notes.length ? ' or being reassigned' : ''}`
    : `${several(rows.length, 'problem')}${stops ? `, ${number(stops)} of which ${stops === 1 ? 'stops' : 'stop'} clients` : '; clients are served'}`
  return el('p', { class: `verdict ${kind}` }, el('i', { 'aria-hidden': 'true' }), text)
}

function faults(found) {
  const rows = problems(found)
  if (!rows.length) return null
  return panel('Problems', () => table([
    ['broker', (row) => row.broker], ['problem', (row) => tone(row.stops ? 'bad' : 'warn', row.problem), 'long'], ['what to do', (row) => advice(row.fix), 'long wide'],
  ], rows, '', 'Problems'))
}

// As somebody wants it, and no problem: reassignments in progress.
const inProgress = (found) => (found.notes.length ? panel('In progress', table([
  ['what', (row) => row.finding, 'long'], ['what to do', (row) => advice(row.fix), 'long'],
], found.notes, '', 'In progress')) : null)

// Leads to the topics that are meant.
const troubled = (count) => (count ? link(['topics'], number(count), { only: 'problems' }) : '0')

export async function cluster(context) {
  const found = await ask('overview')
  const line = (name) => found.rates.map((point) => [point.time_ms, point[name]])
  const alive = found.brokers.filter((each) => each.alive).length
  // Kafka brokers, and brokers of Ottla without an HTTP port, do not report theirs.
  const reporting = found.rates_of_brokers < alive ? `${number(found.rates_of_brokers)} of ${number(alive)} brokers` : 'cluster'
  return [
    heading([], `Cluster ${found.cluster_id}`, found.read_only ? badge('read-only') : null),
    verdict(found), faults(found), inProgress(found),
    el('div', { class: 'cards' },
      card('Brokers', `${number(alive)}${alive < found.brokers.length ? ` of ${number(found.brokers.length)}` : ''}`, alive < found.brokers.length ? 'bad' : ''),
      card('Controller', found.controller_id < 0 ? 'none' : `broker ${found.controller_id}`, found.controller_id < 0 ? 'bad' : ''),
      card('Topics', number(found.topics)), card('Partitions', number(found.partitions)),
      card('Offline', troubled(found.offline), found.offline ? 'bad' : ''),
      card('Under-replicated', troubled(found.under_replicated), found.under_replicated ? 'warn' : ''),
      card('Groups', `${found.groups_are_all ? '' : '≥ '}${number(found.groups)}`)),
    el('div', { class: 'row' },
      panel('Records appended, cluster', () => chart([{ name: 'in', points: found.records }], 'records', context.width(3))),
      panel(`Traffic, ${reporting}`, () => chart([{ name: 'in', points: line('bytes_in') }, { name: 'out', points: line('bytes_out') }], 'bytes', context.width(3))),
      panel(`Requests, ${reporting}`, () => chart([{ name: 'in', points: line('requests') }], 'requests', context.width(3)))),
    notes(found.problems),
    panel('Brokers', () => table([
      ['broker', (row) => [link(['settings'], row.id, { broker: row.id }), ' ', row.id === found.controller_id ? badge('controller') : null, row.id === found.broker_id ? badge('this page') : null]],
      ['state', (row) => (row.responds ? tone('good', 'responds') : row.alive ? [tone('warn', 'did not respond'), row.problem ? el('div', { class: 'quiet' }, row.problem) : null] : tone('bad', 'not registered'))],
      ['listeners', (row) => row.listeners.join(' ') || '–', 'long'], ['rack', (row) => row.rack ?? '–', 'text'],
      ...(found.brokers.some((row) => row.machine !== null) ? [['worker', (row) => (row.machine === null ? '–' : `${row.worker} of ${row.machine}`), 'text']] : []),
      ['leads', (row) => number(row.leaders), 'number'], ['replicas', (row) => number(row.replicas), 'number'],
      ['not in sync', (row) => [row.not_in_sync ? tone('warn', number(row.not_in_sync)) : '0', row.copied ? ` + ${number(row.copied)} being reassigned` : null], 'number'],
      ['disks', disk],
    ], found.brokers, 'No brokers are known yet.', 'Brokers')),
    el('p', { class: 'quiet' }, `Served by broker ${found.broker_id}, for ${span(found.now_ms - found.started_ms)}: ${number(found.connections)} connections, ${bytes(found.peak_memory_bytes)} of memory at most.`),
  ]
}

export async function events(context) {
  const found = await ask('events', { search: context.query.search ?? '' })
  return [heading([], 'Events', search(context, 'find words')), notes(found.problems), panel(null,
    found.events.length ? el('p', { class: 'quiet' }, `Newest first${found.more ? `; ${number(found.more)} older ones are left out` : ''}.`) : null,
    table([
      ['time', (row) => when(row.time_ms), 'when'],
      ['source', (row) => (row.brokers.length ? tone(row.brokers.length < 4 ? 'whole' : '', `broker ${ranges(row.brokers)}`) : badge('cluster'))],
      ['event', (row) => el('span', {}, tone(row.level === 'INFO' ? '' : row.level === 'WARNING' ? 'warn' : 'bad', row.text), row.count > Math.max(1, row.brokers.length) ? [' ', badge(`${number(row.count)} times`)] : null, row.alike ? [' ', badge(`and ${number(row.alike)} more like this`)] : null), 'long'],
    ], found.events, context.query.search ? `No event has "${context.query.search}" in it.` : 'No events yet.', 'Events'), zone())]
}

export async function settings(context) {
  let found
  try {
    found = await ask('settings', { broker: context.query.broker ?? '-1' })
  } catch (error) {
    if (!(error instanceof NotFound)) throw error
    return [heading([], 'Settings'), panel(null, el('p', { class: 'error', role: 'alert' }, error.message), el('p', {}, link(['settings'], 'Settings of the broker that serves this page')))]
  }
  const wanted = (context.query.search ?? '').toLowerCase()
  const rows = found.settings.filter((row) => row.name.includes(wanted))
  rows.sort((one, other) => (one.source === 'default') - (other.source === 'default'))
  const send = (row) => (value) => act('broker/setting', { broker_id: found.broker_id, setting: row.name, value })
  return [heading([], `Settings of broker ${found.broker_id}`,
    el('select', { id: 'broker', 'aria-label': 'broker', onchange: (event) => context.set({ broker: event.target.value }) },
      found.brokers.map((each) => el('option', { value: each, selected: each === found.broker_id ? '' : null }, `broker ${each}`))),
    search(context, 'find a setting')), notes(found.problems),
  panel(null, table([
    ['setting', (row) => explained(`about-${row.name}`, row.name, row.documentation), 'long'], ['value', (row) => row.value ?? 'null', 'long'],
    ['from', (row) => (row.source === 'default' ? el('span', { class: 'quiet' }, 'default') : badge(row.source)), 'when'],
    ['', (row) => (row.read_only ? el('span', { class: 'quiet' }, 'needs a restart') : button(`change-${row.name}`, 'change', () => settingForm(row, `Broker ${found.broker_id}, at run time`, send(row)), 'small')), 'when'],
  ], rows, wanted ? `No setting has "${wanted}" in its name.` : 'No settings.', 'Settings'))]
}
