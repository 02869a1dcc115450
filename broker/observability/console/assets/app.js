// The console: the page is named behind the # of the address, and is drawn again every few seconds.
import { NoResponse, NotFound, TokenNeeded, Unavailable, ask, keepToken, setToken } from './api.js'
import { cluster, events, settings } from './cluster.js'
import { say, whenDone } from './forms.js'
import { group, groups } from './groups.js'
import { leaveRecords, records } from './records.js'
import { security } from './security.js'
import { topic, topics } from './topics.js'
import { advice, el, hash, panel } from './views.js'

const REFRESH_MS = 3000
const TYPING_MS = 200
const LOADING_MS = 300
const TABS = { cluster: 'Cluster', topics: 'Topics', groups: 'Groups', events: 'Events', security: 'Security', settings: 'Settings' }
const VIEWS = { cluster, topics, topic, records, groups, group, events, security, settings }
// Pages of one thing, whose name follows in the address.
const NAMED = ['topic', 'records', 'group']
const TAB_OF = { topic: 'topics', records: 'topics', group: 'groups' }

const page = document.getElementById('page')
const state = document.getElementById('state')
let drawing = 0
let pending = 0
let typing = 0
let drawn = ''
// The page whose content is there, in place of an error.
let shown = ''
let first = ''
// What was shown of each address, for an outage.
const contents = new Map()
const MAX_CONTENTS = 20
// Where each entry of the history was scrolled to when it was left, the entry whose page is drawn, and
// whether this one was there before.
const scrolled = new Map()
let entry = ''
let isReturn = false
// Whether the page could not be requested: it is then, even if it is not drawn again by itself.
let isOwed = false
let isTurned = false
let brokers = null
let drawnAt = ''
let width = innerWidth

// Where the user is: the words of the path and what was chosen on the page.
function place() {
  const [path, query = ''] = location.hash.slice(1).split('?')
  const words = path.split('/').map((word) => { try { return decodeURIComponent(word) } catch { return word } })
  const context = { path: words[0] ? words : ['cluster'], query: Object.fromEntries(new URLSearchParams(query)) }
  context.set = (changes, { push = false } = {}) => {
    // A field that stays on the page is older than what was chosen meanwhile.
    const here = place()
    if (here.path.join('/') !== context.path.join('/')) return
    const next = hash(context.path, { ...here.query, ...changes })
    // The same address is asked for again.
    if (push && location.hash === next) draw(true)
    else if (push) location.hash = next
    if (push) return
    history.replaceState(history.state, '', next)
    context.query = place().query
    clearTimeout(typing)
    typing = setTimeout(() => draw(true), TYPING_MS)
  }
  // Of a chart, as one of so many beside each other; the style sheet divides the page alike.
  context.width = (columns) => {
    const whole = Math.min(page.clientWidth, 1220)
    const beside = Math.min(columns, whole > 960 ? 3 : whole > 700 ? 2 : 1)
    return Math.max(240, Math.round((whole - 40 - (beside - 1) * 16) / beside) - 34)
  }
  return context
}

// Of an address that leads to no page.
async function nowhere({ path }) {
  throw new NotFound(NAMED.includes(path[0]) ? `The address names no ${path[0] === 'group' ? 'group' : 'topic'}.` : `There is no page "${path[0].slice(0, 100)}".`)
}

const viewOf = ({ path }) => (Object.hasOwn(VIEWS, path[0]) && (path[1] || !NAMED.includes(path[0])) ? VIEWS[path[0]] : nowhere)

function tokenForm() {
  return panel('This console needs its token', el('form', { class: 'tools', onsubmit: (event) => {
    event.preventDefault()
    setToken(event.target.elements.token.value)
    document.activeElement?.blur()
    draw()
  } },
  el('input', { name: 'token', type: 'password', size: 40, placeholder: 'ottla.console.token', 'aria-label': 'token', id: 'token', autocomplete: 'off' }),
  el('button', { class: 'main' }, 'Show')),
  el('p', { class: 'quiet' }, 'It is in the address that the start of the broker or of the cluster printed, behind #token=, or in the setting ottla.console.token.'),
  el('p', { class: 'quiet', id: 'wrong-token', role: 'alert', hidden: true }, 'The broker refused this token: it is not that of its setting ottla.console.token.'))
}

