// Requests to the broker that serves this page.

// There is no token, or the broker refused the one that was sent.
export class TokenNeeded extends Error {
  constructor(isRefused) {
    super('This console needs its token.')
    this.isRefused = isRefused
  }
}

// The broker that serves this page is not reached, or does not respond in time.
export class NoResponse extends Error {
  // Then other brokers are not reached either.
  isOffline = navigator.onLine === false
}

// The broker could not serve a request that was right: another try may succeed.
export class Unavailable extends Error {}

// What the address names is not there: a topic, a partition, a group, a broker, a page.
export class NotFound extends Error {}

// A page that takes the broker longer ends with an error there.
const DEADLINE_MS = 15000

// The token comes behind the # of the address (#token=...), which no server and no log sees, or is
// typed in. It is kept for this tab.
export function keepToken() {
  const given = location.hash.match(/^#token=(.+)$/)
  if (!given) return
  setToken(decodeURIComponent(given[1]))
  history.replaceState(null, '', location.pathname)
}

// A token that was copied often has blanks around it.
export const setToken = (token) => sessionStorage.setItem('token', token.trim())

async function request(path, options) {
  const token = sessionStorage.getItem('token')
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) }
  const signal = AbortSignal.timeout(DEADLINE_MS)
  let response
  let body
  try {
    response = await fetch(path, { ...options, headers, signal })
    body = await response.text()
  } catch {
    throw new NoResponse(navigator.onLine === false ? 'This device is offline.' : signal.aborted ? `The broker did not respond in ${DEADLINE_MS / 1000} s.` : 'The broker does not respond.')
  }
  if (response.status === 401) {
    // Not sent again: each wrong one is a line in the security log. A newer one is kept.
    if (sessionStorage.getItem('token') === token) sessionStorage.removeItem('token')
    throw new TokenNeeded(Boolean(token))
  }
  if (response.ok) return body
  let text
  try { text = JSON.parse(body).error } catch { text = `HTTP ${response.status}: ${body.slice(0, 200)}` }
  if (response.status === 404) throw new NotFound(text)
  throw response.status >= 500 || response.status === 429 ? new Unavailable(text) : new Error(text)
}

const send = async (path, options) => JSON.parse(await request(path, options))

export const ask = (name, parameters = {}) => send(`/api/${name}?${new URLSearchParams(parameters)}`, {})

// The same as text, of any type.
export const load = (name, parameters) => request(`/api/${name}?${new URLSearchParams(parameters)}`, {})

// For a page that is left: nobody waits for a response.
export const tell = (name, parameters) => send(`/api/${name}?${new URLSearchParams(parameters)}`, { keepalive: true }).catch(() => {})

// A change: with the header the broker knows that no page of another site sent it.
export const act = (name, body) => send(`/api/${name}`, {
  method: 'POST', body: JSON.stringify(body),
  headers: { 'Content-Type': 'application/json', 'X-Ottla-Console': '1' },
})
