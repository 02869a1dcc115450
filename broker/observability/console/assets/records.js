// Browsing records, and producing one.

import { act, ask } from './api.js'
import { dialog } from './forms.js'
import { bytes, decoded, el, hash, heading, notes, number, panel, table, when, button } from './views.js'

export function produceForm(topic, partitions, partition = 0) {
  const nullable = (text, kind) => (kind === 'null' ? null : text)
  const kinds = [['text', 'this text'], ['null', 'null']]
  dialog(`Produce to ${topic}`, [
    { name: 'value', label: 'Value', type: 'area' },
    { name: 'valueKind', label: 'Value is', type: 'select', options: kinds, value: 'text', hint: 'null deletes the key in a compacted topic' },
    { name: 'key', label: 'Key' },
    { name: 'keyKind', label: 'Key is', type: 'select', options: [['null', 'null'], ['text', 'this text']], value: 'text' },
    { name: 'headers', label: 'Headers', type: 'area', rows: 2, hint: 'one on each line, such as trace=1' },
    { name: 'partition', label: 'Partition', type: 'number', value: partition, min: 0, max: partitions - 1 },
  ], 'Produce', (given) => act('record/produce', {
    topic, partition: Number(given.partition),
    key: nullable(given.key, given.keyKind), value: nullable(given.value, given.valueKind),
    headers: given.headers.split('\n').filter((line) => line.trim()).map((line) => {
      const at = line.indexOf('=')
      return at < 0 ? { name: line.trim(), value: null } : { name: line.slice(0, at).trim(), value: line.slice(at + 1) }
    }),
  }))
}

const asLocal = (ms) => {
  if (!ms) return ''
  const moment = new Date(Number(ms))
  return new Date(moment.getTime() - moment.getTimezoneOffset() * 60000).toISOString().slice(0, 19)
}

function chooser(context, topic) {
  const { query } = context
  const from = query.time ? 'time' : query.offset === '0' ? 'oldest' : query.offset ? 'offset' : 'newest'
  const input = (name, label, attributes = {}) => el('label', { class: 'field' }, el('span', {}, label), el('input', { name, id: `browse-${name}`, autocomplete: 'off', spellcheck: 'false', value: query[name] ?? '', ...attributes }))
  const form = el('form', { class: 'chooser', onsubmit: (event) => {
    event.preventDefault()
    const given = Object.fromEntries(new FormData(form))
    const next = { partition: given.partition, key: given.key, value: given.value, offset: '', time: '' }
    if (given.from === 'oldest') next.offset = '0'
    if (given.from === 'offset') next.offset = given.offset || '0'
    if (given.from === 'time') next.time = String(new Date(given.time).getTime() || '')
    document.activeElement?.blur()
    context.set(next, { push: true })
  } },
  input('partition', 'Partition', { inputmode: 'numeric', size: 6, placeholder: 'all', pattern: '[0-9]*' }),
  el('label', { class: 'field' }, el('span', {}, 'From'), el('select', { name: 'from', id: 'browse-from' },
    [['newest', 'the newest'], ['oldest', 'the oldest'], ['offset', 'an offset'], ['time', 'a time']].map(([value, text]) => el('option', { value, selected: value === from ? '' : null }, text)))),
  input('offset', 'Offset', { inputmode: 'numeric', size: 10, pattern: '[0-9]*', value: from === 'offset' ? query.offset : '', oninput: () => { form.elements.from.value = 'offset' } }),
  input('time', 'Time', { type: 'datetime-local', step: 1, value: asLocal(query.time), oninput: () => { form.elements.from.value = 'time' } }),
  input('key', 'Key contains', { size: 12 }), input('value', 'Value contains', { size: 16 }),
  el('button', { class: 'main', id: 'browse' }, 'Show'))
  return form
}

export async function records(context) {
  const [, topic] = context.path
  const { query } = context
  const found = await ask('messages', {
    topic, partition: query.partition || '-1', offset: query.offset || '-1', time: query.time || '-1',
    key: query.key ?? '', value: query.value ?? '',
  })
  const fromEnd = !query.offset && !query.time
  const single = found.partitions.length === 1 ? found.partitions[0] : null
  const range = single ? `offsets ${number(single.start_offset)} to ${number(single.end_offset)}` : `${found.partitions.length} partitions`
  const onward = single && !found.at_end && !fromEnd
    ? el('a', { href: hash(context.path, { ...query, offset: single.next, time: '' }) }, 'next records ›') : null
  const older = single && fromEnd && single.first > single.start_offset
    ? el('a', { href: hash(context.path, { ...query, offset: Math.max(single.start_offset, single.first - 50) }) }, '‹ older records') : null
  const rows = fromEnd ? [...found.records].reverse() : found.records
  return [
    heading([[['topics'], 'Topics'], [['topic', topic], topic]], 'records',
      button('produce', 'Produce', () => produceForm(topic, Math.max(...found.partitions.map((each) => each.partition)) + 1, single?.partition ?? 0))),
    panel(null, chooser(context, topic),
      el('p', { class: 'quiet', role: 'status' }, `${number(found.records.length)} shown; scanned ${number(found.scanned)} records (${bytes(found.scanned_bytes)}) of ${range}${found.at_end ? ', up to the end' : ''}. `, older, ' ', onward)),
    notes(found.problems),
    panel(null, table([
      ['partition', (row) => row.partition, 'number'], ['offset', (row) => number(row.offset), 'number'],
      ['time', (row) => when(row.time_ms), 'when'],
      ['key', (row) => decoded(row.key), 'long'], ['value', (row) => decoded(row.value), 'long wide'],
      ['headers', (row) => (row.headers.length ? row.headers.map(([header, value]) => el('div', {}, el('span', { class: 'kind' }, header), value === null ? 'null' : value.text)) : '–'), 'long'],
    ], rows, 'No records here.', 'Records')),
  ]
}
