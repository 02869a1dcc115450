// Dialogs in which something is changed. Escape closes them; the browser gives the focus back.

import { NoResponse, TokenNeeded, act, setToken } from './api.js'
import { advice, el, span } from './views.js'

let onDone = () => {}

export function whenDone(call) { onDone = call }

export function say(text) {
  const place = document.getElementById('done')
  place.textContent = text
  place.classList.add('shown')
  setTimeout(() => { if (place.textContent === text) place.classList.remove('shown') }, Math.max(6000, text.length * 80))
}

function control(field, index) {
  const shared = { name: field.name, id: `field-${field.name}`, 'aria-describedby': field.hint ? `hint-${field.name}` : null, required: field.required ? '' : null, autocomplete: 'off', autocapitalize: 'off', autocorrect: 'off', autofocus: index === 0 ? '' : null }
  if (field.type === 'select') {
    return el('select', shared, field.options.map((each) => {
      const [value, text] = Array.isArray(each) ? each : [each, each]
      return el('option', { value, selected: String(value) === String(field.value) ? '' : null }, text)
    }))
  }
  if (field.type === 'area') {
    const area = el('textarea', { ...shared, rows: field.rows ?? 4, spellcheck: 'false' })
    area.value = field.value ?? ''
    return area
  }
  return el('input', { ...shared, type: field.type ?? 'text', value: field.value ?? '', placeholder: field.example ?? null, min: field.min ?? null, max: field.max ?? null, step: field.type === 'datetime-local' ? 1 : null, spellcheck: 'false' })
}

// fields: { name, label, type, value, options, hint, required }. `send` gets the values by name and
// returns what the broker said, or null to leave the dialog open.
export function dialog(title, fields, submit, send, { danger = false, intro = null } = {}) {
  const error = el('p', { class: 'error', role: 'alert' })
  const go = el('button', { class: danger ? 'danger' : 'main', id: 'submit' }, submit)
  const body = el('div', { class: 'fields' }, fields.map((field, index) => el('label', { class: 'field', for: `field-${field.name}` },
    el('span', {}, field.label), control(field, index), field.hint ? el('small', { id: `hint-${field.name}` }, field.hint) : null)))
  const token = el('input', { type: 'password', id: 'dialog-token', autocomplete: 'off' })
  const needed = el('label', { class: 'field', for: 'dialog-token', hidden: true }, el('span', {}, 'Token'), token)
  const form = el('form', { method: 'dialog', onsubmit: async (event) => {
    event.preventDefault()
    error.textContent = ''
    go.disabled = true
    try {
      if (token.value) setToken(token.value)
      const values = Object.fromEntries(new FormData(form))
      const found = await send(values, box)
      if (found) {
        box.close()
        say(found.done)
        onDone(found)
      }
    } catch (failure) {
      // What was typed stays, and is sent again with the token.
      if (failure instanceof TokenNeeded) needed.hidden = false
      const text = failure instanceof TokenNeeded ? `${failure.isRefused ? 'The broker refuses the token of this page' : 'The console needs its token'} (ottla.console.token): enter it here, then choose "${submit}" again.` : failure instanceof NoResponse ? `${failure.message} The change may have been made: look before you repeat it.` : failure.message
      error.replaceChildren(advice(text))
      // On a phone it may be above what is seen.
      error.scrollIntoView({ block: 'nearest' })
    } finally {
      go.disabled = false
    }
  } }, el('h2', { id: 'dialog-title' }, title), intro, body, error, needed,
  el('div', { class: 'tools end' }, el('button', { type: 'button', id: 'cancel', onclick: () => box.close() }, 'Cancel'), go))
  const box = el('dialog', { 'aria-labelledby': 'dialog-title', onclose: () => box.remove() }, form)
  document.body.append(box)
  box.showModal()
  // The browser scrolls to what it gives the focus: the buttons of a long text.
  box.scrollTop = 0
  return box
}

// What is deleted is typed by hand; of a long name the beginning.
const TYPED = 20

export function deletion(what, name, parameter, action, warning, more = {}) {
  const typed = name.slice(0, TYPED)
  const label = typed === name ? `Type ${name} to confirm` : `Type the first ${TYPED} characters of its name to confirm: ${typed}`
  dialog(`Delete ${what}`, [{ name: 'confirm', label, required: true }], `Delete ${what}`,
    ({ confirm }) => {
      if (confirm !== typed) throw new Error(`The name does not match: type ${typed}.`)
      return act(action, { [parameter]: name, confirm: name, ...more })
    },
    { danger: true, intro: el('div', {}, typed === name ? null : el('p', { class: 'name' }, name), warning instanceof Node ? warning : el('p', {}, warning)) })
}

// In place of a secret.
const HIDDEN = '(hidden)'

const lasting = ({ name, value }) => (name.endsWith('.ms') && Number(value) >= 1000 && Number(value) < 1e15 ? ` (${span(Number(value))})` : '')

// The form of one setting; an empty field and "Use the default" removes it.
export function settingForm(row, where, send) {
  dialog(`Change ${row.name}`, [
    { name: 'value', label: 'Value', value: row.value ?? '', hint: `${where}; it is ${row.value ?? 'null'}${lasting(row)} now, from: ${row.source}` },
    { name: 'how', label: 'What to do', type: 'select', options: [['set', 'Set this value'], ['remove', 'Remove it; the default applies then']], value: 'set' },
  ], 'Change', async ({ value, how }) => {
    const found = await send(how === 'set' ? value : null)
    const isShown = how === 'set' && row.value !== HIDDEN
    return isShown ? { done: `${found.done} It is ${value.slice(0, 100)}${lasting({ name: row.name, value })} now.` } : found
  })
}