// `isAsked`: somebody waits for it, and is told so.
async function draw(isAsked = false) {
  const mine = ++drawing
  const context = place()
  const now = context.path.join('/')
  pending += 1
  leaveRecords(context)
  const late = isAsked ? setTimeout(loading, LOADING_MS, mine) : 0
  try {
    const content = await viewOf(context)(context)
    if (mine !== drawing) return
    keepFocus(content.flat(Infinity).filter(Boolean), drawn === now)
    if (drawn !== now || isReturn) {
      if (drawn) window.scrollTo(0, isReturn ? scrolled.get(history.state?.entry) ?? 0 : 0)
      drawn = now
    } else if (isTurned && (context.query.first ?? '') !== first) {
      // Another part of a list begins with its first row.
      document.querySelector('.pager')?.closest('.panel')?.scrollIntoView()
    }
    isTurned = isReturn = false
    entry = history.state?.entry ?? ''
    first = context.query.first ?? ''
    shown = now
    isOwed = false
    if (!brokers) learnBrokers()
    document.title = `${context.path[0] === 'records' ? 'Records of ' : ''}${context.path.slice(1).join(' ') || TABS[context.path[0]]} – Ottla`
    current()
    contents.delete(location.hash)
    contents.set(location.hash, [[...page.childNodes], drawnAt])
    if (contents.size > MAX_CONTENTS) contents.delete(contents.keys().next().value)
  } catch (error) {
    if (mine !== drawing) return
    isOwed = error instanceof NoResponse || error instanceof Unavailable
    failed(error, now)
  } finally {
    pending -= 1
    clearTimeout(late)
    if (mine === drawing) document.body.classList.remove('loading')
  }
}

// What is shown is the state of now.
function current() {
  drawnAt = new Date().toLocaleTimeString('sv')
  state.className = 'live'
  state.textContent = drawnAt
  stale('')
}

function loading(mine) {
  if (mine !== drawing) return
  document.body.classList.add('loading')
  state.className = ''
  state.textContent = 'loading…'
}

// What was shown before stays, dimmed, with its time: in an outage it is the last that is known.
function failed(error, now) {
  if (error instanceof TokenNeeded) {
    state.textContent = ''
    stale('')
    if (!document.getElementById('token')) page.replaceChildren(tokenForm())
    document.getElementById('wrong-token').hidden = !error.isRefused
    return
  }
  const isPassing = error instanceof NoResponse || error instanceof Unavailable
  if (!isPassing && !(error instanceof NotFound)) console.warn(error)
  const isSilent = error instanceof NoResponse && !error.isOffline
  state.className = 'bad'
  state.textContent = error.isOffline ? 'offline' : error instanceof NoResponse ? 'no response' : error instanceof NotFound ? 'not found' : 'failed'
  if (isPassing && shown === now) {
    stale(`${error.message} The page shows the state of ${drawnAt}.`, isSilent)
    return
  }
  const kept = isPassing ? contents.get(location.hash) : null
  if (kept) {
    page.replaceChildren(...kept[0])
    drawnAt = kept[1]
    drawn = shown = now
    stale(`${error.message} The page shows the state of ${drawnAt}.`, isSilent)
    return
  }
  if (isPassing) stale(error.message, isSilent)
  else stale('')
  page.replaceChildren(panel(error instanceof NotFound ? 'Not found' : 'This page cannot be shown', el('p', { role: 'alert' }, advice(error.message)),
    el('p', { class: 'quiet' }, error instanceof NotFound ? 'Choose a page above.' : isPassing ? 'It is requested again every few seconds.' : 'Reload it, or choose another page above.')))
  drawn = now
  shown = ''
}

