// ACLs and users.

import { TokenNeeded, act, ask } from './api.js'
import { deletion, dialog } from './forms.js'
import { button, el, heading, notes, number, pager, panel, search, table, tone } from './views.js'

function aclForm(words) {
  dialog('Add an ACL', [
    { name: 'principal', label: 'Principal', value: 'User:', required: true },
    { name: 'permission', label: 'Permission', type: 'select', options: ['ALLOW', 'DENY'] },
    { name: 'operation', label: 'Operation', type: 'select', options: words.operations, value: 'READ' },
    { name: 'resource', label: 'On', type: 'select', options: words.resources },
    { name: 'name', label: 'Name', required: true, hint: '* for all; kafka-cluster for the cluster' },
    { name: 'pattern', label: 'Names', type: 'select', options: [['LITERAL', 'this name'], ['PREFIXED', 'names that begin so']] },
    { name: 'host', label: 'From address', value: '*', required: true },
  ], 'Add', (given) => act('acl/create', given))
}

function removeAcl(row) {
  dialog('Remove an ACL', [], 'Remove', () => act('acl/delete', row), {
    danger: true,
    intro: el('div', {}, el('p', {}, `${row.permission} ${row.principal} ${row.operation} on ${row.resource} ${row.name} (${row.pattern}) from ${row.host}`),
      el('p', { class: 'warn' }, row.permission === 'DENY' ? 'This is no longer denied: what other ACLs allow holds at once.' : `${row.principal === 'User:*' ? 'Everybody' : row.principal} is refused this at once, unless another ACL allows it, super.users or allow.everyone.if.no.acl.found.`)),
  })
}

function userForm(words, name = '') {
  dialog(name ? `New password of ${name}` : 'Add a user', [
    { name: 'user', label: 'User', value: name, required: true },
    { name: 'mechanism', label: 'Mechanism', type: 'select', options: words.mechanisms, value: 'SCRAM-SHA-512' },
    { name: 'password', label: 'Password', type: 'password', required: true, hint: '8 characters or more; brokers do not store it' },
  ], 'Save', (given) => act('user/set', given))
}

const everyName = (row) => row.name === '*' && row.pattern === 'LITERAL'
const names = (row) => (everyName(row) ? '* (every name)' : row.pattern === 'PREFIXED' ? `${row.name} (names that begin so)` : row.name)
const columns = [
  ['principal', (row) => (row.principal === 'User:*' ? 'User:* (everybody)' : row.principal), 'long'],
  ['permission', (row) => tone(row.permission === 'ALLOW' ? 'good' : 'bad', row.permission)],
  ['operation', (row) => row.operation], ['on', (row) => row.resource],
  ['name', names, 'long'], ['from', (row) => (row.host === '*' ? '* (anywhere)' : row.host), 'text address'],
]

// What is decided without an ACL.
function rules(found, isOfOne = false) {
  if (found.no_acls) return null
  const users = found.super_users
  return el('p', { class: 'quiet' },
    users === null ? 'Super users (super.users) are allowed everything, whatever the ACLs; to show who they are and what holds without an ACL, the console needs an ACL for DESCRIBE_CONFIGS on the cluster. '
      : users.length ? ['Super users (super.users) are allowed everything, whatever the ACLs: ', el('b', {}, users.join(', ')), '. '] : 'There are no super users (super.users). ',
    found.everyone === null ? null : found.everyone && isOfOne && found.acls.length ? 'Here ACLs apply, so that only what they allow holds (allow.everyone.if.no.acl.found=true is for names without). ' : found.everyone ? el('span', { class: 'warn' }, 'Where no ACL applies to a name, everybody is allowed (allow.everyone.if.no.acl.found=true). ') : 'Others are allowed what an ACL allows. ',
    'A DENY wins over every ALLOW. READ, WRITE, DELETE and ALTER include DESCRIBE.')
}

// Who may use a topic or a group: every ACL that applies to its name, also by a prefix or to all.
export async function access(resource, name) {
  const title = `Who may use this ${resource.toLowerCase()}`
  let found
  try {
    found = await ask('access', { resource, name })
  } catch (error) {
    if (error instanceof TokenNeeded) throw error
    return panel(title, el('p', { class: 'quiet' }, `Not shown now: ${error.message}`))
  }
  const none = found.everyone ? 'No ACL applies to it: everybody is allowed everything with it.' : 'No ACL applies to it: only super users are allowed anything with it.'
  return panel(title, notes(found.problems), rules(found, true), () => table(columns.filter(([label]) => label !== 'on'), found.acls, found.no_acls || none, 'Access'),
    found.total > found.acls.length ? el('p', { class: 'quiet' }, `${number(found.total - found.acls.length)} more are on the page Security.`) : null)
}

export async function security(context) {
  const found = await ask('security', { search: context.query.search ?? '', first: context.query.first ?? 0 })
  const may = found.may_alter
  const searched = context.query.search
  return [
    heading([], 'Security', search(context, 'find a principal or a name')), notes(found.problems),
    panel(null, el('div', { class: 'heading' }, el('h2', {}, 'Access control lists'), may && !found.no_acls ? button('add-acl', 'Add ACL', () => aclForm(found.words), 'main') : null),
      rules(found), searched && !found.no_acls ? el('p', { class: 'quiet' }, `ACLs with "${searched}", and those that apply to it by a prefix or to every name.`) : null,
      table([
        ...columns,
        ['', (row) => (may ? button(`remove-${Object.values(row).join('-')}`, 'remove', () => removeAcl(row), 'small') : '')],
      ], found.acls, found.no_acls || (searched ? `No ACL has "${searched}" or applies to it.` : 'No ACLs.'), 'ACLs'), found.no_acls ? null : pager(context, found)),
    panel(null, el('div', { class: 'heading' }, el('h2', {}, 'SCRAM users'), may ? button('add-user', 'Add user', () => userForm(found.words), 'main') : null),
      table([
        ['user', (row) => row.user, 'long'], ['mechanisms', (row) => row.mechanisms.map((each) => el('div', { class: 'whole' }, each))],
        ['', (row) => (may ? [button(`password-${row.user}`, 'password', () => userForm(found.words, row.user), 'small'), ' ',
          ...row.mechanisms.map((mechanism) => button(`remove-${row.user}-${mechanism}`, `remove ${mechanism}`, () => deletion('user', row.user, 'user', 'user/delete', `${row.user} cannot log in with ${mechanism} any more.`, { mechanism }), 'small'))] : '')],
      ], found.users, found.no_users || 'No users.', 'Users')),
  ]
}
