// Browsing records, and producing one.

import { NoResponse, NotFound, TokenNeeded, Unavailable, act, ask, load, tell } from './api.js'
import { dialog, say } from './forms.js'
import { badge, bytes, button, decoded, el, hash, heading, link, notes, number, panel, several, table, when, zone } from './views.js'

export function produceForm(topic) {
  const kinds = [['text', 'this text'], ['null', 'null']]
  dialog(`Produce to ${topic}`, [
    { name: 'value', label: 'Value', type: 'area' },
    { name: 'valueKind', label: 'Value is', type: 'select', options: kinds, value: 'text', hint: 'null deletes the key in a compacted topic' },
    { name: 'key', label: 'Key' },
    { name: 'keyKind', label: 'Key is', type: 'select', options: [['typed', 'this text; null if there is none'], ['empty', 'empty, not null']], value: 'typed' },
    { name: 'headers', label: 'Headers', type: 'area', rows: 2, hint: 'one on each line, such as trace=1' },
    { name: 'partition', label: 'Partition', type: 'number', min: 0, example: 'by key', hint: 'empty: by key; without a key any one' },
  ], 'Produce', (given) => act('record/produce', {
    topic, partition: given.partition === '' ? -1 : Number(given.partition),
    key: given.keyKind === 'empty' ? '' : given.key || null, value: given.valueKind === 'null' ? null : given.value,
    headers: given.headers.split('\n').filter((line) => line.trim()).map((line) => {
      const at = line.indexOf('=')
      return at < 0 ? { name: line.trim(), value: null } : { name: line.slice(0, at).trim(), value: line.slice(at + 1) }
    }),
  }))
}

const VIEWS = [['', 'automatic'], ['text', 'text'], ['json', 'JSON'], ['avro', 'Avro'], ['bytes', 'bytes (hexadecimal)']]

const asLocal = (ms) => {
  if (!ms) return ''
  const moment = new Date(Number(ms))
  return new Date(moment.getTime() - moment.getTimezoneOffset() * 60000).toISOString().slice(0, 19)
}

function chooser(context) {
  const { query } = context
  const from = query.time ? 'time' : query.offset === '0' ? 'oldest' : query.offset ? 'offset' : 'newest'
  const input = (name, label, attributes = {}) => el('label', { class: 'field' }, el('span', {}, label), el('input', { name, id: `browse-${name}`, autocomplete: 'off', autocapitalize: 'off', autocorrect: 'off', spellcheck: 'false', value: query[name] ?? '', ...attributes }))
  const select = (name, label, options, chosen, attributes = {}) => el('label', { class: 'field' }, el('span', {}, label), el('select', { name, id: `browse-${name}`, ...attributes },
    options.map(([value, text]) => el('option', { value, selected: value === chosen ? '' : null }, text))))
  const missing = el('p', { class: 'error', role: 'alert', id: 'no-time' })
  const form = el('form', { class: 'chooser', onsubmit: (event) => {
    event.preventDefault()
    const given = Object.fromEntries(new FormData(form))
    const next = { partition: given.partition, key: given.key, value: given.value, view: given.view, offset: '', time: '', follow: '' }
    if (['time', 'offset'].includes(given.from) && !given[given.from].trim()) {
      missing.textContent = given.from === 'time' ? 'Choose a time.' : 'Enter an offset.'
      form.elements[given.from].focus()
      return
    }
    if (given.from === 'oldest') next.offset = '0'
    if (given.from === 'offset') next.offset = given.offset.replace(/[^0-9]/g, '') || '0'
    if (given.from === 'time') next.time = String(new Date(given.time).getTime() || '')
    document.activeElement?.blur()
    context.set(next, { push: true })
  } },
  input('partition', 'Partition', { inputmode: 'numeric', size: 6, placeholder: 'all', pattern: '[0-9]*' }),
  select('from', 'From', [['newest', 'the newest'], ['oldest', 'the oldest'], ['offset', 'an offset'], ['time', 'a time']], from),
  input('offset', 'Offset', { inputmode: 'numeric', size: 10, pattern: '[0-9.,_ ]*', value: from === 'offset' ? query.offset : '', oninput: () => { form.elements.from.value = 'offset' } }),
  input('time', 'Time', { type: 'datetime-local', step: 1, value: asLocal(query.time), oninput: () => { form.elements.from.value = 'time' } }),
  input('key', 'Key contains', { size: 12 }), input('value', 'Value contains', { size: 16 }),
  select('view', 'Show as', VIEWS, query.view ?? ''),
  el('button', { class: 'main', id: 'browse' }, 'Show'), missing)
  return form
}

// What the broker is asked for: the same for the page and for a file.
const asked = (topic, query) => ({
  topic, partition: query.partition || '-1', offset: query.offset || '-1', time: query.time || '-1',
  key: query.key ?? '', value: query.value ?? '', view: query.view || 'auto',
})

