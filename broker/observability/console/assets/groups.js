// The list of groups and the page of one.

import { act, ask } from './api.js'
import { chart, spark } from './chart.js'
import { deletion, dialog } from './forms.js'
import { access } from './security.js'
import { badge, button, card, el, heading, lacking, link, notes, number, pager, panel, ranges, search, seconds, several, short, span, table, tone, when } from './views.js'

const STATES = { Stable: 'good', Empty: '', Dead: 'bad' }
const state = (row) => tone(STATES[row.state] ?? 'warn', row.state)
const notCounted = (row) => `${several(row.uncounted, 'partition')} not counted`
const behind = (row) => [number(row.records), row.uncounted ? [' ', el('small', { class: 'warn' }, `+ ${notCounted(row)}`)] : null]

// The age of the oldest record that is not committed. Before its first sample the console knows only that it is older.
const behindBy = (row) => (row.lag_at_least ? `≥ ${seconds(row.lag_seconds)}` : seconds(row.lag_seconds))

const NEAR_SECONDS = 10

function pace({ records, pace: found, ...row }) {
  // What was appended since the last commit is no lag that grows.
  const isNear = row.lag_seconds !== null && row.lag_seconds < NEAR_SECONDS && !row.lag_at_least
  const isNever = found && records && !isNear && found.catch_up_seconds === null
  const catches = records && row.members === 0 ? 'no members' : !found || records === null ? '–' : isNever ? 'not at this pace' : row.uncounted ? 'unknown' : !records ? 'caught up' : isNear ? 'keeps up' : span(found.catch_up_seconds * 1000)
  return el('div', { class: 'cards' },
    card('Lag', number(records), row.uncounted ? 'warn' : '', row.uncounted ? notCounted(row) : 'records not committed'),
    card('Behind by', behindBy(row), '', 'age of the oldest of them'),
    card('Committed', found ? `${short(found.committed)}/s` : '–', '', 'records, last minute'),
    card('Appended', found ? `${short(found.appended)}/s` : '–', '', 'records, last minute'),
    card('No lag in', catches, (records && row.members === 0) || isNever ? 'warn' : '', catches === 'unknown' ? notCounted(row) : ['no members', '–'].includes(catches) ? '' : 'if this goes on'))
}

export async function groups(context) {
  const { query } = context
  const found = await ask('groups', { search: query.search ?? '', first: query.first ?? 0, sort: query.sort ?? '' })
  const isSorted = query.sort === 'lag'
  return [heading([], 'Groups', search(context, 'find a group'),
    el('button', { id: 'sort', type: 'button', 'aria-pressed': String(isSorted), onclick: () => context.set({ sort: isSorted ? '' : 'lag', first: '' }) }, isSorted ? 'By name' : 'Greatest lag first')), lacking(found), notes(found.problems),
    panel(null, table([
      ['group', (row) => link(['group', row.group], row.group), 'long'],
      ['state', state], ['protocol', (row) => row.type, 'text'], ['coordinator', (row) => `broker ${row.coordinator}`],
      ['members', (row) => number(row.members), 'number'], ['topics', (row) => row.topics.join(', ') || '–', 'long'],
      ['lag', behind, 'number'], ['behind by', behindBy, 'number'],
      ['last minutes', (row) => spark(row.lag)],
    ], found.groups, query.search ? `No group has "${query.search}" in its id.` : found.lacks ? 'There are none that may be shown.' : 'There are no groups yet.', 'Groups'), pager(context, found),
    el('p', { class: 'quiet' }, 'Behind by: the age of the oldest record that a group has not committed, estimated from end offsets every 5 seconds; ≥: older than this console has samples.'))]
}

