// The console: the page is named behind the # of the address, and is drawn again every few seconds.
import { TokenNeeded, ask, keepToken, setToken } from './api.js'
import { cluster, events, settings } from './cluster.js'
import { whenDone } from './forms.js'
import { group, groups } from './groups.js'
import { records } from './records.js'
import { security } from './security.js'
import { topic, topics } from './topics.js'
import { el, hash, panel } from './views.js'

const REFRESH_MS = 3000
const TYPING_MS = 200
const TABS = { cluster: 'Cluster', topics: 'Topics', groups: 'Groups', events: 'Events', security: 'Security', settings: 'Settings' }
const VIEWS = { cluster, topics, topic, records, groups, group, events, security, settings }
const TAB_OF = { topic: 'topics', records: 'topics', group: 'groups' }

const page = document.getElementById('page')
const state = document.getElementById('state')
let drawing = 0
let typing = 0
let drawn = ''

// Where the user is: the words of the path and what was chosen on the page.
function place() {
  const [path, query = ''] = location.hash.slice(1).split('?')
  const words = path.split('/').map((word) => { try { return decodeURIComponent(word) } catch { return word } })
  const known = Object.hasOwn(VIEWS, words[0])
  const context = { path: known ? words : ['cluster'], query: known ? Object.fromEntries(new URLSearchParams(query)) : {} }
  context.set = (changes, { push = false } = {}) => {
    const next = hash(context.path, { ...context.query, ...changes })
    if (push) { location.hash = next; return }
    history.replaceState(null, '', next)
    context.query = place().query
    clearTimeout(typing)
    typing = setTimeout(draw, TYPING_MS)
  }
  // Of a chart, as one of so many beside each other.
  context.width = (columns) => {
    const whole = Math.min(page.clientWidth, 1180) - 60
    return Math.round(columns > 1 && whole > 860 ? (whole - 40) / columns : whole)
  }
  return context
}

function tokenForm() {
  return panel('This console needs its token', el('form', { class: 'tools', onsubmit: (event) => {
    event.preventDefault()
    setToken(event.target.elements.token.value)
    document.activeElement?.blur()
    draw()
  } },
  el('input', { name: 'token', type: 'password', size: 40, placeholder: 'ottla.console.token', 'aria-label': 'token', id: 'token', autocomplete: 'off' }),
  el('button', { class: 'main' }, 'Show')))
}

async function draw() {
  const mine = ++drawing
  const context = place()
  try {
    const content = await VIEWS[context.path[0]](context)
    if (mine !== drawing) return
    keepFocus(() => page.replaceChildren(...content.filter(Boolean)))
    const now = context.path.join('/')
    if (drawn !== now) {
      document.title = `${context.path.slice(1).join(' ') || TABS[context.path[0]]} – Ottla`
      if (drawn) window.scrollTo(0, 0)
      drawn = now
    }
    state.className = 'live'
    state.textContent = new Date().toLocaleTimeString('sv')
  } catch (error) {
    if (mine !== drawing) return
    if (error instanceof TokenNeeded) {
      state.textContent = ''
      if (!document.getElementById('token')) page.replaceChildren(tokenForm())
      return
    }
    state.className = 'bad'
    state.textContent = error instanceof TypeError ? 'the broker does not respond' : ''
    if (!(error instanceof TypeError)) page.replaceChildren(panel('That did not work', el('p', { role: 'alert' }, error.message)))
  }
}

// A page that is drawn again must not take the focus, nor the scrolling, from its user.
function keepFocus(change) {
  const before = document.activeElement
  const isHere = page.contains(before)
  const address = before?.getAttribute?.('href')
  const [id, from, to, scroll] = [before?.id, before?.selectionStart, before?.selectionEnd, window.scrollY]
  const same = [...page.querySelectorAll('a')].filter((each) => each.getAttribute('href') === address).indexOf(before)
  change()
  if (isHere && before !== page) {
    const after = id ? document.getElementById(id) : address ? [...page.querySelectorAll('a')].filter((each) => each.getAttribute('href') === address)[Math.max(0, same)] : null
    after?.focus({ preventScroll: true })
    if (from !== undefined && from !== null && after?.setSelectionRange) try { after.setSelectionRange(from, to) } catch { /* a number field has no selection */ }
  }
  window.scrollTo(0, scroll)
}

function tabs() {
  const [view] = place().path
  document.getElementById('tabs').replaceChildren(...Object.entries(TABS).map(
    ([name, text]) => el('a', { href: `#${name}`, 'aria-current': (TAB_OF[view] ?? view) === name ? 'page' : null }, text)))
}

// What a user is typing into, choosing from or reading inside is left alone until they are done.
const isBusy = () => document.querySelector('dialog[open]') !== null || !getSelection().isCollapsed
  || (page.contains(document.activeElement) && document.activeElement.matches('select, input:not(#search), textarea'))

const isLive = () => {
  const { path: [view], query } = place()
  return view !== 'records' || !(query.offset || query.time || query.key || query.value)
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
addEventListener('hashchange', () => { keepToken(); clearTimeout(typing); tabs(); draw() })
addEventListener('resize', () => { clearTimeout(typing); typing = setTimeout(draw, TYPING_MS) })
document.addEventListener('visibilitychange', () => { if (!document.hidden) draw() })
whenDone(() => {
  // The page of what was deleted is gone.
  const { path } = place()
  if (path.length > 1 && drawn.startsWith('topic/')) ask('topic', { name: path[1] }).then(draw, () => { location.hash = '#topics' })
  else if (path.length > 1 && drawn.startsWith('group/')) ask('group', { name: path[1] }).then(draw, () => { location.hash = '#groups' })
  else draw()
})
setInterval(() => { if (!document.hidden && isLive() && !isBusy()) draw() }, REFRESH_MS)
keepToken()
tabs()
draw()