const recordTable = (topic, rows, empty) => table([
  ['partition', (row) => row.partition, 'number'],
  ['offset', (row) => el('a', { href: hash(['records', topic], { partition: String(row.partition), offset: String(row.offset) }) }, number(row.offset)), 'number'],
  ['time', (row) => when(row.time_ms), 'when'],
  ['key', (row) => decoded(row.key), 'long'], ['value', (row) => decoded(row.value), 'long wide'],
  ['headers', (row) => (row.headers.length ? row.headers.map(([header, value]) => el('div', {}, el('span', { class: 'kind header' }, header), value === null ? 'null' : value.bytes ? value.text : '(empty)')).concat(row.more_headers ? el('div', { class: 'quiet' }, `and ${several(row.more_headers, 'more header')}`) : []) : '–'), 'long'],
], rows, empty, 'Records')

async function copyLink() {
  try {
    await navigator.clipboard.writeText(location.href)
    say('The link to this page with its filters is copied. It has no token.')
  } catch {
    // Without TLS a browser lets only localhost write to the clipboard.
    const box = dialog('Link to this page', [{ name: 'link', label: 'With its filters, without a token', value: location.href }], 'Done', async (given, own) => { own.close(); return null })
    box.querySelector('#field-link').select()
  }
}

// Why a file has not everything.
function searched(found) {
  if (!found.is_cut) return ''
  if (found.is_full) return ' There are more: a file has at most 5,000 records or 8 MiB, all partitions together.'
  const { partitions } = found
  const range = partitions.length === 1 ? `, offsets ${number(partitions[0].first)} to ${number(partitions[0].next)}` : ''
  return ` Only ${several(found.scanned, 'record')} (${bytes(found.scanned_bytes)}${range}) were searched, and others may match: choose one partition, an offset or a time for the rest.`
}

async function save(topic, query) {
  const place = document.getElementById('download')
  place.disabled = true
  try {
    const found = JSON.parse(await load('download', asked(topic, query)))
    const address = URL.createObjectURL(new Blob([found.text], { type: 'application/x-ndjson' }))
    el('a', { href: address, download: `${topic.slice(0, 100)}.jsonl` }).click()
    setTimeout(() => URL.revokeObjectURL(address), 60000)
    const { values, bytes: left } = found.omitted
    const omitted = values ? ` Not whole: ${several(values, 'key, value or header', 'keys, values or headers')} above 1 MiB ${values === 1 ? 'is' : 'are'} left out (${bytes(left)}), the file has only the length.` : ''
    const rest = `${omitted}${searched(found)}${found.problems.length ? ` ${found.problems.join(' ')}` : ''}`
    say(`${several(found.records, 'record')} saved as JSON lines.${rest}`)
  } catch (error) {
    say(`The records cannot be saved: ${error.message}`)
  } finally {
    place.disabled = false
  }
}

// Records as they arrive, for one page at a time.
const KEPT = 500
const IDLE_MS = 15 * 60000
const RETRY_MS = 3000
const PAUSE_MS = 1000
// Rows that are higher are behind the head of the page.
const HEADER = 60
// Farther behind the end the page goes on with the newest.
const BEHIND = 2000
const FOLLOW = 'Follow new records'
let follower = null

class Follower {
  constructor(topic, query, found) {
    this.key = JSON.stringify([topic, asked(topic, query)])
    this.topic = topic
    this.query = query
    this.rows = [...found.records].reverse()
    this.arrived = 0
    this.skipped = 0
    this.at = this.positions(found)
    this.name = Array.from(crypto.getRandomValues(new Uint8Array(12)), (each) => each.toString(16).padStart(2, '0')).join('')
    this.status = el('p', { class: 'quiet', role: 'status' })
    this.newer = button('newer', '', () => this.release(), 'main')
    this.newer.hidden = true
    this.body = null
    this.place = el('div', { class: 'followed' })
    this.unseen = 0
    this.expected = null
    this.isReleased = false
    this.touched = Date.now()
    this.isStopped = false
    this.isGone = false
    this.show(this.rows, true)
    this.say('Waiting for records.')
    this.run()
  }

  positions(found) { return found.partitions.map((each) => `${each.partition}:${each.next}`).join(',') }

  stop() {
    if (!this.isStopped) tell('unfollow', { follower: this.name })
    this.isStopped = true
    // Of this page, which may have stopped by itself.
    if (this.place.isConnected) document.getElementById('follow')?.replaceChildren(FOLLOW)
  }

  // Whoever has scrolled down, or is in a row, reads there: newer records then come above it.
  get isRead() { return this.place.contains(document.activeElement) || (!this.isReleased && scrollY > 0) }

