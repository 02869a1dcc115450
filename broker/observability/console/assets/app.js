// The console: the page is named behind the # of the address, and is drawn again every two seconds.
import { bytes, card, chart, decoded, el, number, panel, seconds, span, table, when } from './views.js'

const REFRESH_MS = 2000
const TABS = { cluster: 'Cluster', topics: 'Topics', groups: 'Groups', events: 'Events', settings: 'Settings' }

const page = document.getElementById('page')
const state = document.getElementById('state')
let drawing = 0
let search = ''

// The token comes behind the # of the address (#token=...), which no server and no log sees, or is
// typed in. It is kept for this tab.
function keepToken() {
  const given = location.hash.match(/^#token=(.+)$/)
  if (!given) return
  sessionStorage.setItem('token', decodeURIComponent(given[1]))
  history.replaceState(null, '', location.pathname)
}

function tokenForm() {
  return panel('This console needs its token', el('form', { onsubmit: (event) => {
    event.preventDefault()
    sessionStorage.setItem('token', event.target.elements.token.value)
    document.activeElement?.blur()
    draw()
  } },
  el('input', { name: 'token', type: 'password', size: 40, placeholder: 'ottla.console.token', 'aria-label': 'token', id: 'token' }),
  el('button', {}, 'show')))
}

class TokenNeeded extends Error {}

async function ask(name, parameters = {}) {
  const token = sessionStorage.getItem('token')
  const headers = token ? { Authorization: `Bearer ${token}` } : {}
  const response = await fetch(`/api/${name}?${new URLSearchParams(parameters)}`, { headers })
  if (response.status === 401) throw new TokenNeeded()
  const found = await response.json().catch(() => ({ error: `HTTP ${response.status}` }))
  if (!response.ok) throw new Error(found.error)
  return found
}

const link = (path, text) => el('a', { href: `#${path.map(encodeURIComponent).join('/')}` }, text)

function searchField(hint) {
  return el('input', {
    type: 'search', placeholder: hint, value: search, 'aria-label': hint, id: 'search',
    oninput: (event) => { search = event.target.value; draw() },
  })
}

async function cluster() {
  const found = await ask('overview')
  const last = found.rates.at(-1) ?? { bytes_in: 0, bytes_out: 0, requests: 0 }
  const line = (name) => found.rates.map((point) => [point.time_ms, point[name]])
  return [
    el('div', { class: 'cards' },
      card('controller', found.controller_id < 0 ? 'none' : found.controller_id, found.controller_id < 0 ? 'bad' : ''),
      card('brokers', number(found.brokers.filter((each) => each.alive).length)),
      card('topics', number(found.topics)), card('partitions', number(found.partitions)),
      card('offline partitions', number(found.offline), found.offline ? 'bad' : 'good'),
      card('under-replicated', number(found.under_replicated), found.under_replicated ? 'warn' : 'good'),
      card('groups here', number(found.groups)), card('connections here', number(found.connections)),
      card('records on disk here', bytes(found.log_bytes)), card('memory here, at most', bytes(found.peak_memory_bytes)),
      card('running for', span(found.now_ms - found.started_ms))),
    el('div', { class: 'row' },
      panel('Traffic of this broker', el('p', { class: 'quiet legend' },
        el('i'), `in ${bytes(last.bytes_in)}/s`, el('i', { class: 'second' }), `out ${bytes(last.bytes_out)}/s`),
      chart([line('bytes_in'), line('bytes_out')])),
      panel('Requests to this broker', el('p', { class: 'quiet' }, `${number(Math.round(last.requests))} a second`), chart([line('requests')]))),
    panel('Brokers', table([
      ['id', (row) => `${row.id}${row.id === found.controller_id ? ' (controller)' : ''}${row.id === found.broker_id ? ' (this one)' : ''}`],
      ['state', (row) => el('span', { class: row.alive ? 'good' : 'bad' }, row.alive ? 'alive' : 'away')],
      ['listeners', (row) => row.listeners.join(' '), 'long'], ['rack', (row) => row.rack ?? '–'],
      ['leads', (row) => number(row.leaders), 'number'], ['replicas', (row) => number(row.replicas), 'number'],
    ], found.brokers, 'No brokers are known yet.')),
    el('p', { class: 'quiet' }, `cluster ${found.cluster_id}, seen from broker ${found.broker_id}`),
  ]
}

const health = (row) => (row.offline
  ? el('span', { class: 'bad' }, `${row.offline} offline`)
  : row.under_replicated ? el('span', { class: 'warn' }, `${row.under_replicated} under-replicated`) : el('span', { class: 'good' }, 'healthy'))

async function topics(first = '0') {
  const found = await ask('topics', { search, first })
  const move = (to, text) => link(['topics', String(to)], text)
  return [panel('Topics', el('div', { class: 'tools' }, searchField('find a topic'),
    el('span', { class: 'quiet' }, `${number(found.total)} topics`),
    found.first > 0 ? move(Math.max(0, found.first - found.page), '« before') : null,
    found.first + found.page < found.total ? move(found.first + found.page, 'next »') : null),
  table([
    ['topic', (row) => link(['topic', row.name], row.name), 'long'],
    ['partitions', (row) => number(row.partitions), 'number'], ['replicas', (row) => number(row.replicas), 'number'],
    ['records here', (row) => number(row.records), 'number'], ['size here', (row) => bytes(row.size_bytes), 'number'],
    ['state', health],
  ], found.topics, 'No topics.'))]
}

async function topic(name) {
  const found = await ask('topic', { name })
  return [panel(found.name,
    el('p', { class: 'quiet' }, `${number(found.records)} records, ${bytes(found.size_bytes)} on this broker; `, health(found)),
    table([
      ['partition', (row) => (row.here ? link(['messages', name, String(row.partition)], String(row.partition)) : row.partition)],
      ['leader', (row) => (row.leader < 0 ? el('span', { class: 'bad' }, 'none') : row.leader)],
      ['replicas', (row) => row.replicas.join(', ')],
      ['in sync', (row) => el('span', { class: row.isr.length < row.replicas.length ? 'warn' : '' }, row.isr.join(', '))],
      ['first offset', (row) => number(row.start_offset), 'number'], ['end offset', (row) => number(row.end_offset), 'number'],
      ['size', (row) => bytes(row.size_bytes), 'number'],
      ['', (row) => (row.here ? link(['messages', name, String(row.partition)], 'look inside') : 'on another broker')],
    ], found.rows, 'No partitions.')),
  panel('Settings of its own', table([
    ['setting', (row) => row.name, 'long'], ['value', (row) => row.value ?? 'null', 'long'],
  ], found.settings, 'None: the broker\'s defaults hold.'))]
}

async function messages(name, partition, offset = '-1') {
  const found = await ask('messages', { topic: name, partition, offset })
  const to = (place) => link(['messages', name, partition, String(place)], place === -1 ? 'newest' : place === 0 ? 'oldest' : 'next »')
  return [panel(null, el('h2', {}, link(['topic', name], name), ` partition ${partition}`),
    el('form', { onsubmit: (event) => {
      event.preventDefault()
      location.hash = ['messages', name, partition, event.target.elements.offset.value || '-1'].map(encodeURIComponent).join('/')
    } },
    el('span', { class: 'quiet' }, `offsets ${number(found.start_offset)} to ${number(found.end_offset)}`),
    to(0), to(-1), found.next < found.end_offset ? to(found.next) : null,
    el('input', { name: 'offset', inputmode: 'numeric', size: 10, placeholder: 'from offset', 'aria-label': 'from offset', value: offset === '-1' ? '' : offset }),
    el('button', {}, 'show')),
    table([
      ['offset', (row) => number(row.offset), 'number'], ['time', (row) => when(row.time_ms), 'when'],
      ['key', (row) => decoded(row.key), 'long'], ['value', (row) => decoded(row.value), 'long'],
      ['headers', (row) => row.headers.map(([header, value]) => el('div', {}, el('span', { class: 'kind' }, header), value === null ? 'null' : value.text)), 'long'],
    ], offset === '-1' ? found.records.reverse() : found.records, 'No records here.'))]
}

async function groups() {
  const found = await ask('groups', { search })
  return [panel('Groups coordinated by this broker', el('div', { class: 'tools' }, searchField('find a group'),
    el('span', { class: 'quiet' }, `${number(found.total)} groups`)),
  table([
    ['group', (row) => link(['group', row.group], row.group), 'long'],
    ['state', (row) => el('span', { class: row.state === 'Stable' ? 'good' : row.state === 'Empty' ? '' : 'warn' }, row.state)],
    ['protocol', (row) => row.type], ['members', (row) => number(row.members), 'number'],
    ['topics', (row) => row.topics.join(', '), 'long'],
    ['records behind', (row) => (row.lag.length ? number(row.lag.at(-1)[1]) : '–'), 'number'],
    ['seconds behind', (row) => seconds(row.lag_seconds), 'number'],
    ['over time', (row) => (row.lag.length > 1 ? chart([row.lag], 'spark') : '')],
  ], found.groups, 'This broker coordinates no groups.'))]
}

async function group(name) {
  const found = await ask('group', { name })
  return [panel(found.group,
    el('p', { class: 'quiet' }, `${found.state}, ${found.members} members, ${found.type} protocol; records behind: ${found.lag.length ? number(found.lag.at(-1)[1]) : '–'}`),
    found.lag.length > 1 ? chart([found.lag]) : null,
    el('h3', {}, 'Offsets'), table([
      ['topic', (row) => link(['topic', row.topic], row.topic), 'long'], ['partition', (row) => row.partition],
      ['committed', (row) => number(row.offset), 'number'], ['behind', (row) => number(row.lag), 'number'],
      ['seconds behind', (row) => seconds(row.lag_seconds), 'number'],
      ['when', (row) => when(row.committed_ms), 'when'],
    ], found.offsets, 'Nothing committed.'),
    el('h3', {}, 'Members'), table([
      ['member', (row) => row.member, 'long'], ['client', (row) => row.client], ['address', (row) => row.host], ['static id', (row) => row.instance ?? '–'],
    ], found.member_rows, 'No members.'),
    el('h3', {}, 'What happened'), table([
      ['time', (row) => when(row.time_ms), 'when'], ['event', (row) => row.kind], ['generation', (row) => row.generation, 'number'],
      ['member', (row) => row.member, 'long'], ['why', (row) => row.reason, 'long'],
    ], found.events, 'Nothing noted.'))]
}

async function events() {
  const found = await ask('events', { search })
  return [panel('Events of this broker', el('div', { class: 'tools' }, searchField('find words, or: controller')),
    table([
      ['time', (row) => when(row.time_ms), 'when'], ['from', (row) => row.from],
      ['event', (row) => el('span', { class: row.level === 'INFO' ? '' : row.level === 'WARNING' ? 'warn' : 'bad' }, row.text), 'long'],
    ], found.events, 'Nothing yet.'))]
}

async function settings() {
  const found = await ask('settings')
  const rows = found.settings.filter((row) => row.name.includes(search.toLowerCase()))
  rows.sort((one, other) => (one.source === 'default') - (other.source === 'default'))
  return [panel('Settings of this broker', el('div', { class: 'tools' }, searchField('find a setting')),
    table([
      ['setting', (row) => row.name, 'long'], ['value', (row) => row.value ?? 'null', 'long'],
      ['from', (row) => el('span', { class: row.source === 'default' ? 'quiet' : 'good' }, row.source)],
      ['changes', (row) => (row.read_only ? 'at a restart' : 'at run time')],
    ], rows, 'No such setting.'))]
}

const VIEWS = { cluster, topics, topic, messages, groups, group, events, settings }
const TAB_OF = { topic: 'topics', messages: 'topics', group: 'groups' }

function place() {
  const words = location.hash.slice(1).split('/').map(decodeURIComponent)
  return VIEWS[words[0]] ? words : ['cluster']
}

async function draw() {
  const mine = ++drawing
  const [view, ...words] = place()
  try {
    const content = await VIEWS[view](...words)
    if (mine !== drawing) return
    keepFocus(() => page.replaceChildren(...content))
    state.className = ''
    state.textContent = `live, ${new Date().toLocaleTimeString('sv')}`
  } catch (error) {
    if (mine !== drawing) return
    if (error instanceof TokenNeeded) {
      state.textContent = ''
      if (!document.getElementById('token')) page.replaceChildren(tokenForm())
      return
    }
    state.className = 'bad'
    state.textContent = error instanceof TypeError ? 'the broker does not respond' : ''
    if (!(error instanceof TypeError)) page.replaceChildren(panel('That did not work', el('p', {}, error.message)))
  }
}

// A page that is drawn again must not take the cursor, nor the scrolling, from its user.
function keepFocus(change) {
  const before = document.activeElement
  const [id, from, to, scroll] = [before?.id, before?.selectionStart, before?.selectionEnd, window.scrollY]
  change()
  if (id) {
    const after = document.getElementById(id)
    after?.focus()
    if (from !== undefined && from !== null) after?.setSelectionRange(from, to)
  }
  window.scrollTo(0, scroll)
}

function tabs() {
  const [view] = place()
  document.getElementById('tabs').replaceChildren(...Object.entries(TABS).map(
    ([name, text]) => el('a', { href: `#${name}`, 'aria-current': (TAB_OF[view] ?? view) === name ? 'page' : null }, text)))
}

// What a user is typing into, or reading inside, is left alone until they are done.
const isBusy = () => ['offset', 'token'].includes(document.activeElement?.name) || !getSelection().isCollapsed

addEventListener('hashchange', () => { keepToken(); search = ''; tabs(); draw() })
document.addEventListener('visibilitychange', () => { if (!document.hidden) draw() })
setInterval(() => {
  const [view, , , offset] = place()
  const isLive = view !== 'messages' || (offset ?? '-1') === '-1'
  if (!document.hidden && isLive && !isBusy()) draw()
}, REFRESH_MS)
keepToken()
tabs()
draw()
