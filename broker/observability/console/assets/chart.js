// Lines over time with axes, in the size that they have on the screen.

import { bytes, el, short } from './views.js'

const SVG = 'http://www.w3.org/2000/svg'
const LEFT = 58
const BOTTOM = 22
const TOP = 8
const RIGHT = 10
const HEIGHT = 170

function svg(name, attributes, text) {
  const made = document.createElementNS(SVG, name)
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value)
  if (text !== undefined) made.textContent = text
  return made
}

// At most five steps of a round number, from 0 to a little more than the greatest value.
function steps(top, base, least = base === 2 ? 4 : 1) {
  const rough = Math.max(top, least) / 4
  if (base === 2) {
    const step = 2 ** Math.ceil(Math.log2(rough))
    return Array.from({ length: Math.ceil(Math.max(top, 1) / step) + 1 }, (_, index) => index * step)
  }
  const power = 10 ** Math.floor(Math.log10(rough))
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough)
  return Array.from({ length: Math.ceil(Math.max(top, 1e-9) / step) + 1 }, (_, index) => index * step)
}

const clock = (ms, exact) => new Date(ms).toLocaleTimeString('sv', exact ? {} : { hour: '2-digit', minute: '2-digit' })

export const UNITS = {
  bytes: { base: 2, text: (value) => `${bytes(value)}/s`, axis: 'bytes/s' },
  records: { base: 10, text: (value) => `${short(value)}/s`, axis: 'records/s' },
  requests: { base: 10, text: (value) => `${short(value)}/s`, axis: 'requests/s' },
  // A few an hour are of interest, too.
  errors: { base: 10, text: (value) => `${value < 1 ? Number(value.toPrecision(2)) : short(value)}/s`, axis: 'errors/s' },
  lag: { base: 10, least: 4, text: (value) => short(value), axis: 'records' },
}

// The points between those whose value is not known.
function pieces(points) {
  const found = [[]]
  for (const point of points) {
    if (point[1] === null) found.push([])
    else found.at(-1).push(point)
  }
  return found.filter((piece) => piece.length)
}

// A single point is a line without length, which round ends make a dot.
const linePoints = (piece, place) => (piece.length > 1 ? piece : [piece[0], piece[0]]).map(place).join(' ')

// series: [{ name, points: [[time in ms, value], ...] }]; all share the axes. A gap is where a value is null.
export function chart(series, unit, width) {
  const { base, least, text: known, axis } = UNITS[unit]
  const text = (value) => (value === null ? 'unknown' : known(value))
  const newest = (each) => (each.points.length ? each.points.at(-1)[1] : 0)
  const all = series.flatMap((each) => each.points)
  const latest = series.map((each) => `${each.name} ${text(newest(each))}`)
  const legend = el('p', { class: 'legend' }, series.map((each, index) => el('span', {},
    el('i', { class: index ? 'second' : '' }), `${each.name} `, el('b', {}, text(newest(each))))), el('span', { class: 'quiet' }, axis))
  if (Math.max(0, ...series.map((each) => each.points.length)) < 2) return el('div', { class: 'chart' }, legend, el('p', { class: 'quiet empty' }, 'The chart begins in some seconds, with the second sample.'))
  const ticks = steps(Math.max(...all.map((point) => point[1])), base, least)
  const [first, last] = [Math.min(...all.map((point) => point[0])), Math.max(...all.map((point) => point[0]))]
  const inner = width - LEFT - RIGHT
  const x = (time) => LEFT + (last > first ? (time - first) / (last - first) : 1) * inner
  const y = (value) => TOP + (1 - value / ticks.at(-1)) * (HEIGHT - TOP - BOTTOM)
  const picture = svg('svg', { viewBox: `0 0 ${width} ${HEIGHT}`, role: 'img', 'aria-label': `${latest.join(', ')}; ${axis}, ${clock(first)} to ${clock(last)}` })
  for (const tick of ticks) {
    picture.append(svg('line', { x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick), class: 'grid' }))
    picture.append(svg('text', { x: LEFT - 7, y: y(tick) + 4, class: 'left' }, text(tick)))
  }
  const exact = last - first < 5 * 60000
  const count = Math.max(2, Math.min(6, Math.floor(inner / 95)))
  for (let index = 0; index <= count; index += 1) {
    const time = first + ((last - first) * index) / count
    const place = index === 0 ? 'start' : index === count ? 'end' : 'middle'
    picture.append(svg('line', { x1: x(time), x2: x(time), y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4, class: 'grid' }))
    picture.append(svg('text', { x: x(time), y: HEIGHT - 5, 'text-anchor': place }, clock(time, exact)))
  }
  series.forEach((each, index) => {
    for (const piece of pieces(each.points)) {
      const line = linePoints(piece, ([time, value]) => `${x(time).toFixed(1)},${y(value).toFixed(1)}`)
      if (!index) {
        const floor = y(0).toFixed(1)
        picture.append(svg('polygon', { points: `${x(piece[0][0]).toFixed(1)},${floor} ${line} ${x(piece.at(-1)[0]).toFixed(1)},${floor}` }))
      }
      picture.append(svg('polyline', { points: line, class: index ? 'second' : '' }))
    }
  })
  addPointer(picture, series, { x, width, text, inner, first, last })
  return el('div', { class: 'chart' }, legend, picture)
}

// The values under the mouse.
function addPointer(picture, series, scale) {
  const line = svg('line', { y1: TOP, y2: HEIGHT - BOTTOM, class: 'pointer', visibility: 'hidden' })
  const label = svg('text', { y: TOP + 10, class: 'pointed', visibility: 'hidden' })
  picture.append(line, label)
  picture.addEventListener('pointermove', (event) => {
    const box = picture.getBoundingClientRect()
    const place = ((event.clientX - box.left) / box.width) * scale.width
    const time = scale.first + ((place - LEFT) / scale.inner) * (scale.last - scale.first)
    const nearest = series.filter((each) => each.points.length).map((each) => [each.name, each.points.reduce(
      (best, point) => (Math.abs(point[0] - time) < Math.abs(best[0] - time) ? point : best))])
    if (!nearest.length) return
    const at = scale.x(nearest[0][1][0])
    line.setAttribute('x1', at)
    line.setAttribute('x2', at)
    const isRight = at > scale.width / 2
    label.setAttribute('x', at + (isRight ? -6 : 6))
    label.setAttribute('text-anchor', isRight ? 'end' : 'start')
    label.textContent = `${clock(nearest[0][1][0], true)}  ${nearest.map(([name, point]) => `${name} ${scale.text(point[1])}`).join('  ')}`
    line.setAttribute('visibility', 'visible')
    label.setAttribute('visibility', 'visible')
  })
  picture.addEventListener('pointerleave', () => {
    line.setAttribute('visibility', 'hidden')
    label.setAttribute('visibility', 'hidden')
  })
}

// A line in a row of a table, without axes.
export function spark(points) {
  if (points.length < 2) return ''
  const [width, height] = [110, 24]
  const [first, last] = [points[0][0], points.at(-1)[0]]
  const top = Math.max(1, ...points.map((point) => point[1]))  // null counts as 0
  const picture = svg('svg', { class: 'spark', viewBox: `0 -2 ${width} ${height + 4}`, role: 'img', 'aria-label': `at most ${short(top)}` })
  for (const piece of pieces(points)) {
    picture.append(svg('polyline', {
      points: linePoints(piece, ([time, value]) => `${(last > first ? ((time - first) / (last - first)) * width : width).toFixed(1)},${(height - (value / top) * height).toFixed(1)}`),
    }))
  }
  return picture
}
