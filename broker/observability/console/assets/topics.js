// The list of topics and the page of one.

import { act, ask } from './api.js'
import { chart } from './chart.js'
import { deletion, dialog, settingForm } from './forms.js'
import { produceForm } from './records.js'
import { access } from './security.js'
import { advice, atLeast, badge, bytes, button, el, explained, hash, heading, lacking, link, notes, number, pager, panel, search, several, table, tone } from './views.js'

const health = (row) => (row.offline ? tone('bad', `${row.offline} offline`)
  : row.below_min_isr ? tone('bad', `${row.below_min_isr} below min.insync.replicas: acks=all is refused`)
  : row.under_replicated ? tone('warn', `${row.under_replicated} under-replicated`) : row.reassigned ? tone('', `${row.reassigned} being reassigned`) : tone('good', 'in sync'))

// The replication factor, of partitions that differ the least and the greatest.
const factor = (row) => (row.least_replicas === row.replicas ? number(row.replicas) : `${number(row.least_replicas)}–${number(row.replicas)}`)

// Replicas that a reassignment adds are not missing.
function inSync(row) {
  const missing = row.replicas.filter((each) => !row.isr.includes(each) && !row.adding.includes(each))
  const left = row.adding.filter((each) => !row.isr.includes(each))
  return [tone(missing.length ? 'warn' : '', row.isr.join(', ')), row.below_min_isr ? [' ', badge('below min.insync.replicas', 'bad')] : null, row.reassigned ? [' ', badge(left.length ? `reassignment: copying to broker ${left.join(', ')}` : 'reassignment')] : null]
}

// Lines of name=value.
function parsed(text) {
  const lines = text.split('\n').map((line) => line.trim()).filter(Boolean)
  return Object.fromEntries(lines.map((line) => {
    const at = line.indexOf('=')
    if (at < 1) throw new Error(`${line} is not name=value`)
    return [line.slice(0, at).trim(), line.slice(at + 1).trim()]
  }))
}

function createForm(missing) {
  dialog('Create a topic', [
    { name: 'name', label: 'Name', required: true },
    { name: 'partitions', label: 'Partitions', type: 'number', min: 1, hint: 'empty: num.partitions of the broker' },
    { name: 'replicas', label: 'Replicas of each', type: 'number', min: 1, hint: 'empty: default.replication.factor of the broker' },
    { name: 'configs', label: 'Settings', type: 'area', rows: 3, hint: 'one on each line, such as cleanup.policy=compact' },
  ], 'Create', ({ name, partitions, replicas, configs }) => act('topic/create', {
    name, partitions: Number(partitions || -1), replication_factor: Number(replicas || -1), configs: parsed(configs),
  }), { intro: missing ? el('p', { class: 'warn' }, advice(`${missing}. Without it only topics can be created whose names have an ACL for CREATE.`)) : null })
}

export async function topics(context) {
  const found = await ask('topics', { search: context.query.search ?? '', first: context.query.first ?? 0, only: context.query.only ?? '' })
  const isOnly = context.query.only === 'problems'
  return [heading([], 'Topics', search(context, 'find a topic'),
    el('button', { id: 'only', type: 'button', 'aria-pressed': String(isOnly), onclick: () => context.set({ only: isOnly ? '' : 'problems', first: '' }) }, isOnly ? 'All topics' : 'Only problems'),
    button('create', 'Create topic', () => createForm(found.cannot_create), found.cannot_create ? '' : 'main')),
    lacking(found), notes(found.problems),
    panel(null, table([
      ['topic', (row) => [link(['topic', row.name], row.name), ' ', row.internal ? badge('internal') : null], 'long'],
      ['partitions', (row) => number(row.partitions), 'number'], ['replicas', factor, 'number'],
      ['records', (row) => (row.records === null ? '–' : atLeast(row.records, row.records_unknown, number, '≥ ')), 'number'],
      ['size', (row) => (row.size_bytes === null ? '–' : atLeast(row.size_bytes, row.size_unknown, bytes, '≥ ')), 'number'],
      ['state', health],
    ], found.topics, isOnly ? 'No such topic has a problem.' : context.query.search ? `No topic has "${context.query.search}" in its name.` : found.lacks ? 'There are none that may be shown.' : 'There are no topics yet.', 'Topics'), pager(context, found))]
}