function resetForm(found) {
  const topics = [...new Set(found.offsets.map((row) => row.topic))]
  const box = dialog(`Reset offsets of ${found.group}`, [
    { name: 'topic', label: 'Topic', type: 'select', options: [['', 'all topics with committed offsets'], ...topics] },
    { name: 'to', label: 'To', type: 'select', options: [['earliest', 'the oldest record'], ['latest', 'the end'], ['offset', 'an offset'], ['shift', 'shift by a number'], ['time', 'a time']] },
    { name: 'amount', label: 'Offset, or number to shift by', type: 'number', hint: '-100: a hundred records back' },
    { name: 'time', label: 'Time', type: 'datetime-local' },
  ], 'Show the dry run', async ({ topic, to, amount, time }, own) => {
    if (to === 'time' && !time) throw new Error('Choose a time.')
    // Nothing is not 0, which would be the first offset.
    if (!amount && to === 'offset') throw new Error('Enter an offset.')
    if (!amount && to === 'shift') throw new Error('Enter a number.')
    const plan = await act('group/plan', { group: found.group, topic, to, amount: to === 'time' ? new Date(time).getTime() : Number(amount) })
    const box = own.querySelector('#field-to')
    const where = { offset: `offset ${number(amount)}`, shift: `shifted by ${number(amount)}`, time: `the first record since ${time.replace('T', ' ')}` }[to] ?? box.selectedOptions[0].textContent
    own.close()
    const asked = { offset: () => Number(amount), shift: (row) => row.before + Number(amount) }[to] ?? ((row) => row.after)
    planDialog(plan, `Offsets of ${topic ? `topic ${topic}` : 'all topics with committed offsets'}: ${where}.`, asked)
    return null
  }, { intro: el('p', { class: 'quiet' }, 'Nothing is changed yet: the next step shows a dry run.') })
  // Only the field that the choice needs.
  const choice = box.querySelector('#field-to')
  const show = () => {
    box.querySelector('#field-amount').closest('.field').hidden = !['offset', 'shift'].includes(choice.value)
    box.querySelector('#field-time').closest('.field').hidden = choice.value !== 'time'
  }
  choice.addEventListener('change', show)
  show()
}

// `asked` is the offset of a row that was asked for.
function planDialog(plan, target, asked) {
  const known = plan.rows.filter((row) => row.before !== null)
  const skipped = known.reduce((sum, row) => sum + Math.max(0, row.after - row.before), 0)
  const repeated = known.reduce((sum, row) => sum + Math.max(0, row.before - row.after), 0)
  const outside = plan.rows.filter((row) => row.after !== asked(row)).length
  const busy = !['Empty', 'Dead'].includes(plan.state)
  const difference = (row) => (row.before === null ? '–' : (row.after - row.before > 0 ? '+' : '') + number(row.after - row.before))
  const box = dialog(`Dry run: ${plan.group}`, [], `Commit ${several(plan.rows.length, 'offset')}`,
    () => act('group/reset', { group: plan.group, rows: plan.rows }), {
      danger: true,
      intro: el('div', {}, el('p', { id: 'target' }, target), notes(plan.problems),
        skipped ? el('p', { class: 'warn', id: 'skipped' }, `The group skips up to ${several(skipped, 'record')} that it has not committed: it does not read them.`) : null,
        repeated ? el('p', { class: 'warn', id: 'repeated' }, `Up to ${several(repeated, 'record')} that the group has committed ${repeated === 1 ? 'is' : 'are'} read and processed again.`) : null,
        outside ? el('p', { class: 'warn', id: 'outside' }, `${several(outside, 'partition')} ${outside === 1 ? 'has' : 'have'} no such offset: the nearest, its first or its end, is taken.`) : null,
        busy ? el('p', { class: 'warn' }, `The group is ${plan.state}: stop its members, then repeat the dry run.`) : null,
        table([
          ['topic', (row) => row.topic, 'long'], ['partition', (row) => row.partition, 'number'],
          ['now', (row) => number(row.before), 'number'], ['then', (row) => number(row.after), 'number'],
          ['difference', difference, 'number'],
        ], plan.rows, 'No partitions.', 'Dry run')),
    })
  box.querySelector('#submit').disabled = busy
  box.querySelector('#cancel').focus({ preventScroll: true })
}

// What the leaders of the partitions report of a share group.
const held = (ms) => (ms === null || ms === undefined ? '–' : span(ms))

function shared({ share }) {
  if (!share) return []
  const ended = Object.entries(share.acknowledged).filter(([, count]) => count).map(([kind, count]) => `${kind} ${number(count)}`)
  return [
    el('div', { class: 'cards' },
      card('in flight', number(share.in_flight), '', `${number(share.locked)} locked`),
      card('oldest lock', held(share.oldest_lock_ms)),
      card('delivered', number(share.delivered), '', 'since the brokers started'),
      card('redelivered', number(share.redelivered), share.redelivered ? 'warn' : ''),
      card('expired locks', number(share.expired_locks), share.expired_locks ? 'warn' : ''),
      card('acknowledged', ended.join(', ') || '–')),
    panel('Share partitions', table([
      ['topic', (row) => link(['topic', row.topic], row.topic), 'long'], ['partition', (row) => row.partition, 'number'],
      ['leader', (row) => `broker ${row.broker}`], ['start offset', (row) => number(row.start_offset), 'number'],
      ['in flight', (row) => number(row.in_flight), 'number'], ['locked', (row) => number(row.locked), 'number'],
      ['by members', (row) => number(row.members), 'number'], ['oldest lock', (row) => held(row.oldest_lock_ms), 'number'],
      ['most deliveries', (row) => number(row.most_deliveries), 'number'],
    ], share.rows, 'No leader has the state of a partition: no member fetches.', 'Share partitions')),
  ]
}

