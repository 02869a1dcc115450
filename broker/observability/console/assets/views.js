// Pieces of pages. Text from the broker goes in as text nodes only, never as markup.

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name)
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith('on')) made.addEventListener(key.slice(2), value)
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value)
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false).map(
    (child) => (child instanceof Node ? child : document.createTextNode(String(child)))))
  return made
}

export const number = (value) => (value === null || value === undefined ? '–' : Number(value).toLocaleString('en'))

export const seconds = (value) => (value === null || value === undefined ? '–' : span(Number(value) * 1000))

export function bytes(value) {
  if (value === null || value === undefined) return '–'
  let rest = Number(value)
  for (const unit of ['B', 'KiB', 'MiB', 'GiB', 'TiB']) {
    if (rest < 1024 || unit === 'TiB') return `${unit === 'B' || Number.isInteger(rest) ? Math.round(rest) : rest.toFixed(1)} ${unit}`
    rest /= 1024
  }
}

export function short(value) {
  for (const [size, unit] of [[1e9, 'G'], [1e6, 'M'], [1e3, 'k']]) {
    if (Math.abs(value) >= size) return `${Number((value / size).toFixed(1))} ${unit}`
  }
  return String(Number(value.toFixed(1)))
}

export function when(ms) {
  if (!ms || ms < 0) return '–'
  const moment = new Date(Number(ms))
  const day = moment.toLocaleDateString('sv')
  const time = moment.toLocaleTimeString('sv')
  return day === new Date().toLocaleDateString('sv') ? time : `${day} ${time}`
}

export const zone = () => el('p', { class: 'quiet' }, `Times are those of this browser: ${Intl.DateTimeFormat().resolvedOptions().timeZone}.`)

export function span(ms) {
  const whole = Math.floor(ms / 1000)
  if (whole < 90) return `${whole} s`
  if (whole < 5400) return `${Math.floor(whole / 60)} min`
  if (whole < 172800) return `${Math.floor(whole / 3600)} h`
  return `${Math.floor(whole / 86400)} days`
}

// 0, 1, 2, 5 as "0–2, 5".
export function ranges(numbers) {
  const found = []
  for (const each of numbers) {
    const last = found.at(-1)
    if (last && last[1] === each - 1) last[1] = each
    else found.push([each, each])
  }
  return found.map(([from, to]) => (from === to ? from : to === from + 1 ? `${from}, ${to}` : `${from}–${to}`)).join(', ')
}

export function hash(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== '' && value !== null && value !== undefined)
  const text = new URLSearchParams(given).toString()
  return `#${path.map(encodeURIComponent).join('/')}${text ? `?${text}` : ''}`
}

export const link = (path, text, query = {}) => el('a', { href: hash(path, query) }, text)

export const tone = (kind, text) => el('span', { class: kind }, text)

export const badge = (text, kind = '') => el('span', { class: `badge ${kind}` }, text)

// A name with its explanation, which a tap opens. A page that is drawn again leaves it open.
export const explained = (id, text, explanation) => (explanation
  ? el('details', { id }, el('summary', { id: `${id}-name` }, text), el('p', { class: 'quiet' }, explanation)) : el('span', {}, text))

export const card = (label, value, kind = '', note = '') => el('div', { class: `card ${kind}` }, el('span', {}, label), el('b', {}, value), note ? el('small', {}, note) : null)

// Content that is a function is made here: where it fails, this panel says so and the others stand.
export function panel(title, ...content) {
  const made = content.map((each) => {
    if (typeof each !== 'function') return each
    try { return each() } catch (error) {
      console.warn(error)
      return el('p', { class: 'error', role: 'alert' }, `This part of the page cannot be shown: ${error.message}.`)
    }
  })
  return el('section', { class: 'panel' }, title ? el('h2', {}, title) : null, made)
}

export const button = (id, text, onclick, kind = '') => el('button', { id, type: 'button', class: kind, onclick }, text)