function partitionsForm(found) {
  dialog('Add partitions', [{ name: 'count', label: 'Partitions afterwards', type: 'number', value: found.partitions + 1, min: found.partitions + 1, hint: 'Records with the same key may go to another partition than before. The number of partitions cannot be reduced.' }],
    'Add', ({ count }) => act('topic/partitions', { name: found.name, count: Number(count) }))
}

function settingsPanel(found, context) {
  const own = found.settings.filter((row) => row.source === 'topic')
  const all = context.query.all === '1'
  const rows = all ? found.settings : own
  const send = (row) => (value) => act('topic/setting', { name: found.name, setting: row.name, value })
  const toggle = el('button', { id: 'all', type: 'button', class: 'small', 'aria-pressed': String(all), onclick: () => context.set({ all: all ? '' : '1' }) }, all ? 'only those set' : `all ${found.settings.length}`)
  return panel(null, el('div', { class: 'heading' }, el('h2', {}, all ? 'Settings' : 'Topic settings'), found.settings.length ? toggle : null), table([
    ['setting', (row) => explained(`about-${row.name}`, row.name, row.documentation), 'long'], ['value', (row) => row.value ?? 'null', 'long'],
    ['from', (row) => (row.source === 'topic' ? badge('topic') : el('span', { class: 'quiet' }, row.source))],
    ['', (row) => (found.may.alter_configs ? button(`change-${row.name}`, 'change', () => settingForm(row, `Topic ${found.name}`, send(row)), 'small') : '')],
  ], rows, found.no_settings ? advice(found.no_settings) : 'None set; broker defaults apply.', 'Settings'))
}

// Which groups lose their offsets in a topic that is deleted.
function losing({ groups, total, unknown, are_all: areAll }) {
  const fate = (row) => (row.has_members ? ' (has members)' : row.disappears ? ' (disappears: it has no others)' : '')
  const rest = total - groups.length
  const missing = unknown ? `${several(unknown, 'other group')} ${unknown === 1 ? 'is' : 'are'} not known well enough to say. ` : areAll ? '' : 'There may be groups that this page does not see. '
  return [
    total ? el('p', { class: 'warn' }, `${several(total, 'group')} ${total === 1 ? 'loses its' : 'lose their'} committed offsets in it:`) : el('p', {}, 'No group that is known has committed offsets in it.'),
    total ? el('ul', {}, groups.map((row) => el('li', {}, el('b', {}, row.group), fate(row))), rest ? el('li', {}, `and ${number(rest)} more`) : null) : null,
    missing ? el('p', { class: 'quiet' }, missing) : null,
  ].filter(Boolean)
}

function deleteForm(found) {
  const place = el('div', { id: 'losing', class: 'name' }, 'Looking for groups with committed offsets in it…')
  deletion('topic', found.name, 'name', 'topic/delete', el('div', {},
    el('p', {}, `All its records${found.records && !found.records_unknown ? ` (${number(found.records)})` : ''} are deleted on all brokers. This cannot be undone.`), place))
  ask('groups_of_topic', { name: found.name }).then((groups) => place.replaceChildren(...losing(groups)),
    (error) => place.replaceChildren(`Which groups have committed offsets in it is not known: ${error.message}`))
}

// On a phone a list of partitions is long.
const LONG_LIST = 8

function shortcuts(found) {
  if (found.rows.length <= LONG_LIST) return null
  const to = (id, text) => button(`to-${id}`, text, () => document.getElementById(id)?.scrollIntoView(), 'small')
  return el('p', { class: 'tools', id: 'shortcuts' }, to('topic-access', 'Who may use it ↓'), to('topic-settings', 'Settings ↓'))
}