// What is lost with a group.
function deleted({ members, offsets, share }) {
  const committed = offsets.filter((row) => row.offset !== null)
  const topics = new Set(committed.map((row) => row.topic)).size
  return el('div', {},
    members ? el('p', { class: 'warn' }, `It has ${several(members, 'member')}: stop ${members === 1 ? 'it' : 'them'} first, or the deletion is refused.`) : null,
    el('p', {}, share ? 'The state of its records is deleted. Its consumers begin where share.auto.offset.reset says.'
      : `${several(committed.length, 'committed offset')} of ${several(topics, 'topic')} ${committed.length === 1 ? 'is' : 'are'} deleted. Its consumers begin where auto.offset.reset says.`))
}

const assignment = (row) => (row.assigned ? Object.entries(row.assignment).map(([topic, partitions]) => el('div', {}, link(['topic', topic], topic), ` ${ranges(partitions)}`)) : el('span', { class: 'quiet' }, 'nothing'))

// Their consumers may read from the beginning: the total is less than what they have to read.
function uncommitted({ offsets, share }) {
  const count = share ? 0 : offsets.filter((row) => row.offset === null && row.lag === null).length
  const endless = offsets.filter((row) => row.offset !== null && row.lag === null).length
  return [
    count ? el('p', { class: 'note' }, `${several(count, 'assigned partition')} without a committed offset: not counted in the lag.`) : null,
    endless ? el('p', { class: 'note' }, `${several(endless, 'partition')} whose end is not known, as its leader does not respond: not counted in the lag.`) : null,
  ]
}

export async function group(context) {
  const [, name] = context.path
  const [found, allowed] = await Promise.all([ask('group', { name }), access('GROUP', name)])
  return [
    heading([[['groups'], 'Groups']], found.group,
      found.may.read ? button('reset', 'Reset offsets', () => resetForm(found)) : null,
      found.may.delete ? button('delete', 'Delete', () => deletion('group', name, 'group', 'group/delete', deleted(found)), 'danger') : null),
    el('p', { class: 'quiet' }, state(found), ` · ${several(found.members, 'member')} · ${found.type} protocol${found.protocol ? `, ${found.protocol}` : ''} · coordinated by broker ${found.coordinator}`),
    notes(found.problems),
    ...shared(found),
    pace(found),
    panel('Lag', () => chart([{ name: 'behind', points: found.lag }], 'lag', context.width(1))),
    panel('Members', () => table([
      ['client', (row) => [row.client, ' ', row.instance ? badge(`static ${row.instance}`) : null], 'long'], ['address', (row) => row.host, 'text address'],
      ['assigned', (row) => number(row.assigned), 'number'], ['partitions', assignment, 'long'],
      ['member id', (row) => el('span', { class: 'quiet' }, row.member), 'long'],
    ], found.member_rows, 'No members.', 'Members')),
    ...uncommitted(found),
    panel('Offsets', () => table([
      ['topic', (row) => link(['topic', row.topic], row.topic), 'long'], ['partition', (row) => row.partition, 'number'],
      [found.share ? 'start offset' : 'committed', (row) => number(row.offset), 'number'], ['end', (row) => number(row.end_offset), 'number'],
      ['lag', (row) => number(row.lag), 'number'], ['behind by', behindBy, 'number'],
      ['assigned to', (row) => row.owner ?? '–', 'long'],
    ], found.offsets, 'No offsets committed.', 'Offsets')),
    panel('Events, newest first', () => table([
      ['time', (row) => when(row.time_ms), 'when'], ['event', (row) => row.kind], ['generation', (row) => row.generation, 'number'],
      ['member', (row) => row.member, 'long'], ['reason', (row) => row.reason, 'long'],
    ], found.events, found.no_events || 'No events yet.', 'Events')),
    allowed,
  ]
}