// The title of a page with its buttons; before it links to the pages above.
export const heading = (back, title, ...tools) => el('div', { class: 'heading' },
  el('h2', { class: title.length + back.map(([, text]) => text).join('').length > 60 ? 'lengthy' : null }, back.map(([path, text]) => [link(path, text), ' / ']), title), el('div', { class: 'tools' }, ...tools))

// What is missing on the page, and why.
export const notes = (problems) => (problems?.length
  ? el('div', { class: 'note', role: 'note' }, el('b', {}, 'This page is incomplete. '), problems.map((text) => el('div', {}, advice(text)))) : null)

// Which right is missing for a whole list.
export const lacking = (found) => (found.lacks ? el('div', { class: 'note', role: 'note' }, found.lacks) : null)

// Commands stand between backticks.
export const advice = (text) => el('span', {}, text.split('`').map((part, index) => (index % 2 ? el('code', {}, part) : part)))

// A cell is one element, as a phone shows it beside its label.
const together = (cell) => (Array.isArray(cell) ? el('div', {}, cell) : cell)

export const several = (count, word, words = `${word}s`) => `${number(count)} ${count === 1 ? word : words}`

// A sum that lacks what nobody could measure; `format` makes the text of a number.
export const atLeast = (value, unknown, format, words = 'at least ') => (
  value === null || (unknown && !value) ? 'unknown' : `${unknown ? words : ''}${format(value)}`)

// columns: [label, cell of a row, class]; a cell is text or a node.
export function table(columns, rows, empty, label = '') {
  if (!rows.length) return el('p', { class: 'quiet empty' }, empty)
  return el('div', { class: 'scroll' }, el('table', { class: 'fold', 'aria-label': label || null },
    el('thead', {}, el('tr', {}, columns.map(([text, , kind]) => el('th', { class: kind, scope: 'col' }, text)))),
    el('tbody', {}, rows.map((row) => el('tr', {}, columns.map(
      ([text, cell, kind]) => el('td', { class: kind, 'data-label': text }, together(cell(row)))))))))
}

export function search(context, hint) {
  return el('input', {
    type: 'search', placeholder: `${hint}   ( / )`, value: context.query.search ?? '', 'aria-label': hint, id: 'search', autocapitalize: 'off', autocorrect: 'off', spellcheck: 'false', enterkeyhint: 'search',
    // Another search begins on its first page.
    oninput: (event) => context.set({ search: event.target.value, first: '' }),
  })
}

export function pager(context, found) {
  if (found.total <= found.page) return el('span', { class: 'quiet' }, `${number(found.total)} in all`)
  const last = Math.floor((found.total - 1) / found.page) * found.page
  const to = (first, text, label) => (first === null
    ? el('span', { class: 'quiet', 'aria-hidden': 'true' }, text)
    : el('a', { href: hash(context.path, { ...context.query, first: first || '' }), 'aria-label': label }, text))
  const end = Math.min(found.first + found.page, found.total)
  return el('nav', { class: 'pager', 'aria-label': 'Pages of the list' },
    to(found.first > 0 ? 0 : null, '« first', 'first page'),
    to(found.first > 0 ? Math.max(0, found.first - found.page) : null, '‹ back', 'page before'),
    el('span', {}, `${number(found.first + 1)}–${number(end)} of ${number(found.total)}`),
    to(end < found.total ? found.first + found.page : null, 'next ›', 'next page'),
    to(end < found.total ? last : null, 'last »', 'last page'))
}

export function decoded(data) {
  if (data === null) return el('span', { class: 'quiet' }, 'null')
  if (!data.bytes) return el('span', { class: 'quiet' }, '(empty)')
  return el('div', { class: 'decoded' }, data.kind === 'text' ? null : el('span', { class: 'kind' }, data.kind), el('pre', {}, data.text), data.note ? el('small', { class: 'quiet' }, data.note) : null)
}
