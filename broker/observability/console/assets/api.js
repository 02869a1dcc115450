// Requests to the broker that serves this page.

export class TokenNeeded extends Error {}

// The token comes behind the # of the address (#token=...), which no server and no log sees, or is
// typed in. It is kept for this tab.
export function keepToken() {
  const given = location.hash.match(/^#token=(.+)$/)
  if (!given) return
  sessionStorage.setItem('token', decodeURIComponent(given[1]))
  history.replaceState(null, '', location.pathname)
}

export const setToken = (token) => sessionStorage.setItem('token', token)

async function send(path, options) {
  const token = sessionStorage.getItem('token')
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) }
  const response = await fetch(path, { ...options, headers })
  if (response.status === 401) throw new TokenNeeded('this console needs its token')
  const found = await response.json().catch(() => ({ error: `HTTP ${response.status}` }))
  if (!response.ok) throw new Error(found.error)
  return found
}

export const ask = (name, parameters = {}) => send(`/api/${name}?${new URLSearchParams(parameters)}`, {})

// A change: with the header the broker knows that no page of another site sent it.
export const act = (name, body) => send(`/api/${name}`, {
  method: 'POST', body: JSON.stringify(body),
  headers: { 'Content-Type': 'application/json', 'X-Ottla-Console': '1' },
})