// Where other brokers are, for the time when this one does not respond.
async function learnBrokers() {
  brokers = []
  try {
    brokers = (await ask('consoles')).consoles
  } catch { /* without the right, or a broker that is gone: they stay unknown */ }
}

const isLocal = (host) => /^(localhost|127[.].*|\[?::1\]?)$/.test(host)

// The console of another broker; its listener may have the address of this machine for itself.
function consoleOf({ id, host, console_host: bound, console_port: port }) {
  if (!port || (isLocal(bound) && !isLocal(location.hostname))) return `broker ${id} on ${host}, at ${port ? `${bound}:${port} there` : 'the HTTP port that its start printed (ottla.metrics.address)'}`
  const named = bound || host
  const reached = isLocal(named) ? location.hostname : named
  const address = `${reached.includes(':') && !reached.startsWith('[') ? `[${reached}]` : reached}:${port}`
  return el('a', { href: `${location.protocol}//${address}/console` }, `broker ${id} (${address})`)
}

function elsewhere() {
  const named = (brokers ?? []).map(consoleOf)
  return [' The consoles of other brokers show the same cluster', named.length ? ': ' : '', named.map((each, index) => [index ? ', ' : '', each]),
    '.', sessionStorage.getItem('token') ? ' Each asks for the token.' : '']
}

function stale(why, isSilent = false) {
  if (!why) document.title = document.title.replace(/^! /, '')
  const trouble = document.getElementById('trouble')
  const content = el('span', {}, why ? [`${why} Trying again every few seconds.`, isSilent ? elsewhere() : null] : null)
  document.body.classList.toggle('stale', Boolean(why))
  // Changed only where it says something new: it is read aloud.
  if (trouble.textContent !== content.textContent) trouble.replaceChildren(...content.childNodes)
  if (why && !document.title.startsWith('! ')) document.title = `! ${document.title}`
}

// Content in place of other content, around the field of a search that somebody types into: moved or made again,
// it would lose the focus, letters typed since the request, and the word that the keyboard of a phone composes.
function exchange(where, content, field) {
  const kept = [...where.childNodes].find((each) => each.contains(field))
  const at = kept ? content.findIndex((each) => each.id === 'search' || each.querySelector?.('#search')) : -1
  if (at < 0) { where.replaceChildren(...content); return }
  for (const each of [...where.childNodes]) if (each !== kept) each.remove()
  kept.before(...content.slice(0, at))
  kept.after(...content.slice(at + 1))
  if (kept !== field) exchange(kept, [...content[at].childNodes], field)
}

// A page that is drawn again must not take the focus, nor the scrolling, nor what is open, from its user.
function keepFocus(content, isSame) {
  const before = document.activeElement
  const isHere = page.contains(before)
  const address = before?.getAttribute?.('href')
  const opened = [...page.querySelectorAll('details[open]')].map((each) => each.id)
  const [id, from, to, scroll] = [before?.id, before?.selectionStart, before?.selectionEnd, window.scrollY]
  const same = [...page.querySelectorAll('a')].filter((each) => each.getAttribute('href') === address).indexOf(before)
  exchange(page, content, isSame && id === 'search' ? before : null)
  if (!isSame) return
  for (const each of opened) document.getElementById(each)?.setAttribute('open', '')
  if (isHere && before !== page && before !== document.activeElement) {
    const after = id ? document.getElementById(id) : address ? [...page.querySelectorAll('a')].filter((each) => each.getAttribute('href') === address)[Math.max(0, same)] : null
    after?.focus({ preventScroll: true })
    if (from !== undefined && from !== null && after?.setSelectionRange) try { after.setSelectionRange(from, to) } catch { /* a number field has no selection */ }
  }
  window.scrollTo(0, scroll)
}