export async function topic(context) {
  const [, name] = context.path
  const [found, allowed] = await Promise.all([ask('topic', { name, first: context.query.first ?? 0 }), access('TOPIC', name)])
  const browse = (row) => link(['records', name], 'browse', { partition: row.partition })
  return [
    heading([[['topics'], 'Topics']], found.name,
      found.may.read ? el('a', { class: 'button', href: hash(['records', name]) }, 'Browse records') : null,
      found.may.write ? button('produce', 'Produce', () => produceForm(name)) : null,
      found.may.alter ? button('partitions', 'Add partitions', () => partitionsForm(found)) : null,
      found.may.delete ? button('delete', 'Delete', () => deleteForm(found), 'danger') : null),
    el('p', { class: 'quiet' }, `${found.records === null || (found.records_unknown && !found.records) ? 'records: unknown' : atLeast(found.records, found.records_unknown, (count) => several(count, 'record'))}, ${found.size_bytes === null || (found.size_unknown && !found.size_bytes) ? 'size: unknown' : `${atLeast(found.size_bytes, found.size_unknown, bytes)} in all replicas`}, ${several(found.partitions, 'partition')}, ${factor(found)} ${found.replicas === 1 ? 'replica' : 'replicas'} each; `, health(found)),
    notes(found.problems), shortcuts(found),
    found.rate.length > 1 ? panel('Records appended', () => chart([{ name: 'in', points: found.rate }], 'records', context.width(1))) : null,
    panel('Partitions', found.troubled && found.partitions > 1 ? el('p', { class: 'quiet' }, `${several(found.troubled, 'partition')} with problems first.`) : null, () => table([
      ['partition', (row) => row.partition],
      ['leader', (row) => (row.leader < 0 ? tone('bad', 'none') : row.leader)],
      ['replicas', (row) => row.replicas.join(', ')],
      ['in sync', inSync],
      ['first offset', (row) => number(row.start_offset), 'number'], ['end offset', (row) => number(row.end_offset), 'number'],
      ['size', (row) => bytes(row.size_bytes), 'number'],
      ['', (row) => (found.may.read ? browse(row) : '')],
    ], found.rows, 'No partitions.', 'Partitions'), pager(context, { ...found, total: found.partitions })),
    remotePanel(found.remote), remoteRates(found, context),
    el('div', { id: 'topic-access', class: 'target' }, allowed), el('div', { id: 'topic-settings', class: 'target' }, settingsPanel(found, context)),
  ]
}

const remotePanel = (remote) => {
  if (!remote) return null
  const segments = (count, size) => `${several(remote[count] || 0, 'segment')}, ${bytes(remote[size] || 0)}`
  const count = (name) => number(remote[name] || 0)
  return panel('Remote storage', table([['', (row) => row[0]], ['', (row) => row[1], 'number']], [
    ['in remote storage', segments('metadata_count', 'size_bytes')],
    ['to be copied', segments('copy_lag_segments', 'copy_lag_bytes')],
    ['to be deleted', segments('delete_lag_segments', 'delete_lag_bytes')],
    ['copied since the start', segments('copies', 'copied_bytes')],
    ['read since the start', `${several(remote.reads || 0, 'read')}, ${bytes(remote.read_bytes || 0)}`],
    ['errors of copies, reads, deletions', `${count('copy_errors')}, ${count('read_errors')}, ${count('delete_errors')}`],
  ], 'Nothing.', 'Remote storage'))
}

// Beside the totals, of all brokers that respond.
const remoteRates = (found, context) => {
  if (!found.remote) return null
  const line = (name) => found.remote_rates.map((point) => [point.time_ms, point[name]])
  return el('div', { class: 'row' },
    panel('Remote storage, traffic', chart([{ name: 'copied', points: line('copied_bytes') }, { name: 'read', points: line('read_bytes') }], 'bytes', context.width(2))),
    panel('Remote storage, errors', chart([{ name: 'copies, reads, deletions', points: line('errors') }], 'errors', context.width(2))))
}
