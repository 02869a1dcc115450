// Pieces of pages. Text from the broker goes in as text nodes only, never as markup.

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name)
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith('on')) made.addEventListener(key.slice(2), value)
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value)
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined).map(
    (child) => (child instanceof Node ? child : document.createTextNode(String(child)))))
  return made
}

export const number = (value) => (value === null || value === undefined ? '–' : Number(value).toLocaleString('en'))

export const seconds = (value) => (value === null || value === undefined ? '–' : Number(value).toFixed(1))

export function bytes(value) {
  if (value === null || value === undefined) return '–'
  let rest = Number(value)
  for (const unit of ['B', 'KiB', 'MiB', 'GiB', 'TiB']) {
    if (rest < 1024 || unit === 'TiB') return `${unit === 'B' ? Math.round(rest) : rest.toFixed(1)} ${unit}`
    rest /= 1024
  }
}

export function when(ms) {
  if (!ms || ms < 0) return '–'
  const moment = new Date(Number(ms))
  const day = moment.toLocaleDateString('sv')
  const time = moment.toLocaleTimeString('sv')
  return day === new Date().toLocaleDateString('sv') ? time : `${day} ${time}`
}

export function span(ms) {
  const seconds = Math.floor(ms / 1000)
  if (seconds < 90) return `${seconds} s`
  if (seconds < 5400) return `${Math.floor(seconds / 60)} min`
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`
  return `${Math.floor(seconds / 86400)} days`
}

export const card = (label, value, tone = '') => el('div', { class: 'card' }, el('b', { class: tone }, value), el('span', {}, label))

export const panel = (title, ...content) => el('section', { class: 'panel' }, title ? el('h2', {}, title) : null, ...content)

// columns: [label, cell of a row, class]; a cell is text or a node.
export function table(columns, rows, empty) {
  if (!rows.length) return el('p', { class: 'quiet' }, empty)
  return el('table', { class: 'fold' },
    el('thead', {}, el('tr', {}, columns.map(([label, , kind]) => el('th', { class: kind }, label)))),
    el('tbody', {}, rows.map((row) => el('tr', {}, columns.map(
      ([label, cell, kind]) => el('td', { class: kind, 'data-label': label }, cell(row)))))))
}

const SVG = 'http://www.w3.org/2000/svg'

// lines: arrays of [time, value]; all share one scale from 0 to the greatest value.
export function chart(lines, kind = 'chart') {
  const [width, height] = [600, 100]
  const picture = document.createElementNS(SVG, 'svg')
  picture.setAttribute('class', kind)
  picture.setAttribute('viewBox', `0 -4 ${width} ${height + 8}`)
  picture.setAttribute('preserveAspectRatio', 'none')
  const all = lines.flat()
  const top = Math.max(1, ...all.map((point) => point[1]))
  const first = Math.min(...all.map((point) => point[0]))
  const last = Math.max(...all.map((point) => point[0]))
  lines.forEach((points, index) => {
    const line = document.createElementNS(SVG, 'polyline')
    if (index) line.setAttribute('class', 'second')
    line.setAttribute('points', points.map(([time, value]) => {
      const x = last > first ? ((time - first) / (last - first)) * width : width
      return `${x.toFixed(1)},${(height - (value / top) * height).toFixed(1)}`
    }).join(' '))
    picture.append(line)
  })
  return picture
}

export function decoded(data) {
  if (data === null) return el('span', { class: 'quiet' }, 'null')
  const cut = data.text.length < data.bytes && data.kind === 'text' ? ` (${bytes(data.bytes)})` : ''
  return el('div', {}, data.kind === 'text' ? null : el('span', { class: 'kind' }, data.kind), el('pre', {}, data.text + cut))
}