  scrolled() {
    if (this.expected !== null && Math.abs(scrollY - this.expected) < 2) return
    this.isReleased = false
    this.expected = null
    if (!scrollY) this.seen()
  }

  seen() {
    this.unseen = 0
    this.newer.hidden = true
    if (this.isFrozen) this.show(this.rows, true)
  }

  // To the newest, which then come in view as they arrive.
  release() {
    this.newer.blur()
    this.seen()
    this.place.scrollIntoView({ block: 'start' })
    this.isReleased = true
    this.expected = scrollY
  }

  // What is read stays on the page, which takes no more rows until the newest are asked for.
  freeze() {
    this.isFrozen = true
    this.newer.hidden = false
    this.newer.textContent = 'newer records ↑'
  }

  show(rows, isWhole = false) {
    const made = rows.length || isWhole ? recordTable(this.topic, rows, 'No records yet.') : null
    if (isWhole || !this.body) {
      this.isFrozen = false
      this.body = made?.querySelector('tbody') ?? null
      this.place.replaceChildren(this.newer, made)
      return
    }
    if (!made) return
    const isRead = this.isRead
    if (isRead) {
      this.unseen += rows.length
      this.newer.hidden = false
      this.newer.textContent = `${several(this.unseen, 'newer record')} ↑`
    }
    if (this.isFrozen) return
    if (isRead && this.body.rows.length + rows.length > 2 * KEPT) { this.freeze(); return }
    const anchor = isRead ? [...this.body.rows].find((row) => row.getBoundingClientRect().bottom > HEADER) : null
    const before = anchor?.getBoundingClientRect().top
    this.body.prepend(...made.querySelectorAll('tbody > tr'))
    if (!isRead) while (this.body.rows.length > KEPT) this.body.lastElementChild.remove()
    if (anchor) {
      scrollBy({ top: anchor.getBoundingClientRect().top - before, behavior: 'instant' })
      this.expected = this.isReleased ? scrollY : null
    }
  }

  say(text) {
    this.status.replaceChildren(badge('live', 'good'), ` ${text} ${several(this.arrived, 'record')} since following began${this.rows.length >= KEPT ? `; the newest ${KEPT} are kept` : ''}${this.skipped ? `; ${number(this.skipped)} offsets were skipped, as they came too fast` : ''}.`)
  }

  async run() {
    while (!this.isStopped) {
      if (Date.now() - this.touched > IDLE_MS) {
        this.stop()
        this.status.textContent = 'Following has stopped: nobody has used this page for 15 minutes. Choose "Show" or "Follow new records" to go on.'
        return
      }
      if (document.hidden) { await pause(PAUSE_MS); continue }
      try {
        const found = await ask('follow', { ...asked(this.topic, this.query), offset: '-1', time: '-1', follower: this.name, at: this.at })
        if (this.isStopped) return
        dispatchEvent(new Event('followed'))
        this.at = this.positions(found)
        this.arrived += found.records.length
        this.rows = [...[...found.records].reverse(), ...this.rows].slice(0, KEPT)
        const behind = found.partitions.reduce((sum, each) => sum + Math.max(0, each.end_offset - each.next), 0)
        if (behind > BEHIND) {
          const newest = await ask('messages', { ...asked(this.topic, this.query), offset: '-1', time: '-1' })
          if (this.isStopped) return
          this.skipped += behind
          this.at = this.positions(newest)
          this.rows = [...newest.records].reverse()
          if (this.isRead) this.freeze()
          else this.show(this.rows, true)
        } else this.show([...found.records].reverse())
        if (found.records.length || found.problems.length || !this.arrived) this.say(found.problems.length ? found.problems.join(' ') : behind ? `${number(behind)} offsets behind the end.` : 'Up to the end.')
        if (found.problems.length) await pause(PAUSE_MS)
      } catch (error) {
        if (this.isStopped) return
        if (!(error instanceof NoResponse || error instanceof Unavailable)) {
          // The topic is deleted, or may not be read any more: no other try would help.
          this.isGone = !(error instanceof TokenNeeded)
          this.stop()
          this.status.textContent = `Following has stopped: ${error.message}`
          if (!this.isGone) dispatchEvent(new HashChangeEvent('hashchange'))  // asks for the token
          return
        }
        this.status.textContent = `${error.message} Trying again every few seconds.`
        await pause(RETRY_MS)
      }
    }
  }
}

const pause = (ms) => new Promise((done) => { setTimeout(done, ms) })

addEventListener('scroll', () => follower?.scrolled(), { passive: true })
// The page may come back by the button of the browser: it asks for its place again then.
addEventListener('pagehide', () => { if (follower && !follower.isStopped) tell('unfollow', { follower: follower.name }) })
for (const kind of ['pointerdown', 'keydown', 'scroll']) addEventListener(kind, () => { if (follower) follower.touched = Date.now() }, { passive: true })