function tabs() {
  const [view] = place().path
  const nav = document.getElementById('tabs')
  const focused = nav.contains(document.activeElement) ? document.activeElement.textContent : ''
  nav.replaceChildren(...Object.entries(TABS).map(
    ([name, text]) => el('a', { href: `#${name}`, 'aria-current': (TAB_OF[view] ?? view) === name ? 'page' : null }, text)))
  if (focused) [...nav.children].find((each) => each.textContent === focused)?.focus()
}

// What a user is typing into, choosing from or reading inside is left alone until they are done.
const isBusy = () => document.querySelector('dialog[open]') !== null || !getSelection().isCollapsed
  || (page.contains(document.activeElement) && document.activeElement.matches('select, input:not(#search), textarea'))

// Records stay as they were requested, or follow by themselves.
const isLive = () => place().path[0] !== 'records'

// Whether the broker still responds, on a page that is left alone.
async function ping() {
  pending += 1
  try {
    await ask('ping')
    if (isOwed) { if (!isBusy()) draw() }
    else if (document.body.classList.contains('stale')) { stale(''); state.className = 'live'; state.textContent = drawnAt }
  } catch (error) {
    if (error instanceof NoResponse || error instanceof TokenNeeded) failed(error, drawn)
  } finally {
    pending -= 1
  }
}

// Each entry of the history has a name, by which it is known when the button "back" leads to it.
function arrive() {
  isReturn = Boolean(history.state?.entry)
  if (!isReturn) history.replaceState({ entry: `${Date.now()} ${Math.random()}` }, '')
}

document.addEventListener('keydown', (event) => {
  const field = event.target.matches?.('input, textarea, select')
  if (event.key === '/' && !field && !document.querySelector('dialog[open]')) {
    const search = document.getElementById('search')
    if (search) { event.preventDefault(); search.focus(); search.select() }
  }
  if (event.key === 'Escape' && event.target.id === 'search') {
    if (event.target.value) place().set({ search: '', first: '' })
    event.target.value = ''
    event.target.blur()
  }
})
document.getElementById('skip').addEventListener('click', (event) => { event.preventDefault(); page.focus() })
addEventListener('hashchange', (event) => {
  const open = document.querySelector('dialog[open]')
  if (open && event.oldURL) {
    // The button "back" closes it alone; the page below stays.
    open.close()
    history.pushState(null, '', event.oldURL)
    arrive()
    return
  }
  open?.close()
  if (entry) scrolled.set(entry, scrollY)
  keepToken()
  clearTimeout(typing)
  isTurned = true
  arrive()
  tabs()
  draw(true)
})
// Charts have a width. The bars of a phone's browser change the height with each scroll.
addEventListener('resize', () => {
  if (innerWidth === width) return
  width = innerWidth
  if (!document.querySelector('.chart')) return  // a page that is read stays as it is
  clearTimeout(typing)
  typing = setTimeout(draw, TYPING_MS)
})
addEventListener('followed', current)
addEventListener('online', () => { if (!pending && document.body.classList.contains('stale')) ping() })
document.addEventListener('visibilitychange', () => { if (!document.hidden && isLive()) draw() })
whenDone(() => {
  // The page of what was deleted is gone.
  const { path } = place()
  if (path.length > 1 && drawn.startsWith('topic/')) ask('topic', { name: path[1] }).then(() => draw(), () => { location.hash = '#topics' })
  else if (path.length > 1 && drawn.startsWith('group/')) ask('group', { name: path[1] }).then(() => draw(), () => { location.hash = '#groups' })
  else draw()
})
// A page that takes long is waited for: another request would be no faster.
setInterval(() => {
  // Until the token is typed in, each request would be refused.
  if (pending || document.hidden || document.getElementById('token')) return
  if (isLive() && !isBusy()) draw()
  else if (drawnAt || isOwed) ping()
}, REFRESH_MS)
for (const kind of ['error', 'unhandledrejection']) {
  addEventListener(kind, (event) => say(`A part of this page failed: ${(event.reason ?? event.error)?.message ?? event.message}. Reload it.`))
}
keepToken()
history.scrollRestoration = 'manual'
arrive()
isReturn = false
tabs()
draw()