// Called before each page is drawn: another one does not follow.
export function leaveRecords({ path, query }) {
  if (path[0] === 'records' && query.follow && follower?.key === JSON.stringify([path[1], asked(path[1], query)])) return
  follower?.stop()
  follower = null
}

export async function records(context) {
  const [, topic] = context.path
  const { query } = context
  const isFollowing = Boolean(query.follow)
  if (!isFollowing || !follower || (follower.isStopped && !follower.isGone)) {
    let found
    try {
      found = await ask('messages', asked(topic, query))
    } catch (error) {
      if (!(error instanceof NotFound)) throw error
      // With the form, in which another partition can be chosen.
      return [heading([[['topics'], 'Topics'], [['topic', topic], topic]], 'records'), panel(null, chooser(context), el('p', { class: 'error', role: 'alert' }, error.message))]
    }
    if (!isFollowing) return recordsPage(context, found)
    follower?.stop()
    follower = new Follower(topic, query, found)
    follower.found = found
  }
  return [...recordsHead(context, follower.found, !follower.isStopped),
    panel(null, chooser(context), follower.status), panel(null, follower.place)]
}

function recordsHead(context, { may_produce: mayProduce }, isFollowing) {
  const [, topic] = context.path
  const follow = button('follow', isFollowing ? 'Stop following' : FOLLOW,
    () => context.set(follower && !follower.isStopped ? { follow: '' } : { follow: '1', offset: '', time: '' }, { push: true }))
  return [heading([[['topics'], 'Topics'], [['topic', topic], topic]], 'records', follow,
    button('download', 'Download', () => save(topic, context.query)), button('link', 'Copy link', copyLink),
    mayProduce ? button('produce', 'Produce', () => produceForm(topic)) : null)]
}

function recordsPage(context, found) {
  const [, topic] = context.path
  const { query } = context
  const fromEnd = !query.offset && !query.time
  const single = found.partitions.length === 1 ? found.partitions[0] : null
  const range = found.unread ? `${number(found.read)} of ${several(found.read + found.unread, 'partition')}; ${number(found.unread)} ${found.unread === 1 ? 'was' : 'were'} not read` : single ? `offsets ${number(single.start_offset)} to ${number(single.end_offset)}` : several(found.partitions.length, 'partition')
  const onward = () => (single && !found.at_end && !fromEnd
    ? el('a', { href: hash(context.path, { ...query, offset: single.next, time: '' }) }, 'next records ›') : null)
  const older = single && fromEnd && single.first > single.start_offset
    ? el('a', { href: hash(context.path, { ...query, offset: Math.max(single.start_offset, single.first - 50) }) }, '‹ older records') : null
  const rows = fromEnd ? [...found.records].reverse() : found.records
  const isFiltered = query.key || query.value
  const isUnsearched = isFiltered && (found.unread || (fromEnd ? found.partitions.some((each) => each.first > each.start_offset) : !found.at_end))
  const empty = isFiltered ? 'No record that was searched matches the filter.' : !found.partitions.length ? 'No partition has a leader that can be read.' : found.unread ? `No records in the partitions that were read; ${several(found.unread, 'partition')} could not be.` : found.partitions.every((each) => each.end_offset === each.start_offset) ? 'The topic has no records.' : query.offset && found.partitions.every((each) => Number(query.offset) > each.end_offset) ? `Offset ${number(query.offset)} is beyond the end${single ? `, which is ${number(single.end_offset)}` : ' of every partition'}.` : 'No records from here on.'
  return [
    ...recordsHead(context, found, false),
    panel(null, chooser(context),
      el('p', { class: 'quiet', role: 'status' }, `${several(found.records.length, 'record')} shown, ${fromEnd ? 'newest first' : 'oldest first'}; scanned ${number(found.scanned)} (${bytes(found.scanned_bytes)}) of ${range}${found.at_end && !found.unread ? ', up to the end' : ''}. `,
        isUnsearched ? 'The rest was not searched. ' : isFiltered && found.is_cut ? 'More records match. ' : null, older, ' ', onward(),
        !single && !fromEnd && !found.at_end ? ['More follow: choose ', link(['records', topic], 'one partition', { ...query, partition: '0' }), ' to go through all.'] : null,
        !single && fromEnd && found.is_cut ? ['For older records choose ', link(['records', topic], 'one partition', { ...query, partition: String(found.partitions[0]?.partition ?? 0) }), ', an offset or a time.'] : null)),
    notes(found.problems),
    panel(null, () => recordTable(topic, rows, empty), rows.length ? el('p', { class: 'quiet' }, 'An offset is a link to its record. ', onward()) : null, zone()),
  ]
}
